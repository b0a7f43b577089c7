"""Listening: blocks go from a `capture.Source` to a recording and to an analysis, which must keep up with them.

    blocks -> `Recorder` (all of them) -> `Analysis` (as long as it keeps up) -> display

An analysis that falls behind would answer later and later. When `MAX_BEHIND_SECONDS` wait, all that is silence to it,
and counted as overruns; the recording has it. (All: single blocks left out here and there would spoil every frame.)
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from qkgcc.audio.recording import MAX_SAMPLE
from qkgcc.core.types import Floats, Floats32
from qkgcc.live.capture import Source
from qkgcc.live.recorder import Recorder

MAX_BEHIND_SECONDS = 0.5
"""Seconds of sound that may wait for an analysis before they are left out."""
METER_SECONDS = 0.1
"""Length of sound over which levels are measured."""

_TICK_SECONDS = 0.05  # without a block, after which a view is drawn anyway, and a request to stop is seen
_SILENCE_SECONDS = 1.0  # that are made at once


class Answer(Protocol):
    """What an analysis returns: the estimates of some frames."""

    @property
    def times(self) -> Floats:
        """(T,) centres in seconds."""


A_co = TypeVar("A_co", bound=Answer, covariant=True)
A = TypeVar("A", bound=Answer)


class Analysis(Protocol[A_co]):
    """From blocks to answers, such as a `DelayStream`."""

    @property
    def frame(self) -> float:
        """Length of a frame in seconds."""

    @property
    def latency(self) -> float:
        """Seconds from the last sample of a frame to its estimate, at most, without the length of a block."""

    @property
    def notices(self) -> Mapping[str, str]:
        """Warnings until now: a sentence for each topic, of which each is shown once."""

    def push(self, block: Floats32) -> A_co:
        """The estimates of the frames that this block completes, perhaps none. Shape: (picked channels, n)"""

    def flush(self) -> A_co:
        """The estimates of the remaining frames, at the end."""


class Session(Generic[A]):
    """One run of listening, and its state at any moment.

    Args:
        channels: channels of the source that go to the analysis.
        record: file to which all channels of the source are recorded.
        seconds: length of sound after which it ends; by default it ends with the source, or when it is stopped.
    """

    def __init__(
        self,
        source: Source,
        analysis: Analysis[A],
        channels: Sequence[int],
        *,
        record: Path | None = None,
        seconds: float | None = None,
    ) -> None:
        self.source, self.analysis = source, analysis
        self._record = record
        self.recorder: Recorder | None = None
        self.channels = list(channels)
        self._last = None if seconds is None else round(seconds * source.sample_rate)
        self.samples = 0
        """Samples until now, with those that were lost."""
        self.frames = 0
        self.behind = 0
        """Blocks that were left out because the analysis was too slow."""
        self.broken = 0
        """Blocks with NaN or impossible values, which are silence to the analysis."""
        self.latencies: collections.deque[float] = collections.deque(maxlen=1000)
        """Seconds from the last sample of a frame until it was displayed, of the latest frames."""
        recent = max(1, round(METER_SECONDS * source.sample_rate / source.block))
        self._power: collections.deque[Floats] = collections.deque(maxlen=recent)
        self._work: collections.deque[tuple[float, float]] = collections.deque(maxlen=200)
        self._busy = 0.0
        self._warned: set[str] = set()
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._newest: list[float] = []  # when the last samples of the newest frames were heard, until they are shown

    @property
    def seconds(self) -> float:
        """Length of sound until now."""
        return self.samples / self.source.sample_rate

    @property
    def overruns(self) -> int:
        """Lost blocks: by the sound card, on the way, or because the analysis was too slow."""
        return self.source.overruns + self.behind

    @property
    def levels(self) -> Floats:
        """Current RMS of the analysed channels (full scale = 1). Shape: (channels,)"""
        return np.sqrt(np.mean(self._power, axis=0)) if self._power else np.zeros(len(self.channels))

    @property
    def load(self) -> float:
        """Share of the time that the analysis takes, over about two seconds: at 1 it can just keep up."""
        heard = sum(seconds for seconds, _ in self._work)
        return sum(busy for _, busy in self._work) / heard if heard else 0.0

    @property
    def mean_load(self) -> float:
        """The same from the beginning."""
        return self._busy / self.seconds if self.samples else 0.0

    def run(
        self,
        stop: Callable[[], bool],
        show: Callable[[A], object],
        tick: Callable[[], object],
        say: Callable[[str], object],
    ) -> None:
        """Listen until the source ends, its `seconds` are over, or `stop()`; all sound until then is analysed.

        Args:
            show: called with the estimates for each block that completed frames.
            tick: called many times a second, whatever happens; it may draw.
            say: called once with each warning.
        """
        try:
            with self.source:
                if self._record is not None:  # now that there is something to record: an old file is kept until then
                    self.recorder = Recorder(self._record, self.source.sample_rate, self.source.channels)
                while not stop() and self._take():
                    self._answer_next(show)
                    self._warn(say)
                    tick()
            while self._waiting:
                self._answer_next(show)
            self._show(self.analysis.flush(), None, show)
            self._warn(say)
            tick()
        finally:
            if self.recorder is not None:
                self.recorder.close()

    def mark_displayed(self) -> None:
        """Call this when the newest frames have been displayed: it measures the latency."""
        if self.source.live:
            now = time.monotonic()
            self.latencies.extend(now - heard for heard in self._newest)
        self._newest = []

    def _warn(self, say: Callable[[str], object]) -> None:
        found = dict(self.analysis.notices)
        if self.recorder is not None and self.recorder.fault is not None:
            found["recording"] = f"{self.recorder.fault}; listening goes on without it"
        if self.source.overruns:
            found["lost"] = f"sound is lost after {self.seconds:.1f} s: this machine is too busy to take it all"
        if self.behind:
            found["behind"] = (
                f"answers fell behind after {self.seconds:.1f} s, and some sound is left out: take a faster method "
                "(`qkgcc methods`) or a longer hop"
            )
        if self.broken:
            found["broken"] = (
                f"{self.source.name} gives NaN, or numbers beyond {MAX_SAMPLE:g}, after {self.seconds:.1f} s: silence "
                "is heard there"
            )
        for about, sentence in found.items():
            if about not in self._warned:
                self._warned.add(about)
                say(sentence)

    def _take(self) -> bool:
        """Take and record all blocks that have come. Returns whether there is more to come or to analyse."""
        if self._waiting and not self.source.live:
            return True  # nothing is lost there: one after the other
        blocks = [] if self.samples == self._last else self.source.take(0 if self._waiting else _TICK_SECONDS)
        for block in blocks or ():
            for silence in _pieces(block.lost, round(_SILENCE_SECONDS * self.source.sample_rate)):
                self._hear(np.zeros((self.source.channels, silence), np.float32), None)
            self._hear(block.samples, block.at)
        return bool(self._waiting) or (blocks is not None and self.samples != self._last)

    def _hear(self, samples: Floats32, at: float | None) -> None:
        left = samples.shape[1] if self._last is None else min(samples.shape[1], self._last - self.samples)
        if not left:
            return
        samples = samples[:, :left]
        if self.recorder is not None:
            self.recorder.write(samples)
        self.samples += left
        picked = samples[self.channels]
        if not (np.abs(picked) <= MAX_SAMPLE).all():
            self.broken += 1
            picked = np.zeros_like(picked)
        self._power.append(np.mean(np.square(picked, dtype=np.float64), axis=1))
        self._waiting.append(_Waiting(picked, at, self.seconds))

    def _answer_next(self, show: Callable[[A], object]) -> None:
        """Analyse the oldest waiting block."""
        if not self._waiting:
            return
        if self.source.live and self.seconds - self._waiting[0].end > MAX_BEHIND_SECONDS * self.source.speed:
            self.behind += len(self._waiting)
            count = sum(block.samples.shape[1] for block in self._waiting)
            silence = self._waiting[-1]._replace(samples=np.zeros((len(self.channels), count), np.float32))
            self._waiting = collections.deque([silence])
        block = self._waiting.popleft()
        begin = time.perf_counter()
        answer = self.analysis.push(block.samples)
        busy = time.perf_counter() - begin
        self._busy += busy
        self._work.append((block.samples.shape[1] / self.source.sample_rate, busy))
        self._show(answer, block, show)

    def _show(self, answer: A, block: _Waiting | None, show: Callable[[A], object]) -> None:
        if not len(answer.times):
            return
        self.frames += len(answer.times)
        if block is not None and block.at is not None and self.source.live:
            ends = (float(time) + self.analysis.frame / 2 for time in answer.times)
            self._newest = [block.at - (block.end - end) / self.source.speed for end in ends]
        show(answer)


class _Waiting(NamedTuple):
    """A block that is not analysed yet."""

    samples: Floats32
    """(picked channels, n)"""
    at: float | None
    """See `Block`; None: it was lost."""
    end: float
    """Seconds of sound up to its end."""


def _pieces(count: int, largest: int) -> Iterator[int]:
    for first in range(0, count, largest):
        yield min(largest, count - first)
