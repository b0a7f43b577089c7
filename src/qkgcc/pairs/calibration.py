"""From a network's own probability to one that counts: of answers with 0.8, eight in ten are right.

A network is too sure, or not sure enough, in a way that depends on how it was trained and on nothing that a user could
know. So its probability that the delay is within 62.5 microseconds is mapped to the share of answers that were right in
scenes that it had not seen, by a curve that rises throughout. The curve is data: it stands in the network's card.

A frame is seldom alone. The frames around it may have heard the same source at other moments, and reverberation and
chance mislead each frame in another way: what they say (`decoding.support`) counts as well.

A recording at a low rate holds less than the network's band, and the same probability of it is worth more or less. So a
card has curves for several rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats
from qkgcc.pairs.decoding import Support

KEY = "confidence"
"""Under which a card's metrics hold the curves, those of each rate in turn."""


@dataclass(frozen=True)
class Calibration:
    """A rising curve through a few points, straight between them.

    >>> Calibration((0.0, 0.5, 1.0), (0.0, 0.2, 0.9))([0.25, 0.75]).round(2).tolist()
    [0.1, 0.55]
    """

    stated: tuple[float, ...]
    """By the network, from 0 to 1."""
    right: tuple[float, ...]
    """The share of answers that are."""

    def __post_init__(self) -> None:
        x, y = self.stated, self.right
        rising = len(x) == len(y) >= 2 and bool((np.diff(x) > 0).all() and (np.diff(y) >= 0).all())
        if not (rising and x[0] == 0 and x[-1] == 1 and y[0] >= 0 and y[-1] <= 1):
            raise InputError(f"a calibration is a curve that rises from 0 to 1; got {x} -> {y}")

    def __call__(self, stated: npt.ArrayLike) -> Floats:
        return np.interp(np.asarray(stated, dtype=np.float64), self.stated, self.right)

    @classmethod
    def fit(cls, stated: npt.ArrayLike, right: npt.ArrayLike, knots: int = 16) -> "Calibration":
        """From answers of which it is known whether they are right: isotonic regression, thinned to a few knots.

        Args:
            stated: (N,) probabilities by the network.
            right: (N,) whether the answers are.
        """
        from scipy.optimize import isotonic_regression

        x, y = np.asarray(stated, dtype=np.float64), np.asarray(right, dtype=np.float64)
        if len(x) < 10 * knots:
            raise InputError(f"{len(x)} answers are too few for a calibration with {knots} knots")
        _, which, count = np.unique(x, return_inverse=True, return_counts=True)
        level = isotonic_regression(np.bincount(which, y) / count, weights=count).x[which]
        # As many answers around any knot; what lies beyond the last ones stays where they are.
        parts = np.array_split(np.argsort(x, kind="stable"), knots)
        middle = np.clip([x[part].mean() for part in parts], 1e-5, 1 - 1e-5).round(6)
        share = np.clip([level[part].mean() for part in parts], 0.0, 1.0).round(6)
        kept = np.concatenate([np.diff(middle) > 0, [True]])
        places, shares = middle[kept], np.maximum.accumulate(share)[kept]
        return cls((0.0, *places.tolist(), 1.0), (float(shares[0]), *shares.tolist(), float(shares[-1])))

    def to_card(self) -> dict[str, list[float]]:
        return {"stated": list(self.stated), "right": list(self.right)}

    @classmethod
    def of_card(cls, given: Any) -> "Calibration":
        try:
            return cls(tuple(map(float, given["stated"])), tuple(map(float, given["right"])))
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"the card's calibration is {given!r:.80}; expected two lists, 'stated', 'right'"
            ) from None


@dataclass(frozen=True)
class Context:
    """A frame in its recording: the network's probability, and what the frames around it say for and against the delay.

    Its log-odds and the others' word are added up with weights that are not negative, and the sum is calibrated like a
    probability: more for a delay, or less against it, never makes an answer less sure.
    """

    weights: tuple[float, float, float, float]
    """A constant, of the frame's own log-odds, of what speaks for its delay, and of what speaks against it."""
    curve: Calibration

    def __call__(self, own: npt.ArrayLike, support: Support) -> Floats:
        """Shape: (N,), (N,) each -> (N,)"""
        score = (_features(own, support) * np.array(self.weights)).sum(axis=-1)  # no matrix product: see `peaks`
        return self.curve(_sigmoid(score))

    @classmethod
    def fit(cls, own: npt.ArrayLike, support: Support, right: npt.ArrayLike) -> "Context":
        """From answers of which it is known whether they are right: logistic regression, then `Calibration.fit`."""
        from scipy.optimize import minimize

        y = np.asarray(right, dtype=np.float64)
        features = _features(own, support)

        def loss(weights: Floats) -> tuple[float, Floats]:
            score = features @ weights
            gradient = features.T @ (_sigmoid(score) - y) / len(y)
            return float(np.mean(np.logaddexp(0, score) - y * score)), gradient

        bounds = [(None, None), (0, None), (0, None), (0, None)]
        found = minimize(loss, np.array([0.0, 1.0, 1.0, 1.0]), jac=True, bounds=bounds).x.round(6)
        constant, of_own, of_for, of_against = map(float, found)
        return cls((constant, of_own, of_for, of_against), Calibration.fit(_sigmoid(features @ found), y))

    def to_card(self) -> dict[str, list[float]]:
        return {"weights": list(self.weights), **self.curve.to_card()}

    @classmethod
    def of_card(cls, given: Any) -> "Context":
        curve = Calibration.of_card(given)
        try:
            constant, own, favour, against = map(float, given["weights"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"the card's calibration is {given!r:.80}; expected four weights and a curve") from None
        if not (np.isfinite(constant) and min(own, favour, against) >= 0):
            raise InputError(f"the card's calibration has the weights {given['weights']!r:.80}; none may be negative")
        return cls((constant, own, favour, against), curve)


@dataclass(frozen=True)
class Curves:
    """All that maps a network's probabilities for recordings at a rate."""

    rate: int
    """Hz."""
    alone: Calibration
    """Of frames with none around."""
    context: Context | None = None
    """Of frames in their recording."""

    def __call__(self, own: npt.ArrayLike, support: Support) -> Floats:
        """Of frames with others around, and of those with none, whose support is NaN. Shape: (N,), (N,) each -> (N,)"""
        result = self.alone(own)
        some = np.isfinite(support.agreeing)
        if self.context is not None and some.any():
            result[some] = self.context(np.asarray(own)[some], Support(*(part[some] for part in support)))
        return result

    @staticmethod
    def nearest(curves: Sequence["Curves"], rate: float) -> "Curves | None":
        """Those for the rate that is nearest by its ratio; None where there are none."""
        return min(curves, key=lambda one: abs(np.log(one.rate / rate)), default=None)

    def to_card(self) -> dict[str, Any]:
        content: dict[str, Any] = {"rate": self.rate, "alone": self.alone.to_card()}
        return content if self.context is None else content | {"in_context": self.context.to_card()}

    @classmethod
    def of_card(cls, metrics: Mapping[str, Any]) -> "tuple[Curves, ...]":
        """Those of a card's metrics, of the highest rate first."""
        given = metrics.get(KEY, [])
        try:
            found = [
                cls(
                    int(one["rate"]),
                    Calibration.of_card(one["alone"]),
                    Context.of_card(one["in_context"]) if "in_context" in one else None,
                )
                for one in given
            ]
        except (KeyError, TypeError, ValueError):
            raise InputError(f"the card's {KEY} is {given!r:.80}; expected a list of 'rate' and 'alone'") from None
        if any(one.rate <= 0 for one in found):
            raise InputError(f"the card's {KEY} has the rates {[one.rate for one in found]}; expected positive ones")
        return tuple(sorted(found, key=lambda one: -one.rate))


def _features(own: npt.ArrayLike, support: Support) -> Floats:
    odds = _log_odds(own)
    return np.stack([np.ones_like(odds), odds, support.agreeing, -support.against], axis=1)


def _log_odds(probability: npt.ArrayLike) -> Floats:
    p = np.clip(np.asarray(probability, dtype=np.float64), 1e-4, 1 - 1e-4)
    return np.asarray(np.log(p) - np.log1p(-p))


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def reliability(stated: npt.ArrayLike, right: npt.ArrayLike, parts: int = 10) -> list[dict[str, float]]:
    """Of each tenth of the range from 0 to 1: how many answers, the mean stated probability, the share that is right.

    Shape: (N,), (N,) -> a row a part, empty ones left out
    """
    x, y = np.asarray(stated, dtype=np.float64), np.asarray(right, dtype=np.float64)
    part = np.minimum((x * parts).astype(int), parts - 1)
    return [
        {
            "from": i / parts,
            "to": (i + 1) / parts,
            "answers": int((part == i).sum()),
            "stated": float(x[part == i].mean()),
            "right": float(y[part == i].mean()),
        }
        for i in range(parts)
        if (part == i).any()
    ]


def expected_calibration_error(stated: npt.ArrayLike, right: npt.ArrayLike, parts: int = 10) -> float:
    """Mean difference between stated and right over the tenths, weighted by their answers."""
    rows = reliability(stated, right, parts)
    total = sum(row["answers"] for row in rows)
    return sum(row["answers"] * abs(row["stated"] - row["right"]) for row in rows) / total
