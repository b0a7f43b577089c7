"""Wrong arguments: every public one refuses what it cannot use in a sentence, and takes what is as good."""

import ast
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkgcc
from qkgcc import DelayEstimator, DelayStream, InputError, open_audio, samples
from qkgcc.arrays import (
    DirectionEstimator,
    DirectionStream,
    Geometry,
    Motion,
    PositionEstimator,
    Tracker,
    array,
    read_geometry,
    smooth,
)
from qkgcc.arrays.evidence import ArrayEvidence
from qkgcc.doctor import diagnose
from qkgcc.selfcal import Moments, measure_moments, refine
from qkgcc.sync import synchronise

RATE = 16000
NOISE = np.random.default_rng(0).standard_normal((4, 4000))
PAIR, FOUR = NOISE[:2], NOISE
CIRCLE = np.stack([np.cos(np.arange(0, 2 * np.pi, 0.1)), np.sin(np.arange(0, 2 * np.pi, 0.1)), np.zeros(63)], axis=1)
PLACES = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])

WRONG: tuple[Any, ...] = (
    None,
    "x",
    "01",
    "",
    b"x",
    True,
    0,
    -1,
    -0.5,
    math.nan,
    math.inf,
    10**400,
    -(10**5000),
    1j,
    [],
    [None],
    ["a", "b"],
    [[0, 1], [2]],
    {},
    object(),
    np.array(0.3),
    np.array("x"),
    np.array([1.0, 2.0]),
    np.nan * np.ones((2, 3)),
    "a\0b",
    "n" * 300,
    lambda *_: None,
)


def phat(**options: Any) -> DelayEstimator:
    return DelayEstimator("phat", **options)


def directions(**options: Any) -> DirectionEstimator:
    return DirectionEstimator("respeaker4", "phat", **options)


def corners(**options: Any) -> PositionEstimator:
    return PositionEstimator(**{"geometry": Geometry(PLACES), "method": "phat"} | options)


def diagnosed(**options: Any) -> object:
    return diagnose(**{"recording": open_audio(PAIR, RATE)} | options)


@functools.cache
def measured() -> Moments:
    return measure_moments(open_audio(np.tile(FOUR, 3), RATE), "respeaker4")


def answered(estimator: Callable[..., Any], source: Any) -> Callable[..., Any]:
    return lambda **options: estimator(**{"source": source, "sample_rate": RATE} | options)


CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "DelayEstimator": (DelayEstimator, tuple(inspect.signature(DelayEstimator).parameters)),
    "phat": (phat, ("spacing", "max_delay", "frame", "hop", "band", "interpolation", "beta", "symmetric", "decoder")),
    "estimate": (
        answered(phat(), PAIR),
        ("source", "sample_rate", "channels", "start", "end", "other", "progress", "curve"),
    ),
    "explain": (
        answered(DelayEstimator("general-small").explain, PAIR),
        ("source", "sample_rate", "channels", "start", "end"),
    ),
    "of_pairs": (
        lambda **o: list(phat().of_pairs(**{"recording": open_audio(PAIR, RATE), "pairs": [(0, 1)]} | o)),
        ("recording", "pairs", "progress", "curve"),
    ),
    "DelayStream": (
        lambda **o: DelayStream(**{"estimator": phat(), "sample_rate": RATE} | o),
        ("estimator", "sample_rate", "lookahead"),
    ),
    "DelayStream.push": (
        lambda **o: DelayStream(phat(), RATE).push(**{"block": PAIR} | o),
        ("block", "sample_rate"),
    ),
    "open_audio": (
        lambda **o: open_audio(**{"source": PAIR, "sample_rate": RATE} | o),
        ("source", "sample_rate", "start", "end", "other"),
    ),
    "Recording.pick": (open_audio(PAIR, RATE).pick, ("channels",)),
    "array": (array, ("name",)),
    "read_geometry": (read_geometry, ("path",)),
    "Geometry": (lambda **o: Geometry(**{"microphones": PLACES} | o), ("microphones", "name")),
    "Geometry.spacing": (lambda **o: Geometry(PLACES).spacing(**{"first": 0, "second": 1} | o), ("first", "second")),
    "DirectionEstimator": (
        lambda **o: DirectionEstimator(**{"geometry": "respeaker4", "method": "phat"} | o),
        tuple(inspect.signature(DirectionEstimator).parameters),
    ),
    "directions": (
        answered(directions(), FOUR),
        ("source", "sample_rate", "channels", "start", "end", "progress", "keep_maps", "track"),
    ),
    "DirectionStream": (
        lambda **o: DirectionStream(**{"estimator": directions(), "sample_rate": RATE} | o),
        ("estimator", "sample_rate", "track", "source"),
    ),
    "DirectionStream.push": (lambda **o: DirectionStream(directions(), RATE).push(**o), ("block",)),
    "PositionEstimator": (corners, tuple(inspect.signature(PositionEstimator).parameters)),
    "positions": (
        answered(corners(), FOUR),
        ("source", "sample_rate", "channels", "start", "end", "progress"),
    ),
    "ArrayEvidence": (
        lambda **o: ArrayEvidence(**{"geometry": "respeaker4", "method": "phat", "sample_rate": RATE} | o),
        tuple(inspect.signature(ArrayEvidence).parameters),
    ),
    "Motion": (Motion, ("speed", "memory", "widest")),
    "Tracker": (
        lambda **o: Tracker(**{"grid": CIRCLE, "seconds_per_frame": 0.1} | o),
        tuple(inspect.signature(Tracker).parameters),
    ),
    "Tracker.update": (
        lambda **o: Tracker(CIRCLE, 0.1).update(**{"time": 0.1, "weights": np.ones(63)} | o),
        ("time", "weights", "reliability"),
    ),
    "synchronise": (
        lambda **o: synchronise(**{"recordings": [open_audio(PAIR[:1], RATE), open_audio(PAIR[1:], RATE)]} | o),
        ("recordings", "distances", "speed_of_sound", "progress"),
    ),
    "measure_moments": (
        lambda **o: measure_moments(**{"recording": open_audio(FOUR, RATE), "geometry": "respeaker4"} | o),
        ("recording", "geometry", "method", "tolerance", "latest", "speed_of_sound", "progress"),
    ),
    "refine": (
        lambda **o: refine(**{"nominal": "respeaker4", "moments": measured()} | o),
        ("nominal", "moments", "tolerance", "height", "nearest", "offsets", "speed_of_sound"),
    ),
    "diagnose": (diagnosed, ("recording", "spacing", "expect", "rate", "geometry", "speed_of_sound")),
    "smooth": (lambda **o: smooth(**{"history": []} | o), ("history", "motion")),
    "answer.plot": (phat()(PAIR, RATE).plot, ("path", "truth")),
    "answer.to_csv": (phat()(PAIR, RATE).to_csv, ("path",)),
    "answer.to_json": (phat()(PAIR, RATE).to_json, ("path", "curve")),
    "samples.path": (samples.path, ("name",)),
}
"""What is called, and which of its arguments are tried."""


@pytest.mark.parametrize(
    ("call", "argument"), [(call, argument) for call, (_, arguments) in CALLS.items() for argument in arguments]
)
def test_every_argument_refuses_what_it_cannot_use_in_one_sentence(
    call: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if call == "answer.plot":
        pytest.importorskip("matplotlib")
    function, _ = CALLS[call]
    monkeypatch.chdir(tmp_path)  # where "x" can be written
    for value in WRONG:
        try:
            function(**{argument: value})
        except InputError as error:
            text = str(error)
            assert "\n" not in text, text
            assert len(text) < 1000, text


def test_an_array_is_named_by_its_name_its_file_or_its_geometry(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("front_m,left_m,up_m\n" + "\n".join(f"{x},{y},{z}" for x, y, z in PLACES))
    expected = np.asarray(DirectionEstimator(array(file), "phat").geometry.microphones)
    for given in (file, str(file), Geometry(PLACES)):
        made = (
            DirectionEstimator(given, "phat"),
            PositionEstimator(given, "phat"),
            ArrayEvidence(given, "phat", sample_rate=RATE),
        )
        assert all(np.array_equal(one.geometry.microphones, expected) for one in made)
    assert DirectionEstimator("respeaker4", "phat").geometry.name == "respeaker4"
    assert diagnose(samples.path("talkers-2ch"), geometry="linear:2:0.5").channels == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: DelayEstimator(5), "the method is 5; expected a name such as general or phat, or the path"),  # type: ignore[arg-type]
        (lambda: phat()(PAIR, RATE, start="1"), "the start is '1'; expected a number"),  # type: ignore[arg-type]
        (lambda: phat(beta="x"), "the exponent beta is 'x'; expected a number, 0 to 1"),
        (lambda: phat()(PAIR, RATE, channels="01"), "channels is '01'; expected whole numbers, such as"),  # type: ignore[arg-type]
        (lambda: DelayEstimator(symmetric="no"), "symmetric is 'no'; expected True or False"),  # type: ignore[arg-type]
        (lambda: phat(spacing=10**400), "the spacing is a number of 400 digits or more m; expected 0.001 to 100 m"),
        (
            lambda: phat(band=[10**400, 1]),
            r"the edge of the band is a number of 400 digits or more Hz; expected 0 to 1\.79769e\+308 Hz",
        ),
        (
            lambda: phat(threads=10**400),
            "threads is a number of 400 digits or more; expected .* 1 to 1024",
        ),
        (lambda: phat()(5), "expected an array of shape .* or the path of a recording, got 5"),
        (lambda: phat()(None), "expected an array of shape .* or the path of a recording, got None"),
    ],
)
def test_the_first_tries_of_a_user_are_answered(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrong()


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    torch = pytest.importorskip("torch")
    plain = phat(spacing=0.25, hop=0.064)
    for number in (np.float32(0.25), np.array(0.25), torch.tensor(0.25), torch.tensor(0.25, requires_grad=True)):
        estimator = phat(spacing=number, hop=0.064)
        assert estimator.spacing == plain.spacing
        assert type(estimator.spacing) is float


@pytest.mark.parametrize("kind", ["gradient", "bfloat16", "half", "list", "transposed"])
def test_tensors_of_any_kind_are_as_good_as_arrays(kind: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(PAIR.astype(np.float32)).to(torch.bfloat16).float()  # which every kind can hold
    given: Any = {
        "gradient": tensor.clone().requires_grad_(),
        "bfloat16": tensor.to(torch.bfloat16),
        "half": tensor.half(),
        "list": list(tensor.clone().requires_grad_()),
        "transposed": tensor.T.contiguous().T,
    }[kind]
    exact = np.asarray(tensor if kind != "half" else tensor.half().float())
    expected, answer = phat()(exact, RATE), phat()(given, RATE)
    np.testing.assert_array_equal(answer.delay_samples, expected.delay_samples)
    streamed = DelayStream(phat(), RATE).push(given)
    np.testing.assert_array_equal(streamed.delay_samples, expected.delay_samples[: len(streamed.times)])


def test_a_tensor_that_holds_no_samples_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"a tensor of torch\.float32 \(torch\.sparse_coo, cpu\) cannot be read"):
        phat()(torch.eye(2).to_sparse(), RATE)
    with pytest.raises(InputError, match=r"a tensor of torch\.float32 \(torch\.strided, meta\) cannot be read"):
        phat()(torch.empty(2, 16000, device="meta"), RATE)


def test_masked_numbers_are_not_taken_for_samples() -> None:
    masked = np.ma.masked_greater(PAIR, 3.0)
    for given in (masked, list(masked)):
        with pytest.raises(InputError, match="the array has masked numbers; expected none"):
            phat()(given, RATE)
    with pytest.raises(InputError, match="the array has masked numbers"):
        DelayStream(phat(), RATE).push(masked)
    none = phat()(np.ma.masked_array(PAIR), RATE)
    np.testing.assert_array_equal(none.delay_samples, phat()(PAIR, RATE).delay_samples)


def test_blocks_for_an_array_are_read_as_those_for_a_pair() -> None:
    floats = np.clip(FOUR / 8, -1, 1)
    whole = (floats * 32767).astype(np.int16)
    one, two = (DirectionStream(DirectionEstimator("respeaker4", "phat"), RATE) for _ in range(2))
    np.testing.assert_array_equal(one.push(whole).level, two.push((whole / 32768).astype(np.float32)).level)
    with pytest.raises(InputError, match=r"channel 1 holds nan at 0\.250 s"):
        one.push(np.where(np.arange(4)[:, None] == 1, np.nan, floats))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All texts of a module but its docstrings, with their lines; what an f-string fills in is left out."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(one.value) for one in node.values if isinstance(one, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | documents:
            yield node.lineno, node.value


def test_messages_name_no_options_of_the_command_line() -> None:
    """A whole command, such as `qkgcc doctor --array`, is a thing to do anywhere; the option alone is not."""
    root = Path(qkgcc.__file__).parent
    library = [file for file in root.rglob("*.py") if "cli" not in file.relative_to(root).parts]
    found = [
        f"{file.relative_to(root)}:{line}: {text}"
        for file in library
        for line, text in texts(ast.parse(file.read_text(encoding="utf-8")))
        if " " in text and re.search(r"--[a-z]", re.sub(r"`[^`]*`", "", text))  # without a space: options of a script
    ]
    assert len(library) > 100
    assert not found, "\n".join(found)
