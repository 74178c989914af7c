"""Inputs that are unusual but right, and inputs that are wrong: a right answer or one clear sentence."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.attacks.cases import NORMS, attack, attacks_for, case, convnet, digits, found, mlp, quadrants
from tests.attacks.planted import linear, planted
from tests.attacks.test_search import NotANumber, Quantized
from torch import nn

from randens import RandomizedEnsemble, Threat, attacks
from randens.core.errors import InputError, ModelError

EVERY = attacks_for("convnet")
SOME = ("pgd", "acw", "apgd", "arc-r", "saddle", "lattice", "random", "eot")


@pytest.mark.parametrize("name", ["pgd", "arc-r", "saddle", "random"])
def test_layouts_and_strides_do_not_matter(name: str) -> None:
    given, expected = case("convnet", "linf"), found(name, "linf", "convnet")
    wide = torch.zeros(len(given.x), 1, 8, 16)
    wide[..., ::2] = given.x
    for x in (given.x.contiguous(memory_format=torch.channels_last), wide[..., ::2]):
        result = attack(name, given.threat)(given.rec, x, given.y.to(torch.int32))
        assert torch.equal(result.x_adv, expected.x_adv)
        assert torch.equal(result.errors, expected.errors)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["pgd", "apgd", "arc-r", "saddle", "random"])
def test_float64_inputs_of_float32_members_are_legal_around_what_was_given(name: str, norm: str) -> None:
    given = case("convnet", norm)
    generator = torch.Generator().manual_seed(3)
    x = (given.x.double() + 1e-3 * torch.rand(given.x.shape, generator=generator)).clamp(0, 1)
    x[0, 0, 0, 0] = 1 - 1e-12  # rounds to 1, the end of the box
    result = attack(name, given.threat)(given.rec, x, given.y)
    assert result.x_adv.dtype == torch.float32
    assert given.threat.contains(result.x_adv, x).all()
    assert torch.equal(given.rec.errors(result.x_adv, given.y), result.errors)


@pytest.mark.parametrize("name", ["adaptive-pgd-s", "arc", "saddle", "random", "fgsm"])
def test_members_of_different_precision(name: str) -> None:
    x, y = quadrants(6)
    rec = RandomizedEnsemble([mlp(0), copy.deepcopy(mlp(1)).double()])
    result = attack(name, Threat("linf", 0.4, None))(rec, x, y)
    assert torch.equal(rec.errors(result.x_adv, y), result.errors)
    assert float(result.risk.mean()) > 0


def test_an_eps_below_the_rounding_of_the_inputs_is_refused() -> None:
    x, y = quadrants(4)
    with pytest.raises(InputError, match=r"eps is 1e-12; rounding x from torch.float64"):
        attack("pgd", Threat("linf", 1e-12, None))(mlp(0), x.double() + 1e-9, y)


@pytest.mark.parametrize("name", SOME)
def test_batches_of_one_and_none(name: str) -> None:
    given, made = case("convnet", "l2"), attack(name, case("convnet", "l2").threat)
    result = made(given.rec, given.x[:1], given.y[:1])
    assert torch.equal(given.rec.errors(result.x_adv, given.y[:1]), result.errors)
    assert given.threat.contains(result.x_adv, given.x[:1]).all()
    result = made(given.rec, given.x[:0], given.y[:0])
    assert result.x_adv.shape == (0, 1, 8, 8)
    assert result.errors.shape == result.clean_errors.shape == (0, 2)
    assert (result.robust_accuracy, len(result), len(result.pool), result.sources) == (1.0, 0, 0, ())
    assert result.flags == {name: [0.0, 0.0] for name in ("zero_gradient", "nan_gradient", "unstable")}


@pytest.mark.parametrize("name", EVERY)
def test_members_all_wrong_on_the_clean_inputs(name: str) -> None:
    given = case("convnet", "linf", n=6)
    wrong = (given.rec.verdicts(given.x)[:, 0] + 1) % 10
    wrong = torch.where(given.rec.verdicts(given.x)[:, 1] == wrong, (wrong + 1) % 10, wrong)
    result = attack(name, given.threat)(given.rec, given.x, wrong)
    assert torch.equal(result.risk, torch.ones(6, dtype=torch.float64))
    assert torch.equal(result.x_adv, given.x)
    assert set(result.sources) == {"clean"}
    assert result.cost.backwards == 0


@pytest.mark.parametrize("name", [*SOME, "adaptive-pgd-z", "exact"])
def test_two_classes_have_fewer_boundaries_than_asked_for(name: str) -> None:
    made = planted("l2", n=6, members=2, d=6)
    options = {"boundaries": 5} if name in ("arc", "arc-r", "saddle") else {}
    result = attack(name, made.threat, **options)(made.rec, made.x, made.y)
    assert torch.equal(made.rec.errors(result.x_adv, made.y), result.errors)
    # The mean over two opposed members has no slope between them: attacks on a mean of logits or of margins find
    # nothing, as they should.
    assert bool((result.risk > 0).any()) == (name not in ("adaptive-pgd-z", "acw"))


@pytest.mark.parametrize("name", [*SOME[:-2], "adaptive-pgd-s", "eot"])
def test_members_without_usable_gradients_are_flagged_and_the_others_are_still_attacked(name: str) -> None:
    x, y = quadrants(24)
    threat = Threat("linf", 0.4, None)
    wrong = RandomizedEnsemble([mlp(0), mlp(1)]).errors(x, y).any(dim=1)
    x, y = x[~wrong], y[~wrong]
    options = {"steps": 5} if "steps" in attacks.create(name, threat).__dataclass_fields__ else {}
    healthy = attack(name, threat, **options)(mlp(0), x, y)
    assert healthy.flags["zero_gradient"] == healthy.flags["nan_gradient"] == [0.0]
    for broken, flag in ((Quantized(mlp(1)), "zero_gradient"), (NotANumber(mlp(1)), "nan_gradient")):
        rec = RandomizedEnsemble([mlp(0), broken])
        result = attack(name, threat, **options)(rec, x, y)
        other = "nan_gradient" if flag == "zero_gradient" else "zero_gradient"
        assert result.flags[flag][1] > 0.5, flag
        assert result.flags[flag][0] == 0.0
        assert result.flags[other][0] == 0.0
        # The healthy member is still fooled where one step on it alone fools it.
        alone, together = healthy.errors[:, 0], torch.from_numpy(result.pool.foolable[:, 0])
        assert float(together.double().mean()) >= 0.7 * float(alone.double().mean()), flag


@pytest.mark.parametrize("name", ["pgd", "saddle"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: ((x * 255).to(torch.uint8), y), r"x has dtype torch.uint8; inputs must be"),
        (lambda x, y: (x + 1, y), r"x ranges over \[1, 2\], and inputs must lie in \[0, 1\]"),
        (lambda x, y: (x * torch.nan, y), r"x holds NaN or infinite values"),
        (lambda x, y: (x, y + 10), r"y holds labels from 1\d to 1\d; the members have 10"),
        (lambda x, y: (x, y[:-1]), r"y has shape \(3,\); it must be \[4\]"),
        (lambda x, y: (x, y.float()), r"y is torch.float32 \(4,\); give integers"),
        (lambda x, y: (x, y.tolist()), r"x is Tensor and y is list; both must be tensors"),
        (lambda x, y: (x.to_sparse(), y), r"x and y are torch.sparse_coo .*; both must be dense"),
        (lambda x, y: (x, y.to("meta")), r"and torch.strided torch.int64 on meta; both must be dense"),
        (lambda x, y: (x.flatten(1)[:, 0], y), r"x has shape \(4,\); it must be \[n, \.\.\.\]"),
    ],
)
def test_wrong_inputs_are_refused(name: str, change: object, message: str) -> None:
    x, y = (t[:4] for t in digits("test"))
    assert callable(change)
    x, y = change(x, y)
    made, rec = attack(name, Threat("linf", 0.1)), RandomizedEnsemble([convnet(0)])
    with pytest.raises(InputError, match=message):
        made(rec, x, y)
    if isinstance(y, torch.Tensor):
        with pytest.raises(InputError, match=message):
            made.run(rec, (x, y))


def test_members_that_disagree_or_answer_nonsense_are_refused() -> None:
    x, y = quadrants(4)
    threat = Threat("linf", 0.1, None)
    with pytest.raises(ModelError, match=r"member 1 returned \d logits, and \d were returned before"):
        attack("pgd", threat)(RandomizedEnsemble([mlp(0), nn.Linear(3, 3)]), x, y % 3)
    with pytest.raises(
        ModelError, match=r"member 0 returned shape \(2, 6\) for 4 inputs; a member returns logits"
    ):
        attack("pgd", threat)(nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (2, 6))), x, y)
    bad = linear(torch.full((4, 3), torch.inf), torch.zeros(4))
    with pytest.raises(ModelError, match=r"members \[1\] return NaN or infinite logits"):
        attack("pgd", threat)(RandomizedEnsemble([mlp(0), bad]), x, y)
    far = linear(3e38 * torch.eye(4, 3), torch.eye(4)[3])  # finite on the inputs alone
    with pytest.raises(ModelError, match="member 0 returns NaN or infinite logits"):
        attack("pgd", Threat("linf", 20.0, None))(far, torch.zeros(4, 3), torch.full((4,), 3))
    with pytest.raises(InputError, match=r"rec is str; give a RandomizedEnsemble or a torch\.nn\.Module"):
        attack("pgd", threat)("resnet", x, y)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arcr", {}, "unknown attack 'arcr'; did you mean arc-r"),
        ("pgd", {"step_size": 1}, "unknown option of attack 'pgd' 'step_size'; did you mean step"),
        ("pgd", {"steps": 0}, "steps is 0; it must be a whole number from 1 to 1000000"),
        ("pgd", {"steps": 10**9}, "steps is 1000000000; it must be a whole number from 1"),
        ("pgd", {"seed": 10**30}, "seed is 1"),
        ("saddle", {"kappa": 10**400}, "kappa is 1"),
        ("saddle", {"kappa": -0.1}, "kappa is -0.1; it must be a number from 0 to 10"),
        ("saddle", {"give_up": float("nan")}, "give_up is nan; it must be a number or"),
        ("arc", {"shuffle": "yes"}, "shuffle is 'yes'; it must be True or False"),
        ("apgd", {"loss": "softmx"}, "unknown loss 'softmx'; did you mean softmax"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        attacks.create(name, Threat("linf", 0.1), **options)


def test_a_threat_is_needed_and_checked() -> None:
    with pytest.raises(InputError, match=r"threat is 0\.1; give a Threat"):
        attacks.create("pgd", 0.1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the attack 'pgd' needs a threat"):
        attacks.create("pgd")
    assert attacks.create("pgd", eps="8/255", norm="L2").threat == Threat("l2", 8 / 255)


def test_exact_refuses_what_is_not_linear() -> None:
    given = case("convnet", "linf")
    with pytest.raises(InputError, match=r"a member \(.*\) is not linear in its input"):
        attack("exact", given.threat)(given.rec, given.x, given.y)
    many = RandomizedEnsemble([nn.Linear(3, 2) for _ in range(11)])
    with pytest.raises(InputError, match="there are 11 members; the exact attack takes at most 10"):
        attack("exact", Threat("linf", 0.1, None))(many, torch.rand(4, 3), torch.zeros(4, dtype=torch.int64))
