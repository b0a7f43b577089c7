"""Fit the three numbers of `qkgcc.pairs.confidence` on simulated reverberant speech.

    python tools/fit_confidence.py --data FOLDER     (FOLDER/librispeech/LibriSpeech/dev-clean; default: $QKGCC_DATA)

Random rooms (3-9 x 3-7 x 2.4-3.5 m, T60 0.2-0.8 s by Sabine's formula), a pair of microphones 5-50 cm apart anywhere in
them, one talker, SNR 0-30 dB, 15 frames of 2048 samples each. Half of the scenes fit, the other half is reported:
accuracy, area under the ROC curve, and expected calibration error of every weighting. A few minutes on two cores.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyroomacoustics as pra
import scipy.fft
import soundfile
from rich.progress import track

from qkgcc.dsp import gcc
from qkgcc.dsp.peaks import INTERPOLATIONS
from qkgcc.pairs.classical import Classical
from qkgcc.pairs.confidence import ambiguity_cap, support

RATE, FRAME, FRAMES, C = 16000, 2048, 15, 343.0


def scene(files: list[Path], seed: int) -> tuple[np.ndarray, float, float]:
    """One talker in one room: frames (15, 2, 2048), the delay in samples, the spacing in metres."""
    rng = np.random.default_rng(seed)
    length = FRAMES * FRAME
    speech = np.empty(0)
    while len(speech) < length + 4000:
        speech, _ = soundfile.read(files[rng.integers(len(files))])
    start = rng.integers(0, len(speech) - length)
    while True:
        room = rng.uniform((3, 3, 2.4), (9, 7, 3.5))
        try:
            absorption, order = pra.inverse_sabine(rng.uniform(0.2, 0.8), room)
        except ValueError:  # the room is too large for so short a reverberation
            continue
        break
    spacing = float(np.exp(rng.uniform(np.log(0.05), np.log(0.5))))
    axis = rng.standard_normal(3)
    axis *= spacing / 2 / np.linalg.norm(axis)
    centre, source = (rng.uniform(0.5, room - 0.5) for _ in range(2))
    microphones = np.stack([centre + axis, centre - axis])
    box = pra.ShoeBox(room, fs=RATE, materials=pra.Material(absorption), max_order=order)
    box.add_source(source)
    box.add_microphone_array(microphones.T)
    box.compute_rir()
    heard = np.stack([_convolve(speech[start : start + length], box.rir[i][0])[:length] for i in range(2)])
    heard /= heard[0].std()
    heard += 10 ** (-rng.uniform(0, 30) / 20) * rng.standard_normal(heard.shape)
    near, far = np.linalg.norm(microphones - source, axis=1)
    frames = heard.reshape(2, FRAMES, FRAME).transpose(1, 0, 2).astype(np.float32)
    return frames, float((near - far) * RATE / C), spacing


def _convolve(signal: np.ndarray, response: np.ndarray) -> np.ndarray:
    n = scipy.fft.next_fast_len(len(signal) + len(response))
    return scipy.fft.irfft(scipy.fft.rfft(signal, n) * scipy.fft.rfft(response, n), n)


def judge(frames: np.ndarray, delay: float, spacing: float) -> np.ndarray:
    """`at`, `away` and whether the delay is right, for each weighting and frame. Shape: (6, 15, 3)."""
    limit = spacing / C * RATE
    max_lag = gcc.lag_range(spacing / C, RATE)
    rows = []
    for weighting in gcc.WEIGHTINGS:
        method = Classical(weighting, RATE, FRAME, max_lag, limit, None, gcc.BETA, INTERPOLATIONS[0])
        evidence = method.evidence(frames)
        found, coherence = method.decode(evidence).delay, evidence[1]
        at, away = support(coherence, found, max_lag=max_lag, sample_rate=RATE, frame=FRAME)
        rows.append(np.stack([at, away, np.abs(found - delay) <= 1], axis=-1))
    return np.stack(rows)


def one(argument: tuple[list[Path], int]) -> np.ndarray:
    return judge(*scene(*argument))


def logistic(features: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Newton's method for the weights of 1 / (1 + exp(-features @ w))."""
    weights = np.zeros(features.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-features @ weights))
        weights += np.linalg.solve((features * (p * (1 - p))[:, None]).T @ features, features.T @ (right - p))
    return weights


def report(name: str, confidence: np.ndarray, right: np.ndarray) -> None:
    rank = np.empty(len(right))
    rank[np.argsort(confidence)] = np.arange(len(right))
    good = right.sum()
    auc = (rank[right].sum() - good * (good - 1) / 2) / (good * (len(right) - good))
    tenth = np.minimum((confidence * 10).astype(int), 9)
    error = sum(abs((confidence - right)[tenth == i].sum()) for i in range(10)) / len(right)
    half = confidence >= np.median(confidence)
    ratio = (1 - right[half].mean()) / (1 - right[~half].mean())
    print(f"{name:10s} right {right.mean():6.1%}   AUC {auc:.3f}   calibration error {error:.3f}   "
          f"error rate of the confident half over the other's {ratio:.2f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("QKGCC_DATA"))
    parser.add_argument("--scenes", type=int, default=400)
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("give --data FOLDER or set QKGCC_DATA")
    files = sorted(p for p in (arguments.data / "librispeech/LibriSpeech/dev-clean").rglob("*.*") if p.suffix != ".txt")
    if not files:
        parser.error(f"no LibriSpeech dev-clean below {arguments.data}")
    with ProcessPoolExecutor() as pool:
        work = pool.map(one, ((files, seed) for seed in range(arguments.scenes)))
        results = np.stack(list(track(work, total=arguments.scenes, description="rooms")))  # (scenes, 6, 15, 3)
    half = arguments.scenes // 2
    fit, test = results[:half].reshape(-1, 3), results[half:]
    weights = logistic(np.column_stack([np.ones(len(fit)), fit[:, :2]]), fit[:, 2])
    print(f"a = {weights[0]:.2f}, b = {weights[1]:.2f}, c = {-weights[2]:.2f}")
    for i, name in enumerate(gcc.WEIGHTINGS):
        rows = test[:, i].reshape(-1, 3)
        logistic_part = 1 / (1 + np.exp(-(weights[0] + rows[:, :2] @ weights[1:])))
        confidence = np.minimum(logistic_part, ambiguity_cap(rows[:, 0], rows[:, 1]))
        report(name, confidence, rows[:, 2] > 0)


if __name__ == "__main__":
    main()
