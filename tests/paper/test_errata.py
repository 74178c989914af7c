"""The items of paper/errata.md that no other test covers; the names on it and on paper/in-the-code.md."""

from __future__ import annotations

import pydoc
import re
from pathlib import Path

import numpy as np
import pytest

from randens.risk import auxiliary_risk

ROOT = Path(__file__).parents[2]


def test_lemma_1_the_other_cases_are_unique_too() -> None:
    """h(x) = max(a₁x, a₂x) + a₃x on [−1, 1] with a₃ > −a₁, below it, and at it, where many x are optimal."""
    x = np.linspace(-1, 1, 2001)
    for slope, unique in ((1.5, True), (-2.5, True), (1.0, False), (-2.0, False)):
        h = np.maximum(-x, 2 * x) + slope * x
        assert (np.sum(h < h.min() + 1e-12) == 1) == unique


def test_lemma_4_general_case() -> None:
    """Two members of risk 0.1 and one of 0.3: J₁ = {1, 2, 3}, J₂ = {3}, q = (0.1, 0.2)."""
    alpha = np.array([0.5, 0.2, 0.3])
    values = [0.1, 0.3]
    right = sum((v - w) * m for v, w, m in zip(values, [0, *values], [alpha.max(), alpha[2]], strict=False))
    printed = (0.3 - 0.1) * alpha.max()  # and η of i₃, which does not exist
    assert np.isclose(auxiliary_risk([0.1, 0.1, 0.3], alpha), right)
    assert not np.isclose(printed, right)
    assert max({1, 2, 3} - {3}) == min({3}) - 1
    assert min({1, 2, 3} - {3}) != max({3}) + 1


def test_theorem_2_the_third_weight() -> None:
    corners = np.array([[1, 0, 0], [0.5, 0.5, 0], [0.5, 0.25, 0.25]])
    for a in ([0.6, 0.3, 0.1], [0.5, 0.3, 0.2]):
        lam = np.array([a[0] - a[1] - a[2], 2 * (a[1] - a[2]), 4 * a[2]])
        assert np.allclose(lam @ corners, a)
        assert not np.allclose(lam[[0, 1, 0]] @ corners, a)


def test_lemma_6_the_sum_of_all_steps() -> None:
    """|x| from 0.1: a step of 1, then tiny ones; the best value stays 0.1, which the printed bound excludes."""
    steps, x, best = [1.0] + [1e-6] * 9, 0.1, np.inf
    for step in steps:
        best, x = min(best, abs(x)), x - step * np.sign(x)
    right = (0.01 + sum(a * a for a in steps)) / (2 * sum(steps))
    printed = (0.01 + len(steps) * steps[-1] ** 2) / (2 * sum(steps))
    assert printed < best <= right


def test_appendix_a_7_wrong_inputs_need_no_perturbation() -> None:
    """A linear classifier that is wrong about y = −1 at x = 1: the printed step towards the boundary makes it right."""
    w, x, eps = 1.0, 1.0, 1.5
    printed = x - np.sign(w * x) * eps
    assert np.sign(w * x) == 1
    assert np.sign(w * printed) == -1


@pytest.mark.parametrize("page", ["in-the-code", "errata"])
def test_every_name_and_file_of_the_pages_is_there(page: str) -> None:
    quoted = re.findall(r"`([^`\n]+)`", (ROOT / "paper" / f"{page}.md").read_text(encoding="utf-8"))
    for name in quoted:
        if re.fullmatch(r"(randens|paper)(\.\w+)+", name):
            assert pydoc.locate(name) is not None, name
        elif re.fullmatch(r"(tests|examples|recipes|docs)/[\w/.-]+(::\w+)?", name):
            file, _, test = name.partition("::")
            assert (ROOT / file).exists(), name
            assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name
        elif name.startswith("test_"):
            assert name in globals(), name
