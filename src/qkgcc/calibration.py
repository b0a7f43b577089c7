"""From a network's own probability to one that counts: of answers with 0.8, eight in ten are right.

A network is too sure, or not sure enough, in a way that depends on how it was trained and on nothing that a user could
know. So its probability that the delay is within 62.5 microseconds is mapped to the share of answers that were right in
scenes that it had not seen, by a curve that rises throughout. The curve is data: it stands in the network's card.

A frame is seldom alone. Whether the frames around it, which heard the same source at other moments, support its delay
says more about it than the frame itself: reverberation and chance mislead each frame in another way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.errors import InputError

Floats = npt.NDArray[np.float64]

KEY = "calibration"
"""Under which a card's metrics hold the curve."""
CONTEXT_KEY = "calibration_in_context"
"""Under which they hold that of frames in their recording."""
LOWEST_RATE_KEY = "calibrated_from"
"""Under which they hold the lowest rate of recordings, in Hz, that the curves were found to hold for."""


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
    def of_card(cls, metrics: Mapping[str, Any]) -> "Calibration | None":
        """The curve of a card's metrics, if it has one."""
        curve = metrics.get(KEY)
        if curve is None:
            return None
        try:
            return cls(tuple(map(float, curve["stated"])), tuple(map(float, curve["right"])))
        except (KeyError, TypeError, ValueError):
            raise InputError(f"the card's {KEY} is {curve!r}; expected two lists, 'stated' and 'right'") from None


@dataclass(frozen=True)
class Context:
    """A frame in its recording: the network's probability, and what the frames around it say of the same delay.

    The log-odds of both are added up with weights that are not negative, and the sum is calibrated like a probability:
    more of either never makes an answer less sure.
    """

    weights: tuple[float, float, float]
    """A constant, of the frame's own log-odds, of those of its support."""
    curve: Calibration

    def __call__(self, own: npt.ArrayLike, support: npt.ArrayLike) -> Floats:
        """Shape: (N,), (N,) -> (N,)"""
        return self.curve(_joined(self.weights, own, support))

    @classmethod
    def fit(cls, own: npt.ArrayLike, support: npt.ArrayLike, right: npt.ArrayLike) -> "Context":
        """From answers of which it is known whether they are right: logistic regression, then `Calibration.fit`."""
        from scipy.optimize import minimize

        y = np.asarray(right, dtype=np.float64)
        odds = np.stack([np.ones(len(y)), _log_odds(own), _log_odds(support)], axis=1)

        def loss(weights: Floats) -> tuple[float, Floats]:
            score = odds @ weights
            gradient = odds.T @ (_sigmoid(score) - y) / len(y)
            return float(np.mean(np.logaddexp(0, score) - y * score)), gradient

        bounds = [(None, None), (0, None), (0, None)]
        found = minimize(loss, np.array([0.0, 1.0, 1.0]), jac=True, bounds=bounds).x.round(6)
        weights = (float(found[0]), float(found[1]), float(found[2]))
        return cls(weights, Calibration.fit(_joined(weights, own, support), y))

    def to_card(self) -> dict[str, list[float]]:
        return {"weights": list(self.weights), **self.curve.to_card()}

    @classmethod
    def of_card(cls, metrics: Mapping[str, Any]) -> "Context | None":
        """That of a card's metrics, if it has one."""
        given = metrics.get(CONTEXT_KEY)
        if given is None:
            return None
        curve = Calibration.of_card({KEY: given})
        try:
            constant, own, support = map(float, given["weights"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"the card's {CONTEXT_KEY} is {given!r}; expected three weights and a curve") from None
        assert curve is not None
        return cls((constant, own, support), curve)


def _log_odds(probability: npt.ArrayLike) -> Floats:
    p = np.clip(np.asarray(probability, dtype=np.float64), 1e-4, 1 - 1e-4)
    return np.asarray(np.log(p) - np.log1p(-p))


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def _joined(weights: tuple[float, float, float], own: npt.ArrayLike, support: npt.ArrayLike) -> Floats:
    return _sigmoid(weights[0] + weights[1] * _log_odds(own) + weights[2] * _log_odds(support))


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
