"""The general distribution holds what its law says, and every scene of it is a pure function of (law, seed, index)."""

import dataclasses

import numpy as np
import pytest

from qkgcc.core.errors import InputError
from qkgcc.lab.rooms.shoebox import sabine
from qkgcc.lab.scenes.general import (
    GENERAL,
    RESAMPLED,
    SECONDS,
    STEP,
    TELEPHONE,
    WALL,
    Law,
    Scenes,
    general_scene,
    general_scenes,
    law_table,
)
from qkgcc.lab.scenes.signals import Catalog

CATALOG = Catalog(
    speech=tuple(f"speech-{i}" for i in range(500)),
    music=tuple(f"music-{i}" for i in range(40)),
    noise=tuple(f"noise-{i}" for i in range(40)),
)
COUNT = 6000
PINNED = [
    3.83515158,
    7.762563762,
    3.214642952,
    0.738569905,
    8.430246219,
    1.868336348,
    1.318611893,
    2.420876172,
    2.373953314,
    4.891675011,
    1.859853802,
]


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return general_scenes(5, np.arange(COUNT), CATALOG)


def flat(value: object) -> list[object]:
    """Everything in a scene, as plain values."""
    if dataclasses.is_dataclass(value):
        return [item for field in dataclasses.fields(value) for item in flat(getattr(value, field.name))]
    if isinstance(value, np.ndarray | tuple):
        return [item for part in value for item in flat(part)]
    return [value]


def assert_share(happened: np.ndarray, probability: float) -> None:
    """Within four standard deviations of a draw of this size."""
    spread = 4 * np.sqrt(probability * (1 - probability) / len(happened)) + 1e-12
    assert abs(happened.mean() - probability) <= spread


def assert_uniform(values: np.ndarray, ends: tuple[float, float]) -> None:
    """No value outside, and the distribution function within its 99.99 % band (Kolmogorov-Smirnov)."""
    low, high = ends
    assert values.min() >= low
    assert values.max() <= high
    ranks = np.arange(len(values)) / len(values)
    assert np.abs(np.sort((values - low) / (high - low)) - ranks).max() < 2.3 / np.sqrt(len(values))


def assert_log_uniform(values: np.ndarray, ends: tuple[float, float]) -> None:
    assert_uniform(np.log(values), (np.log(ends[0]) - 1e-9, np.log(ends[1]) + 1e-9))


# Purity


def test_a_scene_is_the_same_whatever_was_drawn_before() -> None:
    alone = flat(general_scene(3, 1234, CATALOG))
    for index in (0, 77, 1235):
        general_scene(3, index, CATALOG)
    assert flat(general_scene(3, 1234, CATALOG)) == alone
    batch = general_scenes(3, [9, 1234, 5], CATALOG)
    assert flat(batch.scene(1)) == alone


def test_every_row_of_a_batch_is_the_scene_of_its_index(scenes: Scenes) -> None:
    for index in range(0, 300, 7):
        assert flat(scenes.scene(index)) == flat(general_scene(5, index, CATALOG))


def test_another_index_or_seed_is_another_scene() -> None:
    one = general_scene(3, 10, CATALOG)
    for other in (general_scene(3, 11, CATALOG), general_scene(4, 10, CATALOG)):
        assert not np.isclose(one.room, other.room).any()
        assert not np.isclose(one.microphones, other.microphones).any()
        assert one.snr != other.snr
        assert one.seed != other.seed


def test_seeds_of_the_noise_do_not_repeat(scenes: Scenes) -> None:
    assert len({scenes.scene(i).seed for i in range(300)}) == 300


def test_scenes_drawn_once_stay_as_they_were() -> None:
    scene = general_scene(7, 42, CATALOG)
    drawn = [*scene.room, scene.t60, scene.snr, *scene.nominal_microphones[0], *scene.sources[0].path[0]]
    np.testing.assert_allclose(drawn, PINNED, atol=1e-8)


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        ({"clipping": 1.0}, {"clipped"}),
        ({"unequal_gains": 0.0}, {"gain"}),
        ({"diffuse": 0.0}, {"diffuse"}),
        ({"dry": 1.0}, {"t60"}),
        ({"misplaced": 1.0}, {"position_error"}),
    ],
)
def test_a_changed_law_moves_nothing_else(change: dict[str, float], columns: set[str]) -> None:
    usual = general_scenes(2, np.arange(100), CATALOG)
    changed = general_scenes(2, np.arange(100), CATALOG, law=dataclasses.replace(GENERAL, **change))
    different = {
        field.name
        for field in dataclasses.fields(Scenes)
        if not np.array_equal(getattr(usual, field.name), getattr(changed, field.name))
    }
    assert different == columns


# Ranges


def test_rooms_and_spacings_are_as_the_law_says(scenes: Scenes) -> None:
    for axis, ends in enumerate((GENERAL.width, GENERAL.depth, GENERAL.height)):
        assert_uniform(scenes.room[:, axis], ends)
    spacing = np.linalg.norm(scenes.nominal[:, 1] - scenes.nominal[:, 0], axis=1)
    assert_log_uniform(spacing, GENERAL.spacing)


def test_pairs_are_turned_in_every_direction(scenes: Scenes) -> None:
    axis = scenes.nominal[:, 1] - scenes.nominal[:, 0]
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    for component in axis.T:  # each coordinate of a uniform direction is uniform
        assert_uniform(component, (-1, 1))


def test_t60_is_uniform_over_what_each_room_can_have(scenes: Scenes) -> None:
    assert_share(scenes.t60 == 0, GENERAL.dry)
    rows = np.flatnonzero(scenes.t60 > 0)
    shortest = np.array([sabine(1.2, scenes.room[i])[0] * 1.2 for i in rows])
    assert_uniform((scenes.t60[rows] - shortest) / (1.2 - shortest), (0, 1))
    assert max(sabine(scenes.t60[i], scenes.room[i])[0] for i in rows) <= 1


def test_noise_is_as_the_law_says(scenes: Scenes) -> None:
    assert_uniform(scenes.snr, GENERAL.snr)
    assert_share(scenes.diffuse, GENERAL.diffuse)
    assert_share(scenes.slope != 0, GENERAL.coloured)
    assert_uniform(scenes.slope[scenes.slope != 0], GENERAL.slope)


def test_microphones_differ_as_the_law_says(scenes: Scenes) -> None:
    for values, probability, ends in [
        (scenes.gain, GENERAL.unequal_gains, GENERAL.gain),
        (scenes.tilt, GENERAL.unequal_responses, GENERAL.tilt),
        (scenes.peak, GENERAL.unequal_responses, GENERAL.peak),
    ]:
        differs = (values != 0).any(axis=1)
        assert_share(differs, probability)
        assert_uniform(values[differs].ravel(), ends)
        assert abs(np.corrcoef(values[differs].T)[0, 1]) < 0.1
    differs = (scenes.tilt != 0).any(axis=1)
    assert_log_uniform(scenes.peak_frequency[differs].ravel(), GENERAL.peak_frequency)


def test_position_errors_have_their_spread_and_separate_true_from_nominal(scenes: Scenes) -> None:
    wrong = (scenes.position_error != 0).any(axis=(1, 2))
    assert_share(wrong, GENERAL.misplaced)
    errors = scenes.position_error[wrong]
    np.testing.assert_allclose(errors.std(axis=0), GENERAL.position_error, rtol=0.05)
    assert np.abs(errors.mean(axis=0)).max() < 2e-4
    i = int(np.flatnonzero(wrong)[0])
    scene = scenes.scene(i)
    np.testing.assert_allclose(scene.microphones - scene.nominal_microphones, scenes.position_error[i], atol=1e-12)
    np.testing.assert_array_equal(scene.microphones, scenes.microphones[i])


def test_recorders_are_as_the_law_says(scenes: Scenes) -> None:
    clipped = scenes.clipped > 0
    assert_share(clipped, GENERAL.clipping)
    assert_log_uniform(scenes.clipped[clipped], GENERAL.clipped)
    assert_uniform(scenes.level, GENERAL.level)
    telephone, resampled = ((scenes.band == band).all(axis=1) for band in (TELEPHONE, RESAMPLED))
    narrow = np.isfinite(scenes.band[:, 1]) & ~telephone & ~resampled
    for happened, probability in zip(
        (telephone, resampled, narrow), (GENERAL.telephone, GENERAL.resampled, GENERAL.narrow), strict=True
    ):
        assert_share(happened, probability)
    assert_log_uniform(scenes.band[narrow, 0], GENERAL.low_cut)
    assert_log_uniform(scenes.band[narrow, 1], GENERAL.high_cut)


# Sources


def kind_of(id: str) -> str:
    return "steady" if id.startswith("noise:") else id.replace(":", "-").split("-")[0]


def test_sources_are_of_every_kind_as_often_as_the_law_says(scenes: Scenes) -> None:
    kinds = np.array([kind_of(id) for id in scenes.signal[:, 0]])
    for kind in ("speech", "music", "clicks", "tones"):
        assert_share(kinds == kind, getattr(GENERAL, kind))
    assert_share(kinds == "steady", GENERAL.noise * GENERAL.steady)
    assert_share(kinds == "noise", GENERAL.noise * (1 - GENERAL.steady))
    assert set(CATALOG.music) <= set(scenes.signal[:, 0])  # every signal has its turn


def test_kinds_that_a_catalog_lacks_leave_their_share_to_the_others() -> None:
    without = general_scenes(1, np.arange(3000), Catalog(music=("music-0",)))
    kinds = np.array([kind_of(id) for id in without.signal[:, 0]])
    assert "speech" not in kinds
    assert_share(kinds == "music", GENERAL.music / (1 - GENERAL.speech))
    assert_share(kinds == "steady", GENERAL.noise / (1 - GENERAL.speech))


def test_a_law_of_kinds_that_a_catalog_lacks_is_refused() -> None:
    only_speech = Law(speech=1, music=0, noise=0, clicks=0, tones=0)
    assert general_scene(1, 1, CATALOG, law=only_speech).sources[0].signal.startswith("speech")
    with pytest.raises(InputError, match="holds no signal"):
        general_scene(1, 1, Catalog(), law=only_speech)


def test_interferers_are_never_louder_than_the_first_source(scenes: Scenes) -> None:
    count = (scenes.signal != "").sum(axis=1)
    assert_share(count == 2, GENERAL.one_interferer)
    assert_share(count == 3, GENERAL.two_interferers)
    assert (scenes.interference[:, 0] == 0).all()
    assert_uniform(scenes.interference[count >= 2, 1], GENERAL.interference)
    talks = np.array([kind_of(id) == "speech" for id in scenes.signal[count >= 2, 1]])
    assert_share(talks, GENERAL.talker + (1 - GENERAL.talker) * GENERAL.speech)
    assert [len(scenes.scene(i).sources) for i in range(100)] == count[:100].tolist()


def test_sources_are_near_and_far(scenes: Scenes) -> None:
    gap = np.linalg.norm(scenes.nominal - scenes.first[:, :1], axis=-1).min(axis=1)
    assert gap.min() > 0.2 - 1e-6
    # A quarter stands within 1 m of a microphone on purpose, others by chance.
    assert 0.26 < (gap <= 1).mean() < 0.35
    assert 0.1 < (gap <= 0.45).mean() < 0.2
    assert (gap > 3).mean() > 0.15


def test_near_sources_stand_at_the_distance_that_was_drawn() -> None:
    law = dataclasses.replace(GENERAL, near=1.0, distance=(0.5, 0.5), moving=0.0)
    near = general_scenes(1, np.arange(500), CATALOG, law=law)
    gaps = np.linalg.norm(near.nominal - near.first[:, :1], axis=-1)
    assert np.isclose(gaps, 0.5).any(axis=1).all()


def test_sources_move_as_the_law_says(scenes: Scenes) -> None:
    travel = np.linalg.norm(scenes.last[:, 0] - scenes.first[:, 0], axis=1)
    assert_share(travel > 0, GENERAL.moving)
    assert_uniform(travel[travel > 0] / SECONDS, GENERAL.speed)
    source = scenes.scene(int(np.flatnonzero(travel > 1)[0])).sources[0]
    assert np.linalg.norm(np.diff(source.path, axis=0), axis=1).max() <= STEP + 1e-9
    assert (source.times[0], source.times[-1]) == (0, SECONDS)


@pytest.mark.parametrize("microphones", [2, 3, 16])
def test_everything_is_inside_and_keeps_its_distance(microphones: int) -> None:
    law = dataclasses.replace(GENERAL, moving=0.5, one_interferer=0.4, two_interferers=0.4, near=0.5)
    drawn = general_scenes(6, np.arange(300), CATALOG, microphones=microphones, law=law)
    assert drawn.nominal.shape == (300, microphones, 3)
    for i in range(300):
        scene = drawn.scene(i)
        points = np.concatenate([source.path for source in scene.sources])
        for places in (scene.nominal_microphones, points):
            assert (places >= WALL - 1e-9).all()
            assert (places <= scene.room - WALL + 1e-9).all()
        gaps = np.linalg.norm(points[:, None] - scene.nominal_microphones, axis=-1)
        assert gaps.min() >= 0.2 - 1e-6


@pytest.mark.parametrize("microphones", [1, 17])
def test_a_delay_needs_two_microphones_and_sixteen_are_enough(microphones: int) -> None:
    with pytest.raises(InputError, match="expected 2 to 16"):
        general_scene(0, 0, CATALOG, microphones=microphones)


def test_microphones_of_an_array_lie_within_its_aperture() -> None:
    drawn = general_scenes(6, np.arange(200), CATALOG, microphones=8)
    centre = drawn.nominal[:, :2].mean(axis=1, keepdims=True)
    radius = np.linalg.norm(drawn.nominal - centre, axis=-1)
    assert (radius[:, 2:] <= radius[:, :1] + 1e-9).all()


# The table, and speed


def test_the_table_has_a_row_for_everything_that_is_drawn() -> None:
    rows = law_table().splitlines()[2:]
    assert len(rows) == len(dataclasses.fields(Law))
    assert "| t60 | 0 to 1.2 |" in law_table()


def test_without_any_bank_there_are_synthetic_sources() -> None:
    drawn = general_scenes(0, np.arange(200), Catalog())
    assert {kind_of(id) for id in drawn.signal[:, 0]} == {"steady", "clicks", "tones"}
