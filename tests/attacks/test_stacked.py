"""Small fully connected members that are run together answer and are attacked as they are one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from benchmarks.small_networks import Apart
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks, models
from randens.attacks.losses import expected_cross_entropy
from randens.attacks.members import GradientMembers
from randens.attacks.search import Search
from randens.attacks.stacked import stack_of
from randens.core.errors import ModelError

SHAPE = (1, 4, 4)


def networks(count: int = 3, width: int = 12, depth: int = 2) -> list[nn.Module]:
    made = [
        models.create(
            "mlp", classes=4, input_shape=SHAPE, width=width, depth=depth, mean=0.3, std=0.4, seed=i
        )
        for i in range(count)
    ]
    return [network.eval() for network in made]


def batch(n: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, *SHAPE, generator=generator)
    with torch.no_grad():
        return x, torch.stack([network(x) for network in networks()]).mean(dim=0).argmax(dim=1)


@pytest.mark.parametrize("depth", [1, 2])
def test_every_row_goes_through_its_own_network(depth: int) -> None:
    members, (x, _) = networks(depth=depth), batch()
    stack = stack_of(members)
    assert stack is not None
    # Unequal shares, and a network without inputs.
    member = torch.tensor([0] * 25 + [2] * 15)
    found = stack.at(x, member).z
    with torch.no_grad():
        answers = torch.stack([network(x) for network in members])
    expected = answers[member, torch.arange(len(x))]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shares", [[0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 1, 1], [0, 2, 2, 2, 2, 2]]
)
def test_gradients_stay_with_their_own_network(shares: list[int]) -> None:
    members, (x, _) = networks(), batch(6)
    stack = stack_of(members)
    assert stack is not None
    member = torch.tensor(shares)
    run = stack.at(x, member)
    slopes = torch.zeros_like(run.z)
    slopes[:, 1] = 1.0
    found = run.gradient(slopes)
    for j, index in enumerate(member.tolist()):
        one = x[j : j + 1].clone().requires_grad_(True)
        (expected,) = torch.autograd.grad(members[index](one)[:, 1].sum(), one)
        torch.testing.assert_close(found[j : j + 1], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chosen", [[0, 1, 2], [1, 2], [0, 2], [1]])
def test_inputs_that_networks_share_give_each_network_its_own_answer(chosen: list[int], depth: int) -> None:
    members, (x, _) = networks(depth=depth), batch(6)
    stack = stack_of(members)
    assert stack is not None
    run = stack.at_each(x, chosen)
    slopes = torch.linspace(-1.0, 1.0, run.z.numel()).reshape(run.z.shape)
    found = run.gradient(slopes)
    for index, z, gradient, slope in zip(
        chosen, *(torch.split(part, len(x)) for part in (run.z, found, slopes)), strict=True
    ):
        inputs = x.clone().requires_grad_(True)
        answer = members[index](inputs)
        (expected,) = torch.autograd.grad((answer * slope).sum(), inputs)
        torch.testing.assert_close(z, answer.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shares", [[0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 1, 1]])
def test_gradients_of_several_combinations_are_those_of_each(shares: list[int]) -> None:
    stack, (x, _) = stack_of(networks()), batch(6)
    assert stack is not None
    run = stack.at(x, torch.tensor(shares))
    slopes = torch.randn(len(x), 3, run.z.shape[1], generator=torch.Generator().manual_seed(0))
    found = run.gradients(slopes)
    assert found.shape == (len(x), 3, *SHAPE)
    for g in range(3):
        torch.testing.assert_close(found[:, g], run.gradient(slopes[:, g]), rtol=1e-5, atol=1e-6)


def test_a_gradient_may_be_taken_twice() -> None:
    """What overwrites the gradient on its way must not touch the pass or the slopes."""
    stack, (x, _) = stack_of(networks()), batch(6)
    assert stack is not None
    run = stack.at_each(x, range(3))
    slopes = torch.linspace(-1.0, 1.0, run.z.numel()).reshape(run.z.shape)
    kept = slopes.clone()
    first = run.gradient(slopes)
    assert torch.equal(run.gradient(slopes), first)
    assert torch.equal(slopes, kept)


def _hooked() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).eval()
    network[1].register_forward_hook(lambda *parts: -parts[2])
    return network


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "a convolution": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4)).eval(),
    "another width": lambda: networks(width=13)[0],
    "a hook": _hooked,
    "training mode": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 4)).train(),
    "ReLU first": lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(16, 4)).eval(),
    "ReLU last": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU()).eval(),
    "no ReLU between": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.Linear(9, 4)).eval(),
    "another activation": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.Tanh(), nn.Linear(9, 4)),
    "a normalised part": lambda: nn.Sequential(networks()[0]).eval(),
    "a forward of its own": lambda: Apart(networks()[0]).eval(),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_networks_are_not_stacked(what: str) -> None:
    alike = OTHERS[what]()
    # Two of another width make a stack of their own.
    assert (stack_of([alike, alike]) is not None) == (what == "another width")
    assert stack_of([networks()[0], alike]) is None


def test_one_network_or_a_large_one_is_run_as_it_is() -> None:
    assert stack_of(networks(1)) is None
    assert stack_of(networks(2, width=600)) is None


def test_a_linear_layer_over_the_last_axis_only_is_noticed() -> None:
    """Without Flatten such a network has another meaning than the chain of its layers."""
    plain = [
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)).eval() for _ in range(2)
    ]
    members = GradientMembers(plain)
    members.verify(torch.rand(4, 4, 4))
    assert members.stack is None


@pytest.mark.parametrize("name", ["pgd", "adaptive-pgd-l", "arc-r", "lattice", "saddle"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.4)])
def test_attacks_find_the_same_at_the_same_price(name: str, norm: str, eps: float) -> None:
    x, y = batch()
    attack = attacks.create(name, Threat(norm, eps))
    found = attack(RandomizedEnsemble(networks(), probs=[0.5, 0.3, 0.2]), x, y)
    apart = attack(RandomizedEnsemble([Apart(m) for m in networks()], probs=[0.5, 0.3, 0.2]), x, y)
    assert 0 < apart.robust_accuracy < 1
    # Logits differ in their last digits, so a near tie may turn, and with it the path from there on.
    assert int((found.errors != apart.errors).any(dim=1).sum()) <= 1
    assert found.cost.forwards == pytest.approx(apart.cost.forwards, rel=0.1)
    assert found.cost.backwards == pytest.approx(apart.cost.backwards, rel=0.1)


def test_linear_models_are_those_of_the_members() -> None:
    x, y = batch(12)
    wanted = torch.rand(12, 3, generator=torch.Generator().manual_seed(2)) < 0.6
    rows = torch.arange(12)
    threat = Threat("linf", 0.1)
    one = Search(RandomizedEnsemble(networks()), x, y, threat)
    two = Search(RandomizedEnsemble([Apart(m) for m in networks()]), x, y, threat)
    assert one._gradient_members.stack is not None
    assert two._gradient_members.stack is None
    moved = (x + 0.03).clamp(0, 1)
    for points, classes in ((x, 1), (moved, 1), (moved, 2), (x, 1)):
        first, second = (
            one.linearise(rows, points, wanted, classes),
            two.linearise(rows, points, wanted, classes),
        )
        torch.testing.assert_close(first.margins, second.margins, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(first.gradients, second.gradients, rtol=1e-4, atol=1e-5)
        assert torch.equal(first.errors, second.errors)
        assert one.cost == two.cost


def test_a_member_without_gradient_is_flagged_and_no_other() -> None:
    members, (x, _) = networks(), batch(8)
    with torch.no_grad():
        members[1].get_parameter("body.layers.3.bias").fill_(-100.0)  # its second hidden layer is dead
        y = members[1](x).argmax(dim=1)  # flat losses are no fault where a member is fooled
    s = Search(RandomizedEnsemble(members), x, y, Threat("linf", 0.05))
    assert s._gradient_members.stack is not None
    s.gradient(torch.arange(8), x, expected_cross_entropy)
    assert s.no_gradient[:, 1].all()
    assert not s.no_gradient[:, [0, 2]].any()


def test_the_member_with_nan_logits_is_named() -> None:
    members, (x, y) = networks(), batch(8)
    with torch.no_grad():
        members[2].get_parameter("body.layers.5.bias")[0] = torch.nan
    with pytest.raises(ModelError, match="member 2 returns NaN"):
        attacks.create("saddle", Threat("linf", 0.05))(RandomizedEnsemble(members), x, y)


def test_large_finite_logits_are_scored() -> None:
    """Their sum overflows; none of them is infinite."""
    z = torch.full((2, 4), 3e38)
    Search._check_logits(0, z)
    z[1, 2] = torch.inf
    with pytest.raises(ModelError, match="member 1 "):
        Search._check_logits(torch.tensor([0, 1]), z)
    z[1, 3] = -torch.inf  # the sum is NaN
    with pytest.raises(ModelError, match="member 1 "):
        Search._check_logits(torch.tensor([0, 1]), z)
