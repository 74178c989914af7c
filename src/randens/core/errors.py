"""The errors of randens: each names the argument, its value and what is valid."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable
from typing import Any, NoReturn

__all__ = ["FileError", "InputError", "ModelError", "RandensError", "RandensWarning", "unknown", "whole"]


_MOST_NAMES = 16  # in a message


class RandensError(Exception):
    """Base of every error that randens raises on purpose; the command line prints it as one line."""


class InputError(RandensError, ValueError):
    """An argument has a value that cannot be used."""


class FileError(RandensError, OSError):
    """A file or folder is missing, damaged, of another version, or cannot be written."""


class ModelError(RandensError, RuntimeError):
    """A member misbehaves: NaN logits, a wrong output shape, a solver that failed."""


class RandensWarning(UserWarning):
    """A probable mistake of the user; the numbers are computed nevertheless."""


def unknown(kind: str, name: object, valid: Iterable[str]) -> NoReturn:
    """Raise `InputError` for an unknown name, listing the valid ones, closest match first.

    >>> unknown("attack", "arcr", ["pgd", "arc-r"])
    Traceback (most recent call last):
    randens.core.errors.InputError: unknown attack 'arcr'; valid: arc-r, pgd
    """
    names = sorted(valid)
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    ordered = close + [v for v in names if v not in close]
    more = f" and {len(ordered) - _MOST_NAMES} more" if len(ordered) > _MOST_NAMES else ""
    listed = ", ".join(ordered[:_MOST_NAMES]) or "(none)"
    raise InputError(f"unknown {kind} {name!r:.100}; valid: {listed}{more}")


def whole(name: str, value: Any, least: int = 1, most: int | None = None, why: str = "") -> int:
    """`value` if it is a whole number from `least` to `most`; else `InputError`, ending with `why`.

    >>> whole("steps", 0)
    Traceback (most recent call last):
    randens.core.errors.InputError: steps is 0; it must be a whole number ≥ 1
    """
    kind = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not kind or value < least or (most is not None and value > most):
        valid = f"≥ {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} is {value!r}; it must be a whole number {valid}{why}")
    return int(value)
