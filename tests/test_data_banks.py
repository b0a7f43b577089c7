"""Banks: what is kept, that it comes back, that two builds are the same bytes, and that a damaged one is never read."""

import errno
import hashlib
import io
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora import packing
from qkgcc.lab.corpora.banks import Bank, bank_files
from qkgcc.lab.corpora.packing import Recipe, build, ogg_checksum, recipe_for, remove_silence, with_fixed_serial
from qkgcc.lab.rooms.mixing import power_spectrum
from test_data_corpora import babble, make_clips, make_librispeech

LENGTHS = {"61": [4.2, 2.4, 1.5], "260": [4.0], "1089": [3.9, 2.5, 1.7]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_librispeech(tmp_path_factory.mktemp("corpora"), LENGTHS)


@pytest.fixture(scope="module")
def bank(root: Path) -> Bank:
    return build("test-clean", root, root / "bank")


def copied(bank: Bank, folder: Path) -> tuple[Path, Path]:
    """The audio file and index of a copy that a test may damage."""
    pair = bank_files(folder / "copy")
    for source, target in zip(bank_files(bank.path), pair, strict=True):
        target.write_bytes(source.read_bytes())
    return pair


def test_utterances_longer_than_two_seconds_without_silence_are_kept(bank: Bank) -> None:
    assert bank.ids == ["1089-7-0000", "1089-7-0001", "260-7-0000", "61-7-0000", "61-7-0001"]
    assert bank.splits.tolist() == ["train", "train", "validation", "test", "test"]
    assert bank.groups.tolist() == ["1089", "1089", "260", "61", "61"]
    assert set(bank.kinds.tolist()) == {"speech"}
    assert [row["id"] for row in bank.left_out] == ["1089-7-0002", "61-7-0002"]
    assert bank.left_out[0]["reason"] == "not longer than 2 s without silence"


def test_exactly_two_seconds_are_not_longer_than_two_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "music" / "made"
    folder.mkdir(parents=True)
    for samples in (32000, 32001):
        sound = (3000 * np.random.default_rng(0).standard_normal(samples)).astype(np.int16)
        soundfile.write(folder / f"{samples}.flac", sound, 16000)
    assert build("music", tmp_path, tmp_path / "bank").ids == ["32001"]


def test_the_test_split_is_whole_and_lossless(bank: Bank) -> None:
    for i in bank.select(split="test"):
        whole = remove_silence(babble(LENGTHS["61"][i - 3], seed=61 + i - 3))
        assert bank.samples[i] == bank.whole_samples[i] == len(whole)
        assert np.array_equal(bank.audio(i), (whole / 32768).astype(np.float32))
        assert bank.content_hashes[i] == hashlib.sha256(whole.tobytes()).hexdigest()


def test_the_others_are_their_first_three_seconds_in_time_with_the_original(bank: Bank) -> None:
    assert bank.samples[bank.select(split="train")].max() == 48000
    for i, seed in ((0, 1089), (1, 1090), (2, 260)):
        original = remove_silence(babble(LENGTHS[str(bank.groups[i])][i % 2], seed=seed)) / 32768
        stored = bank.audio(i)
        assert len(stored) == min(48000, len(original)) == bank.samples[i]
        assert bank.whole_samples[i] == len(original)
        spectra = np.fft.rfft(np.stack([stored, original[: len(stored)]]), 1 << 17)
        assert np.argmax(np.fft.irfft(spectra[0] * spectra[1].conj())) == 0


def test_the_spectrum_is_that_of_the_whole_utterance(bank: Bank) -> None:
    whole = remove_silence(babble(LENGTHS["1089"][0], seed=1089)) / 32768
    assert bank.power_spectrum.shape == (len(bank), 513) == (5, 513)
    assert np.array_equal(bank.power_spectrum[0], power_spectrum(whole))
    assert bank.whole_samples[0] > bank.samples[0]


def test_stack_cuts_and_pads(bank: Bank) -> None:
    rows = bank.stack([4, 0], 45000, jobs=2)
    assert rows.shape == (2, 45000)
    assert rows.dtype == np.float32
    assert np.array_equal(rows[0, : bank.samples[4]], bank.audio(4))
    assert not rows[0, bank.samples[4] :].any()
    assert np.array_equal(rows[1], bank.audio(0)[:45000])
    assert bank.stack([], 10).shape == (0, 10)


def test_utterances_are_found_by_id_and_split(bank: Bank) -> None:
    assert bank.index("260-7-0000") == 2
    with pytest.raises(InputError, match="no utterance '1-2-3'"):
        bank.index("1-2-3")
    with pytest.raises(InputError, match="no split 'val'; there are train, validation, test"):
        bank.select(split="val")


def test_two_builds_give_the_same_bytes(root: Path, bank: Bank, tmp_path: Path) -> None:
    again = build("test-clean", root, tmp_path / "again.audio", jobs=1)
    for one, two in zip(bank_files(bank.path), bank_files(again.path), strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert again.hash == bank.hash


def test_the_hash_names_the_recipe_too(root: Path, bank: Bank, tmp_path: Path) -> None:
    other = build("test-clean", root, tmp_path / "other", Recipe(2.5, None, lossy=False))
    assert other.hash != bank.hash
    assert other.samples.max() == 40000
    assert other.recipe["seconds"] == 2.5


def test_clips_are_whole_and_lossless_in_both_splits_or_cut_where_asked(tmp_path: Path) -> None:
    make_clips(tmp_path / "noise" / "made", {"a.wav": 5.0, "b.wav": 4.0, "short.wav": 1.0})
    made = build("noise", tmp_path, tmp_path / "noise-bank")
    assert made.ids == ["a", "b"]
    assert made.splits.tolist() == ["train", "test"]
    assert np.array_equal(made.samples, made.whole_samples)
    assert np.array_equal(made.audio(0), (remove_silence(babble(5.0, 0)) / 32768).astype(np.float32))
    cut = build("noise", tmp_path, tmp_path / "cut", recipe_for("noise", 3.0))
    assert cut.samples[0] == 48000
    assert cut.samples[1] == cut.whole_samples[1]


def test_silent_clips_are_left_out_and_a_set_of_them_makes_no_bank(tmp_path: Path) -> None:
    folder = tmp_path / "noise" / "made"
    make_clips(folder, {"a.wav": 3.0})
    soundfile.write(folder / "nothing.wav", np.zeros(48000), 16000)
    assert build("noise", tmp_path, tmp_path / "bank").left_out[0]["reason"] == "silent"
    (folder / "a.wav").unlink()
    with pytest.raises(InputError, match="no bank is made"):
        build("noise", tmp_path, tmp_path / "empty")
    assert not list(tmp_path.glob("*empty*"))


@pytest.mark.needs("numba")
def test_a_damaged_source_file_stops_the_build_and_is_named(tmp_path: Path) -> None:
    make_clips(tmp_path / "music" / "made", {"a.wav": 3.0, "b.wav": 3.0})
    (tmp_path / "music" / "made" / "b.wav").write_bytes(b"RIFF")
    with pytest.raises(InputError, match=r"b\.wav is truncated"):
        build("music", tmp_path, tmp_path / "bank")
    assert not list(tmp_path.glob("*bank*"))


def test_recipes_that_make_no_sense_are_refused() -> None:
    assert recipe_for("dev-clean") == Recipe(3.0, "test", lossy=True)
    assert recipe_for("music") == Recipe(None, "test", lossy=False)
    with pytest.raises(InputError, match="give 2 or more"):
        recipe_for("music", 1.0)
    with pytest.raises(InputError, match="no split 'dev'"):
        recipe_for("music", None, "dev")


def test_a_half_written_bank_is_never_loaded(bank: Bank, tmp_path: Path) -> None:
    audio, index = copied(bank, tmp_path)
    assert (
        Bank.load(audio, verify=False).hash == Bank.load(index).hash == Bank.load(tmp_path / "copy").hash == bank.hash
    )
    whole = audio.read_bytes()
    audio.write_bytes(whole[:-100])
    with pytest.raises(InputError, match="half-written"):
        Bank.load(tmp_path / "copy")
    audio.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    Bank.load(tmp_path / "copy", verify=False)  # sizes alone do not show it
    with pytest.raises(InputError, match="damaged: its SHA-256"):
        Bank.load(tmp_path / "copy")


def test_a_bank_without_its_partner_says_so(bank: Bank, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"copy\.json does not exist; build it with: qkgcc data bank"):
        Bank.load(tmp_path / "copy")
    audio, index = copied(bank, tmp_path)
    audio.unlink()
    with pytest.raises(InputError, match=r"copy\.audio does not exist; copy\.json is there without it"):
        Bank.load(index)
    copied(bank, tmp_path)
    index.unlink()
    with pytest.raises(InputError, match=r"copy\.json does not exist; copy\.audio is there without it"):
        Bank.load(audio)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "no index of a bank, or a damaged one"),
        (lambda text: "[]", "no index of a bank, or a damaged one"),
        (lambda text: '{"format": 1}', "no index of a bank, or a damaged one"),
        (lambda text: json.dumps(json.loads(text) | {"format": 2}), "bank of format 2; this qkgcc reads format 1"),
    ],
)
def test_an_index_that_cannot_be_understood_is_one_sentence(
    bank: Bank, tmp_path: Path, change: Any, message: str
) -> None:
    _, index = copied(bank, tmp_path)
    index.write_text(change(index.read_text()))
    with pytest.raises(InputError, match=message):
        Bank.load(index)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index["utterances"][1].pop("kind"), "utterance 1: kind is missing"),
        (lambda index: index["utterances"][1].update(samples="many"), "utterance 1: samples is 'many'"),
        (lambda index: index["utterances"].append("one more"), "utterance 5: offset is missing"),
        (lambda index: index["utterances"].pop(), "not 513 numbers for each of 4 utterances"),
        (lambda index: index["utterances"][1].update(id="1089-7-0000"), "an id is there twice"),
        (lambda index: index["utterances"][1].update(split="dev"), "there is no split 'dev'"),
        (lambda index: index["utterances"][1].update(offset=10**9), "a place outside the audio file"),
        (lambda index: index["utterances"][1].update(samples=-1), "keeps -1 of"),
        (lambda index: index.update(sample_rate=48000), "a sample rate of 48000 Hz"),
        (lambda index: index.update(utterances={}), "utterances is {}"),
        (lambda index: index.update(audio=None), "audio is None"),
        (lambda index: index["audio"].pop("sha256"), "sha256 is missing"),
        (lambda index: index["spectra"].update(offset=-5), "a place outside the audio file"),
        (lambda index: index.update(left_out=[1]), "left_out is no list of rows"),
    ],
)
def test_an_index_that_was_tampered_with_is_one_sentence(bank: Bank, tmp_path: Path, change: Any, message: str) -> None:
    _, index = copied(bank, tmp_path)
    content = json.loads(index.read_text())
    change(content)
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"damaged one \(.*{message}.*\): build or copy the bank again"):
        Bank.load(index)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_spectra_that_are_no_powers_are_refused(bank: Bank, tmp_path: Path, value: float) -> None:
    audio, index = copied(bank, tmp_path)
    content = bytearray(audio.read_bytes())
    content[-4:] = np.array([value], dtype="<f4").tobytes()
    audio.write_bytes(content)
    record = json.loads(index.read_text())
    record["audio"]["sha256"] = hashlib.sha256(content).hexdigest()
    index.write_text(json.dumps(record))
    with pytest.raises(InputError, match="power spectra that are negative or no numbers"):
        Bank.load(index)


def test_an_interrupt_while_decoding_is_no_damage(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """libsndfile calls back into Python, where Ctrl-C would be raised, printed and dropped."""

    class Interrupted(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            os.kill(os.getpid(), signal.SIGINT)
            return super().readinto(buffer)

    whole = bank.audio(0)
    monkeypatch.setattr("qkgcc.lab.corpora.banks.io", SimpleNamespace(BytesIO=Interrupted))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            bank.audio(0)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    assert np.array_equal(bank.audio(0), whole)


def test_an_utterance_that_does_not_decode_names_itself(bank: Bank, tmp_path: Path) -> None:
    audio, _ = copied(bank, tmp_path)
    content = bytearray(audio.read_bytes())
    content[:4] = b"junk"
    audio.write_bytes(content)
    with pytest.raises(InputError, match="1089-7-0000 cannot be decoded"):
        Bank.load(audio, verify=False).audio(0)


@pytest.mark.parametrize("full", ["audio", "index"])
def test_a_full_disk_leaves_the_old_bank_as_it_was(
    root: Path, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    pair = copied(bank, tmp_path)
    before = [path.read_bytes() for path in pair]

    def no_space(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if full == "audio":
        monkeypatch.setattr(packing._Hashed, "append", no_space)
    else:
        monkeypatch.setattr(Path, "write_text", no_space)
    with pytest.raises(InputError, match=r"cannot write .*copy\..*No space left on device"):
        build("test-clean", root, tmp_path / "copy", Recipe(2.0, None, lossy=False))
    assert [path.read_bytes() for path in pair] == before
    assert len(list(tmp_path.iterdir())) == 2


def test_an_ogg_stream_under_another_serial_number_still_decodes(bank: Bank) -> None:
    offset, size = bank._places[0]
    stream = bank.path.read_bytes()[offset : offset + size]
    assert stream[14:18] == (1).to_bytes(4, "little")
    page = stream[: stream.index(b"OggS", 4)]
    assert int.from_bytes(page[22:26], "little") == ogg_checksum(page[:22] + bytes(4) + page[26:])
    assert with_fixed_serial(with_fixed_serial(stream, 77)) == stream
    with pytest.raises(InputError, match="no Ogg stream"):
        with_fixed_serial(b"fLaC" + stream)
