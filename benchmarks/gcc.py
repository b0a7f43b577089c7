"""What a GCC curve and a sub-sample peak cost, beside a bare scipy.fft GCC-PHAT, torch and pyroomacoustics.

    python -m benchmarks.gcc

One thread, frames of 2048 samples (16 kHz, 128 ms), a DFT of 4096, lags -23 ... 23, float32. Required: our batched PHAT
curve at most 1.1 times the bare one, with sub-sample peaks at most 2 times.
"""

import numpy as np
import pyroomacoustics
import torch

from benchmarks import plain_phat
from benchmarks.timing import interleaved, ratio, write
from qkgcc import DelayEstimator
from qkgcc.dsp import gcc

FRAME, DFT, LAG, RATE = 2048, plain_phat.DFT, 23, 16000
REQUIRED = {"qkgcc phat, curve": 1.1, "qkgcc phat, band-limited peak": 2.0}


def torch_gcc_phat(frames: torch.Tensor) -> torch.Tensor:
    spectra = torch.fft.rfft(frames, n=DFT)
    cross = spectra[:, 0] * spectra[:, 1].conj()
    circular = torch.fft.irfft(cross / (cross.abs() + 1e-12), n=DFT)
    return torch.cat([circular[:, -LAG:], circular[:, : LAG + 1]], dim=1)


def measure(batch: int, rounds: int) -> list[dict[str, object]]:
    frames = np.random.default_rng(0).standard_normal((batch, 2, FRAME)).astype(np.float32)
    tensor = torch.from_numpy(frames)
    one_second = np.random.default_rng(1).standard_normal((2, FRAME + (batch - 1) * 1024)).astype(np.float32)
    estimator = DelayEstimator("phat")
    functions = {
        "bare scipy.fft GCC-PHAT": lambda: plain_phat.curve(frames, LAG),
        "qkgcc phat, curve": lambda: gcc.gcc(frames, "phat", max_lag=LAG),
        "qkgcc phat, band-limited peak": lambda: gcc.delays(frames, "phat", max_lag=LAG),
        "qkgcc phat, parabolic peak": lambda: gcc.delays(frames, "phat", max_lag=LAG, interpolation="parabolic"),
        **{
            f"qkgcc {weighting}, curve": (lambda weighting=weighting: gcc.gcc(frames, weighting, max_lag=LAG))
            for weighting in gcc.WEIGHTINGS
            if weighting != "phat"
        },
        "qkgcc DelayEstimator, with confidence": lambda: estimator(one_second, RATE),
        "qkgcc phat on torch tensors, curve": lambda: gcc.gcc(tensor, "phat", max_lag=LAG),
        "bare torch GCC-PHAT": lambda: torch_gcc_phat(tensor),
        "pyroomacoustics tdoa (frame by frame)": lambda: [
            pyroomacoustics.experimental.tdoa(pair[0], pair[1], interp=1, fs=RATE, phat=True) for pair in frames
        ],
        "pyroomacoustics tdoa, interp 16": lambda: [
            pyroomacoustics.experimental.tdoa(pair[0], pair[1], interp=16, fs=RATE, phat=True) for pair in frames
        ],
    }
    seconds = interleaved(functions, rounds)
    reference = seconds["bare scipy.fft GCC-PHAT"]
    rows = []
    for name, values in seconds.items():
        times = ratio(values, reference)
        limit = REQUIRED.get(name) if batch > 1 else None
        rows.append(
            {
                "batch": batch,
                "method": name,
                "µs a frame": float(np.median(values)) / batch * 1e6,
                "ratio to bare": times,
                "required": "" if limit is None else f"at most {limit}: {'met' if times <= limit else 'MISSED'}",
            }
        )
    return rows


def main() -> None:
    torch.set_num_threads(1)
    rows = measure(1, 200) + measure(256, 15)
    notes = ["One thread, float32, DFT of 4096, lags -23 ... 23. Every method once a round; medians over the rounds."]
    headings = ["batch", "method", "µs a frame", "ratio to bare", "required"]
    write("gcc", "Cost of a GCC curve", "python -m benchmarks.gcc", headings, rows, notes)


if __name__ == "__main__":
    main()
