"""Channels that share no sound, by `qkgcc doctor`: how many are found, and how many right recordings are called so.

    python -m benchmarks.unrelated --bank banks/test-clean

The right recordings are hard: a talker in noise about as loud, in reverberant rooms, microphones up to 3 m apart. The
others are made of their channels, one of each, or are noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.spacing import places
from benchmarks.timing import machine, write
from qkgcc.arrays import array
from qkgcc.audio.recording import open_audio
from qkgcc.core.types import Samples
from qkgcc.doctor import diagnose
from qkgcc.doctor.pairs import SHARED_SOUND
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.scenes import Scene, Source

RATE = 16000
LENGTHS = (2.0, 6.0, 10.0)
"""Seconds."""
SPACINGS, SNR, T60 = (0.3, 3.0), (0.0, 6.0), (0.6, 1.0)
"""Metres, dB, seconds; uniform."""
APART = 1.3
"""Seconds between recorders that were started by hand."""

Sound = Samples


def rooms(bank: Bank, count: int, seed: int) -> list[Sound]:
    """Two channels each, longer than the longest by `APART`."""
    seconds = LENGTHS[-1] + APART
    voices = np.flatnonzero(bank.samples >= 2.5 * RATE)

    def speech(id: str) -> Sound:
        return np.concatenate([bank.audio(int(number)) for number in id.split("+")])

    heard = []
    for index in track(range(count), description="rooms"):
        rng = np.random.default_rng([seed, index])
        room, microphones, talker = places(rng, float(rng.uniform(*SPACINGS)), bool(rng.random() < 1 / 3))
        signal = "+".join(str(number) for number in rng.choice(voices, 5, replace=False))
        t60, snr = float(rng.uniform(*T60)), float(rng.uniform(*SNR))
        noise = str(rng.choice(["independent", "diffuse"]))
        scene = Scene(room, t60, microphones, (Source(signal, talker[None]),), snr, noise, seed=index)
        heard.append(0.05 * render(scene, speech, seconds, jobs=1).audio)
    return heard


def recordings(heard: list[Sound], seconds: float) -> dict[tuple[str, bool], list[Sound]]:
    """By what they are and whether their channels share no sound."""
    length, late = round(seconds * RATE), round(APART * RATE)
    single = [sound[0, :length] for sound in heard]
    others = single[1:] + single[:1]
    noise = np.random.default_rng(0)
    return {
        ("a talker", False): [sound[:, :length] for sound in heard],
        (f"a talker, recorders started {APART:g} s apart", False): [
            np.stack([sound[0, :length], sound[1, late : late + length]]) for sound in heard
        ],
        ("noise of each microphone", True): [0.05 * noise.standard_normal((2, length)) for _ in heard],
        ("two talkers, each in a room and a channel", True): [
            np.stack(both) for both in zip(single, others, strict=True)
        ],
        ("four such channels, with an array", True): [
            np.stack([single[(i + k) % len(single)] for k in range(4)]) for i in range(len(single))
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--rooms", type=int, default=60)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    here = machine()
    heard = rooms(Bank.load(arguments.bank), arguments.rooms, arguments.seed)
    table: list[dict[str, Any]] = []
    for seconds in LENGTHS:
        for (name, unrelated), sounds in recordings(heard, seconds).items():
            geometry = array("respeaker4") if len(sounds[0]) == 4 else None
            found = [diagnose(open_audio(sound, RATE), geometry=geometry) for sound in track(sounds, description=name)]
            called = [{one.code: one.channels for one in answer.findings} for answer in found]
            everyone = tuple(range(len(sounds[0])))
            table.append(
                {
                    "recordings": name,
                    "seconds": f"{seconds:g}",
                    "share a sound": "no" if unrelated else "yes",
                    "called unrelated, %": 100
                    * float(np.mean([one.get("unrelated-channels") == everyone for one in called])),
                    "some channels, %": 100 * float(np.mean(["unrelated-channels" in one for one in called])),
                    "not known, %": 100 * float(np.mean(["too-little-sound" in one for one in called])),
                }
            )
    notes = [
        f"{arguments.rooms} of each: a talker in noise 0 to 6 dB below the voice, T60 0.6 to 1 s, microphones 0.3 to "
        f"3 m apart. From {SHARED_SOUND.enough:g} s of sound on, channels are called unrelated whose phases agree by "
        f"less than {SHARED_SOUND.shared:g} standard deviations more than by chance; of shorter ones, it is said that "
        "it is not known.",
    ]
    command = f"python -m benchmarks.unrelated --bank banks/{arguments.bank.name}"
    formats = dict.fromkeys(("called unrelated, %", "some channels, %", "not known, %"), ".1f")
    write(
        "unrelated", "Channels that share no sound", command, list(table[0]), table, notes, formats=formats, here=here
    )


if __name__ == "__main__":
    main()
