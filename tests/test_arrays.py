"""Geometries of arrays: by name, from files, and what they can tell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

import qkgcc.arrays
import qkgcc.doctor
import qkgcc.live
import qkgcc.network
import qkgcc.selfcal
import qkgcc.sync
from qkgcc import open_audio, plots
from qkgcc.arrays import DirectionEstimator, Geometry, array, evidence, read_geometry
from qkgcc.arrays.evidence import ArrayFrames
from qkgcc.cli import app
from qkgcc.core.errors import InputError

HEAD = 'units = "m"\naxes = ["front", "left", "up"]\n'


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "mine.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


# Files


@pytest.mark.parametrize(("units", "size"), [("m", 0.4), ("cm", 40), ("mm", 400)])
def test_a_geometry_is_read_in_its_units(units: str, size: float, written: Callable[..., Path]) -> None:
    rows = f"[[0, 0, 0], [{size}, 0, 0], [0, {size}, 0]]"
    geometry = read_geometry(written(f'units = "{units}"\naxes = ["right", "front", "up"]\nmicrophones = {rows}'))
    assert len(geometry) == 3
    assert geometry.name == "mine"
    assert geometry.spacing(0, 1) == pytest.approx(0.4)
    assert geometry.aperture == pytest.approx(0.4 * np.sqrt(2))


@pytest.mark.parametrize(
    ("axes", "first"),
    [
        (["front", "left", "up"], [1, 2, 3]),
        (["right", "front", "up"], [2, -1, 3]),
        (["down", "back", "right"], [-2, -3, -1]),
    ],
)
@pytest.mark.parametrize("suffix", ["toml", "csv"])
def test_axes_say_where_each_number_points(
    axes: list[str], first: list[int], suffix: str, written: Callable[..., Path]
) -> None:
    if suffix == "toml":
        text = f'units = "m"\naxes = {axes}\nmicrophones = [[1, 2, 3], [0, 0, 0]]'
    else:
        text = ",".join(f"{axis}_m" for axis in axes) + "\n1,2,3\n\n0,0,0\n"
    geometry = read_geometry(written(text, f"a.{suffix}"))
    np.testing.assert_array_equal(geometry.microphones, [first, [0, 0, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("microphones = [[0, 0, 0], [1, 0, 0]]", "does not say its units"),
        ('units = "m"\nmicrophones = [[0, 0, 0], [1, 0, 0]]', "does not say its axes"),
        ('units = "inch"\naxes = ["front", "left", "up"]\nmicrophones = [[0, 0, 0], [1, 0, 0]]', "m, cm, mm"),
        ('units = ["m"]\naxes = ["front", "left", "up"]\nmicrophones = [[0, 0, 0], [1, 0, 0]]', "m, cm, mm"),
        ('units = "m"\naxes = ["front", "back", "up"]\nmicrophones = [[0, 0, 0], [1, 0, 0]]', "one of left and right"),
        ('units = "m"\naxes = "xyz"\nmicrophones = [[0, 0, 0], [1, 0, 0]]', "one of left and right"),
        ('units = "m"\naxes = ["x", "y", "z"]\nmicrophones = [[0, 0, 0], [1, 0, 0]]', "one of left and right"),
        (HEAD, "no microphones"),
        (HEAD + "microphones = 3", "no microphones"),
        (HEAD + "microphones = [[0, 0], [1, 0]]", "three numbers each"),
        (HEAD + "microphones = [[0, 0, 0], [1, 0]]", "three numbers each"),
        (HEAD + "microphones = []", "2 or more"),
        (HEAD + "microphones = [[0, 0, 0]]", "2 or more"),
        (HEAD + "microphones = [[0, 0, 0], [nan, 0, 0]]", "finite"),
        (HEAD + "microphones = [[0, 0, 0], [457, 0, 0]]", "are the units right"),
        (HEAD.replace('"m"', '"mm"') + "microphones = [[0, 0, 0], [0.5, 0, 0]]", "are the units right"),
        ("units = ", "no TOML file"),
    ],
)
def test_a_bad_toml_file_is_explained(text: str, message: str, written: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=message):
        read_geometry(written(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "three columns that say axis and units"),
        ("x,y,z\n0,0,0\n1,0,0", "three columns that say axis and units"),
        ("front_m,left_cm,up_m\n0,0,0\n1,0,0", "three columns that say axis and units"),
        ("front_m,left_m\n0,0\n1,0", "three columns that say axis and units"),
        ("front_inch,left_inch,up_inch\n0,0,0\n1,0,0", "m, cm, mm"),
        ("front_m,left_m,left_m\n0,0,0\n1,0,0", "one of up and down"),
        ("front_m,left_m,up_m\n0,0,zero\n1,0,0", "three numbers each"),
        ("front_m,left_m,up_m\n0,0,0\n1,0", "three numbers each"),
        ("front_m,left_m,up_m\n", "2 or more"),
    ],
)
def test_a_bad_csv_file_is_explained(text: str, message: str, written: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=message):
        read_geometry(written(text, "a.csv"))


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_geometry(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no text file"):
        read_geometry(tmp_path / "bytes.toml")


# Presets


def test_presets_have_the_sizes_of_their_names() -> None:
    square = array("respeaker4").microphones
    np.testing.assert_allclose(np.abs(square[:, :2]), 0.02285)  # in the order of the real recordings
    np.testing.assert_array_equal(np.sign(square[:, :2].round(6)), [[1, 1], [-1, 1], [-1, -1], [1, -1]])
    six = array("respeaker6")
    assert (len(six), six.aperture) == (6, pytest.approx(0.0926))
    row = array("linear:4:0.05")
    assert [row.spacing(0, i) for i in (1, 2, 3)] == pytest.approx([0.05, 0.1, 0.15])
    assert row.microphones[0, 1] < 0  # the first is the rightmost
    circle = array("circular:8:0.1")
    np.testing.assert_allclose(np.linalg.norm(circle.microphones, axis=1), 0.1)
    np.testing.assert_allclose(circle.microphones[:3:2], [[0.1, 0, 0], [0, 0.1, 0]], atol=1e-12)
    solid = array("tetrahedral:0.07")
    assert [solid.spacing(*pair) for pair in solid.pairs] == pytest.approx([0.07] * 6)


@pytest.mark.parametrize(
    ("name", "dimensions", "cannot"),
    [
        ("linear:4:0.05", 1, "cone"),
        ("linear:2:0.5", 1, "cone"),
        ("respeaker4", 2, "mirror image"),
        ("tetrahedral:0.1", 3, None),
    ],
)
def test_what_an_array_cannot_tell_is_said(name: str, dimensions: int, cannot: str | None) -> None:
    geometry = array(name)
    assert geometry.dimensions == dimensions
    assert geometry.cannot_tell is None if cannot is None else cannot in str(geometry.cannot_tell)
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    assert Geometry(geometry.microphones @ turned + 7).dimensions == dimensions


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("respeaker5", "there is no array 'respeaker5'; there are respeaker4"),
        ("circular", "expected circular:COUNT:RADIUS in metres, such as circular:8:0.1"),
        ("circular:1:0.1", "expected a whole number, 2 to 256"),
        ("circular:8.5:0.1", "expected circular:COUNT"),
        ("circular:8:0.1:2", "expected circular:COUNT"),
        ("circular:8:-0.1", "the size of 'circular:8:-0.1' is -0.1 m; expected more than 0"),
        ("tetrahedral:nan", "is nan m; expected more than 0"),
        ("circular:8:inf", "is inf m; expected more than 0"),  # and no warning of NumPy before
        ("circular:8:1e200", "are the units right"),
        ("", "the array is ''; expected the name of a preset"),
        ("linear:4:", "expected linear:COUNT"),
        ("circular:8:1000", "are the units right"),
        ("nowhere.toml", "cannot read"),
    ],
)
def test_other_names_are_explained(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        array(name)


# The command


@pytest.mark.parametrize("speed", ["nan", "inf", "0"])
def test_the_command_knows_which_speeds_sound_has(speed: str) -> None:
    shown = CliRunner().invoke(app, ["array", "respeaker4", "--speed-of-sound", speed])
    assert isinstance(shown.exception, InputError)
    assert f"the speed of sound is {speed} m/s; expected 100 to 10000 m/s" in str(shown.exception)


@pytest.mark.needs("matplotlib")
def test_the_command_shows_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "array.png"
    shown = CliRunner().invoke(app, ["array", "respeaker4", "--plot", str(picture)])
    assert shown.exit_code == 0, shown.output
    assert "6 pairs, 4.57 to 6.46 cm apart: delays up to 0.188 ms" in shown.output
    assert "It cannot tell a direction from its mirror image" in " ".join(shown.output.split())
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "It can tell all" in CliRunner().invoke(app, ["array", "tetrahedral:0.1"]).output


@pytest.mark.needs("matplotlib")
def test_the_picture_has_the_front_above_and_the_left_at_the_left() -> None:
    above, _ = plots.plot_array(array("circular:4:0.1")).axes
    np.testing.assert_allclose(above.collections[0].get_offsets()[:2], [[0, 10], [-10, 0]], atol=1e-6)


def test_an_array_has_a_largest_number_of_pairs() -> None:
    wide = array("linear:65:0.02")
    x = np.random.default_rng(0).standard_normal((65, 2048))
    with pytest.raises(InputError, match=r"2080 pairs of linear:65:0\.02 are too many; expected at most 2016"):
        DirectionEstimator(wide, "phat")(x, sample_rate=16000)
    some = DirectionEstimator(wide, "phat", pairs=[(0, 1), (0, 2)])
    assert len(some(x, sample_rate=16000).directions) == 1


def test_many_pairs_are_answered_a_few_frames_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((4, 20_000))
    estimator = DirectionEstimator(array("respeaker4"), "phat")
    recording = open_audio(x, 44100)
    frames = []
    for most in (evidence._CURVES, 1):
        monkeypatch.setattr(evidence, "_CURVES", most)
        frames.append(list(evidence.frames_of(estimator.evidence(44100), recording)))
    whole, parts = (ArrayFrames.joined(some) for some in frames)
    assert len(frames[1]) > 3 * len(frames[0])
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["Geometry", "array", "read_geometry"])
def test_a_geometry_loads_nothing_that_it_does_not_need(name: str) -> None:
    script = f"import sys; from qkgcc.arrays import {name}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & {"scipy", "torch", "matplotlib", "typer", "soundfile", "qkgcc.arrays.evidence"}
    folders = ("audio", "cli", "delay", "doctor", "dsp", "lab", "live", "nets", "network", "pairs", "plots", "tracks")
    assert not loaded & {f"qkgcc.{folder}" for folder in folders}


@pytest.mark.parametrize("package", [qkgcc.arrays, qkgcc.live, qkgcc.network, qkgcc.sync, qkgcc.selfcal, qkgcc.doctor])
def test_all_public_names_can_be_imported(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        package.nonsense  # noqa: B018
