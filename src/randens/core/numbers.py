"""Numbers that users write."""

from __future__ import annotations

import math
import numbers

from randens.core.errors import InputError

__all__ = ["number"]


def number(name: str, value: object) -> float:
    """A finite real number, or a string that is one or a fraction; `name` is what to call it in an error.

    >>> number("eps", "8/255") == 8 / 255
    True
    """
    try:
        if isinstance(value, str):
            above, sign, below = value.partition("/")
            # Floats, not fractions: 1e999999999 is infinite at once and not a computation of hours.
            found = float(above) / float(below) if sign else float(above)
        elif isinstance(value, numbers.Real) and not isinstance(value, bool):
            found = float(value)
        else:
            found = math.nan
    except (ValueError, OverflowError, ZeroDivisionError):
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{name} is {value!r:.100}; it must be a number or a fraction, e.g. 0.03 or 8/255")
    return found
