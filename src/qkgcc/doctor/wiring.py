"""Inverted and swapped channels, and delays that the spacing does not allow: judged from the tracks of the pairs."""

import numpy as np

from qkgcc.arrays.evidence import FRAME
from qkgcc.arrays.wiring import Miswiring, WiringCheck
from qkgcc.audio.frames import cut_frames
from qkgcc.core.types import SILENCE, Floats
from qkgcc.doctor.exchange import Exchange
from qkgcc.doctor.findings import Finding, named
from qkgcc.doctor.order import Order
from qkgcc.doctor.setup import Setup
from qkgcc.dsp.long_lags import Excerpt, Track

INVERTED = (-0.16, -2.5)
"""Surplus of the upright over the inverted peaks: as a share of both, and in multiples of its noise. Clean: -0.06 and
-0.7 at least. Inverted: below both in real rooms, and in 86 % of 2 s pieces with T60 to 0.8 s and SNR from 0 dB up."""
OUTSIDE = 0.2
"""Share of the clear delays, two at least, outside what the spacing allows. Clean: none of them in any room."""
SIDE = 94e-6
"""Seconds from the middle (1.5 samples at 16 kHz) from which a source is clearly on one side."""

_FEWEST = 2  # clear delays for a verdict
_SHARE = 0.25  # of the blocks that must be clear
_AGREE = 0.75  # of the clear delays must be on the same side


def surplus(track: Track) -> tuple[float, float]:
    """Of upright over inverted peaks: -1 ... 1, and in multiples of its noise."""
    upright, inverted = track.heights.sum(axis=0)
    both = upright + inverted
    return (upright - inverted) / both if both > 0 else 0.0, (upright - inverted) / np.sqrt(len(track.times))


def is_inverted(track: Track) -> bool:
    share, amount = surplus(track)
    return bool(share < INVERTED[0] and amount < INVERTED[1])


def inverted_polarity(inverted: dict[int, bool], reference: int) -> list[Finding]:
    """`inverted` says of every other channel whether it is against the reference; the fewer ones are at fault."""
    turned = sorted(channel for channel, against in inverted.items() if against)
    if not turned:
        return []
    upright = sorted({reference, *inverted} - set(turned))
    if len(inverted) == 1:
        return [
            Finding(
                "inverted-polarity",
                (upright[0], turned[0]),
                f"Channel {turned[0]} is the inverse of channel {upright[0]}: their correlation peaks upside down.",
                "Turn the sign of one of them, and look for a cable whose two poles are exchanged.",
            )
        ]
    if len(turned) > len(upright):
        turned, upright = upright, turned
    return [
        Finding(
            "inverted-polarity",
            tuple(turned),
            f"{named(turned).capitalize()} {'is' if len(turned) == 1 else 'are'} inverted against {named(upright)}.",
            "Turn the sign of that channel, and look for a cable whose two poles are exchanged.",
        )
    ]


def clear_delays(track: Track, column: int) -> Floats | None:
    """Seconds; None if too few of the blocks are clear for a verdict."""
    clear = track.clear[:, column]
    if clear.sum() < _FEWEST or clear.mean() < _SHARE:
        return None
    delays: Floats = track.delays[clear, column]
    return delays


def outside_spacing(pairs: dict[tuple[int, int], tuple[Track, int]], setup: Setup, sample_rate: int) -> list[Finding]:
    """One finding, about the pair that is farthest outside; its channels are those of all pairs that are."""
    found = []
    for pair, (track, column) in pairs.items():
        apart, delays = setup.apart(*pair), clear_delays(track, column)
        if apart is None or delays is None:
            continue
        allowed = apart / setup.speed_of_sound
        outside = np.abs(delays) > allowed + max(1 / sample_rate, 62.5e-6)
        if outside.sum() >= 2 and outside.mean() > OUTSIDE:
            needed = float(np.quantile(np.abs(delays), 0.9))
            found.append((needed - allowed, needed, float(outside.mean()), apart, pair))
    if not found:
        return []
    beyond, needed, share, apart, pair = max(found)
    what = (
        "Measure the spacing again, in metres"
        if setup.geometry is None
        else "Check the positions in the geometry and the order of the channels"
    )
    return [
        Finding(
            "outside-spacing",
            tuple(sorted({channel for *_, each in found for channel in each})),
            f"{100 * share:.0f} % of the clear delays between {named(pair)} are greater than {apart:g} m allow: "
            f"{1000 * needed:.2f} ms ({needed * sample_rate:.1f} samples), not {1000 * (needed - beyond):.2f} ms.",
            f"{what}: these delays need at least {needed * setup.speed_of_sound:.2g} m.",
        )
    ]


def wrong_side(track: Track, column: int, expect: str, sample_rate: int) -> list[Finding]:
    """Channels 0 (left) and 1 (right) against the side on which the source was."""
    delays = clear_delays(track, column)
    if delays is None:
        return []
    middle = float(np.median(delays))
    sign = 1 if expect == "left" else -1  # the wrong one: positive = channel 0 hears later = the source is on the right
    if sign * middle < SIDE or (sign * delays > 62.5e-6).mean() < _AGREE:
        return []
    return [
        Finding(
            "swapped-channels",
            (0, 1),
            f"The source was on the {expect}, but its microphone (channel {0 if expect == 'left' else 1}) hears it "
            f"{abs(middle) * 1e6:.0f} us ({abs(middle) * sample_rate:.1f} samples) later than the other.",
            "Exchange the two channels (or the cables), or check which microphone is channel 0.",
        )
    ]


def wrong_order(order: Order | None, sample_rate: int) -> list[Finding]:
    if order is None or not order.wrong:
        return []
    exchanged = [pair for pair in zip(order.channels, order.microphones, strict=True) if pair[0] != pair[1]]
    return [
        Finding(
            "swapped-channels",
            tuple(channel for channel, _ in exchanged),
            f"The delays miss the geometry by {order.given * sample_rate:.2f} samples in the given order, and by "
            f"{order.best * sample_rate:.2f} if "
            + ", ".join(f"channel {channel} is microphone {place}" for channel, place in exchanged)
            + " (or the mirror image of that).",
            "Reorder the channels, or the rows of the geometry file, and check the labels on the cables.",
        )
    ]


def check_wiring(part: Excerpt, channels: list[int], setup: Setup) -> Miswiring | None:
    """How the microphones seem to be wired, as `qkgcc locate` finds it: from all sound, not from clear delays alone."""
    geometry = setup.geometry
    if geometry is None or not WiringCheck.applies(geometry):
        return None
    frame, hop = round(FRAME * part.rate), round(FRAME / 2 * part.rate)
    check = WiringCheck(
        geometry, geometry.pairs, setup.speed_of_sound, rate=part.rate, highest=part.rate / 2, frame=frame, hop=hop
    )
    samples = np.zeros_like(part.samples)
    samples[channels] = part.samples[channels]
    for frames in cut_frames(iter([samples]), frame, hop):
        for one in frames[frames.std(axis=(1, 2)) >= SILENCE]:
            check.add(one)
    return check.found


def miswired(found: Miswiring | None) -> list[Finding]:
    if found is None:
        return []
    if found.inverted:
        return [
            Finding(
                "inverted-polarity",
                found.inverted,
                f"In all directions the pairs agree better if {named(found.inverted)} "
                f"{'is' if len(found.inverted) == 1 else 'are'} turned upside down.",
                "Turn the sign of that channel, and look for a cable wired with reversed polarity.",
            )
        ]
    return [
        Finding(
            "swapped-channels",
            found.exchanged,
            f"No direction explains the delays of all pairs in the given order. One does better with "
            f"{named(found.exchanged)} {'exchanged' if len(found.exchanged) == 2 else 'in another order'} (or the "
            "mirror image of that).",
            "Reorder the channels, or the rows of the geometry file, and check the labels on the cables.",
        )
    ]


def exchanged(exchange: Exchange | None) -> list[Finding]:
    """Two of many microphones, metres apart."""
    if exchange is None or not exchange.found:
        return []
    first, second = exchange.channels
    return [
        Finding(
            "swapped-channels",
            exchange.channels,
            f"All pairs together fit a source better by {100 * (exchange.better - 1):.0f} %, and in "
            f"{100 * exchange.often:.0f} % of the seconds, if channels {first} and {second} are exchanged.",
            "Exchange the two channels, or the rows of the geometry file, and check the labels on the cables.",
        )
    ]
