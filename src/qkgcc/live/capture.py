"""Sound as it comes, in blocks: from a sound card, or from a file as if it came from one.

    with SoundCard(channels=4, sample_rate=16000) as source:
        while (blocks := source.take(0.1)) is not None:
            for block in blocks: ...
    if source.fault is not None: ...           # unplugged, say

A thread of PortAudio's, or that of a `Replay`, puts blocks into an `Inbox` and never waits. What does not fit there is
lost, counted, and silence in what is heard: times stay right.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from qkgcc.audio.recording import check_rate, open_audio
from qkgcc.core.errors import InputError, MissingExtraError, quantity
from qkgcc.core.types import Floats32

BLOCK_SECONDS = 0.01
"""Length of a block: an answer waits at most this long after the last sample that it needs."""
MAX_WAITING_SECONDS = 5.0
"""Seconds of sound that an inbox holds."""
GONE_SECONDS = 3.0
"""Seconds without a block after which a sound card is taken to be gone."""


class Block(NamedTuple):
    samples: Floats32
    """(channels, n)"""
    at: float
    """When its last sample was recorded, by `time.monotonic()`."""
    lost: int
    """Samples that were lost before it."""


class Inbox:
    """Blocks between a thread that must not wait and one that takes them.

    Args:
        room: blocks that may wait.
    """

    def __init__(self, room: int) -> None:
        self._blocks: collections.deque[Block] = collections.deque()
        self._changed = threading.Condition()  # held for microseconds: that is no waiting
        self._room, self._lost, self._ended = room, 0, False
        self.full = 0
        """Blocks that found no room."""
        self.overflows = 0
        """Times that the sound card had lost samples; it does not say how many."""

    def put(self, samples: Floats32, at: float, *, wait: bool = False) -> None:
        """Add a block. Where there is no room, wait for it if `wait`, otherwise lose the block."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._ended or len(self._blocks) < self._room)
            if self._ended:
                return
            if len(self._blocks) >= self._room:
                self.full += 1
                self._lost += samples.shape[1]
                return
            self._blocks.append(Block(samples, at, self._lost))
            self._lost = 0
            self._changed.notify_all()

    def end(self) -> None:
        """Accept no more blocks. Those that wait can still be taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self, timeout: float) -> list[Block] | None:
        """All waiting blocks, or the first that comes within `timeout` seconds; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._blocks or self._ended, timeout)
            taken = list(self._blocks)
            self._blocks.clear()
            self._changed.notify_all()
            return None if self._ended and not taken else taken


class Source:
    """What `SoundCard` and `Replay` share: a name, a rate, channels, and an inbox that fills between enter and exit."""

    def __init__(self, name: str, sample_rate: int, channels: int, block: float, speed: float) -> None:
        self.name, self.sample_rate, self.channels, self.speed = name, sample_rate, channels, speed
        self.block = max(1, round(block * sample_rate))
        """Samples."""
        self.inbox = Inbox(round(MAX_WAITING_SECONDS / block))
        self.fault: InputError | None = None
        """Why it ended too early, if it did."""

    @property
    def live(self) -> bool:
        """Whether time goes on while nobody takes blocks. Otherwise nothing is ever lost."""
        return self.speed > 0

    @property
    def overruns(self) -> int:
        return self.inbox.full + self.inbox.overflows

    def take(self, timeout: float) -> list[Block] | None:
        """All waiting blocks, or the first that comes within `timeout` seconds; None at the end."""
        return self.inbox.take(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class SoundCard(Source):
    """A sound card's input, by PortAudio.

    Args:
        device: its number or a part of its name (`devices`); by default the system's own.
        sample_rate: Hz; by default the device's own.
        channels: how many to open, from its first on.
        block: seconds.
    """

    def __init__(
        self,
        device: str | int | None = None,
        *,
        channels: int = 2,
        sample_rate: int | None = None,
        block: float = BLOCK_SECONDS,
    ) -> None:
        self._portaudio = portaudio()
        self._device = int(device) if isinstance(device, str) and device.strip().isdecimal() else device
        found = self._found()
        self._index = int(found["index"])
        most = int(found["max_input_channels"])
        if most < channels:
            raise InputError(
                f"the sound card {found['name']} has {quantity(most, 'input channel')}, and {channels} are needed: "
                "choose another (`qkgcc listen --devices`)"
            )
        rate = check_rate(int(found["default_samplerate"]) if sample_rate is None else sample_rate)
        super().__init__(f"the sound card {found['name']}", rate, channels, block, 1.0)
        self._stream: Any = None
        self._last = 0.0  # when something came

    def start(self) -> None:
        try:
            self._stream = self._portaudio.InputStream(
                samplerate=self.sample_rate,
                blocksize=self.block,
                device=self._index,
                channels=self.channels,
                dtype="float32",
                latency="low",
                callback=self._receive,
                finished_callback=self.inbox.end,
            )
            self._last = time.monotonic()
            self._stream.start()
        except (self._portaudio.PortAudioError, ValueError) as error:
            self.close()
            raise InputError(
                f"{self.name} cannot be opened with {self.channels} channels at {self.sample_rate} Hz "
                f"({_reason(error)}): another program may hold it, or it has other sample rates"
            ) from None

    def take(self, timeout: float) -> list[Block] | None:
        blocks = super().take(timeout)
        if blocks:
            self._last = time.monotonic()
        elif blocks is None or not self._active():
            self._gone("it was unplugged, or another program took it")
            self.inbox.end()
        elif time.monotonic() - self._last > GONE_SECONDS:
            self._gone(f"no sound has come for {GONE_SECONDS:g} s")
            self.inbox.end()
        return blocks

    def close(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            for end in (stream.abort, stream.close):  # `stop` would wait for a device that may be gone
                end(ignore_errors=True)

    def _receive(self, indata: Any, frames: int, times: Any, status: Any) -> None:
        """PortAudio's callback: it only copies, since it must not take long."""
        if status.input_overflow:
            self.inbox.overflows += 1
        # Some drivers do not say when the first sample came, or say nonsense.
        age = times.currentTime - times.inputBufferAdcTime - frames / self.sample_rate
        self.inbox.put(np.array(indata.T, np.float32), time.monotonic() - (age if 0 <= age <= 1 else 0.0))

    def _active(self) -> bool:
        try:
            return self._stream is not None and bool(self._stream.active)
        except self._portaudio.PortAudioError:
            return False

    def _gone(self, why: str) -> None:
        if self.fault is None:
            self.fault = InputError(f"{self.name} has stopped ({why}): plug it in again and start anew")

    def _found(self) -> dict[str, Any]:
        """The device that was asked for."""
        try:
            return dict(self._portaudio.query_devices(self._device, "input"))
        except self._portaudio.PortAudioError:
            if self._device is not None and _inputs(self._portaudio):
                raise InputError(
                    f"there is no sound card {self._device}: `qkgcc listen --devices` lists them"
                ) from None
        except ValueError as error:
            if _inputs(self._portaudio):
                several = str(error).startswith("Multiple")
                what = "several sound cards are" if several else "no sound card is"
                raise InputError(
                    f"{what} called {self._device!r}: give its number, `qkgcc listen --devices` lists them"
                ) from None
        raise InputError(NO_CARD) from None


NO_CARD = (
    "there is no sound card to listen to: plug one in, or replay a recording with `qkgcc listen --from FILE` (sound of "
    "other programs comes in with `qkgcc listen - --raw`)"
)


class Replay(Source):
    """A recording played back as if it were live: in blocks, each when its last sample is due.

    Args:
        speed: 1 is real time; 0 is as fast as blocks are taken, and none is lost.
        block: seconds.
    """

    def __init__(self, path: str | Path, *, speed: float = 1.0, block: float = BLOCK_SECONDS) -> None:
        if not 0 <= speed <= 1000:
            raise InputError(f"the speed is {speed:g}; expected 1 (real time) up to 1000, or 0 (as fast as can be)")
        self._recording = open_audio(path)
        super().__init__(self._recording.name, self._recording.sample_rate, len(self._recording.channels), block, speed)
        self._thread = threading.Thread(target=self._play, name="replay", daemon=True)
        self._stopped = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self.inbox.end()
        if self._thread.is_alive():
            self._thread.join()

    def _play(self) -> None:
        begin, position = time.monotonic(), 0
        try:
            for samples in self._cut():
                position += samples.shape[1]
                now = time.monotonic()
                due = begin + position / self.sample_rate / self.speed if self.live else now
                if self._stopped.wait(max(0.0, due - now)):
                    return
                self.inbox.put(samples, due, wait=not self.live)
        except InputError as error:
            self.fault = error
        finally:
            self.inbox.end()

    def _cut(self) -> Iterator[Floats32]:
        """The recording in blocks of one size, the last perhaps shorter."""
        rest: Floats32 = np.empty((self.channels, 0), np.float32)
        for part in self._recording.blocks():
            rest = np.concatenate([rest, part.astype(np.float32, copy=False)], axis=1)
            whole = rest.shape[1] // self.block * self.block
            for first in range(0, whole, self.block):
                yield rest[:, first : first + self.block]
            rest = rest[:, whole:]
        if rest.shape[1]:
            yield rest


class Device(NamedTuple):
    """An input device."""

    number: int
    name: str
    channels: int
    sample_rate: int
    default: bool


def devices() -> list[Device]:
    """All input devices that PortAudio knows."""
    library = portaudio()
    found = _inputs(library)
    if not found:
        raise InputError(NO_CARD)
    try:
        own = int(library.query_devices(None, "input")["index"])
    except (library.PortAudioError, ValueError):
        own = -1
    return [
        Device(number, str(one["name"]), int(one["max_input_channels"]), int(one["default_samplerate"]), number == own)
        for number, one in found
    ]


def portaudio() -> Any:
    """The module `sounddevice`, with its library."""
    try:
        import sounddevice
    except ImportError:
        raise MissingExtraError(
            "sound cards need sounddevice: pip install 'qkgcc[live]' "
            "(or replay a recording: `qkgcc listen --from FILE`)"
        ) from None
    except OSError as error:
        raise MissingExtraError(
            f"sounddevice does not find its library ({error}): install PortAudio, such as `apt install libportaudio2` "
            "(or replay a recording: `qkgcc listen --from FILE`)"
        ) from None
    return sounddevice


def _inputs(library: Any) -> list[tuple[int, Any]]:
    return [(number, one) for number, one in enumerate(library.query_devices()) if one["max_input_channels"] > 0]


def _reason(error: Exception) -> str:
    return str(error.args[0] if error.args else error).rsplit(": ", 1)[-1].strip().rstrip(".")
