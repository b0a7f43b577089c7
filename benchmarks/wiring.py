"""Exchanged and inverted microphones: how often they are noticed, and how often right recordings are suspected.

    python -m benchmarks.wiring --bank banks/dev-clean --test-bank banks/test-clean --data ~/corpora

The constants of `qkgcc.arrays.wiring` and `arrays.search` were chosen on the validation rooms (voices of
dev-clean). Those of array-test, the real and the bundled recordings are only reported. Writes two tables.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.timing import machine, write
from qkgcc import samples
from qkgcc.arrays import DirectionEstimator, Geometry, PositionEstimator, array
from qkgcc.arrays.evidence import FRAME, RATE
from qkgcc.arrays.steering import arrivals, sphere
from qkgcc.arrays.wiring import MAX_FAR_FIELD_APERTURE, WiringCheck, same_shape
from qkgcc.audio.frames import cut_frames
from qkgcc.audio.recording import open_audio
from qkgcc.core.types import SPEED_OF_SOUND, Floats
from qkgcc.doctor import diagnose
from qkgcc.doctor.arrays import misfit
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.array_set import ArrayBenchmark, record_scene
from qkgcc.lab.scenes.array_scenes import (
    DISTRIBUTED,
    KINDS,
    LAW,
    SAMPLE_RATE,
    ArrayScene,
    array_scene,
    directions,
    yaw_rotation,
)
from qkgcc.lab.study import arrays, framesets

COMPACT = ("respeaker4", "linear:4:0.05", "respeaker6", "circular:6:0.15")
"""Arrays of four and six microphones, in the rooms of `respeaker4` and `circular:8:0.1`."""
LINES = ("linear:4:0.1", "linear:6:0.04")
"""Asked about talkers near to them, too, whose waves are bent."""
CLOSE = dataclasses.replace(LAW, distance=(0.3, 1.0))
SEED = 777
ORDERS = 6
"""Wrong orders of each recording that are tried."""
NEAR = 10.0
"""Degrees."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    set: str
    geometry: Geometry
    samples: npt.NDArray[np.floating]
    """(M, n)"""
    truth: Floats | None = None
    """(talkers, blocks, 3) metres; None: not known so exactly."""
    rate: int = SAMPLE_RATE


def validation(bank: Bank, count: int) -> Iterator[Case]:
    utterances = {id: int(n) for id, n in zip(bank.ids, bank.samples, strict=True)}
    for number in range(count):
        for name in (*COMPACT, DISTRIBUTED):
            repeat, kind = divmod(number, 6)
            index = repeat * len(KINDS) + kind + {DISTRIBUTED: 12, "respeaker4": 0}.get(name, 6)
            yield _case("validation rooms", _with_array(array_scene(SEED, index, utterances), name), bank)
        for name in LINES:
            drawn = array_scene(SEED, number * len(KINDS) + 6, utterances, CLOSE)
            yield _case("one talker who stands within 1 m", _with_array(drawn, name), bank)


def _with_array(drawn: ArrayScene, name: str) -> ArrayScene:
    """The same room with another compact array in it."""
    if name == DISTRIBUTED:
        return drawn
    geometry = array(name)
    microphones = drawn.centre + geometry.microphones @ yaw_rotation(drawn.yaw).T
    return dataclasses.replace(
        drawn, geometry=geometry, scene=dataclasses.replace(drawn.scene, microphones=microphones)
    )


def _case(name: str, drawn: ArrayScene, bank: Bank) -> Case:
    return Case(name, drawn.geometry, record_scene(drawn, bank) / 32768, drawn.truth)


def frozen(bank: Bank, count: int) -> Iterator[Case]:
    benchmark = ArrayBenchmark.load()
    for index in range(count * len(KINDS)):
        yield _case("array-test", benchmark.scene(index), bank)


def real(data: Path) -> Iterator[Case]:
    for path, _ in arrays.respeaker_files(data):
        yield Case("real ReSpeaker", array("respeaker4"), framesets.read_respeaker(path))
    audio = open_audio(samples.path("talkers-4ch"))
    microphones = np.array(samples.truth("talkers-4ch")["microphones"])
    yield Case("bundled", Geometry(microphones, "talkers-4ch"), audio.read(), rate=audio.sample_rate)


def suspected(case: Case, channels: npt.NDArray[np.floating]) -> bool:
    """Whether the recording is said to be wired otherwise. (Of compact arrays that does not depend on the method.)"""
    if case.geometry.aperture > MAX_FAR_FIELD_APERTURE:
        answer = PositionEstimator(case.geometry)(channels, case.rate)
        return any("probably exchanged" in warning for warning in answer.warnings)
    frame, hop = round(FRAME * RATE), round(FRAME / 2 * RATE)  # as `ArrayEvidence` has them, which takes longer
    check = WiringCheck(
        case.geometry, case.geometry.pairs, SPEED_OF_SOUND, rate=RATE, highest=case.rate / 2, frame=frame, hop=hop
    )
    for frames in cut_frames(iter([channels]), frame, hop):
        for one in frames:
            check.add(one)
    return check.found is not None


def named_by_doctor(case: Case, channels: npt.NDArray[np.floating]) -> bool:
    codes = {"swapped-channels", "wrong-geometry", "inverted-polarity", "outside-spacing"}
    return any(one.code in codes for one in diagnose(open_audio(channels, case.rate), geometry=case.geometry).findings)


def wrong_orders(case: Case, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Half of them exchanges of two, the others any; none that is the array itself, turned or mirrored."""
    count, found = len(case.geometry), list[tuple[int, ...]]()
    while len(found) < ORDERS:
        order = rng.permutation(count)
        if len(found) % 2 == 0 or case.geometry.aperture > MAX_FAR_FIELD_APERTURE:
            first, second = order[:2]
            order = np.arange(count)
            order[[first, second]] = second, first
        if not same_shape(case.geometry, tuple(order.tolist())):
            found.append(tuple(order.tolist()))
    return found


def audible(case: Case, order: tuple[int, ...]) -> bool:
    """Whether the order changes the delays of these talkers by more than a slip of the geometry would."""
    if case.truth is None or case.geometry.aperture > MAX_FAR_FIELD_APERTURE:
        return True
    centred = case.geometry.microphones - case.geometry.microphones.mean(axis=0)
    waves = _times(centred, sphere(1600))[:, list(order)]
    places = case.truth.reshape(-1, 3)
    heard = _times(centred, places / np.linalg.norm(places, axis=1, keepdims=True))
    missed = np.sqrt(((heard[:, None] - waves) ** 2).mean(axis=-1).min(axis=1))
    return bool(missed.mean() >= misfit(case.geometry.aperture / SPEED_OF_SOUND))


def _times(microphones: Floats, towards: Floats) -> Floats:
    times = arrivals(microphones, towards, np.zeros(len(towards))) / SPEED_OF_SOUND
    return np.asarray(times - times.mean(axis=1, keepdims=True))


def measured(case: Case, number: int, doctor: bool) -> Iterator[tuple[str, bool]]:
    """What was tried, and whether it was noticed."""
    rng = np.random.default_rng(number)
    yield "right", suspected(case, case.samples)
    for order in wrong_orders(case, rng):
        found = suspected(case, case.samples[list(order)])
        yield "order", found
        if audible(case, order):
            yield "audible", found
            if doctor:
                yield "doctor's order", named_by_doctor(case, case.samples[list(order)])
                doctor = False
    if case.geometry.aperture <= MAX_FAR_FIELD_APERTURE:
        turned = case.samples.copy()
        turned[rng.integers(len(turned))] *= -1
        yield "inverted", suspected(case, turned)


def answers(case: Case, number: int) -> Iterator[tuple[str, float, float]]:
    """Of a compact array: what was done to it, mean confidence of the blocks and share that is right."""
    rng = np.random.default_rng(number)
    assert case.truth is not None
    azimuths = directions(case.truth)[0]
    turned = case.samples.copy()
    turned[rng.integers(len(turned))] *= -1
    order = next(order for order in wrong_orders(case, rng) if audible(case, order))
    estimator = DirectionEstimator(case.geometry)
    for what, channels in (
        ("right", case.samples),
        ("another order", case.samples[list(order)]),
        ("one inverted", turned),
    ):
        said, right = [], []
        for block, truth in zip(estimator(channels, case.rate).blocks, azimuths.T, strict=True):
            for one in block.directions:
                said.append(one.confidence)
                right.append(float(np.abs((truth - one.azimuth + 180) % 360 - 180).min() <= NEAR))
        yield what, float(np.mean(said)), float(np.mean(right))


def _share(found: list[bool]) -> str:
    return f"{sum(found)} of {len(found)} ({100 * np.mean(found):.1f} %)" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True, help="voices of the validation rooms")
    parser.add_argument("--test-bank", type=Path, help="test-clean: report on array-test as well")
    parser.add_argument("--data", type=Path, help="the corpora: report on real recordings as well")
    parser.add_argument("--count", type=int, default=36, help="validation rooms for each array")
    parser.add_argument("--test-count", type=int, default=6, help="rooms of each kind of array-test")
    given = parser.parse_args()
    here = machine()
    found: dict[tuple[str, str], dict[str, list[bool]]] = {}
    said: dict[tuple[str, str], list[tuple[float, float]]] = {}
    parts: list[Iterator[Case]] = [validation(Bank.load(given.bank), given.count)]
    if given.test_bank:
        parts.append(frozen(Bank.load(given.test_bank), given.test_count))
    if given.data:
        parts.append(real(given.data))
    for part in parts:
        for number, case in enumerate(part):
            counts = found.setdefault((case.set, case.geometry.name), {})
            for what, noticed in measured(case, number, doctor=len(counts.get("right", [])) < 8):
                counts.setdefault(what, []).append(noticed)
            one_place = (
                case.geometry.dimensions > 1 and case.geometry.aperture <= MAX_FAR_FIELD_APERTURE
            )  # lines leave two azimuths
            if case.truth is not None and one_place and len(counts["right"]) <= 12:
                for what, confidence, right in answers(case, number):
                    said.setdefault((f"{case.set}, {case.geometry.name}", what), []).append((confidence, right))
            print(case.set, case.geometry.name, {what: f"{sum(one)}/{len(one)}" for what, one in counts.items()})
    write_tables(found, said, here)


def write_tables(
    found: Mapping[tuple[str, str], dict[str, list[bool]]],
    said: Mapping[tuple[str, str], list[tuple[float, float]]],
    here: dict[str, str],
) -> None:
    command = "python -m benchmarks.wiring --bank banks/dev-clean --test-bank banks/test-clean --data ~/corpora"
    rows: list[dict[str, Any]] = [
        {
            "recordings": name,
            "array": kind,
            "right ones suspected": _share(counts["right"]),
            "wrong orders noticed": _share(counts["order"]),
            "of those that can be heard": _share(counts.get("audible", [])),
            "inverted microphones noticed": _share(counts.get("inverted", [])),
            "orders that doctor names": _share(counts.get("doctor's order", [])),
        }
        for (name, kind), counts in found.items()
    ]
    notes = [
        "Simulated recordings of 10 s (one to three talkers who stand or walk, T60 0.2 to 1 s, SNR 0 to 30 dB), "
        f"real ones of about 5 s. {ORDERS} wrong orders of each, half of them exchanges of two; of `distributed`, "
        "metres apart, exchanges alone. An order that is the array itself, turned or mirrored, is none. One that can "
        "be heard changes the delays of the talkers of that recording by 16 us RMS and more: with a talker on an axis "
        "of symmetry others do not, and the answer is right in spite of them. One microphone of each was inverted. "
        "Doctor: on some of the recordings, one order each."
    ]
    write("wiring", "Exchanged and inverted microphones", command, list(rows[0]), rows, notes, here=here)
    table: list[dict[str, Any]] = [
        {
            "recordings": name,
            "wired": what,
            "mean confidence": f"{np.mean([one for one, _ in rows_]):.2f}",
            "within 10 degrees": f"{100 * np.mean([right for _, right in rows_]):.0f} %",
        }
        for (name, what), rows_ in said.items()
    ]
    notes = ["Blocks of 1 s by `DirectionEstimator` as it is by default, 12 recordings a row."]
    title = "Confidence of arrays that are wired otherwise"
    write("wiring_confidence", title, command, list(table[0]), table, notes, here=here)


if __name__ == "__main__":
    main()
