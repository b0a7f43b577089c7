"""Errors whose messages are written for the user."""

import re

_MAX_MESSAGE_LETTERS = 2000  # nobody reads more, and what was given may be a file's worth


def quantity(number: int, noun: str) -> str:
    """
    >>> quantity(1, "sample"), quantity(2, "channel")
    ('1 sample', '2 channels')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def escape(text: str) -> str:
    r"""The text with control characters escaped: a terminal would obey them, and a line would end early.

    >>> print(escape("\x1b[31mred\n.wav"))
    \x1b[31mred\n.wav
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class InputError(ValueError):
    """What the user gave cannot be used. The message says what was given, what was expected and what to do.

    >>> len(str(InputError(f"{list(range(10000))} is too long; expected 3 numbers"))) < 2100
    True
    """

    def __init__(self, message: str) -> None:
        message = escape(message)  # what was given may hold anything
        left_out = len(message) - _MAX_MESSAGE_LETTERS
        if left_out > 0:
            half = _MAX_MESSAGE_LETTERS // 2
            message = f"{message[:half]} [... {left_out} letters left out ...] {message[-half:]}"
        super().__init__(message)


class MissingExtraError(ImportError):
    """An optional dependency is not installed. The message names the extra that brings it."""
