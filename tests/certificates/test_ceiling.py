"""The ceiling of real data: digits at 0.2 and 0.25."""

from __future__ import annotations

import pytest
import torch

import randens
from randens.core.errors import InputError


def test_digits_have_no_conflicts_at_a_fifth_and_few_at_a_quarter() -> None:
    splits = [randens.data.load("digits", split) for split in ("train", "validation", "test")]
    data = (torch.cat([part[:][0] for part in splits]), torch.cat([part[:][1] for part in splits]))
    assert randens.ceiling(data, randens.Threat("linf", 0.2)).inputs == 0
    found = randens.ceiling(data, randens.Threat("linf", 0.25))
    assert found.inputs == 59
    assert found.exact
    assert found.deterministic == pytest.approx(found.randomized) == pytest.approx(0.9878, abs=1e-4)


def test_bad_threats_are_named() -> None:
    with pytest.raises(InputError, match=r"threat is 0\.1; give a Threat"):
        randens.ceiling("digits", 0.1)  # type: ignore[arg-type]
