"""Confidence intervals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from randens.core.errors import InputError
from randens.evaluation import Evaluation
from randens.evaluation.advice import Option, _choices
from randens.evaluation.tables import Accuracy
from randens.report.runs import gain
from randens.risk.intervals import bounded_mean, difference, estimate, joint, two_way


def test_wilson_interval_of_a_textbook_case() -> None:
    # 15 of 20 at 95 %: Wilson's interval is 0.531 to 0.888.
    found = estimate([1.0] * 15 + [0.0] * 5)
    assert found.value == 0.75
    assert (round(found.low, 3), round(found.high, 3)) == (0.531, 0.888)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0.5, 0.99))
def test_intervals_hold_the_mean_and_stay_in_range(values: list[float], confidence: float) -> None:
    found = estimate(values, confidence)
    assert found.value == pytest.approx(np.mean(values))
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_intervals_cover_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    for levels in ([0.0, 1.0], [0.0, 1 / 3, 2 / 3, 1.0]):
        truth = np.mean(levels)
        covered = 0
        for _ in range(2000):
            found = estimate(generator.choice(levels, 60))
            covered += bool(found.low <= truth <= found.high)
        assert covered / 2000 >= 0.935


def test_paired_differences() -> None:
    found = difference([1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.5])
    assert found.value == pytest.approx(0.375)
    assert found.high - found.value == pytest.approx(1.959964 * np.std([1, 0, 0, 0.5], ddof=1) / 2, rel=1e-5)
    same = difference([0.5] * 10, [0.5] * 10)
    assert (same.low, same.value, same.high) == (0, 0, 0)


def _verdicts(generator: np.random.Generator, members: int, n: int = 300) -> NDArray[np.bool_]:
    """Members that are fooled equally often, at hard inputs more often than at others, [n, M]."""
    return generator.random((n, members)) < generator.choice([0.1, 0.7], (n, 1))


@pytest.mark.parametrize("members", [3, 8, 16])
def test_intervals_of_the_best_member_cover_although_it_was_chosen(members: int) -> None:
    """Its lead over sampling, which is truly 0, and its own accuracy, which is 0.6."""
    generator = np.random.default_rng(members)
    lead = accuracy = naive = 0
    for _ in range(500):
        fooled = _verdicts(generator, members)
        wrong = fooled.mean(axis=0)
        result = SimpleNamespace(
            members=members, member_risks=wrong, foolable=fooled, risk=fooled.mean(axis=1), confidence=0.95
        )
        found = gain(cast(Evaluation, result))
        lead += not found.low <= 0 <= found.high
        alone = estimate(~fooled[:, wrong.argmin()], joint(0.95, members))
        accuracy += not alone.low <= 0.6 <= alone.high
        plain = difference(fooled[:, wrong.argmin()], result.risk)
        naive += not plain.low <= 0 <= plain.high
    assert max(lead, accuracy) <= 32
    assert naive > 32


@pytest.mark.parametrize("members", [3, 8, 16])
def test_what_is_recommended_is_ahead_by_what_is_printed(members: int) -> None:
    """Single networks, sampling and averages that are equally good: a clear lead of one of them is chance."""
    generator = np.random.default_rng(members)
    clear = 0
    for _ in range(200):
        fooled = _verdicts(generator, members + 5).astype(float)
        kinds = [*["member"] * members, "sampled", *["subset"] * 4]
        accuracy = Accuracy(estimate([1.0]), estimate([1.0]))
        options = [
            Option(kind, accuracy, 1.0, kind, 1, risks) for kind, risks in zip(kinds, fooled.T, strict=True)
        ]
        best = min(options[:members], key=lambda option: option.risks.mean())
        clear += _choices([best, *options[members:]], members)[0].option != "member"
    assert clear <= 10


@pytest.mark.parametrize("values", [[], [1.5], [-0.5], [float("nan")], [[1.0]]])
def test_bad_values_are_named(values: list[float]) -> None:
    with pytest.raises(InputError, match="values"):
        estimate(values)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InputError, match="confidence is 1"):
        estimate([1.0], 1)
    with pytest.raises(InputError, match="shapes"):
        difference([1.0], [1.0, 0.0])


@pytest.mark.parametrize("values", [[63 / 64], [1 / 64], [1 - 1e-9], [0.99, 1.0, 1.0]])
def test_a_mean_next_to_the_end_of_few_values_has_an_interval(values: list[float]) -> None:
    found = bounded_mean(values)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < 0.5 if np.mean(values) > 0.5 else found.high > 0.5


def test_two_way_intervals_cover_where_those_over_images_do_not() -> None:
    """Seeds shift all images, images all seeds: the truth is 0."""
    generator = np.random.default_rng(0)
    covered, alone = 0, 0
    for _ in range(1000):
        seeds, images = generator.normal(0, 0.1, (5, 1)), generator.normal(0, 0.3, (1, 200))
        values = seeds + images + generator.normal(0, 0.4, (5, 200))
        found = two_way(values)
        covered += found.low <= 0 <= found.high
        over_images = difference(values.mean(axis=0), np.zeros(200))
        alone += over_images.low <= 0 <= over_images.high
    assert covered >= 940
    assert alone < 800
    # Without an effect of seeds it is about as narrow.
    none = two_way(np.tile(generator.normal(0, 0.3, 200), (5, 1)))
    one = difference(np.tile(generator.normal(0, 0.3, 200), 1), np.zeros(200))
    assert none.high - none.low < 1.2 * (one.high - one.low)
    for bad in ([[1.0, 2.0]], [1.0], [[1.0, float("nan")], [0.0, 0.0]]):
        with pytest.raises(InputError, match="seeds, inputs"):
            two_way(bad)
