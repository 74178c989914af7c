"""Attacks of other packages, against the packages themselves.

Laws: they find the optimum for one linear member, where it is known, never leave the threat, never return worse
than the clean point, give the same bits for the same seed, and leave everything outside as they found it.
"""

from __future__ import annotations

import importlib
import random
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


def test_the_view_is_the_mixture_of_those_that_can_be_drawn() -> None:
    given = case("zero-weight", "linf")
    s = attacks.Search(given.rec, given.x, given.y, given.threat)
    view = View(s, [0, 2])
    assert torch.allclose(view(given.x), given.rec.mixture(given.x), atol=1e-6)
    assert torch.equal(View(s, [1])(given.x), given.rec.members[1](given.x))
    unit = View(s, [0, 2], unit=True)
    shown = unit.show(given.x)
    assert shown.shape == (8, 3, 1, 1)
    assert float(shown.min()) >= 0
    assert float(shown.max()) <= 1
    assert torch.allclose(unit(shown).double(), view(given.x).double(), atol=1e-5)
    assert [p.shape for p in view.parameters()] == [torch.Size([])]


def test_the_view_of_confident_members_keeps_its_gradient() -> None:
    """log Σ softmax would underflow to a gradient of NaN; the sign of NaN moves nothing."""
    x = torch.rand(4, 5, generator=torch.Generator().manual_seed(2))
    members = [
        linear(1000 * torch.randn(3, 5, generator=torch.Generator().manual_seed(i)), torch.zeros(3))
        for i in (0, 1)
    ]
    s = attacks.Search(RandomizedEnsemble(members), x, torch.zeros(4, dtype=torch.int64), Threat("linf", 0.1))
    inputs = x.clone().requires_grad_()
    z = View(s, [0, 1])(inputs)
    unlikely = z.detach().argmin(dim=1)
    assert (
        float(z.detach().gather(1, unlikely.unsqueeze(1)).max()) < -150
    )  # far below the smallest float's logarithm
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(z, unlikely), inputs)
    assert bool(torch.isfinite(z).all())
    assert bool(torch.isfinite(gradient).all())
    assert bool((gradient != 0).any(dim=1).all())


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


def _wrong() -> list[tuple[Callable[[], object], str]]:
    foolbox, torchattacks, art = package("foolbox"), package("torchattacks"), package("art")
    threat = Threat("linf", 0.1)
    pgd = foolbox.attacks.LinfPGD
    bound = torchattacks.PGD(nn.Linear(2, 2))
    return [
        (lambda: interop.from_foolbox(pgd, threat), "attack is the class .*; give an instance"),
        (lambda: interop.from_foolbox("pgd", threat), "attack is 'pgd'; give a Foolbox attack"),
        (lambda: interop.from_foolbox(foolbox.attacks.L2PGD(), threat), "measures l2; the threat is linf"),
        (lambda: interop.from_foolbox(pgd(), 0.1), r"threat is 0\.1; give a Threat"),  # type: ignore[arg-type]
        (lambda: interop.from_foolbox(pgd(), threat, target="all"), "unknown target 'all'; valid: both"),
        (lambda: interop.from_foolbox(pgd(), threat, restarts=0), "restarts is 0; it must be"),
        (
            lambda: interop.from_torchattacks(bound, threat),
            "attack is a PGD made for one model; give the class",
        ),
        (lambda: interop.from_torchattacks(pgd(), threat), "give a class such as torchattacks.PGD"),
        (
            lambda: interop.from_torchattacks(torchattacks.PGD, threat, eps=1),
            "eps is 1 in the options; leave it out",
        ),
        (
            lambda: interop.from_torchattacks(torchattacks.PGD, threat, step=3),
            "unknown option of PGD 'step'; valid: steps",
        ),
        (
            lambda: interop.from_torchattacks(torchattacks.PGDL2, threat),
            "attack is PGDL2, which measures l2; the threat is linf",
        ),
        (
            lambda: interop.from_torchattacks(torchattacks.MIFGSM, Threat("l2", 0.5)),
            "attack is MIFGSM, which measures linf; the threat is l2",
        ),
        (lambda: interop.from_art(torchattacks.PGD, threat), "give a class such as art.attacks.evasion"),
        (
            lambda: interop.from_art(art.ProjectedGradientDescent, threat, targeted=True),
            "targeted is True in the options; leave it out",
        ),
        (lambda: interop.from_art(art.ProjectedGradientDescent, threat, iters=3), "valid: max_iter"),
        (
            lambda: interop.from_autoattack(threat, version="rand"),
            "unknown version 'rand'; valid: standard, plus",
        ),
        (lambda: interop.from_autoattack(threat, attacks="apgd-ce"), "attacks is 'apgd-ce'; give a list"),
        (lambda: interop.from_autoattack(threat, attacks=["apgd"]), "unknown part of AutoAttack 'apgd'"),
        (lambda: interop.from_autoattack(threat, steps=0), "steps is 0; it must be a whole number"),
    ]


@pytest.mark.parametrize("number", range(19))
def test_what_is_wrong_is_said_in_one_sentence(number: int) -> None:
    cases = _wrong()
    assert len(cases) == 19
    attempt, message = cases[number]
    with pytest.raises(InputError, match=message) as raised:
        attempt()
    assert "\n" not in str(raised.value)


def test_autoattack_says_which_parts_fit_few_classes_and_vectors() -> None:
    package("autoattack")
    two = planted("linf", n=4, members=1)
    with pytest.raises(
        InputError, match=r"apgd-t takes 4 classes or more, the members have 2; give attacks=\['apgd-ce'"
    ):
        interop.from_autoattack(two.threat)(two.rec, two.x, two.y)
    four = planted("l2", n=4, members=1, classes=4)
    with pytest.raises(InputError, match="square needs images of at least 3 × 3 pixels in l2"):
        interop.from_autoattack(four.threat)(four.rec, four.x, four.y)


def test_what_a_package_cannot_do_is_its_own_message_with_ours() -> None:
    given = planted("linf", n=4, members=1)
    square = interop.from_art(package("art").SquareAttack, given.threat)
    with pytest.raises(
        ModelError, match=r"art SquareAttack\(\) failed on \d inputs of shape \(20,\): ValueError: .*image"
    ):
        square(given.rec, given.x, given.y)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyautoattack", None)
    with pytest.raises(
        ModelError, match=r"from_autoattack needs pyautoattack, which cannot be imported .*interop\.md"
    ):
        interop.from_autoattack(Threat("linf", 0.1))
