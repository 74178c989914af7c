"""k of M: averaging members that share networks are attacked as ordinary members are, at the networks' price."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from randens import DeterministicEnsemble, RandomizedEnsemble, Threat, attacks, models
from randens.attacks.losses import expected_cross_entropy
from randens.attacks.members import GradientMembers
from randens.attacks.search import Search, attacking
from randens.attacks.shared_networks import shared_planes

THREAT = Threat("linf", 0.2)


class Average(nn.Module):
    """The same average as a member of k of M, as a network that shares nothing."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.networks]).mean(dim=0)


def networks(count: int, seed: int = 0) -> list[nn.Module]:
    return [
        models.create("mlp", classes=4, input_shape=(6,), width=12, depth=1, seed=10 * seed + i)
        .double()
        .eval()
        for i in range(count)
    ]


def two_ways(count: int = 4, k: int = 2) -> tuple[RandomizedEnsemble, RandomizedEnsemble]:
    """k of M, and the same members as if they had nothing in common."""
    made = networks(count)
    apart = [Average([made[i] for i in chosen]) for chosen in itertools.combinations(range(count), k)]
    return RandomizedEnsemble(made).eval().subsets(k), RandomizedEnsemble(apart).eval()


def inputs(rec: RandomizedEnsemble, n: int = 24) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        return x, rec.logits(x).mean(dim=0).argmax(dim=1)


class Counted(nn.Module):
    """Counts the inputs that a network is asked about."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.seen = network, 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        answer: Tensor = self.network(x)
        return answer


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_shared_boundaries_are_those_of_each_member(classes: int) -> None:
    shared, apart = two_ways()
    x, y = inputs(apart)
    wanted = torch.rand(len(x), 6, generator=torch.Generator().manual_seed(2)) < 0.7
    with attacking(shared), attacking(apart):
        planes = shared_planes(GradientMembers(list(shared.members)), x, y, wanted, classes)
        one, two = Search(shared, x, y, THREAT), Search(apart, x, y, THREAT)
        rows = torch.arange(len(x))
        for index in range(6):
            gaps, normals, _ = two._planes(rows, x, torch.full_like(rows, index), classes)
            mine = wanted[:, index]
            torch.testing.assert_close(planes.gaps[index][mine], gaps[mine])
            torch.testing.assert_close(planes.gradients[index][mine], normals.flatten(2)[mine])
            assert not planes.gradients[index][~mine].any()
        first, second = one.linearise(rows, x, wanted, classes), two.linearise(rows, x, wanted, classes)
    torch.testing.assert_close(first.margins, second.margins)
    torch.testing.assert_close(first.gradients, second.gradients)
    assert torch.equal(first.errors, second.errors)


@pytest.mark.parametrize("name", ["apgd-l", "apgd-s", "saddle", "lattice", "arc", "pgd"])
def test_attacks_find_the_same_at_a_lower_price(name: str) -> None:
    # The lattice tries every set of members: 63 sets of the six pairs of four networks, 7 of those of three.
    shared, apart = two_ways(3 if name == "lattice" else 4)
    x, y = inputs(apart)
    attack = attacks.create(name, THREAT, precision="float32")
    one, two = attack(shared, x, y), attack(apart, x, y)
    assert torch.equal(one.errors, shared.errors(one.x_adv, y))
    # Rounding differs in the last bits, so single inputs may go another way; most must not.
    assert (one.risk == two.risk).double().mean() >= 0.8
    assert abs(float(one.risk.mean() - two.risk.mean())) < 0.05
    # An average that shares nothing says that it costs one pass; it really costs two. Where averages have different
    # runners-up, shared networks are run forward once more to save backward passes, so the sum counts.
    assert one.cost.forwards + one.cost.backwards < 2 * (two.cost.forwards + two.cost.backwards)
    assert one.cost.backwards <= 2 * two.cost.backwards


def test_gradients_of_a_loss_are_the_same_and_cost_one_pass_per_network() -> None:
    shared, apart = two_ways()
    x, y = inputs(apart)
    loss = expected_cross_entropy
    rows = torch.arange(len(x))
    with attacking(shared), attacking(apart):
        one, two = Search(shared, x, y, THREAT), Search(apart, x, y, THREAT)
        before = one.cost.backwards
        torch.testing.assert_close(one.gradient(rows, x, loss), two.gradient(rows, x, loss))
    assert one.cost.backwards - before == 4 * len(x)


@pytest.mark.parametrize("name", ["apgd-s", "saddle", "arc-r"])
def test_passes_are_counted_as_they_are_made(name: str) -> None:
    counted = [Counted(network) for network in networks(4)]
    rec = RandomizedEnsemble(counted).eval().subsets(2)
    x, y = inputs(rec)
    for network in counted:
        network.seen = 0
    found = attacks.create(name, THREAT, precision="float32")(rec, x, y)
    looked = 8  # before the attack every network answers four inputs twice, to see whether it is random
    assert found.cost.forwards == sum(network.seen - looked for network in counted)


def test_a_subset_ensemble_answers_with_averages() -> None:
    made = networks(3)
    rec = RandomizedEnsemble(made, [0.5, 0.3, 0.2], classes=list("abcd"), threat=THREAT).eval()
    pairs = rec.subsets(2)
    x = torch.rand(5, 6, dtype=torch.float64)
    with torch.no_grad():
        z = rec.logits(x)
        expected = torch.stack([(z[0] + z[1]) / 2, (z[0] + z[2]) / 2, (z[1] + z[2]) / 2])
        torch.testing.assert_close(pairs.logits(x), expected)
        torch.testing.assert_close(rec.subsets(1).logits(x), z)
        torch.testing.assert_close(rec.subsets(3).logits(x)[0], z.mean(dim=0))
    assert pairs.probs.tolist() == pytest.approx([1 / 3] * 3)
    assert pairs.classes == rec.classes
    assert pairs.threat == THREAT
    assert not any(module.training for module in pairs.modules())
    assert {id(network) for network in pairs.networks} == {id(member) for member in rec.members}
    drawn = pairs(x)
    assert all(any(torch.allclose(row, expected[i, j]) for i in range(3)) for j, row in enumerate(drawn))
    assert len(pairs.networks) == 3


def test_bfloat16_gradients_never_decide_a_verdict() -> None:
    made = [
        models.create("mlp", classes=4, input_shape=(6,), width=12, depth=1, seed=i).eval() for i in range(3)
    ]
    rec = RandomizedEnsemble(made).eval().subsets(2)
    x, _ = inputs(two_ways()[1])
    y = rec.logits(x.float()).mean(dim=0).argmax(dim=1)
    prepared = GradientMembers(list(rec.members))
    prepared.exact = False  # as with bfloat16, which not every machine has
    prepared.device = "cpu"
    with attacking(rec):
        search = Search(rec, x.float(), y, THREAT, gradient_members=prepared)
        errors = search.judge(torch.arange(len(x)), x.float() + 0.1)
    assert torch.equal(errors, rec.errors(search.project(torch.arange(len(x)), x.float() + 0.1), y))


def test_an_average_of_copies_counts_them_all() -> None:
    one, two = networks(2)
    rec = RandomizedEnsemble(
        [DeterministicEnsemble([one, one, two]), DeterministicEnsemble([two, one])]
    ).eval()
    apart = RandomizedEnsemble([Average([one, one, two]), Average([two, one])]).eval()
    x, y = inputs(apart)
    rows, wanted = torch.arange(len(x)), torch.ones(len(x), 2, dtype=torch.bool)
    with attacking(rec), attacking(apart):
        first = Search(rec, x, y, THREAT).linearise(rows, x, wanted)
        second = Search(apart, x, y, THREAT).linearise(rows, x, wanted)
    torch.testing.assert_close(first.gradients, second.gradients)
    np.testing.assert_allclose(first.margins.numpy(), second.margins.numpy())
