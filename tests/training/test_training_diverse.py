"""Methods that make members differ: each part on a planted case, each method by the members it must give."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.training.small_runs import small
from torch import Tensor, nn

from randens import models
from randens.attacks.losses import expected_bounded_risk
from randens.core.errors import InputError
from randens.data import load as load_data
from randens.ensemble import load
from randens.threat import Threat
from randens.training import train
from randens.training.adversaries import NFGSM, Start, TrainingPGD, Victims
from randens.training.cost import plan
from randens.training.diversity import (
    RandomPath,
    bounded_risk,
    distilled,
    game_value,
    overlap,
    taught,
    tied_paths,
)
from randens.training.methods import METHODS, Lesson

IDEAS = ("shared", "paths", "features", "conflict", "bounded", "distil")


def _mlp(seed: int) -> models.Classifier:
    return models.create("mlp", classes=3, input_shape=(1, 2, 2), width=6, depth=3, seed=seed)


def _linear(rows: list[list[float]], scale: float = 1.0) -> nn.Module:
    """Two classes; the margin of class 0 is scale·w·x."""
    layer = nn.Linear(len(rows[0]), 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(scale * torch.tensor(rows))
    return nn.Sequential(nn.Flatten(), layer)


# Paths


def test_paths_share_all_but_one_layer_and_its_copies_are_orthogonal() -> None:
    fresh = [_mlp(seed) for seed in range(4)]
    norm = fresh[0].get_parameter("body.layers.5.weight").norm(dim=1)
    paths = tied_paths(fresh)
    own = [
        name
        for name, tensor in paths[0].named_parameters()
        if paths[1].get_parameter(name).data_ptr() != tensor.data_ptr()
    ]
    assert own == ["body.layers.5.weight"]
    assert float(overlap(paths).detach()) < 1e-10
    for path in paths:
        assert torch.allclose(path.get_parameter(own[0]).norm(dim=1), norm, atol=1e-5)
    x = torch.rand(5, 1, 2, 2)
    assert not torch.allclose(paths[0](x), paths[1](x))


def test_overlap_of_equal_copies_is_one() -> None:
    twins = [_mlp(0), _mlp(0)]
    assert float(overlap(twins).detach()) == pytest.approx(1.0)


def test_more_paths_than_dimensions_are_orthogonal_in_blocks() -> None:
    fresh = [
        models.create("mlp", classes=2, input_shape=(1, 1, 1), width=2, depth=2, seed=s) for s in range(5)
    ]
    paths = tied_paths(fresh)
    rows = torch.stack([path.get_parameter("body.layers.3.weight") for path in paths])
    for first in (0, 2):
        assert torch.einsum("ok,ok->o", rows[first], rows[first + 1]).abs().max() < 1e-6


def test_each_step_of_the_attack_meets_one_path() -> None:
    forwards = tuple((lambda x, c=c: torch.full((len(x), 2), float(c))) for c in range(3))
    victims = Victims((nn.Identity(),) * 3, forwards, torch.full((3,), 1 / 3))
    drawn = [
        float(z)
        for path in [RandomPath.among(victims, 5)]
        for z in [path.logits(torch.zeros(1, 1))[0, 0, 0] for _ in range(60)]
    ]
    again = RandomPath.among(victims, 5)
    assert drawn == [float(again.logits(torch.zeros(1, 1))[0, 0, 0]) for _ in range(60)]
    assert {0.0, 1.0, 2.0} == set(drawn)
    assert again.probs.tolist() == [1.0]


# Features


@pytest.mark.parametrize(
    "craft", [TrainingPGD(Threat("linf", 0.1), "loss", 5, 0.05), NFGSM(Threat("linf", 0.1), "loss", 0.1, 2.0)]
)
def test_distilled_inputs_look_like_another_image_and_stay_in_the_ball(craft: TrainingPGD | NFGSM) -> None:
    x = torch.tensor([[0.5, 0.5], [0.52, 0.45]]).view(2, 1, 1, 2)
    start = Start(x, torch.tensor([0, 1]), x.clone())
    order = torch.tensor([1, 0])

    def victim(points: Tensor) -> Tensor:
        return points.flatten(1)

    made = distilled(craft, victim, start, order)
    before = (x - x[order]).square().flatten(1).sum(dim=1)
    after = (made - x[order]).square().flatten(1).sum(dim=1)
    assert (made - x).abs().max() <= 0.1 + 1e-6
    if isinstance(craft, TrainingPGD):
        assert (after < before).all() or float(after.max()) < 0.02
    # A goal far away: every pixel moves as far as it may, towards it.
    far = Start(
        torch.tensor([[0.2, 0.8], [0.8, 0.2]]).view(2, 1, 1, 2),
        start.y,
        torch.tensor([[0.2, 0.8], [0.8, 0.2]]).view(2, 1, 1, 2),
    )
    moved = distilled(craft, victim, far, order)
    assert torch.allclose(moved.flatten(1), torch.tensor([[0.3, 0.7], [0.7, 0.3]]), atol=1e-6)


# The linearised game


def test_game_value_of_planted_linear_members() -> None:
    first, second = _linear([[1.0, 0.0], [0.0, 0.0]]), _linear([[0.0, 1.0], [0.0, 0.0]])
    x = torch.tensor([[0.3, 0.4]]).view(1, 1, 1, 2)
    y = torch.zeros(1, dtype=torch.long)
    # Distances 0.3 and 0.4; in l2 orthogonal gradients keep 1/√2 of ε, in linf disjoint ones keep all of it.
    in_l2, counts = game_value([first, second], x, y, Threat("l2", 0.5))
    assert float(in_l2) == pytest.approx(0.35 / 0.5 - 1 / math.sqrt(2), abs=1e-6)
    assert counts.tolist() == [True]
    in_linf, _ = game_value([first, second], x, y, Threat("linf", 0.5))
    assert float(in_linf) == pytest.approx(0.35 / 0.5 - 1.0, abs=1e-6)
    # No perturbation lowers the margins of both w and −w.
    opposed = _linear([[-1.0, 0.0], [-0.5, 0.0]])
    value, _ = game_value([first, opposed], x, torch.zeros(1, dtype=torch.long), Threat("linf", 0.5))
    assert float(value) == pytest.approx((0.3 - 0.3) / 2 / 0.5 - 0.0, abs=1e-6)


def test_vanishing_gradients_do_not_raise_the_game_value() -> None:
    rows = [[1.0, 0.5], [0.0, 0.0]]
    x, y = torch.tensor([[0.3, 0.4]]).view(1, 1, 1, 2), torch.zeros(1, dtype=torch.long)
    threat = Threat("linf", 0.1)
    loud, _ = game_value([_linear(rows)] * 2, x, y, threat)
    quiet, counts = game_value([_linear(rows), _linear(rows, 1e-3)], x, y, threat)
    assert float(quiet) == pytest.approx(float(loud), rel=1e-4)
    assert counts.tolist() == [True]
    _, dead = game_value([_linear(rows), _linear(rows, 0.0)], x, y, threat)
    assert dead.tolist() == [False]
    _, wrong = game_value([_linear(rows)] * 2, x, torch.ones(1, dtype=torch.long), threat)
    assert wrong.tolist() == [False]


def test_conflict_training_raises_the_game_value_of_its_members() -> None:
    """Descent on the method's penalty alone turns the members' gradients away from each other."""
    torch.manual_seed(0)
    members = [_linear([[1.0, 0.9], [0.0, 0.0]]), _linear([[0.9, 1.0], [0.0, 0.0]])]
    x, y = torch.rand(16, 1, 1, 2) + 0.2, torch.zeros(16, dtype=torch.long)
    threat = Threat("l2", 4.0)
    lesson = Lesson(x, y, [x, x], members, members, [], threat)
    before = float(game_value(members, x, y, threat)[0].mean())
    optimizer = torch.optim.SGD([p for m in members for p in m.parameters()], lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        nothing = METHODS["conflict"]().losses(lambda f, e: (f(e.x_adv).sum(dim=1) * 0, f(e.x_adv)), lesson)
        torch.autograd.backward(torch.stack([losses.mean() for losses, _ in nothing]).sum())
        optimizer.step()
    assert float(game_value(members, x, y, threat)[0].mean()) > before + 0.02


# Bounded risk and distillation


def test_bounded_risk_is_a_sigmoid_of_the_margin() -> None:
    z = torch.tensor([[2.0, 1.0, 0.0], [0.0, 30.0, 1.0]])
    y = torch.tensor([0, 0])
    assert bounded_risk(z, y).tolist() == pytest.approx([1 / (1 + math.e), 1.0])
    both = expected_bounded_risk(torch.stack([z, -z]), y, torch.tensor([0.25, 0.75]))
    expected = 0.25 * bounded_risk(z, y) + 0.75 * bounded_risk(-z, y)
    assert torch.allclose(both, expected)


def test_the_common_examples_descend_the_bounded_risk_and_the_others_the_loss() -> None:
    x, y = torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 2, 0])
    member = _mlp(0)
    lesson = Lesson(x, y, [x], [member], [member], [], Threat("linf", 0.1))
    ((losses, z),) = METHODS["bounded"](0.5).losses(lambda f, e: (torch.full((4,), 7.0), f(e.x_adv)), lesson)
    assert torch.allclose(losses[:2], 4 * bounded_risk(z, y)[:2])
    assert losses[2:].tolist() == [7.0, 7.0]


def test_a_misclassified_input_has_a_smaller_gradient_than_an_undecided_one() -> None:
    z = torch.tensor([[0.0, 0.5], [0.0, 12.0]], requires_grad=True)
    torch.autograd.backward(bounded_risk(z, torch.tensor([0, 0])).sum())
    assert z.grad is not None
    assert z.grad[0].norm() > 1000 * z.grad[1].norm()


def test_the_distillation_loss_is_zero_exactly_where_the_teachers_agree() -> None:
    mean = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    assert taught(mean + 5.0, mean).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert float(taught(torch.zeros(1, 2), torch.tensor([[math.log(3.0), 0.0]]))) == pytest.approx(
        0.75 * math.log(1.5) + 0.25 * math.log(0.5), abs=1e-6
    )


# Methods in the engine


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("members")
    for seed in (0, 1):
        train(small(seed=seed, epochs=6), folder / f"at-{seed}")
    return [str(folder / f"at-{seed}") for seed in (0, 1)]


@pytest.mark.parametrize("method", IDEAS)
def test_methods_train_from_given_members_and_change_them(
    method: str, runs: list[str], tmp_path: Path
) -> None:
    rec = train(
        small(method=method, members=2, first=runs, epochs=1, sampling={"method": "uniform"}),
        tmp_path / "run",
    )
    assert len(rec) == 2
    for member, run in zip(rec.members, runs, strict=True):
        before = load(Path(run) / "ensemble").members[0].state_dict()
        moved = max(float((member.state_dict()[key] - value).abs().max()) for key, value in before.items())
        assert 0 < moved < 10
    x, _ = load_data("digits", "validation")[:100]
    assert not torch.equal(rec.members[0](x), rec.members[1](x))


def test_paths_end_as_members_that_share_a_trunk(tmp_path: Path) -> None:
    recipe = small(method="paths", members=3, model={"name": "mlp", "width": 16, "depth": 2}, epochs=2)
    rec = train(recipe, tmp_path / "run")
    states = [member.state_dict() for member in rec.members]
    differ = [key for key in states[0] if not torch.equal(states[0][key], states[1][key])]
    assert differ == ["body.layers.3.weight"]
    # One network's passes, whatever the number of paths.
    (one,) = plan(small(epochs=2))
    (three,) = plan(recipe)
    assert three.work == one.work


def test_paths_continue_bit_for_bit(tmp_path: Path) -> None:
    recipe = small(method="paths", members=2, epochs=2, ema=0.9, checkpoint={"seconds": 0})
    whole = train(recipe, tmp_path / "whole")
    steps = iter(range(100))
    with pytest.raises(Exception, match="stopped"):
        train(recipe, tmp_path / "cut", stop=lambda: next(steps) == 8)
    again = train(recipe, tmp_path / "cut")
    for a, b in zip(whole.members, again.members, strict=True):
        assert all(torch.equal(a.state_dict()[key], b.state_dict()[key]) for key in a.state_dict())


def test_distillation_brings_members_closer_to_their_teachers(runs: list[str], tmp_path: Path) -> None:
    rec = train(
        small(method="distil", members=2, first=runs, epochs=8, optimizer={"lr": 0.05}), tmp_path / "run"
    )
    x, _ = load_data("digits", "train")[:400]
    teachers = [load(Path(run) / "ensemble").members[0].eval() for run in runs]
    with torch.no_grad():
        mean = torch.stack([teacher(x) for teacher in teachers]).mean(dim=0)
        before = sum(float(taught(teacher(x), mean).mean()) for teacher in teachers)
        after = sum(float(taught(member.eval()(x), mean).mean()) for member in rec.members)
    assert after < before


def test_half_of_the_examples_of_features_are_the_members_own() -> None:
    threat, generator = Threat("linf", 0.1), torch.Generator().manual_seed(0)
    x = torch.rand(8, 1, 2, 2, generator=generator)
    y = torch.randint(3, (8,), generator=generator)
    members = [_mlp(seed).eval() for seed in range(2)]
    victims = Victims.of(members, torch.tensor([0.5, 0.5]))
    craft = TrainingPGD(threat, "loss", 3, 0.05)
    start = Start(x, y, x.clone(), seed=4)
    made = METHODS["features"]().examples(craft, victims, start, [0, 1])
    for index in range(2):
        own = craft.craft(victims.only(index), start)
        same = [bool(torch.allclose(a, b, atol=1e-6)) for a, b in zip(made[index], own, strict=True)]
        assert same[::2] == [True] * 4
        assert not all(same)
        assert float((made[index] - x).abs().max()) <= 0.1 + 1e-6


def test_the_share_of_common_examples_leads_from_iat_to_joint() -> None:
    threat, generator = Threat("linf", 0.1), torch.Generator().manual_seed(0)
    x = torch.rand(8, 1, 2, 2, generator=generator)
    start = Start(x, torch.randint(3, (8,), generator=generator), x.clone(), seed=4)
    victims = Victims.of([_mlp(seed).eval() for seed in range(2)], torch.tensor([0.5, 0.5]))
    craft = TrainingPGD(threat, "softmax", 3, 0.05)
    common = craft.craft(victims, start)
    for weight, count in ((0.0, 0), (0.25, 2), (1.0, 8)):
        made = METHODS["shared"](weight).examples(craft, victims, start, [0, 1])
        for index in range(2):
            own = craft.craft(victims.only(index), start)
            assert torch.equal(made[index][:count], common[:count])
            assert torch.equal(made[index][count:], own[count:])


def test_the_weight_of_a_recipe_reaches_its_method() -> None:
    assert METHODS["conflict"](0.125).weight == 0.125
    assert METHODS["conflict"]().weight == METHODS["conflict"].weight
    assert small(method="conflict", members=2, weight=0.125).weight == 0.125


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "distil", "members": 2, "first": "somewhere"}, "needs all 2 members as teachers"),
        ({"method": "features"}, "needs at least 2"),
        ({"method": "shared", "members": 2, "weight": 1.5}, "share of the batch"),
        ({"method": "iat", "members": 2, "weight": 0.5}, "has no weight"),
        ({"method": "bounded", "members": 2, "start": "previous"}, "trains all members at once"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        small(**changes)
