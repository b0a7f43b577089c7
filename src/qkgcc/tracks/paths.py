"""Sources of a whole recording: the most probable paths through all of its frames, one after the other.

A filter has to say now who is where; a path through all frames needs not, and finds talkers whom few frames are about.
On a circle or a line, time goes in steps of a quarter second and a state is an angle and a velocity in whole degrees a
step. In the frame t, with weights w, a source in the direction g that speaks makes what the frame says

    e(t, g) = 1 - D u + D G sum_h k(g - h) u(h),   u(h) = w(h) c / (c + sum_j s_j p_j(h)),   u = sum_h u(h)

times as probable: u is what the sources j that are known leave unexplained, at p_j while they speak (s_j), c stands for
clutter, k for the error of frames and D for how often who speaks is the dominant one. In a step in which it may speak
or not, the evidence is log(1 - q + q prod e). The path with the highest sum, less what a beginning and changes of
velocity cost, is found by dynamic programming (track-before-detect, Viterbi's algorithm). It explains its part, the
next is sought in the rest, and once all are known each is sought again beside the others.

A path that is sought alone takes what lies ahead, and that may be another's way from where two of them come near each
other. So both are sought once more together, as they are and with their ways exchanged from there on, and what is worth
more is kept.

On a line of microphones, k and p_j have the ridge that rooms make of every source, so that what is thrown back of it is
explained by it, too (`Ring`, `tracks.ridges`).

Along a path, Kalman's filter and Rauch's smoother over the frames that belong to it say where the source is.

Y. Barniv, "Dynamic programming solution for detecting dim moving targets", IEEE Trans. Aerospace and Electronic
Systems 21(1), 1985.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats, Floats32
from qkgcc.tracks import ridges, tracker
from qkgcc.tracks.motion import Motion, State, smoother_step, speech_probability
from qkgcc.tracks.tracker import Track, Trajectory, join, peakedness, speech_evidence, trim


@dataclass(frozen=True)
class Tuning:
    """Constants of the search."""

    step: float = 0.256
    """Seconds of a step."""
    window: float = 120.0
    """Seconds that are searched at once, so that memory and time stay small; paths that meet at an end are joined."""
    max_speed: float = 62.5
    """Degrees a second that sources move."""
    usual_speed: float = 10.0
    """Degrees a second: standard deviation of velocities at the beginning of a path."""
    turn_cost: float = 1.0
    """Nats that a change of velocity by one degree a step costs; by two, four times as much."""
    birth_cost: float = 15.0
    """Nats that a path has to be worth to be a source, and that what speaks against it may cost before it ends."""
    speech_probability: float = 0.4
    """That a source speaks in a step."""
    max_pause: float = 10.0
    """Seconds without anything that speaks for it after which a path ends."""
    dominant: float = 0.5
    """Probability that a source that speaks is the dominant one of a frame."""
    clutter: float = 0.3
    """How often frames come from elsewhere, against one source that speaks."""
    sharpness: float = 3.0
    """Exponent of the weights of frames, whose peaks are wider than their error."""
    error: float = 5.0
    """Degrees: standard deviation of the error of frames."""
    explained_angle: float = 9.0
    """Degrees: standard deviation of the bell in which a known source explains frames."""
    reflected: float = 0.4
    """On a line of microphones: share of what is heard of a source that lies elsewhere (`tracks.ridges`). The more, the
    fewer talkers are invented, and the fewer of two are found."""
    margin: float = 3.0
    """Seconds before and after a path in which it is sought again."""
    meeting_angle: float = 30.0
    """Degrees between two paths at which their ways from then on may be exchanged."""
    corridor: float = 20.0
    """Degrees around their ways in which both are sought then."""
    exchange_seconds: float = 1.0
    """Around the meeting, in which they may change their ways."""
    max_exchange_passes: int = 24
    """How often all frames may be searched for exchanges, so that time stays small."""
    max_rounds: int = 64
    """Rounds of paths: there are no more sources than that at once."""
    part: int = 2
    """Frames of a step that are added up before they are shifted: as long as nobody moves farther than an error."""


TUNING = Tuning()
_NEVER = np.int8(127)  # where a path begins


@dataclass(frozen=True, eq=False)
class Ring:
    """Cells of a degree or so along a circle, or a part of one that does not close."""

    first: Floats
    across: Floats
    """Unit vectors: angle 0, and 90 degrees."""
    step: float
    """Degrees from a cell to the next."""
    finer: int
    """Cells for each of the given grid."""
    count: int
    closed: bool
    reflected: Floats | None
    """(A, A) of angles to a line of microphones: where else a source in each cell is heard, with a mean of 1."""

    @classmethod
    def of(cls, grid: npt.ArrayLike, line: bool = False) -> Ring:
        given = np.asarray(grid, np.float64)
        if given.ndim != 2 or given.shape[1] != 3 or len(given) < 8:
            raise InputError(f"a grid of shape {given.shape}; expected 8 or more directions in the order of a circle")
        across = given[1] - (given[1] @ given[0]) * given[0]
        across /= np.linalg.norm(across)
        step = math.degrees(math.acos(float(given[0] @ given[1])))
        angles = np.radians(step * np.arange(len(given)))[:, None]
        if not np.allclose(given, np.cos(angles) * given[0] + np.sin(angles) * across, atol=1e-6):
            raise InputError("the directions of the grid do not lie evenly along a circle, one after the other")
        closed = abs(len(given) * step - 360) < step / 2
        finer = max(1, round(step))
        count = finer * len(given) - (0 if closed else finer - 1)
        reflected = count * ridges.reflection_ridges(count).T if line else None
        return cls(given[0], across, step / finer, finer, count, closed, reflected)

    def spread(self, weights: Floats) -> Floats:
        """Weights of the given grid on the cells, linear in between, rows that sum to 1. Shape: (T, G) -> (T, A)"""
        own = np.arange(weights.shape[1]) * self.finer
        around = (own[-1] + self.finer,) if self.closed else ()
        padded = np.concatenate([weights, weights[:, :1]], axis=1) if self.closed else weights
        at = np.arange(self.count)
        places = np.array([*own, *around])
        left = np.minimum(np.searchsorted(places, at, "right") - 1, len(places) - 2)
        share = (at - places[left]) / self.finer
        fine = padded[:, left] * (1 - share) + padded[:, left + 1] * share
        return np.asarray(fine / fine.sum(axis=1, keepdims=True))

    def apart(self, cells: Floats) -> Floats:
        """Degrees from each cell to some angles, in cells. Shape: (...) -> (..., A)"""
        difference = np.arange(self.count) - cells[..., None]
        if self.closed:
            difference -= self.count * np.rint(difference / self.count)
        return np.asarray(self.step * difference)

    def density(self, cells: Floats, width: float) -> Floats:
        """Bells around angles, whose mean over the cells is 1. Shape: (N,) -> (N, A)"""
        bell = np.exp(-0.5 * (self.apart(cells) / width) ** 2)
        return np.asarray(bell * (self.count / bell.sum(axis=-1, keepdims=True)))

    def heard(self, cells: Floats, width: float) -> Floats:
        """The same with what is reflected of sources there (`tracks.ridges`). Shape: (N,) -> (N, A)"""
        bells = self.density(cells, width)
        if self.reflected is None:
            return bells
        return np.asarray((1 - TUNING.reflected) * bells + TUNING.reflected * self.reflected[self.whole(cells)])

    def whole(self, cells: Floats) -> npt.NDArray[np.int64]:
        """The nearest cells."""
        nearest = np.rint(cells).astype(np.int64)
        return nearest % self.count if self.closed else np.clip(nearest, 0, self.count - 1)

    def direction(self, cells: float) -> tuple[Floats, Floats]:
        """The unit vector at an angle, and the one ahead of it."""
        angle = math.radians(self.step * cells)
        cos, sin = math.cos(angle), math.sin(angle)
        return cos * self.first + sin * self.across, cos * self.across - sin * self.first


@dataclass(eq=False)
class _Path:
    """Frames `first` and on, the angle in cells, unwrapped, and what is known along it."""

    first: int
    cells: Floats
    worth: float
    variance: Floats
    velocity: Floats
    speaking: Floats
    evidence: Floats
    """How much more probable each frame is if it speaks."""

    @property
    def frames(self) -> slice:
        return slice(self.first, self.first + len(self.cells))


def find_tracks(
    times: npt.ArrayLike,
    weights: npt.ArrayLike,
    heard: npt.ArrayLike,
    grid: npt.ArrayLike,
    *,
    frame_seconds: float = 0.064,
    most: int | None = None,
    line: bool = False,
) -> list[Trajectory]:
    """The sources of a recording, by id in the order of their first words, each from its first word to its last.

    Args:
        times: of the frames, evenly spaced, in seconds. Shape: (T,)
        weights: where the one dominant source of a frame may be, from 0; any sum. Shape: (T, G)
        heard: frames that are not silence. Shape: (T,)
        grid: unit vectors, evenly spaced along a circle or a part of one, in their order. Shape: (G, 3)
        frame_seconds: of sound that one frame hears; frames that overlap count less.
        most: sources at any moment, each from its first word to its last; the best ones. By default all that there are.
        line: whether the grid has the angles to a line of microphones, from 0 to 180 degrees.
    """
    when, said, sound = np.asarray(times, np.float64), np.asarray(weights), np.asarray(heard, np.bool_)
    ring = Ring.of(grid, line)
    hop = float(np.median(np.diff(when))) if len(when) > 1 else frame_seconds
    tracks: list[Trajectory] = []
    length = max(1, round(TUNING.window / hop))
    for first in range(0, len(when), length):
        part = slice(first, first + length)
        search = _Search(when[part], said[part].astype(np.float64), sound[part], ring, hop, frame_seconds, most)
        found = [trim(search.track(path)) for path in search.paths(Motion(speed=TUNING.usual_speed, memory=5.0))]
        tracks += [one for one in found if hop * sum(moment.active for moment in one) >= tracker.TUNING.min_speech]
    return _with_ids(join(sorted(tracks, key=lambda one: one[0].time)))


class _Search:
    """What the frames say, and the paths in it."""

    def __init__(
        self,
        times: Floats,
        weights: Floats,
        heard: Bools,
        ring: Ring,
        hop: float,
        frame_seconds: float,
        most: int | None,
    ) -> None:
        self.times, self.ring, self.hop, self.most = times, ring, hop, most
        self.there = np.zeros(len(times), np.int64)  # paths that are known in each frame
        self.new = math.sqrt(min(1.0, hop / frame_seconds))
        fine = ring.spread(weights)
        near = np.abs(ring.apart(fine.argmax(axis=1).astype(np.float64))) < tracker.TUNING.peak_angle
        self.reliable = np.where(heard, peakedness((fine * near).sum(axis=1)), 0.0)
        sharp = (weights / weights.max(axis=1, keepdims=True)) ** TUNING.sharpness
        self.weights = (ring.spread(sharp) * self.reliable[:, None]).astype(np.float32)
        self.explained = np.zeros_like(self.weights)
        kernel = ring.heard(np.arange(ring.count, dtype=np.float64), TUNING.error).astype(np.float32)
        self.kernel = kernel if ring.reflected is None else kernel.T  # (A, A) what is heard in a cell of each source
        # A step is a whole number of parts, and a part of frames.
        self.part = min(TUNING.part, max(1, round(TUNING.step / self.hop)))
        self.parts = max(1, round(TUNING.step / (self.part * self.hop)))
        self.frames = self.part * self.parts
        self.fastest = max(1, round(TUNING.max_speed * self.frames * self.hop / ring.step))

    def paths(self, motion: Motion) -> list[_Path]:
        found: list[_Path] = []
        for _ in range(TUNING.max_rounds):
            some = self._best(slice(0, len(self.times)), motion)
            found += some
            if not some:
                break
        for old in reversed(found.copy()):
            if len(found) > 1:
                self._explain(old, -1)
                found.remove(old)
                found += self._best(self._around([old]), motion, most=1)
        found = self._exchange_ways(found, motion)
        self._update_speech(found)
        return found

    def _exchange_ways(self, found: list[_Path], motion: Motion) -> list[_Path]:
        """The paths, those that meet with their ways exchanged from there on where both are worth more so."""
        waiting, left = list(itertools.combinations(found, 2)), TUNING.max_exchange_passes * len(self.times)
        while waiting and left > 0:
            pair = sorted(waiting.pop(0), key=lambda path: -path.worth)
            meeting = self._meeting(*pair)
            if meeting is None:
                continue
            for path in pair:
                self._explain(path, -1)
            window = self._around(pair)
            left -= 4 * (window.stop - window.start)
            kept, other = (self._along(pair, window, meeting, motion, exchange=exchange) for exchange in (False, True))
            if sum(path.worth for path in other) > sum(path.worth for path in kept):
                rest = [path for path in found if path not in pair]
                waiting = [two for two in waiting if not set(two) & set(pair)]
                waiting += itertools.product(rest, other)
                found, pair = rest + other, other
            for path in pair:
                self._explain(path, 1)
        return found

    def _meeting(self, one: _Path, other: _Path) -> int | None:
        """The frame in which two paths are nearest, if that is near and they are there together for two steps."""
        first, stop = max(one.first, other.first), min(one.frames.stop, other.frames.stop)
        if stop - first < 2 * self.frames:
            return None
        ways = (path.cells[first - path.first : stop - path.first] for path in (one, other))
        apart = self.ring.step * np.subtract(*ways)
        if self.ring.closed:
            apart -= 360 * np.rint(apart / 360)
        nearest = int(np.abs(apart).argmin())
        return first + nearest if abs(apart[nearest]) < TUNING.meeting_angle else None

    def _around(self, paths: Sequence[_Path]) -> slice:
        """The frames in which some paths are sought again."""
        margin = round(TUNING.margin / self.hop)
        first, stop = min(path.first for path in paths), max(path.frames.stop for path in paths)
        return slice(max(0, first - margin), min(len(self.times), stop + margin))

    def _along(
        self, pair: Sequence[_Path], window: slice, meeting: int, motion: Motion, *, exchange: bool
    ) -> list[_Path]:
        """Two paths sought again one after the other, near their ways or with these exchanged. None is explained."""
        first = window.start
        near = np.zeros((2, window.stop - first, self.ring.count), np.bool_)
        for number, path in enumerate(pair):
            rows = slice(path.first - first, path.frames.stop - first)
            near[number, rows] = np.abs(self.ring.apart(path.cells)) < TUNING.corridor
        change = round(TUNING.exchange_seconds / self.hop)
        around = slice(max(0, meeting - first - change), meeting - first + change)
        found: list[_Path] = []
        for number in range(2):
            corridor = near[number].copy()
            if exchange:
                corridor[meeting - first :] = near[1 - number, meeting - first :]
            corridor[around] = near[:, around].any(axis=0)
            corridor[~corridor.any(axis=1)] = True  # before and after it, anywhere
            found += self._best(window, motion, most=1, corridor=corridor)
        for path in found:
            self._explain(path, -1)
        return found

    def _update_speech(self, found: Sequence[_Path]) -> None:
        """Who speaks when, all known: a frame that is another's is none of one's own, as the `tracker` has it."""
        fits, total, talking = [], np.full(len(self.times), TUNING.clutter), np.zeros(len(self.times))
        for path in found:
            near = self.ring.heard(path.cells, TUNING.explained_angle)
            fit = (self.weights[path.frames] * near).sum(axis=1) + 1 - self.reliable[path.frames]
            fits.append(fit)
            total[path.frames] += path.speaking * fit
            talking[path.frames] += path.speaking
        for path, fit in zip(found, fits, strict=True):
            reliable, more = self.reliable[path.frames], talking[path.frames] - path.speaking
            others = (total[path.frames] - path.speaking * fit) / (TUNING.clutter + more)
            dominant = tracker.TUNING.dominant / (1 + more)
            path.evidence = speech_evidence(fit, others, dominant, reliable, self.new)
            path.speaking = speech_probability(path.evidence, self.hop)

    def _explain(self, path: _Path, sign: int) -> None:
        density = self.ring.heard(path.cells, TUNING.explained_angle) * path.speaking[:, None]
        self.there[path.frames] += sign
        rows = self.explained[path.frames]
        np.maximum(rows + sign * density, 0, out=rows, casting="unsafe")

    def _evidence(self, window: slice) -> Floats32:
        """log e of the frames of a window. Shape: (frames, A)"""
        left = self.weights[window] * (TUNING.clutter / (TUNING.clutter + self.explained[window]))
        fit = 1 - TUNING.dominant * left.sum(axis=1, keepdims=True) + TUNING.dominant * (left @ self.kernel)
        return np.asarray(self.new * np.log(np.maximum(fit, 1e-3)), np.float32)

    def _best(
        self, window: slice, motion: Motion, most: int | None = None, corridor: Bools | None = None
    ) -> list[_Path]:
        """The best path of a window, and the best of those that share no time with better ones. All are explained.

        Args:
            corridor: where it may be. Shape: (frames, A)
        """
        evidence = self._evidence(window)
        worth, ends, back = self._forward(evidence, self._full(window), corridor)
        found: list[_Path] = []
        taken = np.zeros(len(worth), np.bool_)
        while most is None or len(found) < most:
            left = np.where(taken, -np.inf, worth)
            last = int(left.argmax())
            if left[last] <= 0:
                break
            first, cells = self._trace(last, int(ends[last]), back)
            free = not taken[first : last + 1].any()
            taken[first : last + 1] = True
            if free:
                found.append(self._path(evidence, window.start, first, cells, float(worth[last]), motion))
        for path in found:
            self._explain(path, 1)
        return found

    def _full(self, window: slice) -> Bools:
        """Steps of a window in which there are as many paths as there may be. Shape: (steps,)"""
        there = self.there[window]
        padded = np.zeros(-(-len(there) // self.frames) * self.frames, np.int64)
        padded[: len(there)] = there
        crowded = padded.reshape(-1, self.frames).max(axis=1)
        return np.zeros(len(crowded), np.bool_) if self.most is None else crowded >= self.most

    def _forward(
        self, evidence: Floats32, full: Bools, corridor: Bools | None = None
    ) -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int8]]:
        """What the best path that ends in each step is worth, its last state, and where it came from in all states.

        No path leads through a step that is full, or out of the corridor.
        Shape: (frames, A), (steps,), (frames, A) -> (steps,), (steps,), (steps, V, A)
        """
        ring, reach, parts = self.ring, self.fastest, self.parts
        steps = -(-len(evidence) // self.frames)
        padded = np.zeros((steps * self.frames, ring.count), np.float32)
        padded[: len(evidence)] = evidence
        pooled = padded.reshape(steps, parts, self.part, ring.count).sum(axis=2)
        velocities = np.arange(-reach, reach + 1)
        at = np.arange(ring.count)
        ahead = np.rint(velocities[:, None] * ((np.arange(parts) + 0.5) / parts - 0.5)).astype(np.int64)
        places = self.ring.whole((at + ahead[:, :, None]).astype(np.float64)) + ring.count * np.arange(parts)[:, None]
        came = at - velocities[:, None]
        inside = np.ones_like(came, np.bool_) if ring.closed else (came >= 0) & (came < ring.count)
        came = self.ring.whole(came.astype(np.float64))
        begins = (
            -TUNING.birth_cost - 0.5 * (velocities * ring.step / (self.frames * self.hop) / TUNING.usual_speed) ** 2
        )
        begin = np.repeat(begins[:, None], ring.count, axis=1).astype(np.float32)
        worth, ends = np.empty(steps), np.empty(steps, np.int64)
        back = np.full((steps, len(velocities), ring.count), _NEVER, np.int8)
        score, highest = np.full_like(begin, -np.inf), np.full_like(begin, -np.inf)
        for step in range(steps):
            heard = pooled[step].ravel()[places].sum(axis=1)
            heard = np.log(1 - TUNING.speech_probability + TUNING.speech_probability * np.exp(np.minimum(heard, 50)))
            if corridor is not None:
                there = corridor[step * self.frames : (step + 1) * self.frames].any(axis=0)
                heard[:, ~there] = -np.inf
            arrived = np.where(inside, np.take_along_axis(score, came, axis=1), -np.inf)
            tops = np.take_along_axis(highest, came, axis=1)
            score, highest = begin.copy(), begin.copy()
            for change in (0, 1, -1, 2, -2):
                to = slice(max(0, -change), len(velocities) - max(0, change))
                source = slice(max(0, change), len(velocities) - max(0, -change))
                offered = arrived[source] - np.float32(TUNING.turn_cost * change**2)
                better = offered > score[to]
                score[to][better] = offered[better]
                highest[to][better] = tops[source][better]
                back[step, to][better] = change
            score += heard
            np.maximum(
                highest + np.float32(TUNING.birth_cost * self.frames * self.hop / TUNING.max_pause), score, out=highest
            )
            score[score < highest - TUNING.birth_cost] = -np.inf  # after such a silence, whoever speaks is another
            if full[step]:
                score[:], highest[:] = -np.inf, -np.inf
            ends[step] = int(score.argmax())
            worth[step] = score.ravel()[ends[step]]
        return worth, ends, back

    def _trace(self, step: int, end: int, back: npt.NDArray[np.int8]) -> tuple[int, Floats]:
        """The first step of a path, and its cells at the middles of its steps, unwrapped."""
        velocity, cell = divmod(end, self.ring.count)
        cells = [cell]
        while (change := back[step, velocity, cell]) != _NEVER:
            velocity, step = velocity + int(change), step - 1
            moved = velocity - self.fastest
            cells.append(cells[-1] - moved)
            cell = (cell - moved) % self.ring.count
        return step, np.array(cells[::-1], np.float64)

    def _path(self, evidence: Floats32, start: int, first: int, steps: Floats, worth: float, motion: Motion) -> _Path:
        """A path frame by frame, with what is known of where the source is."""
        begin = first * self.frames
        frames = np.arange(begin, min(len(evidence), begin + len(steps) * self.frames))
        middles = begin + self.frames * (np.arange(len(steps)) + 0.5) - 0.5
        cells = np.interp(frames, middles, steps)
        said = evidence[frames, self.ring.whole(cells)].astype(np.float64)
        speaking = speech_probability(np.exp(said), self.hop)
        rows = slice(start + begin, start + begin + len(frames))
        own = self.ring.density(cells, TUNING.explained_angle) * speaking[:, None]
        shares = self.weights[rows] * own / (TUNING.clutter + self.explained[rows] + own)
        total = shares.sum(axis=1)
        apart = (shares * self.ring.apart(cells)).sum(axis=1) / np.maximum(total, 1e-12)
        precision = total * self.new**2 / TUNING.error**2
        degrees, velocity, variance = _smooth_angles(cells * self.ring.step, apart, precision, motion, self.hop)
        cells = degrees / self.ring.step
        if not self.ring.closed:
            cells = np.clip(cells, 0, self.ring.count - 1)
        said = evidence[frames, self.ring.whole(cells)].astype(np.float64)
        return _Path(
            rows.start, cells, worth, variance, velocity, speech_probability(np.exp(said), self.hop), np.exp(said)
        )

    def track(self, path: _Path) -> Trajectory:
        exists = 1 / (1 + math.exp(-min(path.worth, 50.0)))
        moments = []
        for number, cell in enumerate(path.cells.tolist()):
            direction, ahead = self.ring.direction(cell)
            state = State(direction, math.radians(path.velocity[number]) * ahead, path.variance[number])
            said, speaks = float(path.evidence[number]), float(path.speaking[number])
            moments.append(Track(0, float(self.times[path.first + number]), state, exists, speaks * exists, said))
        return moments


def _smooth_angles(
    way: Floats, apart: Floats, precision: Floats, motion: Motion, seconds: float
) -> tuple[Floats, Floats, Floats]:
    """Angle and velocity, in degrees, and their covariance in radians, from how far off a way frames are.

    Shape: (T,), (T,), (T,) -> (T,), (T,), (T, 2, 2)
    """
    step, noise = motion.after(seconds)
    noise = noise * math.degrees(1) ** 2
    seen = way + apart
    state, covariance = np.array([way[0], 0.0]), np.diag([TUNING.error**2, motion.speed**2])
    filtered, predicted = [], []
    for number, (value, weight) in enumerate(zip(seen.tolist(), precision.tolist(), strict=True)):
        if number:
            state, covariance = step @ state, step @ covariance @ step.T + noise
        predicted.append((state, covariance))
        if weight > 1e-9:
            gain = covariance[:, 0] / (covariance[0, 0] + 1 / weight)
            state = state + gain * (value - state[0])
            covariance = covariance - np.outer(gain, covariance[0])
        filtered.append((state, covariance))
    states, covariances = [filtered[-1][0]], [filtered[-1][1]]
    for (state, covariance), (ahead, spread) in zip(filtered[-2::-1], predicted[:0:-1], strict=True):
        gain, smoothed = smoother_step(covariance, step, spread, covariances[-1])
        states.append(state + gain @ (states[-1] - ahead))
        covariances.append(smoothed)
    every = np.array(states[::-1])
    return every[:, 0], every[:, 1], np.array(covariances[::-1]) / math.degrees(1) ** 2


def _with_ids(tracks: Sequence[Trajectory]) -> list[Trajectory]:
    """With ids from 1."""
    return [[dataclasses.replace(one, id=id) for one in track] for id, track in enumerate(tracks, 1)]
