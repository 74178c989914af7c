"""Witness pools: maximal sets only, nothing lost by merging."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from randens import WitnessPool
from randens.core.errors import InputError

N, M = 5, 3
witness = st.tuples(st.integers(0, N - 1), st.tuples(*[st.booleans()] * M))
witnesses = st.lists(witness, max_size=25)
Witnesses = list[tuple[int, tuple[bool, ...]]]


def pool_of(found: Witnesses, source: str = "a") -> WitnessPool:
    points = np.array([p for p, _ in found], dtype=np.int64)
    fooled = np.array([u for _, u in found], dtype=bool).reshape(len(found), M)
    x_adv = np.arange(2 * len(found), dtype=np.float32).reshape(len(found), 2)
    return WitnessPool(N, M, points, fooled, x_adv=x_adv, sources=source)


def brute_force(found: Witnesses, probs: NDArray[np.float64]) -> NDArray[np.float64]:
    risks = np.zeros(N)
    for point, u in found:
        risks[point] = max(risks[point], float(np.dot(u, probs)))
    return risks


def some_probs(seed: int) -> NDArray[np.float64]:
    probs = np.random.default_rng(seed).dirichlet(np.ones(M))
    return np.asarray(probs, dtype=np.float64)


@given(witnesses, st.integers(0, 100))
def test_risks_are_those_of_all_witnesses(found: Witnesses, seed: int) -> None:
    pool, probs = pool_of(found), some_probs(seed)
    risks, rows = pool.best(probs)
    expected = brute_force(found, probs)
    np.testing.assert_allclose(risks, expected, atol=1e-12)
    assert pool.risk(probs) == pytest.approx(expected.mean())
    assert pool.profile().risk(probs) == pytest.approx(expected.mean())
    for point, row in enumerate(rows.tolist()):
        if row < 0:
            assert expected[point] == 0
        else:
            assert pool.points[row] == point
            assert pool.fooled[row] @ probs == pytest.approx(expected[point])


@given(witnesses)
def test_only_maximal_sets_are_kept_each_once(found: Witnesses) -> None:
    pool = pool_of(found)
    kept = [(int(p), tuple(u)) for p, u in zip(pool.points, pool.fooled.tolist(), strict=True)]
    assert len(set(kept)) == len(kept)
    for point, u in kept:
        assert any(u)
        rivals = [v for p, v in kept if p == point and v != u]
        assert not any(all(a <= b for a, b in zip(u, v, strict=True)) for v in rivals)
    for point, u in found:
        if any(u):
            assert any(p == point and all(a <= b for a, b in zip(u, v, strict=True)) for p, v in kept)
    # The perturbed input stays with its set.
    assert pool.x_adv is not None
    for row, first in enumerate(pool.x_adv[:, 0].tolist()):
        point, u = found[int(first) // 2]
        assert (point, u) == kept[row]


@given(witnesses, witnesses, st.integers(0, 100))
def test_merging_knows_everything_and_changes_nothing(one: Witnesses, two: Witnesses, seed: int) -> None:
    first, second = pool_of(one, "first"), pool_of(two, "second")
    before = first.fooled.copy()
    merged = first.merge(second)
    probs = some_probs(seed)
    np.testing.assert_allclose(merged.best(probs)[0], brute_force(one + two, probs), atol=1e-12)
    assert np.array_equal(first.fooled, before)
    table = np.zeros((N, M), dtype=bool)
    for point, u in one + two:
        table[point] |= np.array(u)
    assert np.array_equal(merged.foolable, table)


@given(witnesses)
def test_parts_put_together_are_the_whole(found: Witnesses) -> None:
    pool = pool_of(found)
    whole = WitnessPool.concat([pool.take([0, 1]), pool.take([2, 3, 4])])
    assert whole.n == N
    assert sorted(zip(whole.points.tolist(), whole.fooled.tolist(), strict=True)) == sorted(
        zip(pool.points.tolist(), pool.fooled.tolist(), strict=True)
    )


def test_the_first_to_find_a_set_is_credited() -> None:
    merged = pool_of([(0, (True, False, False))], "first").merge(
        pool_of([(0, (True, False, False))], "second")
    )
    assert merged.sources == ("first",)
    assert merged.without_inputs().x_adv is None


def test_taking_inputs_and_members() -> None:
    pool = pool_of([(0, (True, False, True)), (3, (False, True, True)), (3, (True, False, False))])
    part = pool.take([3, 0], members=[2, 1])
    assert (part.n, part.members) == (2, 2)
    # Seen by members 2 and 1, the second set of input 3 is empty.
    assert list(zip(part.points.tolist(), part.fooled.tolist(), strict=True)) == [
        (1, [True, False]),
        (0, [True, True]),
    ]


def test_bad_pools_are_named() -> None:
    with pytest.raises(InputError, match=r"\(1, 2\)"):
        WitnessPool(3, 3, [0], [[True, False]])
    with pytest.raises(InputError, match=r"points is \[3\]; give whole numbers \[k\] from 0 to 2"):
        WitnessPool(3, 2, [3], [[True, False]])
    with pytest.raises(InputError, match="members is 0"):
        WitnessPool(3, 0)
    with pytest.raises(InputError, match="2 names"):
        WitnessPool(3, 2, [0], [[True, False]], sources=["a", "b"])
    with pytest.raises(InputError, match="x_adv has 2 rows"):
        WitnessPool(3, 2, [0], [[True, False]], x_adv=np.zeros((2, 4)))
    with pytest.raises(InputError, match="cannot merge"):
        WitnessPool(3, 2).merge(WitnessPool(4, 2))
    with pytest.raises(InputError, match=r"\[2, 3\]"):
        WitnessPool.concat([WitnessPool(1, 2), WitnessPool(1, 3)])
    with pytest.raises(InputError, match="pools is empty"):
        WitnessPool.concat([])
