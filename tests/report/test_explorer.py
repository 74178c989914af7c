"""The teaching page's numbers, and the page that ships with the documentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from randens.core.errors import InputError
from randens.report.explorer import EXAMPLES, conflicting_profile, parse_configurations, render_explorer
from randens.risk import auxiliary_risk, bounds

DOCS = Path(__file__).parents[2] / "docs"


@given(
    risks=st.lists(st.floats(0, 1), min_size=1, max_size=6), conflict=st.floats(0, 1), seed=st.integers(0, 99)
)
def test_conflict_goes_from_no_gain_to_the_floor(risks: list[float], conflict: float, seed: int) -> None:
    alpha = np.random.default_rng(seed).dirichlet(np.ones(len(risks)))
    profile = conflicting_profile(risks, conflict)
    assert profile.member_risks == pytest.approx(np.array(risks), abs=1e-9)
    least, most = auxiliary_risk(risks, alpha), float(alpha @ np.array(risks))
    assert profile.risk(alpha) == pytest.approx(conflict * least + (1 - conflict) * most, abs=1e-9)


def test_full_conflict_reaches_the_floor() -> None:
    limits = bounds([0.5, 0.4, 0.45])
    assert conflicting_profile([0.5, 0.4, 0.45]).risk(limits.probs) == pytest.approx(limits.floor)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_parse(name: str) -> None:
    assert parse_configurations(EXAMPLES[name].split("\n")).weights.sum() == pytest.approx(1)


def test_figure_3_has_all_five_configurations() -> None:
    profile = parse_configurations(EXAMPLES["the five configurations of Figure 3"].split("\n"))
    assert len(profile.weights) == 5
    assert profile.risk([0.5, 0.5]) == pytest.approx(0.2 * 0.5 + 0.2 + 0.2 * 0.5 + 0.2 * 0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"member_risks": [0.2, 1.5]}, r"risks\[1\] is 1.5"),
        ({"member_risks": [0.1] * 9}, "at most 8"),
        ({"member_risks": [0.1], "configurations": ["1: 1"]}, "give one of them"),
        ({"conflict": 2}, "conflict is 2"),
        ({"configurations": ["0.6 10"]}, "'0.6 10'"),
        ({"configurations": ["x: 10"]}, "'x: 10'"),
        ({"configurations": ["0.6: 10 01"]}, "sum to 0.6"),
        ({"configurations": ["1: 10 012"]}, "012"),
        ({"configurations": ["1:"]}, "name no set"),
    ],
)
def test_bad_input(options: dict[str, list[float]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        render_explorer(**options)  # type: ignore[arg-type]


def test_what_is_typed_is_escaped() -> None:
    with pytest.raises(InputError):
        render_explorer(configurations=["1: <b>"])
    assert "1:   10" in render_explorer(configurations=["1:   10"])


def test_the_page_in_the_docs_is_the_one_the_command_writes() -> None:
    """Written by: write_explorer("docs/explore.html")"""
    assert (DOCS / "explore.html").read_text(encoding="utf-8") == render_explorer()
