"""Checks of arguments: each raises an `InputError` of one sentence or returns the value as plain Python.

Numbers of NumPy, and arrays and tensors of one number, are accepted too. The sentences name arguments as both the
Python interface and the command line call them.
"""

import itertools
import math
import numbers
import os
import reprlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats

_MAX_INDICES = 10_000  # more were never channels: a recording was given in their place

_MAX_NUMBERS = 10_000_000  # of an array that is no recording

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def short_repr(value: Any) -> str:
    """A value for a message: on one line, and short.

    >>> short_repr(0.2), short_repr("x" * 1000)[:5], short_repr(10**9999)
    ('0.2', "'xxxx", 'a number of 9999 digits or more')
    """
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {int(value.bit_length() * 0.30103)} digits or more"
    return " ".join(_REPR.repr(value).split())


def unwrap_scalar(value: Any) -> Any:
    """The number in an array or tensor without dimensions, as a Python number; anything else unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def check_number(what: str, value: Any, low: float, high: float, unit: str = "") -> float:
    """A number from `low` to `high`.

    >>> check_number("spacing", np.float32(0.5), 0.001, 100, "m")
    0.5
    """
    number = unwrap_scalar(value)
    after = f" {unit}" if unit else ""
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise InputError(f"the {what} is {short_repr(number)}; expected a number, {_range(low, high)}{after}")
    try:
        found = float(number)
    except OverflowError:  # whole numbers and fractions can be larger than any float
        found, high = math.nan, min(high, sys.float_info.max)
    if not low <= found <= high:
        raise InputError(f"the {what} is {short_repr(number)}{after}; expected {_range(low, high)}{after}")
    return found


def _range(low: float, high: float) -> str:
    return f"{low:g} or more" if high == np.inf else f"{low:g} to {high:g}"


def check_count(what: str, value: Any, low: int = 1, high: int | None = None, or_else: str = "") -> int:
    """A whole number from `low` to `high`.

    Args:
        or_else: the alternative, for the message.
    """
    number = unwrap_scalar(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < low or not (high is None or number <= high):
        up_to = f"at least {low}" if high is None else f"{low} to {high}"
        raise InputError(f"{what} is {short_repr(number)}; expected a whole number, {up_to}{or_else}")
    return number


def check_flag(what: str, value: Any) -> bool:
    """True or False."""
    flag = unwrap_scalar(value)
    if not isinstance(flag, bool):
        raise InputError(f"{what} is {short_repr(value)}; expected True or False")
    return flag


def check_choice(what: str, value: Any, known: Sequence[str]) -> str:
    """One of some names."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"unknown {what} {short_repr(value)}; known are {', '.join(known)}")
    return value


def check_name(what: str, value: Any, expected: str) -> str:
    """A name, or a path, as text."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise InputError(f"the {what} is {short_repr(value)}; expected {expected}")
    if "\0" in path:
        raise InputError(f"the {what} {short_repr(path)} holds a null character; expected {expected}")
    return path


def check_indices(what: str, value: Any, names: str) -> tuple[int, ...]:
    """A sequence of whole numbers, as a tuple.

    Args:
        names: an example, for the message.
    """
    try:
        none = isinstance(value, (str, bytes, dict, set))
        chosen = None if none else [unwrap_scalar(one) for one in itertools.islice(value, _MAX_INDICES + 1)]
    except (TypeError, ValueError):  # a ValueError of a closed stream
        chosen = None
    whole = chosen is not None and all(isinstance(one, int) and not isinstance(one, bool) for one in chosen)
    if chosen is None or not whole or len(chosen) > _MAX_INDICES:
        raise InputError(f"{what} is {short_repr(value)}; expected whole numbers, such as {names}")
    return tuple(chosen)


def check_callback(what: str, value: Callable[..., object] | None) -> None:
    """A function, or None."""
    if value is not None and not callable(value):
        raise InputError(f"{what} is {short_repr(value)}; expected a function")


def check_pair(pair: Sequence[int]) -> tuple[int, int]:
    """Two channels, or two microphones."""
    chosen = check_indices("a pair", pair, "(0, 1)")
    if len(chosen) != 2:
        raise InputError(f"a pair is {short_repr(pair)}; expected two numbers, such as (0, 1)")
    return chosen[0], chosen[1]


def check_pairs(pairs: Any) -> list[tuple[int, int]]:
    """Several pairs of channels or microphones."""
    expected = "expected pairs of channels, such as [(0, 1), (0, 2)]"
    if isinstance(pairs, (str, bytes)) or not hasattr(pairs, "__iter__"):
        raise InputError(f"pairs is {short_repr(pairs)}; {expected}")
    try:
        # One by one: of what is huge or has no end, the first entry is refused.
        return [check_pair(pair.tolist() if hasattr(pair, "tolist") else pair) for pair in pairs]
    except InputError:
        raise
    except (TypeError, ValueError):  # such as a closed file, or an array without a dimension
        raise InputError(f"pairs is {short_repr(pairs)}, which cannot be read; {expected}") from None


def check_method(method: str | Path) -> str:
    """A method's name or file, as text."""
    return check_name("method", method, "a name such as general or phat, or the path of a network")


def check_speed(speed: float) -> float:
    return check_number("speed of sound", speed, 100, 10_000, "m/s")


def check_spacing(spacing: float) -> float:
    return check_number("spacing", spacing, 0.001, 100, "m")


def check_frame(frame: float) -> float:
    return check_number("frame", frame, 0.001, 60, "s")


def check_hop(hop: float) -> float:
    return check_number("hop", hop, 1e-4, 3600, "s")


def check_band(band: Any) -> tuple[float, float] | None:
    """
    >>> check_band((300, 3400))
    (300.0, 3400.0)
    """
    if band is None:
        return None
    try:
        low, high = band
    except (TypeError, ValueError):
        raise InputError(f"a band is a lowest and a highest frequency in Hz; got {short_repr(band)}") from None
    low, high = (check_number("edge of the band", edge, 0, math.inf, "Hz") for edge in (low, high))
    if not low < high:
        raise InputError(f"band {low:g} to {high:g} Hz: the first frequency must be below the second")
    return low, high


def check_band_in_recording(band: tuple[float, float] | None, sample_rate: int) -> None:
    """Raises InputError where a recording at a sample rate holds nothing of a band."""
    if band is not None and band[0] >= sample_rate / 2:
        raise InputError(
            f"a recording at {sample_rate} Hz holds frequencies up to {sample_rate / 2:g} Hz, and the band begins "
            f"at {band[0]:g} Hz: lower the band"
        )


def check_threads(threads: int) -> int:
    return check_count("threads", threads, 1, 1024)


def check_array(what: str, value: Any, expected: str) -> Floats:
    """Numbers of any shape, as an array."""
    values = as_numpy(value)
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # such as rows of unequal lengths
        found = np.empty(0, object)
    if found.size > _MAX_NUMBERS:
        raise InputError(f"{what}: {found.size} numbers are too many; expected {expected}")
    if found.dtype.kind not in "iufb" or (found.dtype.kind == "b" and found.ndim == 0):
        raise InputError(f"{what}: expected {expected}, got {short_repr(value)}")
    return found.astype(np.float64)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "dtype")  # streams can be detached, too


def as_numpy(values: Any) -> Any:
    """A torch tensor, or a list of them, as NumPy can read it: detached, in memory, with at least 32 bits.

    Anything else is returned unchanged. Masked arrays are rejected: `numpy.asarray` would unmask them.
    """
    if isinstance(values, (list, tuple)) and any(_is_tensor(one) or np.ma.isMaskedArray(one) for one in values):
        return [as_numpy(one) for one in values]
    if np.ma.is_masked(values):
        raise InputError("the array has masked numbers; expected none: give a plain array, such as its filled(0)")
    if not _is_tensor(values):
        return values
    try:
        tensor = values.detach().cpu()
        short = tensor.is_floating_point() and tensor.element_size() < 4  # NumPy has no bfloat16
        return (tensor.float() if short else tensor).numpy()
    except (RuntimeError, TypeError):  # sparse, quantised, or without content, as on the device "meta"
        raise InputError(
            f"a tensor of {values.dtype} ({values.layout}, {values.device}) cannot be read: give a dense one of floats"
        ) from None
