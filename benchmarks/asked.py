"""What was asked of this package, what was aimed at, and what is measured: a line each, whether it is met or not."""

from typing import Any


def line(what: str, unit: str, measured: float | None, asked: float, aim: float | None, least: bool = False) -> Any:
    """Numbers stay numbers, for whoever reads the JSON; None: not known, or nothing is aimed at.

    Args:
        least: `asked` and `aim` are the least that will do; else the most.
    """

    def verdict(limit: float | None) -> str:
        if limit is None:
            return "-"
        if measured is None:
            return "not known"
        return "met" if (measured >= limit if least else measured <= limit) else "MISSED"

    bound = f"{unit}, at {'least' if least else 'most'}".lstrip(", ")
    return {
        "what": what,
        "unit": bound,
        "measured": measured,
        "asked": asked,
        "aim": aim,
        "asked is": verdict(asked),
        "aim is": verdict(aim),
    }
