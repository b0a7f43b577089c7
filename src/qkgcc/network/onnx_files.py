"""Files that `qkgcc export` wrote for other programs, run by onnxruntime as those do: a check of what they will get."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.core.files import check_file
from qkgcc.core.textfiles import parse_json
from qkgcc.network.card import DIGEST_KEY, KEY, Card
from qkgcc.network.steering import check_delays

if TYPE_CHECKING:
    import onnxruntime

ARCHITECTURES = ("steered", "qkgcc")
"""Those that are exported."""
NO_DIGEST = 64 * "0"
"""What stands in the digest's place while the SHA-256 of a file is computed."""
DELAYS_KEY = "delays"
"""The metadata key of a standalone file's delays in seconds, JSON."""


def _check_digest(path: Path, stated: str | None) -> None:
    """Every byte of the file must be as it was written. A file without a digest was rewritten by some other tool."""
    if stated is None:
        return
    content = path.read_bytes().replace(stated.encode(), NO_DIGEST.encode())
    if hashlib.sha256(content).hexdigest() != stated:
        raise InputError(f"{path} is damaged: its checksum is another, get the file again")


def _session(path: Path) -> onnxruntime.InferenceSession:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError(f"{path} needs onnxruntime: pip install 'qkgcc[onnx]'") from None
    check_file(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # what matters comes as an exception
    options.intra_op_num_threads = 1
    try:
        # Without a second attempt, before which it prints to standard output.
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # its errors have no common class of their own
        raise InputError(f"{path} is no ONNX file, or is damaged or cut short ({_reason(error)})") from None


def _metadata(session: onnxruntime.InferenceSession, path: Path) -> dict[str, str]:
    try:
        return dict(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError:
        raise InputError(f"{path} holds metadata that are no text in UTF-8: it is damaged, get it again") from None


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _card(path: Path, metadata: dict[str, str]) -> Card:
    if KEY not in metadata:
        raise InputError(f"{path} holds a network but no card (metadata {KEY!r}); only qkgcc's own exports have one")
    try:
        card = Card.from_json(metadata[KEY])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if card.architecture not in ARCHITECTURES:
        raise InputError(f"{path} holds a {card.architecture}; only QK-GCC is run from ONNX, published or steered")
    return card


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
    """A network as `qkgcc.nets.standalone` writes it: frames of one length, and the whole band."""

    any_frame = False

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        """Args:
        threads: frames at a time; 0: as many as there are cores.

        A frame is run alone and by one thread: several frames at once, or several threads for one, would round it
        by what stands beside it. So it has the same answer to the bit in a recording, in a stream and on any number of
        cores.
        """
        self._threads = threads
        self.session = _session(path)
        metadata = _metadata(self.session, path)
        card = _card(path, metadata)
        _check_digest(path, metadata.get(DIGEST_KEY))
        inputs = {one.name: one.shape for one in self.session.get_inputs()}
        self.any_delay = "delays" in inputs
        try:
            (output,) = self.session.get_outputs()
            seconds = np.array(parse_json(metadata[DELAYS_KEY], "the list of its delays"), dtype=np.float64)
            self.card = dataclasses.replace(card, delays=np.round(seconds * card.sample_rate, 9).tolist())
            self.step = round(float(metadata["step"]) * card.sample_rate, 9)
            fits = inputs["frames"][1:] == [2, card.frame] and 0 < self.step < math.inf
            fits = fits and (self.any_delay or output.shape[1:] == [len(seconds)])
        except (KeyError, ValueError, TypeError, OverflowError):
            fits = False
        if not fits:
            raise InputError(f"{path}: the network is not the one that its card describes; another version of qkgcc?")

    def logits(
        self,
        frames: npt.NDArray[np.float32],
        bins: npt.NDArray[np.bool_] | None,
        delays: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.float32]:
        """NaN for frames that hold a NaN or an infinity. Shape: (batch, 2, frame), None, (L,) -> (batch, L)"""
        card = self.card
        check_delays(delays, self.step)  # the graph would answer for others than were asked
        frozen = np.isin(card.delays, delays)
        if not self.any_delay and frozen.sum() != len(delays):
            raise InputError(
                f"{card.name} was exported for delays from {card.delays[0]:g} to {card.delays[-1]:g} samples, not for "
                f"{delays.tolist()}"
            )
        if bins is not None:
            raise InputError(
                f"{card.name} as an ONNX file takes recordings of at least {card.sample_rate} Hz: use the network's "
                "name or its checkpoint"
            )
        seconds = (delays / card.sample_rate).astype(np.float32)
        given = {"delays": seconds} if self.any_delay else {}

        def run(frame: npt.NDArray[np.float32]) -> Any:
            one = np.ascontiguousarray(frame[None], dtype=np.float32)
            return self.session.run(["logits"], given | {"frames": one})[0]

        logits = _frame_by_frame(run, list(frames), self._threads, card)
        return logits if self.any_delay else logits[:, frozen]

    def reliability(
        self, frames: npt.NDArray[np.float32], bins: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.float32]:
        """The file does not tell."""
        raise InputError(f"{self.card.name} as an ONNX file has logits only: use the network's name or its checkpoint")
