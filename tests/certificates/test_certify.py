"""Bounds hold at every point that sampling or attacking reaches; for linear members upper and lower bound meet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.planted import Array, Planted, linear, planted
from tests.evaluation.trained import digits, ensemble
from torch import Tensor, nn

from randens import RandomizedEnsemble, RandomizedModel, Threat, WitnessPool, attacks, certify, models
from randens.attacks import exact
from randens.certificates import certification
from randens.certificates.interval_bounds import propagate
from randens.certificates.linear_bounds import crown
from randens.core.errors import InputError, ModelError
from randens.region import Region


class _Block(nn.Module):
    """A residual block with BatchNorm, padding shortcut and average pooling: everything that is certifiable."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(3)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(3)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(2 * x - 0.5)))
        y = torch.relu(self.bn2(self.conv2(y)) + F.pad(x, (0, 0, 0, 0, 1, 1)))
        y = torch.cat([self.pool(y), self.pool(-y) / 3.0], dim=1)
        z: Tensor = self.head(y[:, :3].mean(dim=(2, 3)) + y[:, 3:].sum(dim=(2, 3)))
        return 1 - z


def _network(kind: str, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "residual":
            made: nn.Module = _Block()
            for module in made.modules():
                if isinstance(module, nn.BatchNorm2d):
                    nn.init.normal_(module.weight)
                    nn.init.normal_(module.bias)
                    module.running_mean = torch.randn(3)
                    module.running_var = 0.2 + torch.rand(3)
            return made.eval()
        if kind == "sequential":
            return nn.Sequential(
                nn.Flatten(), nn.Linear(16, 12), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(12, 3)
            ).eval()
    sizes = {"mlp": {"width": 8, "depth": 3}, "convnet": {"width": 2, "hidden": 6}, "resnet20": {"width": 2}}[
        kind
    ]
    return models.create(kind, classes=3, input_shape=(1, 4, 4), seed=seed, mean=0.4, std=0.3, **sizes).eval()


def _points(x: Tensor, threat: Threat, count: int, seed: int) -> Tensor:
    """Legal points: corners of the set, and random ones inside."""
    generator = torch.Generator().manual_seed(seed)
    corners = [
        threat.project(x + threat.eps * torch.randn(x.shape, generator=generator).sign() * 10, x)
        for _ in range(count // 2)
    ]
    return torch.stack(corners + [threat.random(x, generator) for _ in range(count - count // 2)])


@settings(max_examples=12)
@given(
    kind=st.sampled_from(["mlp", "convnet", "residual", "sequential", "resnet20"]),
    seed=st.integers(0, 1000),
    norm=st.sampled_from(["linf", "l2"]),
    eps=st.sampled_from([0.01, 0.1, 0.5]),
)
def test_no_legal_point_leaves_the_bounds(kind: str, seed: int, norm: str, eps: float) -> None:
    member = _network(kind, seed).double().requires_grad_(False)
    threat = Threat(norm, eps)
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(seed)).double()
    region = Region.around(x, threat)
    flat = x.flatten(1)
    low, high = (flat + region.low).reshape(x.shape), (flat + region.high).reshape(x.shape)
    box, bounds = propagate(member, low, high)
    rows = torch.arange(3).repeat_interleave(3)
    targets = torch.arange(3).repeat(3)
    below = crown(member, x, rows, lambda at: torch.eye(3, dtype=torch.float64)[targets[at]], bounds)
    least = (below.value + region[rows].minimum(below.slopes)).reshape(3, 3)
    for point in _points(x, threat, 30, seed):
        z = member(point)
        assert bool((z >= box.low).all())
        assert bool((z <= box.high).all())
        delta = (point - x).flatten(1)[rows]
        line = (below.value + (below.slopes * delta).sum(dim=1)).reshape(3, 3)
        assert bool((line <= z + 1e-9).all())
        assert bool((least <= line + 1e-9).all())


@settings(max_examples=6)
@given(
    kind=st.sampled_from(["mlp", "convnet", "residual", "sequential"]),
    seed=st.integers(0, 1000),
    norm=st.sampled_from(["linf", "l2"]),
    eps=st.sampled_from([0.02, 0.1]),
)
def test_what_is_certified_is_never_fooled(kind: str, seed: int, norm: str, eps: float) -> None:
    members = [_network(kind, seed + i) for i in range(2)]
    rec = RandomizedEnsemble(members).eval()
    threat = Threat(norm, eps)
    x = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    y = rec.verdicts(x)[:, 0]
    found = attacks.create("suite", threat, preset="fast")(rec, x, y)
    whole = certify(rec, (x, y), threat, pool=found.pool)
    assert whole.lower() <= whole.upper() + 1e-12
    assert whole.upper() <= whole.separate() + 1e-12
    fooled = found.errors.numpy() | found.pool.foolable
    for point in _points(x, threat, 40, seed):
        fooled |= rec.errors(point, y).numpy()
    assert not (fooled & whole.certified).any()


def _optima(case: Planted) -> Array:
    """The exact optimum of every input, where a margin of 0 counts as fooled; attacks want it clear of rounding."""
    probs = case.rec.probs.numpy()
    problems = exact.problems(case.rec.members, case.x, case.y, case.threat)
    return np.array([exact.optimum(dataclasses.replace(p, tau=0 * p.tau), probs).value for p in problems])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize(("members", "classes"), [(3, 2), (3, 4), (4, 3)])
def test_bounds_meet_for_linear_members(norm: str, boxed: bool, members: int, classes: int) -> None:
    n = 10
    case = planted(norm, n=n, members=members, classes=classes, boxed=boxed, seed=members)
    found = attacks.create("exact", case.threat)(case.rec, case.x, case.y)
    whole = certify(case.rec, (case.x, case.y), case.threat, pool=found.pool)
    optima = _optima(case)
    assert whole.upper() == pytest.approx(float(optima.mean()), abs=1e-12)
    assert whole.lower() == pytest.approx(float(found.risk.mean()), abs=1e-12)
    # Members alone can be fooled, but rarely all of them together: λ proves that.
    assert whole.refuted > 0
    assert whole.upper() < whole.separate() - 0.05


def test_one_relu_by_hand() -> None:
    # z = (0, relu(x) − 1) for x in [−1, 3]: the upper line through (−1, 0) and (3, 3) has slope 3/4, offset 3/4.
    member = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        for parameter, value in zip(
            member.parameters(), ([[1.0]], [0.0], [[0.0], [1.0]], [0.0, -1.0]), strict=True
        ):
            parameter.copy_(torch.tensor(value))
    member.requires_grad_(False)
    x = torch.tensor([[1.0]]).double()
    region = Region.around(x, Threat("linf", 2.0, None))
    box, bounds = propagate(member, x - 2, x + 2)
    assert [float(b) for pair in bounds for b in pair] == pytest.approx([-1.0, 3.0])
    assert float(box.low[0, 1]) == pytest.approx(-1.0)
    assert float(box.high[0, 1]) == pytest.approx(2.0)
    margin = crown(member, x, torch.tensor([0]), lambda _: torch.tensor([[1.0, -1.0]]).double(), bounds)
    # −relu(x) + 1 ≥ −(3/4 x + 3/4) + 1: at x = 1 + δ that is −1/2 − 3/4 δ.
    assert float(margin.value) == pytest.approx(-0.5)
    assert float(margin.slopes) == pytest.approx(-0.75)
    assert float(region[torch.tensor([0])].minimum(margin.slopes)) == pytest.approx(-1.5)


def test_going_backward_is_tighter_than_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    rec = ensemble("mlp", "convnet")
    few = digits("test").subset(slice(0, 24))
    # A radius at which intervals prove little: the difference is many inputs, not one that rounding decides.
    threat = Threat("linf", 0.07)
    tight = certify(rec, few, threat)
    monkeypatch.setattr(certification, "_REFINED", 0)
    loose = certify(rec, few, threat)
    assert not (loose.certified & ~tight.certified).any()
    assert tight.certified.sum() > loose.certified.sum() + 5


def test_trained_members_are_sandwiched() -> None:
    rec = ensemble("mlp", "mlp", "linear")
    few = digits("test").subset(slice(0, 40))
    threat = Threat("linf", 0.03)
    found = attacks.create("suite", threat)(rec, *few[:])
    whole = certify(rec, few, threat, pool=found.pool)
    assert whole.lower() == pytest.approx(float(found.risk.mean()), abs=1e-12)
    assert whole.lower() <= whole.upper() <= whole.lower() + 0.05
    assert whole.upper() < 0.4


def _bent(inner: nn.Linear) -> nn.Module:
    """A linear member behind ReLUs that bend it: Σ relu(v_j) − relu(−v_j) = Σ v_j, shifted, so that the kink is met at
    the edge of the ball only.
    """
    d = inner.in_features
    hidden, out = nn.Linear(d, 2 * d), nn.Linear(2 * d, 2)
    with torch.no_grad():
        hidden.weight.copy_(torch.cat([torch.eye(d), -torch.eye(d)]))
        hidden.bias.fill_(3.2)
        out.weight.copy_(torch.cat([inner.weight, -inner.weight], dim=1) / 2)
        out.bias.copy_(inner.bias)
    return nn.Sequential(hidden, nn.ReLU(), out)


def test_sets_of_members_that_are_not_linear_are_refuted_too() -> None:
    case = planted("linf", n=12, members=3, d=20, seed=1)
    x = case.x / case.x.abs().max() * 2.5
    rec = RandomizedEnsemble([_bent(m) for m in case.rec.members if isinstance(m, nn.Linear)]).eval()
    y = rec.verdicts(x)[:, 0]
    keep = (rec.errors(x, y).sum(dim=1) == 0).nonzero().flatten()
    x, y = x[keep], y[keep]
    threat = Threat("linf", 1.0, None)
    found = attacks.create("suite", threat)(rec, x, y)
    whole = certify(rec, (x, y), threat, pool=found.pool)
    assert whole.refuted > 0
    assert whole.lower() <= whole.upper() + 1e-12
    assert whole.upper() < whole.separate() - 0.05


def _in_place(h: Tensor) -> Tensor:
    kept = h
    h += 1
    return h + kept


ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "in place": _in_place,
    "in place relu": lambda h: F.relu(h, inplace=True) + h,
    "twice plus two": lambda h: 2 * h + 2,
    "twice the relu": lambda h: 2 * F.relu(h),
    "branch": lambda h: h if h.sum() > 0 else -h,
    "detach": lambda h: h.detach(),
    "statistics": lambda h: F.batch_norm(h, None, None, training=True),
    "product": lambda h: h * h,
    "tanh": torch.tanh,
}


class _Odd(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.last = how, nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.last(ODD[self.how](self.first(x)))
        return z


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("tanh", "tanh"),
        ("branch", "decides by values"),
        ("detach", "detach"),
        ("statistics", "batch statistics"),
        ("product", "product of two"),
    ],
)
def test_what_is_not_understood_is_refused(how: str, said: str) -> None:
    rec = RandomizedEnsemble([nn.Linear(4, 2), _Odd(how)]).eval()
    with pytest.raises(InputError, match=said) as caught:
        certify(rec, (torch.rand(5, 4), torch.zeros(5, dtype=torch.int64)), Threat("linf", 0.1))
    assert "member 1" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "same"), [("in place", "twice plus two"), ("in place relu", "twice the relu")]
)
def test_what_a_network_does_in_place_is_certified_like_the_same_out_of_place(how: str, same: str) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        changed, plain = _Odd(how).double(), _Odd(same).double()
        plain.load_state_dict(changed.state_dict())
        x = torch.rand(5, 4).double()
        found = [propagate(network, x - 0.4, x + 0.4) for network in (changed, plain)]
        torch.testing.assert_close(found[0][0].low, found[1][0].low)
        torch.testing.assert_close(found[0][0].high, found[1][0].high)
        lines = [
            crown(network, x, torch.arange(5), lambda rows: torch.ones(len(rows), 2).double(), bounds)
            for network, (_, bounds) in zip((changed, plain), found, strict=True)
        ]
        torch.testing.assert_close(lines[0].value, lines[1].value)
        torch.testing.assert_close(lines[0].slopes, lines[1].slopes)


def test_witnesses_against_a_certificate_are_reported() -> None:
    rec = RandomizedEnsemble([linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))]).eval()
    x, y = torch.tensor([[0.9]]), torch.tensor([0])
    threat = Threat("linf", 0.1)
    assert certify(rec, (x, y), threat).certified.tolist() == [[True]]
    with pytest.raises(InputError, match="answers at random"):
        certify(RandomizedModel(nn.Dropout(0.5), 4), (x, y), threat)
    with pytest.raises(ModelError, match="input 0"):
        certify(rec, (x, y), threat, pool=WitnessPool(1, 1, [0], [[True]]))


def test_margins_at_rounding_are_not_certified() -> None:
    # Exactly at the boundary with the whole budget: certified only with room for float32.
    rec = RandomizedEnsemble([linear(torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 0.5]))]).eval()
    y = torch.tensor([0])
    threat = Threat("linf", 0.25)
    assert not certify(rec, (torch.tensor([[0.75]]), y), threat).certified.any()
    assert not certify(rec, (torch.tensor([[0.750001]]), y), threat).certified.any()
    assert certify(rec, (torch.tensor([[0.7502]]), y), threat).certified.all()
