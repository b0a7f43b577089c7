"""An exported network (ONNX), run without torch: NumPy makes spectra and steering, onnxruntime the rest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc import windows
from qkgcc.card import KEY, Card
from qkgcc.errors import InputError
from qkgcc.simulate.draws import normal, stream
from qkgcc.steering import steering_matrix

if TYPE_CHECKING:
    import onnxruntime

DIGEST_KEY = "qkgcc-sha256"
"""The metadata key of the SHA-256 of the file as it is with `NO_DIGEST` in the digest's place."""
NO_DIGEST = 64 * "0"
PROBE_KEY = "qkgcc-probe"
"""The metadata key of the logits of a probe frame, JSON: numbers that only these weights give."""
PROBE_TOLERANCE = 1e-3
"""Of the largest logit: more than processors differ, less than damage makes."""
DELAYS_KEY = "delays"
"""The metadata key of a standalone file's delays in seconds, JSON."""
_BATCH = 16  # frames whose spectra are made at once


def probe_frames(count: int, frame: int) -> npt.NDArray[np.float32]:
    """Noise that channel 1 hears 5 samples later, the same on every machine. Shape: (count, 2, frame)"""
    noise = normal(stream("probe", 0), np.arange(count * (frame + 5), dtype=np.int64)).reshape(count, frame + 5)
    return np.stack([noise[:, :-5], noise[:, 5:]], axis=1)


def _check_digest(path: Path, stated: str | None) -> None:
    """Every byte of the file must be as it was written. A file without a digest was rewritten by some other tool."""
    if stated is None:
        return
    content = path.read_bytes().replace(stated.encode(), NO_DIGEST.encode())
    if hashlib.sha256(content).hexdigest() != stated:
        raise InputError(f"{path} is damaged: its checksum is another, get the file again")


@dataclass(frozen=True)
class SteeredSizes:
    """What of a steered network's options, and of their defaults, shapes what it is given."""

    window: int = 0
    pool: int = 1
    step: float = 1.0
    delay_kernel: int = 7
    logit_kernel: int = 5

    @classmethod
    def of(cls, card: Card) -> SteeredSizes:
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in card.options.items() if name in known})

    @property
    def spare(self) -> int:
        """Lags that the convolutions along the delays use up at each end."""
        return 2 * (self.delay_kernel // 2) + self.logit_kernel // 2

    def rows(self, card: Card) -> int:
        """Rows of evidence."""
        return -(-(card.dft // 2 + 1) // self.pool)

    def terms(self, card: Card, usable: int | None = None, frame: int | None = None) -> int:
        """Bins of all windows of a frame; `usable`: those of one window that are not masked."""
        count = windows.count(frame or card.frame, self.window) if self.window else 1
        return count * (card.dft // 2 + 1 if usable is None else usable)


def load(path: Path, *, threads: int = 0) -> OnnxModel | StandaloneModel:
    """A network in either form.

    Args:
        threads: frames at a time; 0: as many as there are cores.
    """
    session = _session(path)
    standalone = "frames" in {one.name for one in session.get_inputs()}
    return (StandaloneModel if standalone else OnnxModel)(path, threads=threads, session=session)


def _session(path: Path) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # what matters comes as an exception
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class of their own
        raise InputError(f"{path} is no ONNX file, or is damaged or cut short ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _card(path: Path, metadata: dict[str, str], architectures: tuple[str, ...]) -> Card:
    if KEY not in metadata:
        raise InputError(f"{path} holds a network but no card (metadata {KEY!r}); only qkgcc's own exports have one")
    try:
        card = Card.from_json(metadata[KEY])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if card.architecture not in architectures:
        raise InputError(f"{path} holds a {card.architecture}; only steered networks are run from ONNX")
    return card


class OnnxModel:
    """A steered network: logits of any evenly spaced delays, and the weight that it gives to each frequency."""

    any_delay = True
    any_frame = True

    def __init__(self, path: Path, *, threads: int = 0, session: onnxruntime.InferenceSession | None = None) -> None:
        """Args:
        threads: frames at a time; 0: as many as there are cores.
        session: of the file, where there is one.

        A frame is run alone and by one thread: several frames at once, or several threads for one, would round it
        by what stands beside it. So it has the same answer to the bit in a recording, in a stream and on any number of
        cores.
        """
        import onnxruntime

        self._threads = threads
        self.session = session or _session(path)
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.card = _card(path, metadata, ("steered",))
        self._sizes = SteeredSizes.of(self.card)
        self._run = onnxruntime.RunOptions()
        self._run.only_execute_path_to_fetches = True
        _check_digest(path, metadata.get(DIGEST_KEY))
        self._check_sizes(path)
        self._check_probe(path, metadata.get(PROBE_KEY))

    def _check_sizes(self, path: Path) -> None:
        """The graph must be the one that its card describes."""
        bins = self.card.dft // 2 + 1
        one = [] if self._sizes.window else [1]
        expected = {"spectra": [*one, 2, 2, bins], "bins": [bins], "steering": [2 * self._sizes.rows(self.card)]}
        found = {one.name: [n for n in one.shape if isinstance(n, int)] for one in self.session.get_inputs()}
        steps = np.diff(self.card.delays)
        if found != expected or (len(steps) and not np.allclose(steps, self.step)):
            raise InputError(f"{path}: the network is not the one that its card describes; another version of qkgcc?")

    def _check_probe(self, path: Path, remembered: str | None) -> None:
        """What the network said of a known frame when it was exported, it must say now."""
        if remembered is None:
            return
        expected = np.array(json.loads(remembered))
        found = self.logits(probe_frames(1, self.card.frame), None, np.asarray(self.card.delays, dtype=np.float64))[0]
        if not np.allclose(found, expected, atol=PROBE_TOLERANCE * np.abs(expected).max()):
            raise InputError(f"{path}: the weights are damaged, a known frame gets another answer: get the file again")

    @property
    def step(self) -> float:
        """Samples between candidate delays."""
        return float(self._sizes.step)

    def logits(
        self,
        frames: npt.NDArray[np.float32],
        bins: npt.NDArray[np.bool_] | None,
        delays: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.float32]:
        """Shape: (batch, 2, n), (bins,), (L,) -> (batch, L); n up to the DFT's length, any where it is cut"""
        return self._batches("logits", frames, bins, (delays[0] + delays[-1]) / 2, len(delays))

    def reliability(
        self, frames: npt.NDArray[np.float32], bins: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.float32]:
        """Size of the weighted evidence of each frequency. Shape: (batch, 2, n), (bins,) -> (batch, rows)"""
        return self._batches("reliability", frames, bins, 0.0, 1)

    def _batches(
        self,
        output: str,
        frames: npt.NDArray[np.float32],
        bins: npt.NDArray[np.bool_] | None,
        center: float,
        count: int,
    ) -> npt.NDArray[np.float32]:
        card = self.card
        mask = np.ones(card.dft // 2 + 1, dtype=np.float32) if bins is None else bins.astype(np.float32)
        sizes, window = self._sizes, self._sizes.window
        terms = sizes.terms(card, int(mask.sum()), frames.shape[-1])
        steering = steering_matrix(card.dft, sizes.pool, center, self.step, count + 2 * sizes.spare, terms)

        def run(spectra: npt.NDArray[np.float32]) -> Any:
            inputs = {"spectra": spectra[None], "bins": mask, "steering": steering}
            return self.session.run([output], inputs, self._run)[0]

        every: list[npt.NDArray[np.float32]] = []
        for first in range(0, len(frames), _BATCH):
            part = frames[first : first + _BATCH].astype(np.float32, copy=False)
            part = windows.cut(part, window) if window else part[:, :, None]  # (batch, 2, windows, n)
            spectra = scipy.fft.rfft(part.swapaxes(1, 2), n=card.dft)
            every += list(np.stack([spectra.real, spectra.imag], axis=3))
        return _frame_by_frame(run, every, self._threads, card)


def _frame_by_frame(
    run: Callable[[npt.NDArray[np.float32]], Any], frames: list[npt.NDArray[np.float32]], threads: int, card: Card
) -> npt.NDArray[np.float32]:
    def guarded(frame: npt.NDArray[np.float32]) -> Any:
        try:
            return run(frame)
        except Exception as error:  # onnxruntime's errors have no common class of their own
            raise InputError(f"{card.name} could not be run, its file is damaged ({_reason(error)})") from None

    threads = min(threads or os.cpu_count() or 1, len(frames))
    if threads <= 1:
        return np.concatenate([guarded(frame) for frame in frames])
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(guarded, frames)))


class StandaloneModel:
    """A file for other programs (`qkgcc.models.standalone`), used here: frames of one length, and the whole band."""

    any_frame = False

    def __init__(self, path: Path, *, threads: int = 0, session: onnxruntime.InferenceSession | None = None) -> None:
        """See `OnnxModel`."""
        self._threads = threads
        self.session = session or _session(path)
        metadata = self.session.get_modelmeta().custom_metadata_map
        card = _card(path, metadata, ("steered", "qkgcc"))
        _check_digest(path, metadata.get(DIGEST_KEY))
        inputs = {one.name: one.shape for one in self.session.get_inputs()}
        self.any_delay = "delays" in inputs
        (output,) = self.session.get_outputs()
        try:
            seconds = np.array(json.loads(metadata[DELAYS_KEY]), dtype=np.float64)
            self.card = dataclasses.replace(card, delays=np.round(seconds * card.sample_rate, 6).tolist())
            fits = inputs["frames"][1:] == [2, card.frame]
        except (KeyError, ValueError):
            fits = False
        if not fits or not (self.any_delay or output.shape[1:] == [len(self.card.delays)]):
            raise InputError(f"{path}: the network is not the one that its card describes; another version of qkgcc?")

    @property
    def step(self) -> float:
        """Samples between candidate delays."""
        return SteeredSizes.of(self.card).step

    def logits(
        self,
        frames: npt.NDArray[np.float32],
        bins: npt.NDArray[np.bool_] | None,
        delays: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.float32]:
        """Shape: (batch, 2, frame), None, (L,) -> (batch, L)"""
        card = self.card
        if bins is not None:
            raise InputError(
                f"this file of {card.name} is a standalone one, which takes recordings of at least {card.sample_rate} "
                "Hz: use the network's name, its checkpoint, or `qkgcc export --form runtime`"
            )
        seconds = (delays / card.sample_rate).astype(np.float32)
        given = {"delays": seconds} if self.any_delay else {}

        def run(frame: npt.NDArray[np.float32]) -> Any:
            one = np.ascontiguousarray(frame[None], dtype=np.float32)
            return self.session.run(["logits"], given | {"frames": one})[0]

        logits = _frame_by_frame(run, list(frames), self._threads, card)
        return logits if self.any_delay else logits[:, np.isin(card.delays, delays)]

    def reliability(
        self, frames: npt.NDArray[np.float32], bins: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.float32]:
        """A standalone file does not tell."""
        raise InputError(
            f"this file of {self.card.name} is a standalone one, which has logits only: use the network's name, its "
            "checkpoint, or `qkgcc export --form runtime`"
        )
