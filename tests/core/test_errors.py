"""Errors name the value and what would be valid."""

from __future__ import annotations

import pytest

import randens
from randens.core.errors import FileError, InputError, ModelError, RandensError, unknown


def test_unknown_names_list_the_valid_ones_closest_first() -> None:
    with pytest.raises(InputError) as caught:
        unknown("attack", "arcr", ["pgd", "fgsm", "arc-r", "arc"])
    assert str(caught.value) == "unknown attack 'arcr'; valid: arc-r, arc, fgsm, pgd"
    with pytest.raises(InputError, match=r"unknown thing 3; valid: \(none\)"):
        unknown("thing", 3, [])


def test_errors_are_also_what_python_would_raise() -> None:
    for error, kind in ((InputError, ValueError), (FileError, OSError), (ModelError, RuntimeError)):
        assert issubclass(error, kind)
        assert issubclass(error, RandensError)
    assert randens.RandensError is RandensError


def test_names_of_the_package_load_on_first_use() -> None:
    pytest.importorskip("torch", reason="most names of the package need torch")
    assert set(randens.__all__) == set(dir(randens))
    for name in randens.__all__:
        assert getattr(randens, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        randens.nothing  # noqa: B018
