"""Several losses in one batch: each goes the way that it goes alone, and no pass is wider than asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.attacks.cases import Case, case
from torch import Tensor

from randens.attacks import suite
from randens.attacks.gradient import ascend, ascend_adaptively
from randens.attacks.losses import Loss, expected_cross_entropy, expected_margin, mixture_cross_entropy
from randens.attacks.search import Search, attacking

LOSSES: tuple[Loss, ...] = (expected_cross_entropy, expected_margin, mixture_cross_entropy)


class Watched(Search):
    """A search that keeps the points that it is asked to judge."""

    judged: list[Tensor]

    def judge(self, rows: Tensor, points: Tensor, first: Tensor | None = None) -> Tensor:
        self.judged.append(points)
        return super().judge(rows, points, first)


def _ends(given: Case, restart: int, run: Callable[[Search], None]) -> Tensor:
    """The last points that are judged, one after the other."""
    with attacking(given.rec):
        s = Watched(given.rec, given.x, given.y, given.threat, drop_finished=False)
        s.judged = []
        s.begin(restart)
        run(s)
    return torch.cat(s.judged)


@pytest.mark.parametrize("restart", [0, 1])
@pytest.mark.parametrize("kind", ["convnet", "mlp"])
@pytest.mark.parametrize("adaptively", [False, True])
def test_losses_side_by_side_go_the_ways_that_they_go_alone(
    adaptively: bool, kind: str, restart: int
) -> None:
    given = case(kind, "linf")

    def go(s: Search, *losses: Loss) -> None:
        if adaptively:
            ascend_adaptively(s, *losses, steps=5)
        else:
            ascend(s, *losses, steps=4, step=0.25)

    def one_after_the_other(s: Search) -> None:
        for loss in LOSSES:
            go(s, loss)

    together = _ends(given, restart, lambda s: go(s, *LOSSES))
    in_turn = _ends(given, restart, one_after_the_other)
    assert len(together) == 3 * len(given.x)
    # A sign of a gradient near 0 may flip with the width of the pass; a coordinate then ends elsewhere.
    assert ((together - in_turn).abs() < 1e-5).double().mean() > 0.98
    parts = in_turn.chunk(3)
    assert not torch.allclose(parts[0], parts[1])


def test_as_many_losses_at_a_time_as_the_width_allows() -> None:
    given = case("convnet", "linf")
    with attacking(given.rec):
        s = Search(given.rec, given.x, given.y, given.threat, drop_finished=False)
        n = len(given.x)
        for width, groups in (
            (n, [1, 1, 1]),
            (2 * n, [2, 1]),
            (2 * n - 1, [1, 1, 1]),
            (9 * n, [3]),
            (1, [1, 1, 1]),
        ):
            s.width = width
            assert [len(losses) for losses in suite._side_by_side(s)] == groups
        s.drop_finished = True
        s.best_errors[:] = True
        assert not list(suite._side_by_side(s))
