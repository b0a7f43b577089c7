"""An exported network (ONNX), run without torch: NumPy makes spectra and steering, onnxruntime the rest."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
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


class OnnxModel:
    """A steered network: logits of any evenly spaced delays, and the weight that it gives to each frequency."""

    any_delay = True

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        """Args:
        threads: frames at a time; 0: as many as there are cores.

        A frame is run alone and by one thread: several frames at once, or several threads for one, would round it
        by what stands beside it. So it has the same answer to the bit in a recording, in a stream and on any number of
        cores.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # what matters comes as an exception
        options.intra_op_num_threads = 1
        self._threads = threads or os.cpu_count() or 1
        try:
            self.session: onnxruntime.InferenceSession = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no common class of their own
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{path} is no ONNX file, or is damaged or cut short ({reason})") from None
        metadata = self.session.get_modelmeta().custom_metadata_map
        if KEY not in metadata:
            raise InputError(
                f"{path} holds a network but no card (metadata {KEY!r}); only qkgcc's own exports have one"
            )
        try:
            self.card = Card.from_json(metadata[KEY])
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if self.card.architecture != "steered":
            raise InputError(f"{path} holds a {self.card.architecture}; only steered networks are run from ONNX")
        self._options = {"window": 0, "pool": 1, "step": 1.0, "delay_kernel": 7, "logit_kernel": 5} | self.card.options
        self._spare = 2 * (self._options["delay_kernel"] // 2) + self._options["logit_kernel"] // 2
        self._run = onnxruntime.RunOptions()
        self._run.only_execute_path_to_fetches = True
        _check_digest(path, metadata.get(DIGEST_KEY))
        self._check_sizes(path)
        self._check_probe(path, metadata.get(PROBE_KEY))

    def _check_sizes(self, path: Path) -> None:
        """The graph must be the one that its card describes."""
        bins, pool = self.card.dft // 2 + 1, self._options["pool"]
        one = [] if self._options["window"] else [1]
        expected = {"spectra": [*one, 2, 2, bins], "bins": [bins], "steering": [2 * -(-bins // pool)]}
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
        return float(self._options["step"])

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
        window = int(self._options["window"])
        terms = int(mask.sum()) * (windows.count(frames.shape[-1], window) if window else 1)
        steering = steering_matrix(card.dft, self._options["pool"], center, self.step, count + 2 * self._spare, terms)

        def run(spectra: npt.NDArray[np.float32]) -> Any:
            inputs = {"spectra": spectra[None], "bins": mask, "steering": steering}
            try:
                return self.session.run([output], inputs, self._run)[0]
            except Exception as error:  # see above
                reason = str(error).strip().splitlines()[0]
                raise InputError(f"{card.name} could not be run, its file is damaged ({reason})") from None

        every: list[npt.NDArray[np.float32]] = []
        for first in range(0, len(frames), _BATCH):
            part = frames[first : first + _BATCH].astype(np.float32, copy=False)
            part = windows.cut(part, window) if window else part[:, :, None]  # (batch, 2, windows, n)
            spectra = scipy.fft.rfft(part.swapaxes(1, 2), n=card.dft)
            every += list(np.stack([spectra.real, spectra.imag], axis=3))
        if self._threads == 1 or len(every) == 1:
            return np.concatenate([run(one) for one in every])
        with ThreadPoolExecutor(min(self._threads, len(every))) as pool:
            return np.concatenate(list(pool.map(run, every)))
