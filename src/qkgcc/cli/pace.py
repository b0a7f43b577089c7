"""How fast recordings are done: seconds of audio against seconds of the clock."""

import time


class Pace:
    """Counts what is done, recording by recording, and what of those in hand."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._done = self._done_of_pairs = 0.0
        self._in_hand: dict[object, tuple[float, int]] = {}

    def proceeds(self, recording: object, seconds: float, pairs: int) -> None:
        """So much of a recording is done, of all its pairs."""
        self._in_hand[recording] = seconds, pairs

    def done(self, recording: object, seconds: float, pairs: int) -> None:
        """A recording is; 0 seconds: it failed."""
        self._in_hand.pop(recording, None)
        self._done += seconds
        self._done_of_pairs += seconds * pairs

    @property
    def hours(self) -> float:
        return (self._done + sum(seconds for seconds, _ in self._in_hand.values())) / 3600

    def __str__(self) -> str:
        elapsed = max(time.monotonic() - self._begun, 1e-6)
        of_pairs = self._done_of_pairs + sum(seconds * pairs for seconds, pairs in self._in_hand.values())
        rate, rate_of_pairs = 3600 * self.hours / elapsed, of_pairs / elapsed
        each = f", {_number(rate_of_pairs)} x for one pair" if rate_of_pairs > 1.01 * rate else ""
        return f"{_number(rate)} x real time{each}"


def _number(rate: float) -> str:
    """
    >>> _number(0.52), _number(118.4)
    ('0.5', '118')
    """
    return f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"
