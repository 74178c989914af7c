"""Errors name the value and what would be valid."""

from __future__ import annotations

import re

import pytest

import randens
from randens.core.errors import FileError, InputError, ModelError, RandensError, typed, unknown, whole


def test_unknown_names_list_the_valid_ones_closest_first() -> None:
    with pytest.raises(InputError) as caught:
        unknown("attack", "arcr", ["pgd", "fgsm", "arc-r", "arc"])
    assert str(caught.value) == "unknown attack 'arcr'; did you mean arc-r? valid: arc-r, arc, fgsm, pgd"
    with pytest.raises(InputError, match=r"unknown thing 3; valid: \(none\)"):
        unknown("thing", 3, [])
    with pytest.raises(InputError, match=r"valid: name-00, .*, name-15 and 14 more$"):
        unknown("name", "x" * 5000, [f"name-{i:02}" for i in range(30)])


def test_names_are_known_in_any_case() -> None:
    pytest.importorskip("torch", reason="the names need torch")
    assert randens.data.load("Digits", "Test").name == "digits"
    assert randens.models.create("Linear", classes=2, input_shape=(2,)).architecture["name"] == "linear"
    assert randens.training.load_recipe("Digits-MLP-AT").method == "at"


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


def test_arguments_of_a_wrong_type_are_named_in_one_line() -> None:
    @typed(name=str | None)
    def called(name: str | None = None, other: int = 0) -> tuple[str | None, int]:
        return name, other

    assert (called(), called("x", other=2), called(None, 3)) == ((None, 0), ("x", 2), (None, 3))
    with pytest.raises(InputError, match=r"^name is b'x'; it must be of the type str \| None$"):
        called(b"x")  # type: ignore[arg-type]
    assert str(InputError("one\n   two " + "x" * 5000)) == "one two " + "x" * 992 + " …"


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None, 9])
def test_what_is_no_whole_number_in_range_is_refused(value: object) -> None:
    with pytest.raises(
        InputError, match=rf"^steps is {re.escape(repr(value))}; it must be a whole number from 1 to 8, or"
    ):
        whole("steps", value, 1, 8, ", or so")
