"""The methods by name: one line and the reference of each."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MethodInfo:
    name: str
    line: str
    reference: str


WEIGHTS = Path(__file__).parents[1] / "weights"
"""The networks that come with the package, `NAME.safetensors`; of the pretrained ones also `NAME.onnx`, for other
programs. `qkgcc.lab.study.shipping` writes both."""

_KNAPP = "Knapp & Carter 1976, IEEE Trans. ASSP 24(4)"

CLASSICAL = {
    method.name: method
    for method in (
        MethodInfo("cc", "plain cross-correlation; strong in an open field, misled by rooms and low pitch", _KNAPP),
        MethodInfo("phat", "phase transform: every frequency counts the same; the usual choice in rooms", _KNAPP),
        MethodInfo(
            "phat-beta",
            "phase transform with a partial exponent (0.8): weak, noisy frequencies count less",
            "Donohue, Hannemann & Dietz 2007, Signal Processing 87(7)",
        ),
        MethodInfo(
            "roth",
            "divides by the first channel's spectrum; not symmetric in its channels",
            "Roth 1971, IEEE Spectrum 8(4)",
        ),
        MethodInfo(
            "scot",
            "smoothed coherence: frequencies count by how coherent they are",
            "Carter, Nuttall & Cable 1973, Proc. IEEE 61(10)",
        ),
        MethodInfo(
            "ml",
            "maximum likelihood (Hannan-Thomson): optimal in noise, without reverberation",
            "Hannan & Thomson 1973, Biometrika 60",
        ),
    )
}

PRETRAINED = {
    method.name: method
    for method in (
        MethodInfo(
            "general",
            "steered QK-GCC, trained on rooms, spacings, sources and recorders of all kinds; confidence calibrated",
            "weights/README.md in the package",
        ),
        MethodInfo(
            "general-medium",
            "the same, smaller: for half the time; what arrays take, which ask it for every pair",
            "weights/README.md in the package",
        ),
        MethodInfo("general-small", "the same, smaller again", "weights/README.md in the package"),
    )
}

PAPER = {
    method.name: method
    for method in (
        MethodInfo(
            "qk-gcc",
            "the paper's network as published (seed 0): for the room of its simulations, microphones 0.5 m apart",
            "Zhang, Chen, Huang, Tu & Ding, QK-GCC: Learnable Query-Key Spectral Matching for Robust Time Delay "
            "Estimation",
        ),
    )
}
"""Published networks, for comparison: good where they were trained, with a confidence that is not calibrated."""

NETWORKS = PRETRAINED | PAPER
"""All networks that come with the package."""
METHODS = NETWORKS | CLASSICAL

DEFAULT = "general"
"""What an estimator takes when no method is named."""
ARRAY_DEFAULT = "general-medium"
"""The same, of directions and positions: eight microphones are 28 pairs, and what one leaves open others decide."""


def pretrained(name: str) -> Path:
    """The file of a network that comes with the package."""
    return WEIGHTS / f"{name}.safetensors"
