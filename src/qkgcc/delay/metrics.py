"""How good delays are: RMSE, MAE and Acc@distance, pooled and per SNR x T60 cell.

Delays are in samples at `sample_rate`, positive = channel 1 later, and are compared with the unrounded truth.
Acc@10cm is the share with |error| * c / sample_rate < 0.10 m (4.66 samples at 16 kHz).

A NaN estimate is a frame without an answer: it is wrong for the accuracy, is left out of RMSE and MAE, and is counted
in `answered`. RMSE is pooled over frames, not averaged over cells.
"""

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Bools, Floats


def validate(estimated: npt.ArrayLike, true: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Both as 1-D float arrays of one length, or an `InputError` that says what is wrong."""
    estimate, truth = np.asarray(estimated, dtype=np.float64), np.asarray(true, dtype=np.float64)
    for name, values in (("estimated", estimate), ("true", truth)):
        if values.ndim != 1:
            raise InputError(f"{name} delays have shape {values.shape}; expected one number a frame")
    if len(estimate) != len(truth):
        raise InputError(f"{len(estimate)} estimated delays for {len(truth)} true ones")
    if not len(truth):
        raise InputError("no delays to evaluate")
    if not np.isfinite(truth).all():
        raise InputError(f"{np.sum(~np.isfinite(truth))} true delays are not finite: leave frames without a truth out")
    if np.isinf(estimate).any():
        raise InputError("an estimated delay is infinite; no estimate is NaN")
    return estimate, truth


def rmse(estimated: npt.ArrayLike, true: npt.ArrayLike) -> float:
    """Root of the mean squared error in samples, over the answered frames; NaN if there are none."""
    error = _errors(estimated, true)
    return float(np.sqrt(np.mean(error**2))) if len(error) else float("nan")


def mae(estimated: npt.ArrayLike, true: npt.ArrayLike) -> float:
    """Mean absolute error in samples, over the answered frames; NaN if there are none."""
    error = _errors(estimated, true)
    return float(np.mean(np.abs(error))) if len(error) else float("nan")


def accuracy(
    estimated: npt.ArrayLike,
    true: npt.ArrayLike,
    *,
    sample_rate: float = 16000,
    distance: float = 0.10,
    speed_of_sound: float = SPEED_OF_SOUND,
) -> float:
    """Share of all frames, in percent, whose error is less than `distance` metres of path difference.

    >>> accuracy([0, 4, 5, float("nan")], [0, 0, 0, 0])
    50.0
    """
    right = hits(estimated, true, sample_rate=sample_rate, distance=distance, speed_of_sound=speed_of_sound)
    return float(100 * np.mean(right))


def hits(
    estimated: npt.ArrayLike,
    true: npt.ArrayLike,
    *,
    sample_rate: float = 16000,
    distance: float = 0.10,
    speed_of_sound: float = SPEED_OF_SOUND,
) -> Bools:
    """Which frames are right: error less than `distance` metres of path difference. Shape: (T,), (T,) -> (T,)"""
    estimate, truth = validate(estimated, true)
    return np.asarray(np.abs(estimate - truth) * speed_of_sound / sample_rate < distance)


def evaluate(
    estimated: npt.ArrayLike,
    true: npt.ArrayLike,
    *,
    sample_rate: float = 16000,
    distance: float = 0.10,
    speed_of_sound: float = SPEED_OF_SOUND,
) -> dict[str, float]:
    """Every metric by name. Acc@distance is called `acc10cm` for 0.10 m, `acc5cm` for 0.05 m and so on.

    >>> evaluate([1.0, -2.0], [0.0, 0.0])
    {'n': 2, 'answered': 2, 'rmse': 1.5811388300841898, 'mae': 1.5, 'acc10cm': 100.0}
    """
    estimate, truth = validate(estimated, true)
    share = accuracy(estimate, truth, sample_rate=sample_rate, distance=distance, speed_of_sound=speed_of_sound)
    return {
        "n": len(truth),
        "answered": int(np.isfinite(estimate).sum()),
        "rmse": rmse(estimate, truth),
        "mae": mae(estimate, truth),
        f"acc{100 * distance:g}cm": share,
    }


def evaluate_cells(
    estimated: npt.ArrayLike,
    true: npt.ArrayLike,
    snr: npt.ArrayLike,
    t60: npt.ArrayLike,
    *,
    sample_rate: float = 16000,
    distance: float = 0.10,
    speed_of_sound: float = SPEED_OF_SOUND,
) -> list[dict[str, float]]:
    """`evaluate` for each combination of SNR and T60 that occurs, in rising order of SNR, then T60."""
    estimate, truth = validate(estimated, true)
    snrs, t60s = np.asarray(snr, dtype=np.float64), np.asarray(t60, dtype=np.float64)
    if not snrs.shape == t60s.shape == truth.shape:
        raise InputError(f"{len(truth)} delays need as many SNRs and T60s; got shapes {snrs.shape} and {t60s.shape}")
    cells, which = np.unique(np.stack([snrs, t60s]), axis=1, return_inverse=True)
    return [
        {"snr": float(cells[0, i]), "t60": float(cells[1, i])}
        | evaluate(
            estimate[which == i],
            truth[which == i],
            sample_rate=sample_rate,
            distance=distance,
            speed_of_sound=speed_of_sound,
        )
        for i in range(cells.shape[1])
    ]


def _errors(estimated: npt.ArrayLike, true: npt.ArrayLike) -> Floats:
    estimate, truth = validate(estimated, true)
    error = estimate - truth
    return error[np.isfinite(error)]
