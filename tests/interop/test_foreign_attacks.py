"""Attacks of other packages, against the packages themselves.

Laws: they find the optimum for one linear member, where it is known, never leave the threat, never return worse
than the clean point, give the same bits for the same seed, and leave everything outside as they found it.
"""

from __future__ import annotations

import importlib
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.attacks.cases import case, convnet, digits
from tests.attacks.planted import Planted, linear, planted, truth
from tests.evaluation.evaluated import evaluate
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks, interop, optimize_sampling
from randens.core.errors import InputError, ModelError
from randens.interop.attack_libraries import View

PACKAGES = ("foolbox", "torchattacks", "art", "autoattack")
NORMS = ("linf", "l2")
_MODULES = {
    "foolbox": "foolbox",
    "torchattacks": "torchattacks",
    "art": "art.attacks.evasion",
    "autoattack": "pyautoattack",
}


def package(name: str) -> Any:
    """The real package, or a skip that says how to get it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(_MODULES[name])
    except ImportError as error:
        pytest.skip(f"{name} cannot be imported ({error}); `make test` installs it, see docs/interop.md")


def made(name: str, threat: Threat, **options: Any) -> interop.Foreign:
    """Each package's own projected gradient descent."""
    found = package(name)
    linf = threat.norm == "linf"
    if name == "foolbox":
        kind = found.attacks.LinfPGD if linf else found.attacks.L2PGD
        return interop.from_foolbox(kind(rel_stepsize=0.1, steps=40), threat, **options)
    if name == "torchattacks":
        return interop.from_torchattacks(found.PGD if linf else found.PGDL2, threat, steps=20, **options)
    if name == "art":
        return interop.from_art(found.ProjectedGradientDescent, threat, max_iter=20, **options)
    return interop.from_autoattack(threat, attacks=["apgd-ce"], steps=20, **options)


class Mixed(nn.Module):
    """An ordinary network: convolution, batch normalization, pooling."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


# ---- what they find ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("name", PACKAGES)
def test_one_linear_member_is_attacked_to_the_proven_optimum(name: str, boxed: bool, norm: str) -> None:
    given = planted(norm, n=30, members=1, d=12, boxed=boxed, seed=3)
    best = truth(given)
    assert 0.2 < best.mean() < 1  # some inputs can be fooled and some cannot
    found = made(name, given.threat)(given.rec, given.x, given.y)
    # In the l2 ball cut with the box, PGD's projections are not exact: no packages reach every last input there.
    missed = 2 if boxed and norm == "l2" else 0
    assert (found.risk.numpy() <= best + 1e-12).all()
    assert (found.risk.numpy() < best).sum() <= missed


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["planted", "convnet", "zero-weight"])
@pytest.mark.parametrize("name", PACKAGES)
def test_results_are_legal_no_worse_than_clean_and_what_re_evaluates(name: str, kind: str, norm: str) -> None:
    given = case(kind, norm)
    found = made(name, given.threat)(given.rec, given.x, given.y)
    assert bool(given.threat.contains(found.x_adv, given.x).all())
    assert torch.equal(found.errors, given.rec.errors(found.x_adv, given.y))
    assert torch.equal(found.risk, found.errors.double() @ given.rec.probs)
    clean = given.rec.risk(given.x, given.y)
    assert bool((found.risk >= clean).all())
    assert float(found.risk.mean()) > float(clean.mean())  # it does find something
    assert float(found.risk.mean()) == pytest.approx(found.pool.risk(given.rec.probs.numpy()), abs=1e-12)
    names = {"foolbox": "foolbox-L", "torchattacks": "torchattacks-PGD", "art": "art-Projected"}
    assert all(source == "clean" or source.startswith(names.get(name, name)) for source in found.pool.sources)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_witness_of_the_pool_is_real(name: str) -> None:
    given = case("mlp", "linf")
    pool = made(name, given.threat)(given.rec, given.x, given.y).pool
    assert pool.x_adv is not None
    rows = torch.from_numpy(pool.points)
    shown = torch.from_numpy(np.ascontiguousarray(pool.x_adv))
    assert bool(given.threat.contains(shown, given.x[rows]).all())
    assert np.array_equal(given.rec.errors(shown, given.y[rows]).numpy(), pool.fooled)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_mixture_and_the_members_both_add_witnesses(name: str) -> None:
    given = planted("linf", n=40, members=3, d=12, conflict=0.3, seed=1)
    alone, mixed, both = (
        made(name, given.threat, target=target)(given.rec, given.x, given.y)
        for target in ("members", "mixture", "both")
    )
    for index, member in enumerate(given.rec.members):
        single = Planted(RandomizedEnsemble([member]), given.x, given.y, given.threat)
        assert np.array_equal(alone.pool.foolable[:, index], truth(single) == 1)
    assert float(mixed.risk.mean()) > 0
    assert bool((both.risk >= mixed.risk).all())
    assert both.cost.backwards > mixed.cost.backwards
    assert bool((both.risk.numpy() <= truth(given) + 1e-12).all())


def test_other_packages_raise_our_pool_and_ours_raises_theirs() -> None:
    given = planted("linf", n=40, members=4, d=12, seed=5)
    ours = attacks.create("pgd", given.threat)(given.rec, given.x, given.y).pool
    probs = given.rec.probs.numpy()
    merged = ours
    for name in ("foolbox", "torchattacks"):
        merged = merged.merge(made(name, given.threat)(given.rec, given.x, given.y).pool)
    assert merged.risk(probs) >= ours.risk(probs)
    assert merged.risk(probs) <= truth(given).mean() + 1e-12
    assert {s.split("-")[0] for s in merged.sources} - {"clean"} <= {"pgd", "foolbox", "torchattacks"}


@pytest.mark.parametrize("name", ["torchattacks", "autoattack", "art", "foolbox"])
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
    found = made(name, given.threat)(given.rec, given.x, given.y)
    x = (low + size * given.x).clamp(low, low + size)
    other = made(name, threat)(RandomizedEnsemble(moved), x, given.y)
    assert torch.equal(other.errors, found.errors)
    assert other.cost == found.cost


def test_images_of_torchattacks_and_autoattack_keep_their_shape() -> None:
    for name in ("torchattacks", "autoattack"):
        given = case("convnet", "linf", n=4)
        assert made(name, given.threat)(given.rec, given.x, given.y).x_adv.shape == given.x.shape


# ---- seeds, and what must stay as it was -------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKAGES)
def test_same_seed_same_bits_whatever_happened_before(name: str) -> None:
    given = case("convnet", "linf")
    attack = made(name, given.threat)
    first = attack(given.rec, given.x, given.y)
    torch.manual_seed(12345)
    np.random.seed(99)  # noqa: NPY002
    random.seed(7)
    attack(given.rec, given.x[:3], given.y[:3])
    again = attack(given.rec, given.x, given.y)
    assert torch.equal(first.x_adv, again.x_adv)
    assert first.cost == again.cost
    assert np.array_equal(np.asarray(first.pool.x_adv), np.asarray(again.pool.x_adv))


def test_another_seed_starts_elsewhere() -> None:
    given = case("convnet", "linf")
    points = [made("foolbox", given.threat, seed=seed)(given.rec, given.x, given.y).x_adv for seed in (0, 1)]
    assert not torch.equal(*points)


@pytest.mark.parametrize("name", PACKAGES)
def test_global_generators_are_restored(name: str) -> None:
    given = case("mlp", "linf")
    attack = made(name, given.threat)
    torch.manual_seed(5)
    np.random.seed(6)  # noqa: NPY002
    random.seed(7)
    expected = float(torch.rand(())), np.random.random(), random.random()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(6)  # noqa: NPY002
    random.seed(7)
    attack(given.rec, given.x, given.y)
    assert (float(torch.rand(())), np.random.random(), random.random()) == expected  # noqa: NPY002


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", PACKAGES)
def test_modes_gradients_and_weights_are_out_of_reach(name: str, grad: bool) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 4))
    net.train()
    net[1].eval()
    net[0].weight.grad = torch.full((8, 6), 3.0)
    net[4].bias.requires_grad_(False)
    x, y = torch.rand(8, 6), torch.arange(8) % 4
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with torch.set_grad_enabled(grad):
        made(name, Threat("linf", 0.3))(
            RandomizedEnsemble([net, linear(torch.rand(4, 6), torch.zeros(4))]), x, y
        )
        assert torch.is_grad_enabled() == grad
    assert [m.training for m in net] == [True, False, True, True, True]
    assert torch.equal(net[0].weight.grad, torch.full((8, 6), 3.0))
    assert net[4].weight.grad is None
    assert net[0].weight.requires_grad
    assert not net[4].bias.requires_grad
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


# ---- what it costs -----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("target", ["members", "mixture", "both"])
@pytest.mark.parametrize("name", PACKAGES)
def test_costs_are_what_the_members_saw(name: str, target: str) -> None:
    given = case("mlp", "linf")
    members = [Counting(member) for member in given.rec.members]
    found = made(name, given.threat, target=target)(
        RandomizedEnsemble(members, given.rec.probs), given.x, given.y
    )
    looked = 8  # before the attack every member answers four inputs twice, to see whether it is random
    assert found.cost.forwards == sum(m.forwards - looked for m in members)
    assert found.cost.backwards == sum(m.backwards for m in members)
    assert found.cost.backwards > len(given.x) * len(members)


# ---- what the packages see ---------------------------------------------------------------------------------------


def test_the_view_is_a_member_or_the_mixture_in_the_unit_box() -> None:
    given = case("zero-weight", "linf")
    s = attacks.Search(given.rec, given.x, given.y, given.threat)
    for model, expected in (
        (given.rec.members[1], given.rec.members[1]),
        (interop.Mixture(given.rec), given.rec.mixture),
    ):
        view = View(s, model)
        shown = view.show(given.x)
        assert shown.shape == (8, 3, 1, 1)
        assert 0 <= float(shown.min()) <= float(shown.max()) <= 1
        assert torch.allclose(view(shown).double(), expected(given.x).double(), atol=1e-5)
        assert [p.shape for p in view.parameters()] == [torch.Size([])]


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("parts", [["apgd-dlr"], ["apgd-t"], None])
def test_autoattack_takes_ordinary_convolutional_networks(classes: int, parts: list[str] | None) -> None:
    package("autoattack")
    torch.manual_seed(0)
    rec = RandomizedEnsemble([Mixed(classes).eval(), Mixed(classes).eval()])
    x, y = torch.rand(6, 3, 16, 16), rec.verdicts(torch.rand(6, 3, 16, 16))[:, 0]
    attack = interop.from_autoattack(Threat("linf", 0.1), attacks=parts, steps=3, queries=5)
    if parts == ["apgd-t"] and classes == 3:
        with pytest.raises(InputError, match="4 classes or more"):
            attack(rec, x, y)
        return
    shown = View(attacks.Search(rec, x, y, attack.threat), rec.members[0])
    point = shown.show(x).requires_grad_()
    (gradient,) = torch.autograd.grad(shown(point).sum(), point)
    assert gradient.is_contiguous()  # although the members work in channels_last
    found = attack(rec, x.to(memory_format=torch.channels_last), y)
    assert torch.equal(found.errors, rec.errors(found.x_adv, y))
    assert float(found.risk.mean()) > float(rec.risk(x, y).mean()) or float(rec.risk(x, y).min()) == 1


def test_attacks_of_adv_lib_get_radius_and_norm_in_the_units_of_the_view() -> None:
    """adv_lib's attacks are functions of model, inputs and labels; these two have the signatures of its own."""

    def pgd_linf(model: nn.Module, inputs: Tensor, labels: Tensor, ε: float, steps: int = 40) -> Tensor:
        assert steps == 3
        point = inputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(point), labels), point)
        return inputs + ε * gradient.sign()

    def fmn(model: nn.Module, inputs: Tensor, labels: Tensor, norm: float, targeted: bool = True) -> Tensor:
        assert norm == float("inf")
        assert not targeted
        assert model(inputs).shape[0] == len(labels)
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
    given = torch.full((6, 6), 0.5), torch.zeros(6, dtype=torch.int64)
    x = given[0] - torch.linspace(0.01, 0.3, 6).unsqueeze(1)
    threat = Threat("linf", 0.15)
    rec = RandomizedEnsemble([Deaf()])
    found = interop.from_torchattacks(package("torchattacks").Square, threat, n_queries=200)(rec, x, given[1])
    assert found.flags["zero_gradient"] == [1.0]
    assert found.errors[:, 0].tolist() == [True, True, True, False, False, False]
    blind = made("foolbox", threat)(rec, x, given[1])
    assert blind.flags["zero_gradient"] == [1.0]


# ---- whole data sets and the rest of the library -----------------------------------------------------------------


def test_evaluation_and_the_choice_of_probabilities_take_them() -> None:
    x, y = digits("validation")
    rec = RandomizedEnsemble([convnet(0), convnet(1)])
    threat = Threat("linf", 0.1)
    chosen = [made("foolbox", threat), made("torchattacks", threat)]
    best = optimize_sampling(rec, (x[:24], y[:24]), chosen, tol=0.01)
    assert [a["name"] for a in best.about.attacks] == [a.name for a in chosen]
    assert best.risk <= best.pool.risk([0.5, 0.5]) + 1e-9
    result = evaluate(rec, (x[:24], y[:24]), chosen)
    assert result.robust < result.natural
    assert result.about.attacks[0]["description"].startswith("foolbox LinfProjectedGradientDescentAttack(")


# ---- getting it wrong --------------------------------------------------------------------------------------------


def _wrong() -> dict[str, Callable[[], object]]:
    foolbox, torchattacks = package("foolbox"), package("torchattacks")
    threat, pgd = Threat("linf", 0.1), foolbox.attacks.LinfPGD
    return {
        "give an instance": lambda: interop.from_foolbox(pgd, threat),
        "measures l2": lambda: interop.from_foolbox(foolbox.attacks.L2PGD(), threat),
        "unknown target": lambda: interop.from_foolbox(pgd(), threat, target="all"),
        "restarts is 0": lambda: interop.from_foolbox(pgd(), threat, restarts=0),
        "give a class": lambda: interop.from_torchattacks(torchattacks.PGD(nn.Linear(2, 2)), threat),
        "threat is 0.1": lambda: interop.from_art(torchattacks.PGD, 0.1),  # type: ignore[arg-type]
        "unknown version": lambda: interop.from_autoattack(threat, version="rand"),
        "unknown part": lambda: interop.from_autoattack(threat, attacks=["apgd"]),
        "steps is 0": lambda: interop.from_autoattack(threat, steps=0),
    }


def test_what_is_wrong_is_said_in_one_sentence() -> None:
    for message, attempt in _wrong().items():
        with pytest.raises(InputError, match=message) as raised:
            attempt()
        assert "\n" not in str(raised.value)


def test_what_a_package_cannot_do_is_its_own_message_with_ours() -> None:
    given = planted("linf", n=4, members=1)
    wrong = interop.from_art(package("art").ProjectedGradientDescent, given.threat, iterations=3)
    with pytest.raises(ModelError, match=r"art-Projected.*failed on \d inputs of shape \(20,\): TypeError"):
        wrong(given.rec, given.x, given.y)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(ModelError, match=r"pyautoattack cannot be imported .*interop\.md"):
        interop.from_autoattack(Threat("linf", 0.1))
