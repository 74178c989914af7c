"""The errors of randens: each names the argument, its value and what is valid."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

PathLike: Any = str | os.PathLike
Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_NAMES = 16  # in a message
_LONGEST = 1000  # message


class RandensError(Exception):
    """Base of every error that randens raises on purpose; the command line prints it as one line."""

    def __str__(self) -> str:
        text = re.sub(r"\s*\n\s*", " ", super().__str__())
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


class InputError(RandensError, ValueError):
    """An argument has a value that cannot be used."""


class FileError(RandensError, OSError):
    """A file or folder is missing, damaged, of another version, or cannot be written."""


class ModelError(RandensError, RuntimeError):
    """A member misbehaves: NaN logits, a wrong output shape, a solver that failed."""


class RandensWarning(UserWarning):
    """A probable mistake of the user; the numbers are computed nevertheless."""


def unknown(kind: str, name: object, valid: Iterable[str]) -> NoReturn:
    """Raise `InputError` for an unknown name, with the closest match and the valid ones."""
    names = sorted(valid)
    close = difflib.get_close_matches(shown(name).strip("'"), names, n=3, cutoff=0.5)
    ordered = close + [v for v in names if v not in close]
    more = f" and {len(ordered) - _MOST_NAMES} more" if len(ordered) > _MOST_NAMES else ""
    listed = ", ".join(ordered[:_MOST_NAMES]) or "(none)"
    hint = f"did you mean {close[0]}? " if close else ""
    raise InputError(f"unknown {kind} {shown(name)}; {hint}valid: {listed}{more}")


def whole(name: str, value: Any, least: int = 1, most: int = 1 << 53, why: str = "") -> int:
    """`value` if it is a whole number from `least` to `most`; else `InputError`, ending with `why`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        valid = f"≥ {least}" if most == 1 << 53 else f"from {least} to {most}"
        raise InputError(f"{name} is {shown(value)}; it must be a whole number {valid}{why}")
    return int(value)


def expect(name: str, value: object, kind: Any) -> None:
    """Refuse a value that is not of a class or union."""
    if not isinstance(value, kind):
        wanted = kind.__name__ if isinstance(kind, type) else str(kind)
        raise InputError(f"{name} is {shown(value)}; it must be of the type {wanted}")


def typed(**kinds: Any) -> Callable[[Function], Function]:
    """Decorator: the arguments of these names must be of these classes or unions."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            given = signature.bind_partial(*args, **options).arguments
            for name in kinds.keys() & given.keys():
                expect(name, given[name], kinds[name])
            return function(*args, **options)

        return checked  # type: ignore[return-value]

    return decorate


def number(name: str, value: object) -> float:
    """A finite real number, or a string that is one or a fraction; `name` is what to call it in an error."""
    found = math.nan
    try:
        if isinstance(value, str):
            # Floats, not fractions: 1e999999999 is infinite at once and not a computation of hours.
            above, sign, below = value.partition("/")
            found = float(above) / float(below) if sign else float(above)
        elif isinstance(value, numbers.Real) and not isinstance(value, bool):
            found = float(value)
    except (ValueError, OverflowError, ZeroDivisionError):
        pass
    if not math.isfinite(found):
        raise InputError(f"{name} is {shown(value)}; it must be a number or a fraction, e.g. 0.03 or 8/255")
    return found


def shown(value: object) -> str:
    """A value in a message, of bounded length."""
    try:
        return f"{value!r:.100}"
    except ValueError:
        return "an integer of thousands of digits"


def printable(text: str) -> str:
    """`text` in one line, with what could command a terminal or reorder its line as escape sequences of Python."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )
