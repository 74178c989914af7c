"""Attacks of other packages, against the packages themselves.

Laws: they find the optimum for one linear member, where it is known, never leave the threat, never return worse than
the clean point, give the same bits for the same seed, count what members saw, and leave the rest as it was.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.attacks.cases import case
from tests.attacks.planted import linear, planted, truth
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks, interop
from randens.attacks.proposals import View
from randens.core.errors import InputError, ModelError

MODULES = {
    "foolbox": "foolbox",
    "torchattacks": "torchattacks",
    "art": "art.attacks.evasion",
    "autoattack": "pyautoattack",
}


def package(name: str) -> Any:
    """The real package, or a skip that says how to get it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(MODULES[name], reason=f"{name} is missing; `make test` installs it")


def made(name: str, threat: Threat, **options: Any) -> attacks.Foreign:
    """Each package's own projected gradient descent."""
    found, linf = package(name), threat.norm == "linf"
    if name == "foolbox":
        kind = found.attacks.LinfPGD if linf else found.attacks.L2PGD
        return interop.from_foolbox(kind(rel_stepsize=0.1, steps=40), threat, **options)
    if name == "torchattacks":
        return interop.from_torchattacks(found.PGD if linf else found.PGDL2, threat, steps=20, **options)
    if name == "art":
        return interop.from_art(found.ProjectedGradientDescent, threat, max_iter=20, **options)
    return interop.from_autoattack(threat, attacks=["apgd-ce"], steps=20, **options)


@pytest.mark.parametrize(("norm", "boxed"), [("linf", True), ("l2", False)])
@pytest.mark.parametrize("name", MODULES)
def test_one_linear_member_is_attacked_to_the_proven_optimum(name: str, boxed: bool, norm: str) -> None:
    given = planted(norm, n=30, members=1, d=12, boxed=boxed, seed=3)
    best = truth(given)
    assert 0.2 < best.mean() < 1  # some inputs can be fooled and some cannot
    assert np.array_equal(made(name, given.threat)(given.rec, given.x, given.y).risk.numpy(), best)


@pytest.mark.parametrize(("kind", "norm"), [("planted", "l2"), ("convnet", "linf"), ("zero-weight", "l2")])
@pytest.mark.parametrize("name", MODULES)
def test_results_are_legal_reproducible_and_what_re_evaluates(name: str, kind: str, norm: str) -> None:
    given = case(kind, norm)
    attack = made(name, given.threat)
    found = attack(given.rec, given.x, given.y)
    assert bool(given.threat.contains(found.x_adv, given.x).all())
    assert torch.equal(found.errors, given.rec.errors(found.x_adv, given.y))
    clean = given.rec.risk(given.x, given.y)
    assert bool((found.risk >= clean).all())
    assert float(found.risk.mean()) > float(clean.mean())  # it does find something
    assert float(found.risk.mean()) == pytest.approx(found.pool.risk(given.rec.probs.numpy()), abs=1e-12)
    assert all(source.split("-")[0] in ("clean", name) for source in found.pool.sources)
    rows, points = torch.from_numpy(found.pool.points), torch.from_numpy(np.array(found.pool.x_adv))
    assert np.array_equal(given.rec.errors(points, given.y[rows]).numpy(), found.pool.fooled)
    torch.manual_seed(12345)
    again = attack(given.rec, given.x, given.y)
    assert torch.equal(found.x_adv, again.x_adv)
    assert found.cost == again.cost


@pytest.mark.parametrize("name", MODULES)
def test_the_mixture_and_the_members_both_add_witnesses(name: str) -> None:
    given = planted("linf", n=40, members=3, d=12, conflict=0.3, seed=1)
    both = made(name, given.threat)(given.rec, given.x, given.y)
    # One attack alone, on the mixture as if it were a single member, is not stronger.
    mixed = made(name, given.threat)(RandomizedEnsemble([attacks.Mixture(given.rec)]), given.x, given.y)
    assert 0 < float(given.rec.risk(mixed.x_adv, given.y).mean()) <= float(both.risk.mean())
    assert bool((both.risk.numpy() <= truth(given) + 1e-12).all())
    ours = attacks.create("pgd", given.threat)(given.rec, given.x, given.y).pool
    merged, probs = ours.merge(both.pool), given.rec.probs.numpy()
    assert ours.risk(probs) <= merged.risk(probs) <= truth(given).mean() + 1e-12


@pytest.mark.parametrize("name", MODULES)
def test_the_unit_of_the_inputs_does_not_matter(name: str) -> None:
    """The same problem in a box of another place and size has the same risk."""
    given = planted("linf", n=20, members=2, d=12, boxed=True, seed=2)
    low, size = -3.0, 8.0
    moved = []
    for member in given.rec.members:
        assert isinstance(member, nn.Linear)
        weight = member.weight.detach() / size
        moved.append(linear(weight, member.bias.detach() - weight.sum(dim=1) * low))
    threat = Threat("linf", given.threat.eps * size, (low, low + size))
    x = (low + size * given.x).clamp(low, low + size)
    other = made(name, threat)(RandomizedEnsemble(moved), x, given.y)
    assert torch.equal(other.errors, made(name, given.threat)(given.rec, given.x, given.y).errors)


@pytest.mark.parametrize("name", MODULES)
def test_generators_modes_gradients_and_weights_are_out_of_reach(name: str) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 4))
    net.train()
    net[1].eval()
    net[0].weight.grad = torch.full((8, 6), 3.0)
    net[4].bias.requires_grad_(False)
    x, y = torch.rand(8, 6), torch.arange(8) % 4
    before = {k: v.clone() for k, v in net.state_dict().items()}
    rec, attack = (
        RandomizedEnsemble([net, linear(torch.rand(4, 6), torch.zeros(4))]),
        made(name, Threat("linf", 0.3)),
    )

    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(())), np.random.random(), random.random()  # noqa: NPY002

    def seeded() -> None:
        torch.manual_seed(5)
        np.random.seed(6)  # noqa: NPY002
        random.seed(7)

    seeded()
    expected = drawn()
    seeded()
    with torch.no_grad():
        attack(rec, x, y)
        assert not torch.is_grad_enabled()
    assert drawn() == expected
    assert [m.training for m in net] == [True, False, True, True, True]
    assert torch.equal(net[0].weight.grad, torch.full((8, 6), 3.0))
    assert (net[4].weight.grad, net[0].weight.requires_grad, net[4].bias.requires_grad) == (None, True, False)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


class Counting(nn.Module):
    """A member that counts the inputs that pass through it, forwards and backwards."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        if x.requires_grad:
            x = x.view_as(x)
            x.register_hook(self._back)  # type: ignore[no-untyped-call]
        z: Tensor = self.inner(x)
        return z

    def _back(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


@pytest.mark.parametrize("name", MODULES)
def test_costs_are_what_the_members_saw(name: str) -> None:
    given = case("mlp", "linf")
    members = [Counting(member) for member in given.rec.members]
    found = made(name, given.threat)(RandomizedEnsemble(members, given.rec.probs), given.x, given.y)
    looked = 8  # before the attack every member answers four inputs twice, to see whether it is random
    assert found.cost.forwards == sum(m.forwards - looked for m in members)
    assert found.cost.backwards == sum(m.backwards for m in members) > len(given.x) * len(members)


def test_the_mixture_is_the_log_of_the_mean_softmax_and_does_not_underflow() -> None:
    given = case("zero-weight", "linf")
    expected = torch.einsum(
        "m,mnc->nc", given.rec.probs, given.rec.logits(given.x).double().softmax(dim=2)
    ).log()
    mixture = attacks.Mixture(given.rec)
    assert torch.allclose(mixture(given.x).double(), expected, atol=1e-5)
    view = View(attacks.Search(given.rec, given.x, given.y, given.threat), mixture)
    assert torch.allclose(view(view.show(given.x)).double(), expected, atol=1e-5)
    members = [linear(torch.tensor([[s, 0.0], [0.0, s]]), torch.zeros(2)) for s in (2000.0, -2000.0)]
    x = torch.tensor([[0.5, 0.25], [0.1, 0.9]], requires_grad=True)
    z = attacks.Mixture(RandomizedEnsemble(members, [1.0, 0.0]))(x)
    assert torch.allclose(z.detach(), torch.tensor([[0.0, -500.0], [-1600.0, 0.0]]))
    (gradient,) = torch.autograd.grad(z[:, 1].sum(), x)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize(("parts", "classes"), [(["apgd-t"], 3), (None, 3), (None, 10)])
def test_autoattack_takes_ordinary_convolutional_networks(classes: int, parts: list[str] | None) -> None:
    package("autoattack")
    torch.manual_seed(0)

    def net() -> nn.Module:
        first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, classes)).eval()

    rec = RandomizedEnsemble([net(), net()])
    x = torch.rand(6, 3, 16, 16)
    y = rec.verdicts(x)[:, 0]
    attack = interop.from_autoattack(Threat("linf", 0.1), attacks=parts, steps=3, queries=5)
    if parts:
        with pytest.raises(ModelError, match="failed on"):
            attack(rec, x, y)
        return
    found = attack(rec, x.to(memory_format=torch.channels_last), y)
    assert found.x_adv.shape == x.shape
    assert torch.equal(found.errors, rec.errors(found.x_adv, y))
    assert float(found.risk.mean()) > float(rec.risk(x, y).mean())


def test_attacks_of_adv_lib_get_radius_and_norm_in_the_units_of_the_view() -> None:
    """adv_lib's attacks are functions of model, inputs and labels; these two have the signatures of its own."""

    def pgd_linf(model: nn.Module, inputs: Tensor, labels: Tensor, ε: float, steps: int = 40) -> Tensor:
        assert steps == 3
        point = inputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(point), labels), point)
        return inputs + ε * gradient.sign()

    def fmn(model: nn.Module, inputs: Tensor, labels: Tensor, norm: float, targeted: bool = True) -> Tensor:
        assert (norm, targeted, len(model(inputs))) == (float("inf"), False, len(labels))
        return torch.full_like(inputs, float("nan"))

    given = planted("linf", n=30, members=1, d=12, boxed=True, seed=3)
    found = interop.from_adv_lib(pgd_linf, given.threat, steps=3)(given.rec, given.x, given.y)
    assert np.array_equal(found.risk.numpy(), truth(given))
    assert "adv_lib-pgd_linf" in found.pool.sources
    nothing = interop.from_adv_lib(fmn, given.threat)(given.rec, given.x, given.y)
    assert torch.equal(nothing.errors, nothing.clean_errors)


class Deaf(nn.Module):
    """A member whose answer carries no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        score = x.detach().sum(dim=1) - 3.0
        return torch.stack([-score, score], dim=1)


def test_members_without_gradients_are_flagged_and_black_box_attacks_fool_them() -> None:
    x, y = 0.5 - torch.linspace(0.01, 0.3, 6).unsqueeze(1).expand(6, 6), torch.zeros(6, dtype=torch.int64)
    threat, rec = Threat("linf", 0.15), RandomizedEnsemble([Deaf()])
    square = interop.from_torchattacks(package("torchattacks").Square, threat, n_queries=200)
    found = square(rec, x, y)
    assert found.flags["zero_gradient"] == [1.0]
    assert found.errors[:, 0].tolist() == [True, True, True, False, False, False]
    assert made("foolbox", threat)(rec, x, y).flags["zero_gradient"] == [1.0]


def test_what_is_wrong_is_said_in_one_sentence() -> None:
    foolbox, torchattacks, art = package("foolbox"), package("torchattacks"), package("art")
    threat, pgd, given = Threat("linf", 0.1), foolbox.attacks.LinfPGD, planted("linf", n=4, members=1)
    wrong: dict[str, Callable[[], object]] = {
        "give an instance": lambda: interop.from_foolbox(pgd, threat),
        "measures l2": lambda: interop.from_foolbox(foolbox.attacks.L2PGD(), threat),
        "restarts is 0": lambda: interop.from_foolbox(pgd(), threat, restarts=0),
        "give a class": lambda: interop.from_torchattacks(torchattacks.PGD(nn.Linear(2, 2)), threat),
        "threat is 0.1": lambda: interop.from_art(torchattacks.PGD, 0.1),  # type: ignore[arg-type]
        "unknown part": lambda: interop.from_autoattack(threat, attacks=["apgd"]),
        "steps is 0": lambda: interop.from_autoattack(threat, steps=0),
        r"failed on \d inputs of shape \(20,\): TypeError": lambda: interop.from_art(
            art.ProjectedGradientDescent, given.threat, iterations=3
        )(given.rec, given.x, given.y),
    }
    for message, attempt in wrong.items():
        with pytest.raises((InputError, ModelError), match=message) as raised:
            attempt()
        assert "\n" not in str(raised.value)


def test_a_plain_function_is_an_attack() -> None:
    given = planted("linf", n=6, members=3)

    def up(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        point = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            nn.functional.cross_entropy(model(point), y, reduction="sum"), point
        )
        return x + 10 * gradient.sign()  # whatever is too far is projected

    own = attacks.from_function(up, given.threat)
    found = own(given.rec, given.x, given.y)
    assert given.threat.contains(found.x_adv, given.x).all()
    assert "up" in own.name
    assert set(found.sources) == {"clean", own.name} or set(found.sources) == {own.name}
    assert float(found.risk.mean()) > float(given.rec.risk(given.x, given.y).mean())
    assert attacks.from_function(lambda *given: given[1], given.threat).description != own.description
    with pytest.raises(InputError, match="function is 'pgd'"):
        attacks.from_function("pgd", given.threat)  # type: ignore[arg-type]
