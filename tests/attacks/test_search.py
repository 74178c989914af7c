"""One batch under attack: verdicts, gradients, linear models, random numbers, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.cases import case, mlp, quadrants
from tests.attacks.planted import Planted as Case
from tests.attacks.planted import linear
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat
from randens.attacks import Search
from randens.attacks.losses import expected_cross_entropy
from randens.attacks.run import attacking


@pytest.fixture
def curved() -> Iterator[Case]:
    """Three networks in float64 that are under attack."""
    made = case("mlp", "linf", n=4)
    with attacking(made.rec):
        yield made


def searching(made: Case, **options: object) -> Search:
    return Search(made.rec, made.x, made.y, made.threat, **options)  # type: ignore[arg-type]


def test_proposals_outside_the_ball_are_moved_inside_before_the_members_are_run_on_them(curved: Case) -> None:
    s, rows = searching(curved), torch.arange(4)
    errors = s.judge(rows, curved.x + 100.0)
    corner = s.project(rows, curved.x + 100.0)
    torch.testing.assert_close(corner, (curved.x + curved.threat.eps).clamp(max=1.0))
    assert torch.equal(errors, curved.rec.errors(corner, curved.y))
    assert s.cost.forwards == 2 * 3 * s.n


def test_the_others_are_asked_only_where_the_first_make_a_new_set(curved: Case) -> None:
    s, rows = searching(curved), torch.arange(4)
    corner = s.project(rows, curved.x - 100.0)
    truth = curved.rec.errors(corner, curved.y)
    assert 0 < int(truth[:, 0].sum()) < 4  # the first member is fooled on some of the inputs
    first = torch.zeros(4, 3, dtype=torch.bool)
    first[:, 0] = True
    before = s.cost.forwards
    errors = s.judge(rows, corner, first)
    asked = truth[:, 0] & ~s.clean[:, 0]
    assert torch.equal(errors, truth & (asked[:, None] | first))
    assert s.cost.forwards - before == 4 + 2 * int(asked.sum())
    # Known by now: nothing is new, so that nobody else is asked; and `errors` saves the first ones.
    again = s.cost.forwards
    assert torch.equal(s.judge(rows, corner, first, truth & first), truth & first)
    assert s.cost.forwards == again


def test_the_worst_set_and_all_maximal_ones_are_kept() -> None:
    rec = RandomizedEnsemble([nn.Linear(2, 2) for _ in range(3)], [0.5, 0.3, 0.2])
    s = Search(rec, torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), Threat("linf", 1.0, None))
    s.best = s.clean = torch.zeros_like(s.clean)
    s._sets = s.clean[:, None].clone()
    tried = [(0, [0, 1, 1]), (0, [1, 0, 0]), (0, [0, 0, 1]), (0, [1, 1, 0]), (1, [0, 1, 0])]
    for number, (row, members) in enumerate(tried):
        sets = torch.tensor([members], dtype=torch.bool)
        assert bool(s.is_new(torch.tensor([row]), sets)) == (number != 2)
        s.record(torch.tensor([row]), torch.full((1, 2), 0.1 * number), sets)
    assert s.best.int().tolist() == [[1, 1, 0], [0, 1, 0]]
    torch.testing.assert_close(s.best_x, torch.tensor([[0.3, 0.3], [0.4, 0.4]]))
    assert s.foolable.int().tolist() == [[1, 1, 1], [0, 1, 0]]
    found = sorted((p, *u) for p, u in zip(s._pool().points.tolist(), s._pool().fooled.tolist(), strict=True))
    assert found == [(0, False, True, True), (0, True, True, False), (1, False, True, False)]
    assert s.open.tolist() == [0, 1]
    s.left_out[0] = True
    assert s.open.tolist() == [1]
    # Members that are never drawn keep nothing open.
    s.probs = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert len(s.open) == 0


class Tied(nn.Module):
    """Class 1 wins by this share of the largest logit wherever x > 0, and class 0 elsewhere."""

    def __init__(self, lead: float) -> None:
        super().__init__()
        self.lead = lead

    def forward(self, x: Tensor) -> Tensor:
        gap = torch.where(x[:, 0] > 0, self.lead * 10.0, -1.0) + 0 * x[:, 0]
        return torch.stack([torch.full_like(gap, 10.0), 10.0 + gap], dim=1)


@pytest.mark.parametrize(("lead", "counts"), [(0.0, False), (1e-5, False), (2e-4, True), (-1e-5, False)])
def test_ties_do_not_count(lead: float, counts: bool) -> None:
    """A verdict must not depend on rounding: the wrong class must win by more than that."""
    x, y = torch.full((1, 2), -0.01), torch.zeros(1, dtype=torch.int64)
    rec = RandomizedEnsemble([Tied(lead)])
    s = Search(rec, x, y, Threat("linf", 0.1, None))
    rows, point = torch.zeros(1, dtype=torch.int64), x + 0.1
    assert s.verdicts(rows, point, torch.ones(1, 1, dtype=torch.bool)).item() is counts
    assert s.examine(rows, point)[0].item() is counts
    assert s.linearize(rows, point, torch.ones(1, 1, dtype=torch.bool))[2].item() is counts
    s.gradient(rows, point, expected_cross_entropy)
    assert (s.result().risk.item() == 1.0) is counts


def test_gradients_are_those_of_the_expected_loss(curved: Case) -> None:
    s, rows = searching(curved), torch.tensor([2, 0])
    for members in (None, [1], [0, 2]):
        chosen = members or [0, 1, 2]
        weights = torch.tensor([(i in chosen) / len(chosen) for i in range(3)]) if members else s.probs
        point = curved.x[rows].clone().requires_grad_()
        z = torch.stack([member(point) for member in curved.rec.members])
        expected_cross_entropy(z, curved.y[rows], weights.double()).sum().backward()  # type: ignore[no-untyped-call]
        found = s.gradient(rows, curved.x[rows], expected_cross_entropy, members)
        torch.testing.assert_close(found, point.grad)


def fresh_models(
    made: Case, row: int, member: int, at: Tensor, classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Margin, gradient and verdict at one point: the nearest of `classes` boundaries."""
    label = int(made.y[row])

    def gaps(point: Tensor) -> Tensor:
        z: Tensor = made.rec.members[member](point[None])[0]
        return z[label] - torch.cat([z[:label], z[label + 1 :]])

    values, slopes = gaps(at), torch.autograd.functional.jacobian(gaps, at)  # type: ignore[no-untyped-call]
    order = values.argsort()[:classes]
    distance = values[order] / torch.linalg.vector_norm(slopes[order], made.threat.q, dim=1)
    nearest = order[distance.argmin()]
    return values[nearest].detach(), slopes[nearest], values.min() < 0


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.sampled_from(["linf", "l2"]))
def test_cached_linear_models_are_what_a_fresh_computation_gives(seed: int, norm: str) -> None:
    """In any sequence of calls: other rows, members, points (inputs, the last ones, new ones) and classes."""
    made = case("mlp", norm, n=4)
    generator = torch.Generator().manual_seed(seed)
    with attacking(made.rec):
        s = searching(made)
        last = made.x.clone()
        for _ in range(8):
            count = 1 + int(torch.randint(4, (1,), generator=generator))
            rows = torch.randperm(4, generator=generator)[:count]
            kind = torch.randint(3, (len(rows), 1), generator=generator)
            new = made.x[rows] + 0.3 * torch.randn(len(rows), 3, generator=generator)
            points = torch.where(kind == 0, made.x[rows], torch.where(kind == 1, last[rows], new))
            wanted = torch.rand(len(rows), 3, generator=generator) < 0.6
            classes = 1 + int(torch.randint(2, (1,), generator=generator))
            before = s.cost.backwards
            found = s.linearize(rows, points, wanted, classes)
            assert all(not bool(each[~wanted].any()) for each in found)
            for k, member in wanted.nonzero().tolist():
                fresh = fresh_models(made, int(rows[k]), member, points[k], classes)
                for got, expected in zip(found, fresh, strict=True):
                    torch.testing.assert_close(got[k, member], expected)
            middle = s.cost.backwards
            assert middle - before <= classes * int(wanted.sum())
            # At once again, nothing is computed.
            s.linearize(rows, points, wanted, classes)
            assert s.cost.backwards == middle
            last[rows] = points


def test_every_restart_row_seed_and_attack_has_its_own_random_numbers(curved: Case) -> None:
    s = searching(curved)
    starts = [s.start(restart) for restart in range(4)]
    assert torch.equal(starts[0], s.x)
    for one in range(4):
        assert bool(curved.threat.contains(starts[one], s.x).all())
        assert torch.equal(s.start(one), starts[one])
        for other in range(one):
            assert bool((starts[one] != starts[other]).flatten(1).any(dim=1).all())
    offsets = (starts[1] - s.x)[:, 2]
    assert len(set(offsets.tolist())) == 4
    for options in ({"seed": 1}, {"source": "other"}, {"index": [4, 5, 6, 7]}):
        assert not bool((searching(curved, **options).start(1) == starts[1]).all(dim=1).any())
    # An input's numbers go with its index.
    shifted = Search(curved.rec, curved.x[2:], curved.y[2:], curved.threat, index=[2, 3])
    assert torch.equal(shifted.start(1), starts[1][2:])
    assert torch.equal(shifted.orders(3), searching(curved).orders(3)[2:])
    assert torch.equal(shifted.uniform(torch.tensor([1]), 5), searching(curved).uniform(torch.tensor([3]), 5))


def test_orders_are_permutations_and_change(curved: Case) -> None:
    s = searching(curved)
    drawn = torch.stack([s.orders() for _ in range(40)])
    assert torch.equal(drawn.sort(dim=2).values, torch.arange(3).expand(40, 4, 3))
    assert all(len(set(drawn[:, row, 0].tolist())) == 3 for row in range(4))


def test_witnesses_are_scored_again_by_the_original_members() -> None:
    """The first member's copy answers otherwise than itself: what it seems to fall for does not hold."""
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    right = linear(torch.zeros(2, 2), torch.tensor([0.0, -1.0]))
    near = linear(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0.05, 0.0]))
    rec = RandomizedEnsemble([right, near])
    wrong = linear(torch.zeros(2, 2), torch.tensor([0.0, 1.0]))
    with attacking(rec):
        s = Search(rec, x, y, Threat("linf", 0.1, None), members=[wrong, rec.members[1]])
        assert s.judge(torch.tensor([0, 2]), x[:2] - 0.1).all()
        result = s.result()
    assert result.errors.tolist() == [[False, True], [False, False], [False, True]]
    assert result.flags["unstable"] == pytest.approx([2 / 3, 0.0])
    assert result.risk.tolist() == [0.5, 0.0, 0.5]


class Wrapped(nn.Module):
    def __init__(self, member: nn.Module) -> None:
        super().__init__()
        self.member = member


class Quantized(Wrapped):
    """A member whose gradient is zero everywhere: it rounds its input."""

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.member((x * 8).round() / 8)
        return z


class NotANumber(Wrapped):
    """A member whose logits are right and whose gradient is NaN (0·∞ in the backward pass)."""

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.member(x)
        return z + (z - z.detach()).abs().sqrt() * 0


class Detached(Wrapped):
    """A member whose output does not depend on its input, as far as autograd knows."""

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.member(x.detach())
        return z


@pytest.mark.parametrize("broken", [Quantized, NotANumber, Detached])
def test_gradients_that_are_missing_are_flagged_per_member_and_move_nothing(broken: type[nn.Module]) -> None:
    x, y = quadrants(6)
    rec = RandomizedEnsemble([mlp(0), broken(mlp(1))])
    with attacking(rec):
        s = Search(rec, x, y, Threat("l2", 0.5, None))
        rows, wanted = torch.tensor([1, 4]), torch.ones(2, 2, dtype=torch.bool)
        assert not bool(s.clean[rows].any())
        _, slope, _ = s.linearize(rows, x[rows], wanted)
        assert bool(slope[:, 0].any(dim=1).all())
        assert not bool(slope[:, 1].any())
        mean = s.gradient(rows, x[rows], expected_cross_entropy)
        alone = 0.5 * s.gradient(rows, x[rows], expected_cross_entropy, [0])
        torch.testing.assert_close(mean, alone)
    flagged, other = s.zero_gradient, s.nan_gradient
    if broken is NotANumber:
        flagged, other = other, flagged
    assert flagged.nonzero().tolist() == [[1, 1], [4, 1]]
    assert not bool(other.any())
    assert s.blind.nonzero().flatten().tolist() == [1, 4]
