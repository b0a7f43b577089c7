"""Synthetic sources are named by their ids, and sound as their kinds say; banks and they are found by one lookup."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.scenes.signals import SYNTHESES, Catalog, is_synthetic, lookup, synthetic

pytestmark = pytest.mark.numeric

RATE = 16000
KINDS = tuple(SYNTHESES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_signal_begins_with_the_shorter_one(kind: str) -> None:
    for number in (0, 7, 123456789):
        whole = synthetic(f"{kind}:{number}", 30000, RATE)
        np.testing.assert_allclose(synthetic(f"{kind}:{number}", 9000, RATE), whole[:9000], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_another_sound_and_none_is_silent(kind: str) -> None:
    sounds = np.stack([synthetic(f"{kind}:{number}", 16000, RATE) for number in range(12)])
    assert sounds.dtype == np.float32
    assert np.isfinite(sounds).all()
    assert (np.abs(sounds).max(axis=1) > 0.05).all()
    correlation = np.abs(np.corrcoef(sounds) - np.eye(12))
    assert correlation.max() < 0.9


def test_clicks_are_short_and_many() -> None:
    crest, active = [], []
    for number in range(30):
        sound = synthetic(f"clicks:{number}", 32000, RATE)
        crest.append(np.abs(sound).max() / sound.std())
        frames = sound[: 15 * 2048].reshape(15, 2048)
        active.append(((frames**2).mean(axis=1) > 1e-3 * (sound**2).mean()).mean())
    assert np.median(crest) > 6  # a Gaussian noise of this length has 4
    assert np.mean(active) > 0.8


def test_clicks_come_at_irregular_times() -> None:
    sound = np.abs(synthetic("clicks:5", 80000, RATE))
    loud = np.flatnonzero(sound > 0.2 * sound.max())
    gaps = np.diff(loud)
    gaps = gaps[gaps > 400]
    assert len(gaps) > 10
    assert gaps.std() / gaps.mean() > 0.15


def test_tones_are_lines_in_a_spectrum_and_stay_below_the_nyquist_frequency() -> None:
    window = np.hanning(8192)
    for number in range(30):
        power = np.abs(np.fft.rfft(synthetic(f"tones:{number}", 8192, RATE) * window)) ** 2
        assert power[3900:].sum() < 1e-4 * power.sum()
        # A tenth of the bins; of a white noise it would hold a third. Half a second of a fast sweep is the broadest.
        assert np.sort(power)[::-1][:400].sum() > 0.5 * power.sum()


@pytest.mark.parametrize("id", ["61-70968-0000", "clicks:", "clicks:-1", "hiss:3", "clicks:1a", "clicks"])
def test_other_ids_are_not_synthetic(id: str) -> None:
    assert not is_synthetic(id)
    with pytest.raises(InputError, match="is no synthetic signal"):
        synthetic(id, 10, RATE)


def make_bank(folder: Path, name: str, rows: list[tuple[str, str, str]]) -> tuple[Bank, dict[str, np.ndarray]]:
    """A bank of one second of noise for each (id, kind, split)."""
    audio, utterances, sounds = b"", [], {}
    for number, (id, kind, split) in enumerate(rows):
        sound = (3000 * np.random.default_rng(number).standard_normal(RATE)).astype(np.int16)
        stream = io.BytesIO()
        soundfile.write(stream, sound, RATE, format="FLAC", subtype="PCM_16")
        utterances.append(
            {"id": id, "kind": kind, "split": split, "group": "g", "licence": "CC0", "sha256": "", "codec": "flac"}
            | {"samples": RATE, "whole_samples": RATE, "offset": len(audio), "bytes": len(stream.getvalue())}
        )
        audio += stream.getvalue()
        sounds[id] = sound / 32768
    path = folder / f"{name}.audio"
    path.write_bytes(audio)
    index = {"set": name, "sample_rate": RATE, "recipe": {}, "left_out": [], "utterances": utterances}
    return Bank(path, index, "", np.zeros((len(rows), 513), dtype=np.float32)), sounds


def test_a_catalog_lists_the_signals_of_a_split_by_kind(tmp_path: Path) -> None:
    speech, _ = make_bank(tmp_path, "speech", [("a", "speech", "train"), ("b", "speech", "test")])
    clips, _ = make_bank(tmp_path, "clips", [("c", "music", "train"), ("d", "noise", "train"), ("e", "music", "test")])
    assert Catalog.from_banks([speech, clips], "train") == Catalog(speech=("a",), music=("c",), noise=("d",))
    assert Catalog.from_banks([speech, clips], "test") == Catalog(speech=("b",), music=("e",))


def test_an_id_must_name_one_signal(tmp_path: Path) -> None:
    one, _ = make_bank(tmp_path, "one", [("a", "speech", "train")])
    two, _ = make_bank(tmp_path, "two", [("a", "music", "train")])
    with pytest.raises(InputError, match="share ids"):
        Catalog.from_banks([one, two], "train")


def test_a_catalog_refuses_kinds_it_does_not_know(tmp_path: Path) -> None:
    bank, _ = make_bank(tmp_path, "one", [("a", "whales", "train")])
    with pytest.raises(InputError, match="'whales'"):
        Catalog.from_banks([bank], "train")


def test_a_lookup_finds_signals_of_banks_and_synthetic_ones(tmp_path: Path) -> None:
    bank, sounds = make_bank(tmp_path, "one", [("a", "speech", "train"), ("b", "speech", "train")])
    signals = lookup([bank], seconds=0.5)
    np.testing.assert_allclose(signals("b"), sounds["b"], atol=1e-4)
    np.testing.assert_array_equal(signals("tones:3"), synthetic("tones:3", RATE // 2, RATE))
    with pytest.raises(InputError, match="none of the banks holds the signal 'c'"):
        signals("c")
