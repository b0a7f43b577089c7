"""Tracks of sources that move, begin, pause and end: a Bayes filter over directions.

Each frame says where its one dominant source may be: weights w(g) over a grid of G directions. Who that source is, is
not known. It is one of the tracks k, at p_k(g), a von Mises-Fisher density (`motion`) widened by the error of frames,
or clutter: pauses, reflections, two talkers at once, which come from anywhere. With s_k, how probable it is that k
speaks, and c for clutter, the weight at g belongs to k with the share

    b_k(g) = w(g) s_k p_k(g) / (c / G + sum_j s_j p_j(g)),

as in joint probabilistic data association, with every direction of the grid as a measurement. Each track is corrected
by its shares. Whether it is gone, silent or speaking is a hidden Markov model of three states: a silent one needs no
frames to go on living, for some seconds, and takes its id up again when it speaks.

What nobody explains begins a candidate. It is a track, with an id, as soon as that is more probable than not by far.

`smooth` makes whole trajectories of the filter's answers, with what came after each moment: backwards over its states
in the tangent plane of each prediction (`motion.smoother_step`), and over the evidence of speech. Trajectories with
less than half a second of speech are left out, and one that ended where another began soon after is the same source.

Y. Bar-Shalom, F. Daum, J. Huang, "The probabilistic data association filter", IEEE Control Systems 29(6), 2009.
I. Marković, I. Petrović, "Bearing-only tracking with a mixture of von Mises distributions", IROS 2012.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkgcc.core.checks import check_array, check_count, check_flag, check_number, short_repr
from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats
from qkgcc.tracks.motion import (
    Motion,
    State,
    angle_between,
    move,
    normalise,
    smoother_step,
    speech_probability,
    speech_transition,
    tangent_towards,
)
from qkgcc.tracks.ridges import reflection_ridges


@dataclass(frozen=True)
class Tuning:
    """Constants of the filter and of trajectories: probabilities where no unit is said."""

    clutter: float = 0.15
    """How often frames come from elsewhere, against one talker who speaks."""
    dominant: float = 0.7
    """That a talker who speaks alone is the dominant source of a frame."""
    flat_share: float = 0.1
    """Share of a frame's weight around its peak with which it says nothing of directions."""
    peaked_share: float = 0.6
    """The same with which it says all that it can."""
    peak_angle: float = 12.0
    """Degrees around a peak in which weights belong to it."""
    max_evidence: float = 20.0
    """Evidence of one frame for a track, at most: frames can be wrong together."""
    reflected: float = 0.5
    """On a line of microphones: share of what is heard of a source that lies elsewhere."""

    min_birth_weight: float = 0.3
    """Weight around one direction, explained by no track, that begins a candidate."""
    birth_probability: float = 0.05
    """That such a candidate is a source."""
    confirmed_probability: float = 0.9
    """Of existence, with which a candidate becomes a track."""
    lost_probability: float = 0.02
    """Of existence, below which a track ends."""
    max_candidate_age: float = 4.0
    """Seconds that a candidate has to become a track."""
    max_tracks: int = 12
    """Candidates and tracks; the least probable candidate gives way."""

    revival_angle: float = 15.0
    """Degrees from where a track fell silent within which it may speak again after any pause; more if it walked."""
    pace_seconds: float = 2.0
    """Over which the usual pace of a source is averaged."""
    speech_lag: float = 0.3
    """Seconds that a track seems to speak after it ceased to."""
    min_silence: float = 2.0
    """Seconds of silence after which a track makes room for another, where there may be no more of them."""
    crossing_seconds: float = 2.0
    """That two tracks in one direction stay two: so long may a crossing take."""
    same_angle: float = 8.0
    """Degrees within which two tracks are in one direction."""
    new_angle: float = 20.0
    """Degrees from all tracks, from which unexplained weight is another source."""

    max_gap: float = 5.0
    """Seconds of silence over which two trajectories are joined."""
    max_gap_angle: float = 15.0
    """Degrees between the end of one and the beginning of the other."""
    min_speech: float = 0.5
    """Seconds that a source speaks in all; a trajectory with less is no source."""


TUNING = Tuning()
_SAME, _NEW, _PEAK = np.cos(np.radians([TUNING.same_angle, TUNING.new_angle, TUNING.peak_angle]))


@dataclass(frozen=True, eq=False)
class Track:
    """One source at one moment."""

    id: int
    time: float
    """Seconds."""
    state: State
    probability: float
    """That the source exists."""
    speaking: float
    """Probability that it speaks now."""
    evidence: float
    """How much more probable this frame is if it speaks."""
    past: tuple[Track, ...] = ()
    """In its first report: the moments before, when it was a candidate."""

    @property
    def direction(self) -> Floats:
        """Unit vector to the front, left and up."""
        return self.state.direction

    @property
    def azimuth(self) -> float:
        """Degrees counterclockwise from the front, -180 to 180."""
        return math.degrees(math.atan2(self.direction[1], self.direction[0]))

    @property
    def elevation(self) -> float:
        """Degrees up from the plane."""
        return math.degrees(math.asin(max(-1.0, min(1.0, self.direction[2]))))

    @property
    def spread(self) -> float:
        """Degrees: standard deviation of the direction, along each axis."""
        return math.degrees(math.sqrt(self.state.covariance[0, 0]))

    @property
    def active(self) -> bool:
        """It speaks now, more probably than not."""
        return self.speaking > 0.5


Trajectory = list[Track]
"""One source, moment by moment."""


class Tracker:
    """Follows sources through the directions of frames, one frame at a time, in the order of their times.

    Args:
        grid: unit vectors, a circle (all in one plane) or a sphere, or a part of one. Shape: (G, 3)
        seconds_per_frame: from one frame to the next.
        frame_seconds: of sound that one frame hears; frames that overlap count less, for they hear the same.
        error: degrees by which the peaks of single frames usually miss, beyond the width that their weights have.
        sharpness: exponent of the weights. Above 1 for frames whose peaks are wider than they miss, as those of small
            arrays are: two talkers are then told apart from nearer by.
        motion: how the sources move.
        most: tracks at any moment. Who is heard beside so many gets an id once one of them is silent for
            `TUNING.min_silence` seconds, which then ends. By default there is no such number.
        line: whether the grid has the angles to a line of microphones, evenly from 0 to 180 degrees: what rooms throw
            back of a source is explained by it there (`tracks.ridges`).

    >>> angles = np.radians(np.arange(0, 360, 2))
    >>> grid = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    >>> tracker = Tracker(grid, 0.064)
    >>> for frame in range(20):
    ...     tracks = tracker.update(0.064 * frame, np.arange(180) == 45)
    >>> [(track.id, round(track.azimuth), track.active) for track in tracks]
    [(1, 90, True)]
    """

    def __init__(
        self,
        grid: npt.ArrayLike,
        seconds_per_frame: float,
        *,
        frame_seconds: float = 0.128,
        error: float = 3.0,
        sharpness: float = 1.0,
        motion: Motion | None = None,
        most: int | None = None,
        line: bool = False,
    ) -> None:
        self.grid = _check_grid(grid)
        self._reflected = len(self.grid) * reflection_ridges(len(self.grid)).T if check_flag("line", line) else None
        if most is not None:
            most = check_count("most", most)
        seconds_per_frame = check_number("seconds_per_frame", seconds_per_frame, 1e-4, 3600, "s")
        frame_seconds = check_number("frame_seconds", frame_seconds, 1e-4, 3600, "s")
        error = check_number("error of frames", error, 0.1, 45, "degrees")
        sharpness = check_number("sharpness of frames", sharpness, 0.1, 100)
        if motion is not None and not isinstance(motion, Motion):
            raise InputError(f"motion is {short_repr(motion)}; expected a Motion")
        self.seconds_per_frame = seconds_per_frame
        self._sharpness = sharpness
        self.motion = motion or Motion()
        self._most = most
        extents = np.linalg.svd(self.grid, compute_uv=False)
        self._axes = 1 if extents[2] < 1e-6 * extents[0] else 2
        self._new = min(1.0, seconds_per_frame / frame_seconds)
        # Between two directions of the grid, no frame can be exact.
        self._error = max(math.radians(error), _step(self.grid) / 2) ** 2
        self.reset()

    def reset(self) -> None:
        """Forget everything; ids begin with 1 again."""
        self._time = -math.inf
        self._next = 1
        self._keep = State(np.empty((0, 3)), np.empty((0, 3)), np.empty((0, 2, 2)))
        self._belief: Floats = np.empty((0, 3))  # gone, silent, speaking
        self._ids: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)  # 0: a candidate
        self._born: Floats = np.empty(0)
        self._evidence: Floats = np.empty(0)
        self._heard: Floats = np.empty(0)  # when it last spoke
        self._pace: Floats = np.empty(0)  # radians a second, while it spoke
        self._past: list[tuple[Track, ...]] = []  # of candidates
        self._together: dict[tuple[int, int], float] = {}  # since when two ids have been in one direction

    def copy(self) -> Tracker:
        """Another one that knows the same; what one hears from now on, the other does not."""
        other = copy.copy(self)
        other._together = dict(self._together)  # the arrays are replaced and never written to
        return other

    def update(self, time: float, weights: npt.ArrayLike, reliability: float = 1.0) -> list[Track]:
        """The tracks after a frame, silent ones too, by id.

        Args:
            time: seconds, after that of the frame before.
            weights: of the grid's directions, from 0, where the one dominant source may be; any sum. Shape: (G,)
            reliability: 0: the frame says nothing of directions, 1: as much as its weights say.
        """
        given = self._check_frame(time, weights, reliability)
        peak = self.grid[int(np.argmax(given))]
        reliability *= float(peakedness(given[self.grid @ peak > _PEAK].sum()))
        given = normalise((given / given.max()) ** self._sharpness)
        elapsed = time - self._time if math.isfinite(self._time) else self.seconds_per_frame
        self._time = time
        self._keep = self.motion.predict(self._keep, elapsed)
        self._belief = self._belief @ speech_transition(round(elapsed, 6), ends=True)
        unexplained = self._hear(given, reliability)
        self._end()
        self._begin(unexplained)
        self._confirm()
        self._merge()
        return self._tracks()

    def _hear(self, weights: Floats, reliability: float) -> Floats:
        """Share a frame among the tracks and correct them; what is left for new ones. Shape: (G,) -> (G,)"""
        keep, count = self._keep, len(self._ids)
        variance = keep.covariance[:, 0, 0]
        cosine = keep.direction @ self.grid.T
        near = np.exp((cosine - 1) / (variance + self._error)[:, None])
        near *= len(self.grid) / near.sum(axis=1, keepdims=True)
        if self._reflected is None:
            own = heard = near
        else:
            own = (1 - TUNING.reflected) * near
            heard = own + TUNING.reflected * self._reflected[cosine.argmax(axis=1)]
        speaks = self._belief[:, 2].copy()
        fits = heard * weights
        fit = reliability * fits.sum(axis=1) + (1 - reliability)
        total = TUNING.clutter + speaks @ fit
        explained = TUNING.clutter + speaks @ heard
        if count:
            others = (total - speaks * fit) / (TUNING.clutter + speaks.sum() - speaks)
            dominant = TUNING.dominant / (1 + speaks.sum() - speaks)
            self._evidence = speech_evidence(fit, others, dominant, reliability, math.sqrt(self._new))
            self._belief[:, 2] *= self._evidence
            self._belief /= self._belief.sum(axis=1, keepdims=True)
            self._correct(reliability * (own * weights) * speaks[:, None] / explained, cosine)
            self._remember()
        return np.asarray(reliability * weights * TUNING.clutter / explained)

    def _correct(self, shares: Floats, cosine: Floats) -> None:
        """Kalman's correction by measurements that belong to a track with the probabilities `shares`. (K, G) each"""
        keep, share = self._keep, shares.sum(axis=1)
        towards = shares @ self.grid
        towards -= np.sum(towards * keep.direction, axis=1, keepdims=True) * keep.direction
        scatter = (np.sum(shares * (1 - cosine**2), axis=1) - np.sum(towards**2, axis=1)) / self._axes
        # Frames that overlap err alike: together, they are one measurement.
        expected = keep.covariance[:, 0, 0] + self._error / self._new
        gain = keep.covariance[:, :, 0] / expected[:, None]
        spread = scatter - share * expected
        covariance = keep.covariance + gain[:, :, None] * gain[:, None, :] * spread[:, None, None]
        way, faster = gain[:, :1] * towards, gain[:, 1:] * towards
        direction, velocity = move(keep.direction, way, keep.velocity + faster)
        self._keep = State(direction, velocity, covariance)

    def _remember(self) -> None:
        """When each spoke last, and how fast it usually goes."""
        speaks = (self._belief[:, 2] > 0.5) & (self._evidence > 1)
        pace = np.linalg.norm(self._keep.velocity, axis=1)
        self._heard = np.where(speaks, self._time, self._heard)
        self._pace = np.where(
            speaks, self._pace + self.seconds_per_frame / TUNING.pace_seconds * (pace - self._pace), self._pace
        )

    def _end(self) -> None:
        alive = 1 - self._belief[:, 0]
        waited = self._time - self._born
        candidate = self._ids == 0
        hopeless = candidate & ((alive < TUNING.birth_probability / 2) | (waited > TUNING.max_candidate_age))
        self._select(~hopeless & (candidate | (alive >= TUNING.lost_probability)))

    def _begin(self, unexplained: Floats) -> None:
        """A candidate at the peak of what no track explains, if there is enough of it."""
        peak = self.grid[int(np.argmax(unexplained))]
        near = unexplained * np.exp((self.grid @ peak - 1) / self._error)
        if unexplained[self.grid @ peak > _PEAK].sum() < TUNING.min_birth_weight:
            return
        if len(self._ids) and (self._keep.direction @ peak).max() > _NEW:
            return
        candidates = np.flatnonzero(self._ids == 0)
        if len(self._ids) >= TUNING.max_tracks:
            if not len(candidates):
                return
            self._select(np.arange(len(self._ids)) != candidates[np.argmax(self._belief[candidates, 0])])
        direction = near @ self.grid
        direction /= np.linalg.norm(direction)
        covariance = np.diag([self._error, math.radians(self.motion.speed) ** 2])
        self._keep = State(
            np.vstack([self._keep.direction, direction]),
            np.vstack([self._keep.velocity, np.zeros(3)]),
            np.concatenate([self._keep.covariance, covariance[None]]),
        )
        self._belief = np.vstack([self._belief, [1 - TUNING.birth_probability, 0, TUNING.birth_probability]])
        self._ids = np.append(self._ids, 0)
        self._born = np.append(self._born, self._time)
        self._evidence = np.append(self._evidence, 1.0)
        self._heard = np.append(self._heard, self._time)
        self._pace = np.append(self._pace, 0.0)
        self._past = [*self._past, ()]

    def _confirm(self) -> None:
        """Candidates that are sources get an id: that of one who fell silent as far away as it may have walked."""
        for new in np.flatnonzero((self._ids == 0) & (self._belief[:, 0] < 1 - TUNING.confirmed_probability)).tolist():
            silent = np.maximum(self._born[new] - self._heard, 0.0)
            away = np.arccos(np.clip(self._keep.direction @ self._keep.direction[new], -1, 1))
            likely = (self._ids > 0) & (self._belief[:, 2] < 0.5) & (self._heard < self._born[new] + TUNING.speech_lag)
            away[~likely | (away > math.radians(TUNING.revival_angle) + silent * self._pace)] = np.inf
            old = int(np.argmin(away))
            self._ids = self._ids.copy()
            if not math.isfinite(away[old]) and self._full():
                if not self._make_room():
                    continue
                # Its past is that of a candidate beside all the others, and is not told.
                self._past = [() if k == new else past for k, past in enumerate(self._past)]
            if math.isfinite(away[old]):
                self._ids[new], self._ids[old] = self._ids[old], -1  # it goes on as the other
            else:
                self._ids[new] = self._next
                self._next += 1
        self._select(self._ids >= 0)

    def _full(self) -> bool:
        return self._most is not None and int((self._ids > 0).sum()) >= self._most

    def _make_room(self) -> bool:
        """Whether the track that is silent for longest is so for long enough to end for another."""
        tracks = np.flatnonzero(self._ids > 0)
        longest = tracks[np.argmin(self._heard[tracks])]
        if self._time - self._heard[longest] <= TUNING.min_silence:
            return False
        self._ids[longest] = -1
        return True

    def _merge(self) -> None:
        """Of tracks that stay in one direction, the older goes on; a candidate where a track is, is none."""
        near = np.argwhere(np.triu(self._keep.direction @ self._keep.direction.T > _SAME, 1))
        kept = np.ones(len(self._ids), dtype=bool)
        now, together = self._time, {}
        for first, second in near.tolist():
            ids = int(self._ids[first]), int(self._ids[second])
            if not (kept[first] and kept[second]):
                continue
            if 0 in ids:
                kept[first if ids[1] else second] = False
                continue
            together[ids] = self._together.get(ids, now)
            if now - together[ids] > TUNING.crossing_seconds:
                kept[first if ids[0] > ids[1] else second] = False
        self._together = together
        self._select(kept)

    def _select(self, kept: Bools) -> None:
        if kept.all():
            return
        self._keep, self._belief = self._keep.part(kept), self._belief[kept]
        self._ids, self._born, self._evidence = self._ids[kept], self._born[kept], self._evidence[kept]
        self._heard, self._pace = self._heard[kept], self._pace[kept]
        self._past = [past for past, stays in zip(self._past, kept, strict=True) if stays]

    def _tracks(self) -> list[Track]:
        """Reports of the tracks; those of candidates are kept until they are tracks."""
        reports: list[Track] = []
        pasts: list[tuple[Track, ...]] = []
        for k, past in enumerate(self._past):
            alive, speaking, evidence = 1 - self._belief[k, 0], self._belief[k, 2], self._evidence[k]
            report = Track(
                int(self._ids[k]), self._time, self._keep.part(k), float(alive), float(speaking), float(evidence), past
            )
            if report.id:
                reports.append(report)
                pasts.append(())
            else:
                pasts.append((*past, dataclasses.replace(report, past=())))
        self._past = pasts
        return sorted(reports, key=lambda report: report.id)

    def _check_frame(self, time: float, weights: npt.ArrayLike, reliability: float) -> Floats:
        if check_number("time of a frame", time, -1e9, 1e9, "s") <= self._time:
            raise InputError(
                f"a frame at {time:g} s after {self._time:g} s; expected later times: reset() begins a new recording"
            )
        check_number("reliability of a frame", reliability, 0, 1)
        given = check_array("weights", weights, f"one number for each of {len(self.grid)} directions")
        if given.shape != (len(self.grid),):
            raise InputError(f"weights of shape {given.shape} for a grid of {len(self.grid)} directions; give one each")
        total = given.sum()
        if not (math.isfinite(total) and given.min() >= 0 and total > 0):
            raise InputError(
                "the weights of a frame must be finite, 0 or more, and not all 0 (reliability=0 says that)"
            )
        return normalise(given)


def peakedness(around: npt.ArrayLike) -> Floats:
    """How much a frame says of directions, 0 to 1, by its weight within 12 degrees of its peak: noise and pauses give
    flat frames, whose highest point is anywhere."""
    return np.clip(
        (np.asarray(around, np.float64) - TUNING.flat_share) / (TUNING.peaked_share - TUNING.flat_share), 0.0, 1.0
    )


def speech_evidence(
    fit: Floats, others: Floats, dominant: Floats, reliability: float | Floats, exponent: float
) -> Floats:
    """How much more probable a frame is if a source speaks than if it is silent.

    Args:
        fit, others: how well the source explains the frame, and how well the other sources and clutter do.
        dominant: probability that the source is the dominant one when it speaks.
        reliability: of the frame. One that says nothing is half a miss: who speaks is mostly heard.
        exponent: below 1 where frames overlap: they hear the same, but what they hear changes faster than that.
    """
    seen = 1 - dominant + dominant * (reliability * fit / others + (1 - reliability) / 2)
    return np.asarray(np.minimum(seen, TUNING.max_evidence) ** exponent)


def _step(grid: Floats) -> float:
    """Radians from a direction to the next one, usually; some of them tell."""
    cosines = np.sort(grid[:: max(1, len(grid) // 64)] @ grid.T, axis=1)[:, -2]
    return float(np.median(np.arccos(np.clip(cosines, -1, 1))))


def _check_grid(grid: npt.ArrayLike) -> Floats:
    given = check_array("grid", grid, "8 or more directions, one row of three numbers each")
    if given.ndim != 2 or given.shape[1] != 3 or len(given) < 8:
        raise InputError(f"a grid of shape {given.shape}; expected 8 or more directions, one row of three numbers each")
    if not np.allclose(np.linalg.norm(given, axis=1), 1, atol=1e-6):
        raise InputError("a direction of the grid is no unit vector; divide each row by its length")
    return given


def smooth(history: Iterable[tuple[float, Sequence[Track]]], motion: Motion | None = None) -> list[Trajectory]:
    """The sources of a recording, by id, each from its first word to its last.

    Args:
        history: times of all frames and what `Tracker.update` answered.
        motion: that of the tracker.
    """
    try:
        frames = [(check_number("time of a frame", time, -1e9, 1e9, "s"), list(tracks)) for time, tracks in history]
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the history is {short_repr(history)}; expected times, each with its tracks") from None
    if motion is not None and not isinstance(motion, Motion):
        raise InputError(f"motion is {short_repr(motion)}; expected a Motion")
    times = [time for time, _ in frames]
    if any(later <= earlier for earlier, later in itertools.pairwise(times)):
        raise InputError("the times of a history must rise: give one recording at a time, in order")
    by_id: dict[int, Trajectory] = {}
    for _, tracks in frames:
        for track in tracks:
            own = by_id.setdefault(track.id, [])
            # A candidate that goes on as an older track was it since it began.
            past = [dataclasses.replace(moment, id=track.id) for moment in track.past]
            first = past[0].time if past else track.time
            while own and own[-1].time >= first:
                own.pop()
            own += [*past, track]
    step = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    smoothed = [_smooth_track(track, motion or Motion()) for _, track in sorted(by_id.items())]
    whole = join([heard for one in smoothed if (heard := trim(one))])
    return [one for one in whole if step * sum(moment.active for moment in one) >= TUNING.min_speech]


def _smooth_track(track: Trajectory, motion: Motion) -> Trajectory:
    # What was doubtful while it was a candidate is not so any more: it became a track.
    certain = np.maximum.accumulate([moment.probability for moment in track[::-1]])[::-1]
    return [
        dataclasses.replace(moment, state=state, probability=float(alive), speaking=float(speech * alive), past=())
        for moment, state, speech, alive in zip(
            track, _smooth_states(track, motion), _smooth_speech(track), certain, strict=True
        )
    ]


def _smooth_states(track: Trajectory, motion: Motion) -> list[State]:
    states = [track[-1].state]
    for now, then in zip(track[-2::-1], track[:0:-1], strict=True):
        seconds = then.time - now.time
        predicted, (step, noise) = motion.predict(now.state, seconds), motion.after(seconds)
        # The prediction's spread is limited, and so is its correlation with this state: else variances get negative.
        step = motion.width_scale(step @ now.state.covariance @ step.T + noise)[:, None] * step
        after = states[-1]
        gain, covariance = smoother_step(now.state.covariance, step, predicted.covariance, after.covariance)
        _, velocity = move(after.direction, tangent_towards(after.direction, predicted.direction), after.velocity)
        missed = np.stack([tangent_towards(predicted.direction, after.direction), velocity - predicted.velocity])
        # The correction is a pair of tangent vectors at the prediction; carried to where the source was.
        home = tangent_towards(predicted.direction, now.state.direction)
        correction = [move(predicted.direction, home, part)[1] for part in gain @ missed]
        direction, velocity = move(now.state.direction, correction[0], now.state.velocity + correction[1])
        states.append(State(direction, velocity, covariance))
    return states[::-1]


def _smooth_speech(track: Trajectory) -> Floats:
    """Probability of speech at each moment of one that is there. Shape: (T,)"""
    steps = np.diff([moment.time for moment in track])
    return speech_probability(np.array([moment.evidence for moment in track]), steps.tolist(), 0.9)


def trim(track: Trajectory) -> Trajectory:
    """From its first word to its last."""
    heard = [number for number, moment in enumerate(track) if moment.active]
    return track[heard[0] : heard[-1] + 1] if heard else []


def join(tracks: list[Trajectory]) -> list[Trajectory]:
    """Pieces of one source put together, the nearest first."""
    tracks = list(tracks)
    while True:
        fits = [
            (angle, a, b)
            for a, b in itertools.permutations(range(len(tracks)), 2)
            if 0 < tracks[b][0].time - tracks[a][-1].time <= TUNING.max_gap
            and (angle := float(angle_between(tracks[a][-1].direction, tracks[b][0].direction))) <= TUNING.max_gap_angle
        ]
        if not fits:
            return tracks
        _, a, b = min(fits)
        tracks[a] = tracks[a] + [dataclasses.replace(moment, id=tracks[a][0].id) for moment in tracks[b]]
        del tracks[b]
