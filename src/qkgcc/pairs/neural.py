"""A trained network as a method of the estimator: QK-GCC, published and steered, without torch, others by it.

Published networks know the delays that they were trained on. Steered ones can be asked for any. They are asked for what
the spacing allows and, to notice when the spacing cannot be right, for all others that they were trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from qkgcc.core.checks import check_choice
from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.core.types import Bools, Floats, Floats32, Samples
from qkgcc.dsp.rumble import MAX_RUMBLE_HZ
from qkgcc.network import files
from qkgcc.network.card import ARCHITECTURES, Card
from qkgcc.network.published import PublishedModel
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs import decoding
from qkgcc.pairs.calibration import Curves
from qkgcc.pairs.confidence import NARROW, NARROWEST, TOLERANCE, limit_cap, narrow_band_warning

if TYPE_CHECKING:
    from torch import nn

LOWEST_RATE = 4000
"""Hz; below, a network that knows frequencies up to 8 kHz has too little left of them."""
SLACK = 0.5
"""Samples by which a delay may be larger than the spacing allows before that is more than an inexact measure."""
LEAST_WEIGHT = 1e-3
"""Probability below which a peak is no source."""
_BEYOND = 3  # times the possible delays are looked at, at least
_SAME = 1e-6  # samples
_LONGEST = 8  # times the trained frame: a network that cuts frames into windows could take hours as one


class Model(Protocol):
    """What runs the network."""

    @property
    def card(self) -> Card: ...
    @property
    def any_delay(self) -> bool:
        """Whether it can be asked for delays that it was not trained on."""

    @property
    def any_frame(self) -> bool:
        """Whether it takes frames of other lengths than the trained one."""

    @property
    def step(self) -> float:
        """Samples between candidate delays."""

    def logits(self, frames: Floats32, bins: Bools | None, delays: Floats) -> Floats32:
        """Shape: (batch, 2, n), (bins,), (L,) -> (batch, L)"""

    def reliability(self, frames: Floats32, bins: Bools | None) -> Floats32:
        """How much each frequency counts. Shape: (batch, 2, n), (bins,) -> (batch, bins)"""


class TorchModel:
    """A checkpoint."""

    def __init__(self, network: nn.Module, card: Card, threads: int | None = None) -> None:
        """Args:
        threads: of torch while it is asked; None: as many as it has. They are those of the whole process meanwhile.
        """
        self.card, self._threads = card, threads
        self.any_delay = self.any_frame = card.architecture == "steered"
        if hasattr(network, "folded"):
            setattr(network, "folded", True)  # noqa: B010 - to mypy, every attribute is a module
        self.network = network.eval()

    @property
    def step(self) -> float:
        return float(self.card.options.get("step", 1.0))

    def logits(self, frames: Floats32, bins: Bools | None, delays: Floats) -> Floats32:
        import torch

        network, given = self._sized(frames.shape[-1]), self._inputs(frames, bins)
        with _torch_threads(self._threads), torch.inference_mode():
            if self.any_delay:
                return np.asarray(network(*given, delays=tuple(delays.tolist())))
            return np.asarray(network(*given)[:, torch.from_numpy(np.isin(self.card.delays, delays))])

    def reliability(self, frames: Floats32, bins: Bools | None) -> Floats32:
        with _torch_threads(self._threads):
            return np.asarray(self._sized(frames.shape[-1]).reliability(*self._inputs(frames, bins)))  # type: ignore[operator]

    def _sized(self, frame: int) -> nn.Module:
        """The network for frames of another length than the trained one, where it can take them."""
        if not self.any_frame or frame == self.card.frame:
            return self.network
        sized: nn.Module = self.network.resized(frame=frame, dft=self.card.dft)  # type: ignore[operator]
        return sized

    def _inputs(self, frames: Floats32, bins: Bools | None) -> tuple[Any, Any]:
        import torch

        return torch.from_numpy(np.ascontiguousarray(frames)), None if bins is None else torch.from_numpy(bins)


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _by_torch(path: Path, threads: int | None) -> TorchModel:
    try:
        from qkgcc.nets import checkpoint
    except ImportError:
        raise MissingExtraError(f"the checkpoint {path} needs torch: pip install 'qkgcc[train]'") from None
    return TorchModel(*checkpoint.load(path), threads)


@dataclass(frozen=True)
class Network:
    """See `evidence.Method` for what the members mean. Its evidence is the log-posterior of each frame."""

    model: Model
    frame: int
    """Samples at the network's rate."""
    limit: float
    """Samples beyond which no delay is possible."""
    candidates: Floats
    """(C,) delays that the network is asked for, in samples; `lags` are those of them that are possible."""
    lags: Floats
    """(L,)"""
    bins: Bools | None = None
    """(F,) which frequencies the input has; None: all."""
    band: float = math.inf
    """Hz up to which it has them."""
    cut: bool = False
    """Whether frequencies are left out that the input has."""
    rumble: float = MAX_RUMBLE_HZ
    """Hz up to which hum and rumble are taken out of frames that they drown: not what a band was asked to hold."""
    symmetric: bool = False
    """Take the mean with the mirrored answer to swapped channels."""
    decoder: str = "argmax"
    confidence_scale: float = 1.0
    """What the confidence is multiplied by: less than 1 where the network is used beyond what it was trained for."""
    warning: str | None = None
    """Warning shown with the answer, or None."""
    range_tolerance: float = SLACK
    """Samples by which an answer may exceed `limit`: a spacing is seldom measured well; 0: no more than was given."""

    kind = "posterior"

    @classmethod
    def load(cls, path: Path, decoder: str | None = None, threads: int | None = None) -> Network:
        """A checkpoint.

        Args:
            decoder: one of `decoding.DECODERS`; None: the one that the card names.
            threads: that share the frames of a batch; None: as many as there are cores.
        """
        model: Model
        if path.suffix.lower() == ".onnx":
            raise InputError(
                f"{path} is an ONNX file, which is for other programs: give the network's name, such as general, or "
                "its checkpoint (.safetensors)"
            )
        card, weights = files.read(path)
        if card.architecture == "steered":
            model = SteeredModel(card, weights, path, threads=threads)
        elif card.architecture == "qkgcc":
            model = PublishedModel(card, weights, path, threads=threads)
        elif card.architecture in ARCHITECTURES:
            model = _by_torch(path, threads)
        else:
            raise InputError(
                f"{path} holds a {card.architecture!r}, which this qkgcc does not know; known: "
                + ", ".join(ARCHITECTURES)
            )
        return cls.of(model, decoder)

    @classmethod
    def of(cls, model: Model, decoder: str | None = None) -> Network:
        """With every delay that the network was trained on."""
        card = model.card
        chosen = str(card.metrics.get("decoder", "argmax")) if decoder is None else decoder
        if decoder is None and chosen not in decoding.DECODERS:
            raise InputError(f"the card of {card.name} names a decoder {chosen!r}, which this qkgcc does not know")
        check_choice("decoder", chosen, tuple(decoding.DECODERS))
        delays = np.asarray(card.delays, dtype=np.float64)
        return cls(model, card.frame, float(np.abs(delays).max()), delays, delays, decoder=chosen)

    @property
    def card(self) -> Card:
        return self.model.card

    @property
    def _window(self) -> int:
        """Samples of the windows that frames are cut into; 0: they are not."""
        return int(self.card.options.get("window", 0))

    @property
    def scaling(self) -> str:
        return self.card.scaling

    @property
    def sample_rate(self) -> int:
        return self.card.sample_rate

    @cached_property
    def calibrated(self) -> bool:
        """For what the curves were made for: the trained frame and range, the card's own decoder, no less of the
        band than the lowest of their rates has, and impossible delays that would be noticed."""
        curves = Curves.of_card(self.card.metrics)
        enough = bool(curves) and self.band >= min(one.rate for one in curves) / 2
        as_made = self.frame == self.card.frame and self.confidence_scale == 1 and not self.symmetric and not self.cut
        return enough and as_made and self.decoder == self.card.metrics.get("decoder", "argmax")

    @cached_property
    def _curves(self) -> Curves | None:
        return Curves.nearest(Curves.of_card(self.card.metrics), min(2 * self.band, self.sample_rate))

    def limited(self, sample_rate: int, max_delay: float | None, frame: float | None) -> Network:
        """The network for an input's rate, with the delays that its spacing allows.

        Args:
            max_delay: seconds; None keeps every delay that the network was trained on.
        """
        card, rate = self.card, self.card.sample_rate
        chosen = self._with_frame(frame)
        if sample_rate < LOWEST_RATE and chosen.model.any_delay:
            raise InputError(
                f"a recording at {sample_rate} Hz is too low for {card.name}: it needs {LOWEST_RATE} Hz, use phat"
            )
        if self.model.any_delay:
            # Without a spacing too it is asked for more than it may answer: a delay beyond is to be noticed.
            chosen = chosen._asked_for(chosen._trained / rate if max_delay is None else max_delay)
        elif max_delay is not None:
            chosen = chosen._cut_to(max_delay)
        if sample_rate >= rate:
            return chosen
        # Resampling up leaves nothing above the input's Nyquist frequency but rounding noise, with phases.
        held = np.linspace(0, rate / 2, card.dft // 2 + 1) <= sample_rate / 2
        return replace(chosen, bins=held, band=sample_rate / 2)

    def within(self, low: float, high: float) -> Network:
        """The network without what lies outside a band in Hz, as if the input did not hold it."""
        if not self.model.any_delay:
            raise InputError(
                f"{self.card.name} cannot leave frequencies out: a band is for a pretrained network by its name, for "
                "steered checkpoints, and for classical methods, such as phat"
            )
        frequencies = np.linspace(0, self.sample_rate / 2, self.card.dft // 2 + 1)
        inside = (low <= frequencies) & (frequencies <= high)
        if self.bins is not None:
            inside &= self.bins
        top = min(high, self.band, self.sample_rate / 2)
        if top - low < NARROWEST or not inside.any():
            raise InputError(
                f"{self.card.name} hears this recording up to {min(self.band, self.sample_rate / 2):g} Hz, of which a "
                f"band of {low:g} to {high:g} Hz leaves too little: it needs {NARROWEST:g} Hz, take a wider band"
            )
        warnings = [one for one in (self.warning, narrow_band_warning(low, top)) if one is not None]
        return replace(
            self,
            bins=inside,
            cut=True,
            rumble=min(MAX_RUMBLE_HZ, low),
            confidence_scale=self.confidence_scale * min(1.0, (top - low) / NARROW),
            warning="; ".join(warnings) or None,
        )

    def _with_frame(self, frame: float | None) -> Network:
        card, rate = self.card, self.card.sample_rate
        if frame is None or round(frame * rate) == card.frame:
            return self
        if not self.model.any_frame:
            raise InputError(f"{card.name} takes frames of {card.frame / rate:g} s, not {frame:g}: leave the frame out")
        shortest, longest = card.frame // 8, _LONGEST * card.frame if self._window else card.dft
        if not shortest <= round(frame * rate) <= longest:
            raise InputError(
                f"{card.name} takes frames of {shortest / rate:g} to {longest / rate:g} s, not {frame:g}; it was "
                f"trained on {card.frame / rate:g}"
            )
        return replace(self, frame=round(frame * rate))

    @property
    def _trained(self) -> float:
        """Samples of the largest delay that it was trained on."""
        return float(self.card.options.get("max_delay", np.max(self.card.delays)))

    def _cut_to(self, max_delay: float) -> Network:
        """Of the delays that it was trained on, those that are possible."""
        limit, most = max_delay * self.sample_rate, float(np.abs(self.lags).max())
        if round(limit) > most and limit > most:
            known, wanted = (f"{1000 * delay / self.sample_rate:.2f} ms" for delay in (most, limit))
            raise InputError(
                f"{self.card.name} knows delays up to {known}, not {wanted}: give the spacing it was trained for, or "
                "use phat"
            )
        lags = self.lags[np.abs(self.lags) <= max(1, round(limit))]
        return replace(self, limit=min(limit, float(lags.max())), candidates=lags, lags=lags)

    def _asked_for(self, max_delay: float) -> Network:
        """All possible delays, and those beyond them."""
        limit, step = max_delay * self.sample_rate, self.model.step
        trained = self._trained
        # A step more than what the spacing allows: nobody measures it so well, and a peak has two sides.
        possible = math.ceil(limit / step - 1e-9) + 1
        milliseconds = 1000 / self.sample_rate
        longest = min(self.frame, self._window or self.frame)
        most = math.ceil(longest / 2 / step) - 1  # that fit
        looked_at = min(max(_BEYOND * possible, round(trained / step)), most)
        if possible > most:
            raise InputError(
                f"delays up to {limit * milliseconds:.1f} ms are more than {self.card.name} can look for "
                f"({most * step * milliseconds:.1f} ms): use phat, or a smaller spacing (in metres) or largest delay"
            )
        candidates: Floats = step * np.arange(-looked_at, looked_at + 1, dtype=np.float64)
        lags: Floats = step * np.arange(-possible, possible + 1, dtype=np.float64)
        untrained = limit > trained + step
        warning = (
            f"{self.card.name} was trained on delays up to {trained * milliseconds:.1f} ms; for "
            f"{limit * milliseconds:.1f} ms it is a guess, and the confidence is lowered"
        )
        return replace(
            self,
            limit=limit,
            candidates=candidates,
            lags=lags,
            confidence_scale=min(1.0, 0.5 * trained / limit) if untrained else 1.0,
            warning=warning if untrained else None,
        )

    def channel_features(self, frames: Samples) -> None:
        """Nothing: a network hears both channels at the level of the pair, and sees how loud each bin is."""

    def evidence(self, frames: Samples, channels: None = None) -> tuple[npt.NDArray[Any], ...]:
        given = self._scaled(frames)
        logits = self.model.logits(given, self.bins, self.candidates).astype(np.float64)
        if self.symmetric:
            mirrored = self.model.logits(given[:, ::-1], self.bins, -self.candidates[::-1])[:, ::-1]
            logits = (logits + mirrored) / 2
        if not np.isfinite(logits).all():
            raise InputError(f"{self.card.name} answers with what are no numbers: its file is damaged, get it again")
        largest = logits.max(axis=-1, keepdims=True)
        return (logits - largest - np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True)),)

    def reliability(self, frames: Samples) -> Floats:
        """How much each frequency counted. Shape: (batch, 2, n) -> (batch, bins)

        The size of its evidence, times how much that varies over the possible delays: what is the same for all of them,
        as nearly everything is at low frequencies, decides nothing. Nor do the ends of the band, where match and gate
        lack neighbours.
        """
        if not len(frames):
            return np.empty((0, len(self.frequencies)))
        angle = 2 * np.pi * self.frequencies[:, None] * self.lags / self.sample_rate
        varies: Floats = np.sqrt(np.maximum(0.0, 1 - np.abs(np.exp(1j * angle).mean(axis=-1)) ** 2))
        radius, kernel = (int(self.card.options.get(key, 1)) for key in ("radius", "kernel"))
        ends = max(1, radius + 2 * (kernel // 2))
        varies[:ends] = varies[-ends:] = 0
        return np.asarray(self.model.reliability(self._scaled(frames), self.bins) * varies)

    @property
    def frequencies(self) -> Floats:
        """(bins,) Hz"""
        return np.asarray(np.arange(self.card.dft // 2 + 1) * self.sample_rate / self.card.dft)

    def _scaled(self, frames: Samples) -> Floats32:
        """The size of a spectrum goes with the root of the frame's length: as if it were the trained one.

        Windows are as long in any frame.
        """
        longer = 1.0 if self._window else math.sqrt(self.card.frame / self.frame)
        return np.asarray(frames * longer, dtype=np.float32)

    def decode(self, evidence: tuple[npt.NDArray[Any], ...]) -> decoding.Decoded:
        # The mean log-posterior of several frames is a log-posterior up to a constant.
        (logits,) = evidence
        posterior = decoding.posterior(logits[:, self._possible])
        delay = self.answered(posterior)
        confidence = self._probability(posterior, self.lags, delay)
        # Delays that the spacing rules out took no part in the training, so they take none here, unless one of them is
        # so likely that the spacing itself is in doubt.
        out_of_range_delay, elsewhere = self._elsewhere(logits)
        confidence = np.minimum(self.confidence_scale * confidence * (1 - elsewhere), self._limit_cap(posterior, delay))
        return decoding.Decoded(posterior, delay, confidence, out_of_range_delay)

    @cached_property
    def for_pooled_evidence(self) -> Network:
        """By its highest peak: several peaks of many frames are several talkers, and between these nobody is."""
        return replace(self, decoder="quadratic") if self.decoder in decoding.BETWEEN else self

    @property
    def context(self) -> float:
        return decoding.WINDOW if self._curves is not None else 0.0

    def in_context(
        self,
        posterior: npt.NDArray[Any],
        delay: Floats,
        confidence: Floats,
        out_of_range_delay: Floats,
        times: Floats,
        wanted: slice | None = None,
        ahead: float = decoding.WINDOW,
    ) -> Floats:
        """Confidences of the frames of a recording, with what the frames around each say of its delay.

        Those that have none around them keep their own, and so do those whose best delay is an impossible one.
        """
        curves, asked = self._curves, wanted or slice(None)
        result = confidence[asked].copy()
        if curves is None:
            return result
        reach = TOLERANCE * self.sample_rate
        frame = self.frame / self.sample_rate
        support = decoding.support(
            posterior, self.lags, delay, times, tolerance=reach, frame=frame, wanted=asked, ahead=ahead
        )
        posterior, delay, out_of_range_delay = posterior[asked], delay[asked], out_of_range_delay[asked]
        chosen = np.isfinite(support.agreeing) & np.isnan(out_of_range_delay)
        for rows in np.array_split(np.flatnonzero(chosen), 1 + len(delay) // decoding.ROWS):
            own = decoding.probability_near(posterior[rows], self.lags, delay[rows], reach)
            known = self.confidence_scale * curves(own, decoding.Support(*(part[rows] for part in support)))
            result[rows] = np.minimum(known, self._limit_cap(posterior[rows], delay[rows]))
        return result

    def answered(self, posterior: Floats, decoder: str | None = None) -> Floats:
        """Delays of posteriors over the possible delays, by a decoder. Shape: (T, L) -> (T,)

        A little more than the spacing allows is answered as it is: small spacings are seldom measured that well.
        """
        delay = decoding.DECODERS[decoder or self.decoder](posterior, self.lags)
        return np.clip(delay, -self.limit - self.range_tolerance, self.limit + self.range_tolerance)

    def read(self, posterior: Floats) -> tuple[Floats, Floats]:
        """Delays of posteriors over the possible delays, and their own probabilities. Shape: (T, L) -> (T,), (T,)"""
        delay = self.answered(posterior)
        near = decoding.probability_near(posterior, self.lags, delay, TOLERANCE * self.sample_rate)
        return delay, np.minimum(self.confidence_scale * near, self._limit_cap(posterior, delay))

    def sources(self, posterior: npt.NDArray[Any], delay: npt.NDArray[Any], most: int) -> tuple[Floats, Floats]:
        """Delays of at most so many sources, the most probable first, and their weights; NaN and 0 where fewer are.

        They are the peaks of the posterior at possible delays, the first of them read by the decoder. `balanced` and
        `coarse` may have answered another delay: with them, the first one is the peak itself.
        Shape: (T, L), (T,) -> (T, sources), (T, sources)
        """
        # More than are asked for: some of them may be impossible, or hardly there.
        found, weights = decoding.peaks(posterior, self.lags, min(2 * most, len(self.lags)))
        most = min(most, found.shape[1])
        none = np.abs(found) > self.limit + self.range_tolerance
        none[:, 0] = False  # the answer itself is what is possible and nearest to it
        found[:, 0] = np.clip(found[:, 0], -self.limit - self.range_tolerance, self.limit + self.range_tolerance)
        if self.decoder not in decoding.BETWEEN:
            found[:, 0] = delay
        none |= (weights < LEAST_WEIGHT) | np.isnan(delay)[:, None]
        order = np.argsort(none, axis=1, kind="stable")[:, :most]
        delays, counts = np.where(none, np.nan, found), np.where(none, 0.0, weights)
        return np.take_along_axis(delays, order, axis=1), np.take_along_axis(counts, order, axis=1)

    def _elsewhere(self, logits: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """The best delay of all and its probability, where it is impossible and more likely than not; else NaN and 0.

        Shape: (batch, C) -> (batch,), (batch,)
        """
        best, likely = np.full(len(logits), np.nan), np.zeros(len(logits))
        # No decoder goes further from the best candidate: most frames need no second look.
        near = self.limit + SLACK - decoding.REACH * self.model.step
        rows = np.flatnonzero(~(np.abs(self.candidates[logits.argmax(axis=-1)]) <= near))
        if len(rows):
            everywhere = decoding.posterior(logits[rows])
            delay = decoding.DECODERS[self.decoder](everywhere, self.candidates)
            probability = self._probability(everywhere, self.candidates, delay)
            counts = (np.abs(delay) > self.limit + SLACK) & (probability >= 0.5)
            best[rows], likely[rows] = np.where(counts, delay, np.nan), np.where(counts, probability, 0.0)
        return best, likely

    def _limit_cap(self, posterior: npt.NDArray[Any], delay: Floats) -> Floats:
        """See there. Shape: (batch, L), (batch,) -> (batch,)"""
        size = np.abs(delay)
        clipped = size >= self.limit + self.range_tolerance - _SAME  # the peak may be further away
        rows = np.flatnonzero(clipped)
        if len(rows):
            size[rows] = np.abs(decoding.DECODERS[self.decoder](posterior[rows], self.lags))
        rate = self.sample_rate
        return limit_cap((size - self.limit) / rate, self.limit / rate)

    def _probability(self, posterior: Floats, delays: Floats, delay: Floats) -> Floats:
        """That a delay is within 62.5 microseconds of the truth."""
        stated = decoding.probability_near(posterior, delays, delay, TOLERANCE * self.sample_rate)
        return stated if self._curves is None else self._curves.alone(stated)

    @cached_property
    def _possible(self) -> slice:
        """Which candidates are. No mask: its rows would lie crosswise in memory, and be summed in another order."""
        first = int(np.searchsorted(self.candidates, self.lags[0]))
        return slice(first, first + len(self.lags))
