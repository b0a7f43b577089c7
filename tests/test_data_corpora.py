"""Corpora on disk: folders, speakers, classes, licences, splits. The small ones are made here, for other tests too."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora import sets
from qkgcc.lab.corpora.sets import Utterance, read_samples

SPEAKERS = """; ID |SEX| SUBSET | MINUTES | NAME
61   | M | test-clean       | 8.08  | Paul-Gabriel Wiener
260  | M | test-clean       | 8.04  | Brad Bush
1089 | M | test-clean       | 8.03  | Peter Bobbe
60   | M | train-clean-100  | 20.18 | |CBW|Simon
"""


def babble(seconds: float, seed: int, gap: float = 1.0) -> NDArray[np.int16]:
    """Coloured noise with a pause after its first second; what remains without it is about `seconds` long."""
    rng = np.random.default_rng(seed)
    sound = np.convolve(rng.standard_normal(round(seconds * 16000)), [1, 0.9, 0.7, 0.4], "same")
    pause = 1e-4 * rng.standard_normal(round(gap * 16000))
    return np.rint(3000 * np.concatenate([sound[:16000], pause, sound[16000:]])).astype(np.int16)


def make_librispeech(root: Path, lengths: dict[str, list[float]]) -> Path:
    """test-clean with the given speakers and seconds of their utterances."""
    corpus = root / "librispeech" / "LibriSpeech"
    corpus.mkdir(parents=True)
    (corpus / "SPEAKERS.TXT").write_text(SPEAKERS)
    for speaker, seconds in lengths.items():
        folder = corpus / "test-clean" / speaker / "7"
        folder.mkdir(parents=True)
        (folder / f"{speaker}-7.trans.txt").write_text("TEXT")
        for number, length in enumerate(seconds):
            sound = babble(length, seed=int(speaker) + number)
            soundfile.write(folder / f"{speaker}-7-{number:04d}.flac", sound, 16000)
    return root


def make_clips(folder: Path, seconds: dict[str, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, length) in enumerate(seconds.items()):
        soundfile.write(folder / name, babble(length, seed), 16000)


def test_the_corpus_is_found_from_its_own_folder_its_parent_and_the_data_root(tmp_path: Path) -> None:
    make_librispeech(tmp_path, {"61": [2.5], "1089": [2.5]})
    expected = ["1089-7-0000", "61-7-0000"]
    for root in (tmp_path, tmp_path / "librispeech", tmp_path / "librispeech" / "LibriSpeech"):
        assert [one.id for one in sets.librispeech_utterances(root, "test-clean")] == expected


def test_an_utterance_knows_its_speaker_kind_and_licence(tmp_path: Path) -> None:
    one = sets.librispeech_utterances(make_librispeech(tmp_path, {"61": [2.5]}), "test-clean")[0]
    assert (one.group, one.kind, one.licence) == ("61", "speech", "CC BY 4.0")
    assert one.path.is_file()


def test_speakers_have_sex_subset_and_name_even_with_bars_in_it(tmp_path: Path) -> None:
    make_librispeech(tmp_path, {"61": [2.5]})
    speakers = sets.speakers(tmp_path / "librispeech" / "LibriSpeech")
    assert speakers["61"] == sets.Speaker("61", "M", "test-clean", "Paul-Gabriel Wiener")
    assert speakers["60"].name == "|CBW|Simon"


def test_a_missing_corpus_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        sets.librispeech_utterances(tmp_path, "dev-clean")
    assert str(tmp_path / "librispeech" / "LibriSpeech" / "dev-clean") in str(error.value)
    assert f"qkgcc data download --set dev-clean --out {tmp_path}" in str(error.value)
    with pytest.raises(InputError, match="qkgcc data download --set noise"):
        sets.musan_clips(tmp_path, "noise")


def test_missing_or_broken_speakers_are_one_sentence(tmp_path: Path) -> None:
    make_librispeech(tmp_path, {"61": [2.5], "777": [2.5]})
    with pytest.raises(InputError, match=r"speaker '777', whom .*SPEAKERS\.TXT does not know"):
        sets.librispeech_utterances(tmp_path, "test-clean")
    table = tmp_path / "librispeech" / "LibriSpeech" / "SPEAKERS.TXT"
    table.write_text("61 | M | test-clean\n")
    with pytest.raises(InputError, match="line 1: expected ID"):
        sets.librispeech_utterances(tmp_path, "test-clean")
    table.unlink()
    with pytest.raises(InputError, match=r"SPEAKERS\.TXT is missing"):
        sets.librispeech_utterances(tmp_path, "test-clean")


def test_an_empty_subset_and_an_utterance_in_two_files_are_errors(tmp_path: Path) -> None:
    make_librispeech(tmp_path, {"61": [2.5], "260": []})
    folder = tmp_path / "librispeech" / "LibriSpeech" / "test-clean" / "61" / "7"
    soundfile.write(folder / "61-7-0000.wav", babble(2.5, 0), 16000)
    with pytest.raises(InputError, match="61-7-0000 is there twice"):
        sets.librispeech_utterances(tmp_path, "test-clean")
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(InputError, match="holds no utterances"):
        sets.librispeech_utterances(tmp_path, "test-clean")


def test_clips_take_class_and_licence_from_the_index(tmp_path: Path) -> None:
    make_clips(tmp_path / "musan" / "noise" / "made", {"rain_1.flac": 2.5, "rain_2.flac": 2.5})
    (tmp_path / "musan" / "noise" / "made" / "index.csv").write_text(
        'file,category,licence,title\nrain_1.flac,rain,CC0,"a, b"\nrain_2.flac,rain,CC-BY,c\n'
    )
    clips = sets.musan_clips(tmp_path, "noise")
    assert [(clip.id, clip.group, clip.kind, clip.licence) for clip in clips] == [
        ("rain_1", "rain", "noise", "CC0"),
        ("rain_2", "rain", "noise", "CC-BY"),
    ]
    (tmp_path / "musan" / "noise" / "made" / "index.csv").write_text("file,category\n")
    with pytest.raises(InputError, match="has no column licence"):
        sets.musan_clips(tmp_path, "noise")


def test_musans_own_licence_files_are_read(tmp_path: Path) -> None:
    bible, free = tmp_path / "noise" / "sound-bible", tmp_path / "noise" / "free-sound"
    make_clips(bible, {"noise-sound-bible-0000.wav": 2.5, "noise-sound-bible-0001.wav": 2.5})
    make_clips(free, {"noise-free-sound-0000.wav": 2.5})
    (bible / "LICENSE").write_text(
        "noise-sound-bible-0001\nTitle: Rain\nLicense: Attribution 3.0\nRecorded by X\n" + "=" * 40 + "\n"
    )
    (free / "LICENSE").write_text("All selected recordings were marked as in the Public Domain\n")
    licences = {clip.id: clip.licence for clip in sets.musan_clips(tmp_path, "noise")}
    assert licences == {
        "noise-free-sound-0000": "All selected recordings were marked as in the Public Domain",
        "noise-sound-bible-0000": sets.MUSAN_LICENCE,
        "noise-sound-bible-0001": "Attribution 3.0",
    }
    assert sets.musan_clips(tmp_path, "noise")[0].group == "free-sound"


def test_samples_are_16_bit_at_16_khz_whatever_the_file(tmp_path: Path) -> None:
    make_clips(tmp_path / "music" / "made", {"a.flac": 2.5})
    soundfile.write(tmp_path / "music" / "made" / "b.wav", np.zeros(44100), 44100)
    soundfile.write(tmp_path / "music" / "made" / "c.wav", np.zeros((800, 2)), 16000)
    soundfile.write(tmp_path / "music" / "made" / "d.wav", np.array([2.0, -2.0, 0.5]), 16000, subtype="FLOAT")
    a, b, c, d = sets.musan_clips(tmp_path, "music")
    assert np.array_equal(read_samples(a), babble(2.5, 0))
    assert len(read_samples(b)) == 16000
    with pytest.raises(InputError, match="2 channels"):
        read_samples(c)
    assert read_samples(d).tolist() == [32767, -32768, 16384]


def test_the_root_is_the_option_or_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKGCC_DATA", str(tmp_path))
    assert sets.data_root(None) == tmp_path
    assert sets.data_root(tmp_path.parent) == tmp_path.parent
    with pytest.raises(InputError, match="nowhere does not exist"):
        sets.data_root(tmp_path / "nowhere")
    monkeypatch.setenv("QKGCC_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"gone \(\$QKGCC_DATA\) does not exist"):
        sets.data_root(None)
    monkeypatch.delenv("QKGCC_DATA")
    with pytest.raises(InputError, match=r"Give their folder, or set the variable QKGCC_DATA.*qkgcc data download"):
        sets.data_root(None)


def test_an_unknown_set_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no set 'train-clean'; there are test-clean, dev-clean, music, noise"):
        sets.utterances("train-clean", tmp_path)


def test_the_papers_speakers_validate_and_test_and_34_train(corpora: Path) -> None:
    found = sets.librispeech_utterances(corpora, "test-clean")
    assert len(found) == 2620
    groups: dict[str, set[str]] = {split: set() for split in sets.SPLITS}
    for one, split in zip(found, sets.assign_splits("test-clean", found), strict=True):
        groups[split].add(one.group)
    assert groups["validation"] == {"260", "672", "908"}
    assert groups["test"] == {"61", "121", "237"}
    assert len(groups["train"]) == 34


def test_a_whole_test_clean_leaves_as_many_utterances_as_the_paper_counts() -> None:
    """1892, 188 and 216 of the original files; of lossy copies a few less, such as 1872, 186 and 216."""

    def corpus(suffix: str) -> list[Utterance]:
        groups = ["61"] * 300 + ["260"] * 220 + ["1089"] * 2100
        return [Utterance(f"{i}", Path(f"{i}{suffix}"), g, "speech", "CC BY 4.0") for i, g in enumerate(groups)]

    def kept(train: int, validation: int, test: int) -> list[str]:
        return ["train"] * train + ["validation"] * validation + ["test"] * test

    sets.check_split_counts("test-clean", corpus(".flac"), kept(1892, 188, 216))
    sets.check_split_counts("test-clean", corpus(".opus"), kept(1872, 186, 216))
    sets.check_split_counts("test-clean", corpus(".flac")[:-1], kept(3, 2, 1))  # a part of it
    sets.check_split_counts("dev-clean", corpus(".flac"), kept(3, 2, 1))
    for suffix, counts in ((".flac", (1872, 186, 216)), (".flac", (1892, 188, 215)), (".opus", (1800, 186, 216))):
        with pytest.raises(InputError, match="utterances of test-clean; the paper counts"):
            sets.check_split_counts("test-clean", corpus(suffix), kept(*counts))


def test_every_reader_of_dev_clean_trains(corpora: Path) -> None:
    found = sets.librispeech_utterances(corpora, "dev-clean")
    assert len({one.group for one in found}) == 40
    assert set(sets.assign_splits("dev-clean", found)) == {"train"}


@pytest.mark.parametrize(("kind", "train", "test"), [("music", 29, 28), ("noise", 50, 50)])
def test_the_listed_clips_are_what_the_rule_gives(corpora: Path, kind: str, train: int, test: int) -> None:
    if not (corpora / "musan" / "music" / "games").is_dir():
        pytest.skip("MUSAN itself is here, not the clips that are listed")
    clips = sets.musan_clips(corpora, kind)
    assigned = sets.assign_splits(kind, clips)
    assert assigned == list(sets.alternate_splits(clips).values())
    assert (assigned.count("train"), assigned.count("test")) == (train, test)
    if kind == "noise":
        kinds = [
            {one.group for one, split in zip(clips, assigned, strict=True) if split == side} for side in sets.SPLITS
        ]
        assert kinds[0] == kinds[2]
        assert len(kinds[0]) == 50
    licences = {"CC0", "CC-BY"} if kind == "noise" else {"CC-BY-SA-3.0", "GPL-2+ (Wesnoth; newer tracks CC-BY-SA-4.0)"}
    assert {clip.licence for clip in clips} == licences


def test_unlisted_clips_follow_the_rule_beside_listed_ones(tmp_path: Path) -> None:
    names = ["hyperrogue_hr-domina-mountain.wav", "zz-1.wav", "zz-2.wav"]  # the first is listed: it tests
    make_clips(tmp_path / "music" / "made", dict.fromkeys(names, 2.5))
    assert sets.assign_splits("music", sets.musan_clips(tmp_path, "music")) == ["test", "train", "test"]
