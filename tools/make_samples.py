"""Make the recordings bundled with the package: synthetic talkers in a simulated room, with their true delays.

Six espeak-ng voices speak one after the other from six places of a reverberant room. The room is simulated with the
image source method of pyroomacoustics, white sensor noise is always present. There are two recordings: a pair of
microphones 0.5 m apart (`talkers-2ch`) and, with two of the talkers, a small irregular array of four (`talkers-4ch`).
Beside each FLAC file lies a JSON file with the truth: who speaks when, from where, and the delay of every pair.

The delay is `tau = (|m1 - s| - |m2 - s|) * fs / c`: positive when microphone 1 hears the source later.

    python tools/make_samples.py

It needs the program espeak-ng and the package pyroomacoustics. With the same versions of both, which the truth files
name, it writes the same bytes each time. No recorded voice is involved: the audio is released with the project.
"""

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
import soxr
from scipy.signal import butter, fftconvolve, sosfilt

from qkgcc.core.types import Floats

Array = Floats

FOLDER = Path(__file__).resolve().parent.parent / "src" / "qkgcc" / "samples"
SEED = 2048
SAMPLE_RATE = 16000
SPEED_OF_SOUND = 343.0  # m/s
ROOM = (6.2, 4.8, 2.7)  # m
T60 = 0.4  # s, asked of Sabine's formula; the image method gives somewhat more
SNR_DB = 24.0  # mean power of all talkers while they speak over the noise, at channel 0
LEVEL_DBFS = -30.5  # RMS of channel 0 over the whole file: as loud as 1 MB for both recordings allows
LEAD, GAP, TAIL = 0.2, 0.25, 0.25  # seconds of room and noise before, between and after the talkers
ACTIVE_DB = -40.0  # speech is active from the first to the last sample above this, relative to its peak

PAIR = ((2.8, 1.95, 1.4), (3.2, 2.25, 1.4))  # 0.5 m apart, oblique to the walls
# Irregular and not in one plane, spacings from 12 to 22 cm: a swapped channel or a mirrored axis gives other delays.
ARRAY = ((3.0, 2.1, 1.4), (3.14, 2.07, 1.41), (2.97, 2.21, 1.44), (3.05, 2.14, 1.52))


@dataclass(frozen=True)
class Talker:
    """One espeak-ng voice (`pitch` 0-99, `speed` in words a minute), what it says and where it stands (metres)."""

    voice: str
    pitch: int
    speed: int
    text: str
    position: tuple[float, float, float]


TALKERS = (
    Talker("en-us", 38, 190, "The train was late, so we went home.", (3.2, 3.4, 1.6)),
    Talker("en-gb+f3", 55, 188, "Close the window, it is getting cold.", (2.5, 0.9, 1.5)),
    Talker("en-gb-scotland+m3", 56, 174, "She found old letters, under the stairs.", (2.2, 3.3, 1.7)),
    Talker("en-us+f2", 60, 196, "We could meet at six, after the show.", (4.7, 1.2, 1.4)),
    Talker("en-gb-x-rp+m7", 40, 170, "Nobody expected the storm to pass.", (0.7, 3.15, 1.7)),
    Talker("en-029+f4", 50, 195, "Put the kettle on, and tell me more.", (3.5, 1.0, 1.3)),
)
RECORDINGS: dict[str, tuple[tuple[tuple[float, float, float], ...], tuple[int, ...]]] = {
    "talkers-2ch": (PAIR, (0, 1, 2, 3, 4, 5)),
    "talkers-4ch": (ARRAY, (2, 3)),
}


def speak(talker: Talker) -> Array:
    """The dry voice: resampled, nothing below the voice (DC, hum), trimmed to its activity, unit RMS. Shape: (n,)"""
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "voice.wav"
        knobs = ["-v", talker.voice, "-p", str(talker.pitch), "-s", str(talker.speed)]
        subprocess.run(["espeak-ng", *knobs, "-w", wav, talker.text], check=True)
        voice, rate = sf.read(wav)
    voice = soxr.resample(voice, rate, SAMPLE_RATE, quality="VHQ")
    voice = sosfilt(butter(4, 75, "highpass", fs=SAMPLE_RATE, output="sos"), voice)
    active = np.flatnonzero(np.abs(voice) > np.abs(voice).max() * 10 ** (ACTIVE_DB / 20))
    voice = voice[active[0] : active[-1] + 1]
    return np.asarray(voice / np.sqrt(np.mean(voice**2)))


def responses(microphones: Array, position: Array) -> list[Array]:
    """Room responses from one position to each microphone, the direct path at d/c as in the real world."""
    import pyroomacoustics as pra

    pra.constants.set("c", SPEED_OF_SOUND)
    pra.constants.set("num_threads", 1)  # one order of summation, so one answer
    hidden = (
        pra.constants.get("frac_delay_length") // 2
    )  # pyroomacoustics delays everything by half an interpolation filter

    def simulate(absorption: float, order: int) -> list[Array]:
        room = pra.ShoeBox(ROOM, fs=SAMPLE_RATE, materials=pra.Material(absorption), max_order=order)
        room.add_source(position)
        room.add_microphone_array(microphones.T)
        room.compute_rir()
        return [np.asarray(of_source[0][hidden:], dtype=float) for of_source in room.rir]

    for response, microphone in zip(simulate(1.0, 0), microphones, strict=True):
        arrival, expected = travel_time(response), np.linalg.norm(microphone - position) / SPEED_OF_SOUND * SAMPLE_RATE
        if abs(arrival - expected) > 0.02:
            raise RuntimeError(f"the direct path arrives at sample {arrival:.3f}, geometry says {expected:.3f}")
    return simulate(*pra.inverse_sabine(T60, ROOM))


def travel_time(response: Array) -> float:
    """Delay in samples of a response with a single path, from the slope of its phase between 500 Hz and 5 kHz."""
    size = 4096
    frequency = np.fft.rfftfreq(size, 1 / SAMPLE_RATE)
    band = (frequency > 500) & (frequency < 5000)
    phase = np.unwrap(np.angle(np.fft.rfft(response, size))[band])
    return float(-np.polyfit(2 * np.pi * frequency[band] / SAMPLE_RATE, phase, 1)[0])


def record(microphones: Array, talkers: list[Talker], rng: np.random.Generator) -> tuple[Array, list[dict[str, Any]]]:
    """All talkers one after the other at all microphones. Shape: (samples, M), and the truth of each talker."""
    voices = [speak(talker) for talker in talkers]
    total = round((LEAD + GAP * (len(voices) - 1) + TAIL) * SAMPLE_RATE) + sum(map(len, voices))
    audio = np.zeros((total, len(microphones)))
    active = np.zeros(total, dtype=bool)
    segments = []
    onset = round(LEAD * SAMPLE_RATE)
    for talker, voice in zip(talkers, voices, strict=True):
        position = np.array(talker.position)
        for channel, response in enumerate(responses(microphones, position)):
            heard = fftconvolve(voice, response)[: total - onset]
            audio[onset : onset + len(heard), channel] += heard
        distance = float(np.linalg.norm(microphones.mean(axis=0) - position))
        start = onset + distance / SPEED_OF_SOUND * SAMPLE_RATE
        active[round(start) : round(start) + len(voice)] = True
        segments.append(truth_of(talker, microphones, start, start + len(voice), distance))
        onset += len(voice) + round(GAP * SAMPLE_RATE)
    noise = np.sqrt(np.mean(audio[active, 0] ** 2)) * 10 ** (-SNR_DB / 20)
    audio += noise * rng.standard_normal(audio.shape)
    return audio * 10 ** (LEVEL_DBFS / 20) / np.sqrt(np.mean(audio[:, 0] ** 2)), segments


def truth_of(talker: Talker, microphones: Array, start: float, end: float, distance: float) -> dict[str, Any]:
    """One entry of `segments`; `start` and `end` in samples, `distance` from the centre of the microphones."""
    to = np.linalg.norm(microphones - np.array(talker.position), axis=1) * SAMPLE_RATE / SPEED_OF_SOUND
    delays = {f"{a}-{b}": float(to[a] - to[b]) for a, b in combinations(range(len(to)), 2)}
    segment: dict[str, Any] = {
        "start": round(start / SAMPLE_RATE, 4),
        "end": round(end / SAMPLE_RATE, 4),
        "voice": talker.voice,
        "pitch": talker.pitch,
        "speed": talker.speed,
        "text": talker.text,
        "position": talker.position,
        "distance": round(distance, 4),
        "delay_samples": round(delays["0-1"], 4),
        "delay_seconds": round(delays["0-1"] / SAMPLE_RATE, 9),
    }
    if len(to) > 2:
        segment["pair_delay_samples"] = {pair: round(delay, 4) for pair, delay in delays.items()}
        segment["pair_delay_seconds"] = {pair: round(delay / SAMPLE_RATE, 9) for pair, delay in delays.items()}
    return segment


def truth(microphones: Array, segments: list[dict[str, Any]], frames: int) -> dict[str, Any]:
    """What the JSON file says."""
    import pyroomacoustics as pra

    version = subprocess.run(["espeak-ng", "--version"], check=True, capture_output=True, text=True).stdout
    spacing = (
        {"spacing": round(float(np.linalg.norm(microphones[1] - microphones[0])), 6)} if len(microphones) == 2 else {}
    )
    return {
        "sample_rate": SAMPLE_RATE,
        "channels": len(microphones),
        "duration": frames / SAMPLE_RATE,
        "speed_of_sound": SPEED_OF_SOUND,
        "convention": "delay of a-b = (|m_a - s| - |m_b - s|) / c: positive when microphone a hears the source later",
        "room": ROOM,
        "t60_asked": T60,
        "snr_db": SNR_DB,
        "microphones": microphones.tolist(),
        **spacing,
        "licence": "MIT, as the project; may be redistributed",
        "origin": "Synthetic: voices by espeak-ng (whose GPL does not cover the speech it makes), room by the image "
        "source method of pyroomacoustics, white sensor noise. No recorded voice is involved.",
        "generator": "tools/make_samples.py",
        "made_with": {"espeak-ng": re.findall(r"\d+\.[\w.]+", version)[0], "pyroomacoustics": pra.__version__},
        "segments": segments,
    }


def compact(text: str) -> str:
    """Indented JSON with each list of numbers on one line."""
    return re.sub(r"\[[-\d.,\s]+\]", lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text)


def write(path: Path, content: bytes) -> None:
    """Write beside the target and rename, so that a broken run leaves the old file."""
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(content)
    beside.replace(path)
    print(f"{path.name}: {len(content) / 1000:.0f} kB")


def main() -> None:
    if shutil.which("espeak-ng") is None:
        sys.exit(
            "espeak-ng is not installed: it speaks the sentences (apt install espeak-ng, or brew install espeak-ng)"
        )
    try:
        import pyroomacoustics  # noqa: F401
    except ImportError:
        sys.exit("pyroomacoustics is not installed: it simulates the room (pip install 'qkgcc[train]')")
    files: dict[str, bytes] = {}
    for name, (places, chosen) in RECORDINGS.items():
        microphones = np.array(places)
        audio, segments = record(microphones, [TALKERS[i] for i in chosen], np.random.default_rng(SEED))
        flac = io.BytesIO()
        sf.write(flac, audio, SAMPLE_RATE, subtype="PCM_16", format="FLAC", compression_level=1.0)
        text = json.dumps(truth(microphones, segments, len(audio)), indent=2)
        files[f"{name}.flac"] = flac.getvalue()
        files[f"{name}.json"] = (compact(text) + "\n").encode()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write(FOLDER / name, content)


if __name__ == "__main__":
    main()
