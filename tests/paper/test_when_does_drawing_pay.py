"""The study: its plan is consistent, its judge agrees with planted ensembles, its page with planted results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paper.when_does_drawing_pay import averages, final, moved, page, plan, trained, work
from paper.when_does_drawing_pay.figures import write_figures
from torch import nn

import randens


def _plane(slope: list[float], offset: float) -> nn.Module:
    """Two classes; the margin of class 0 is slope·x + offset."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([slope, [0.0, 0.0]]))
        layer.bias.copy_(torch.tensor([offset, 0.0]))
    return nn.Sequential(nn.Flatten(), layer)


def _result(seed: int, alone: list[str], at_once: list[int], members: int = 2) -> dict[str, Any]:
    fooled = [sum(bit == "1" for bit in row) / len(row) for row in alone]
    return {
        "method": "x",
        "members": members,
        "seed": seed,
        "inputs": len(at_once),
        "passes": 2_000_000,
        "pooled": {
            "members": [1 - f for f in fooled],
            "drawn": 1 - sum(at_once) / members / len(at_once),
            "deterministic": 0.75,
        },
        "fooled_at_all": alone,
        "fooled_at_once": at_once,
        "reach": {"all": 0.8, "pairs": 0.9},
    }


def _keep(cell: plan.Cell, result: dict[str, Any]) -> None:
    """As the final comparison does: the ensemble and the single network apart."""
    single = {name: value for name, value in result.items() if name.startswith("single")}
    rest = {name: value for name, value in result.items() if name not in single}
    work.result_of(cell, "test").write_text(json.dumps(rest), encoding="utf-8")
    final.result_of_single(cell).write_text(json.dumps(single), encoding="utf-8")


def test_every_cell_has_a_name_of_its_own_and_a_recipe() -> None:
    names = [cell.name for cell in (*plan.CELLS, *plan.CIFAR)]
    assert len(set(names)) == len(names)
    for cell in (*plan.CELLS, *plan.CIFAR):
        seeds = [member.seed for member in cell.base()]
        apart = 100 if cell.member.data == plan.MOVED else 20
        assert cell.members <= apart  # ensembles of other seeds have other members
        assert seeds == [apart * cell.seed + index for index in range(cell.members)]
        assert cell.member.recipe().method == "at"
        if cell.method not in (*plan.AS_THEY_ARE, "continued"):
            recipe = cell.recipe(["run"] * cell.members)
            assert recipe.method == cell.method
            assert recipe.weight == cell.weight
            assert recipe.sampling.method == "uniform"


def test_mixed_members_cost_in_the_mean_what_the_others_cost() -> None:
    def flops(width: int) -> int:
        network = randens.models.create("mlp", classes=10, input_shape=(1, 8, 8), width=width, depth=2)
        return randens.models.flops(network)

    (cell,) = [cell for cell in plan.CELLS if cell.method == "mixed" and cell.seed == 1]
    widths = [member.width for member in cell.base()]
    assert len(set(widths)) == 3
    assert sum(map(flops, widths)) / len(widths) == pytest.approx(flops(plan.Member().width), rel=0.06)


def test_methods_and_their_control_have_the_same_epochs_and_rate() -> None:
    for cell in plan.CELLS:
        if cell.method in (*plan.AS_THEY_ARE, "continued"):
            continue
        recipe = cell.recipe(["run"] * cell.members)
        if cell.scratch:
            alone = cell.member.recipe()
            assert recipe.first is None
            assert (recipe.epochs, recipe.adversary, recipe.optimizer) == (
                alone.epochs,
                alone.adversary,
                alone.optimizer,
            )
            continue
        boosted = cell.method in plan.BOOSTED
        assert recipe.epochs_of(1 if boosted else 0) == cell.member.further
        assert recipe.lr_of(1) == recipe.lr_of(0) == cell.member.recipe().lr_of(0) / 2


def test_the_judge_sees_the_conflict_of_opposed_members() -> None:
    # One pixel decides: member 0 is fooled below 0.45, member 1 above 0.55; ε = 0.1 reaches either, never both.
    members = [_plane([1.0, 0.0], -0.45), _plane([-1.0, 0.0], 0.55)]
    x = torch.full((4, 1, 1, 2), 0.5)
    y = torch.zeros(4, dtype=torch.long)
    found = work.judged(randens.RandomizedEnsemble(members), x, y, randens.Threat("linf", 0.1), ("saddle",))
    assert found["natural"] == [1.0, 1.0]
    assert found["pooled"]["members"] == [0.0, 0.0]
    assert found["pooled"]["drawn"] == pytest.approx(0.5)
    assert found["attacks"]["saddle"]["drawn"] == pytest.approx(0.5)
    assert found["pooled"]["deterministic"] == 1.0
    assert found["fooled_at_once"] == [1] * 4
    assert found["fooled_at_all"] == ["1111", "1111"]
    assert found["reach"] == {"all": pytest.approx(0.0, abs=1e-6), "pairs": pytest.approx(0.0, abs=1e-6)}


def test_two_of_m_are_judged_as_the_averaging_members_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec = randens.RandomizedEnsemble([_plane([1.0, 0.0], -0.45), _plane([-1.0, 0.0], 0.55)])
    sizes: list[int] = []

    def judge(rec: randens.RandomizedEnsemble, *_: object) -> dict[str, Any]:
        sizes.append(len(rec))
        return {}

    monkeypatch.setattr(work, "RESULTS", tmp_path)
    monkeypatch.setattr(work, "ensemble_of", lambda *_: (rec, 7))
    monkeypatch.setattr(randens.models, "flops", lambda _: 10)
    monkeypatch.setattr(work, "judged", judge)
    cell = plan.Cell(members=2, k=2)
    result = work.compute(cell, tmp_path, say=lambda _: None)
    assert sizes == [1]
    assert (result["members"], result["flops"], result["passes"]) == (1, 20, 7)
    assert cell.run == plan.Cell(members=2).run
    assert cell.name != plan.Cell(members=2).name


def test_equal_members_gain_nothing() -> None:
    members = [_plane([1.0, 0.0], -0.45)] * 2
    x = torch.tensor([0.5, 0.58]).view(2, 1, 1, 1).expand(2, 1, 1, 2).clone()
    y = torch.zeros(2, dtype=torch.long)
    found = work.judged(randens.RandomizedEnsemble(members), x, y, randens.Threat("linf", 0.1), ("saddle",))
    assert found["pooled"]["drawn"] == pytest.approx(0.5 if found["fooled_at_all"][0] == "10" else 0.0)
    assert found["pooled"]["drawn"] == pytest.approx(found["pooled"]["members"][0])
    assert found["reach"]["all"] == pytest.approx(1.0)


def test_drawn_against_the_best_single_network() -> None:
    # Drawn: 1, ½, ½, 1 of the images' weight; the best single network (the second) is right on two of four.
    ensemble = page.Group("x", (_result(0, ["0110", "0111"], [0, 1, 1, 0]),))
    single = page.Group("continued", (_result(0, ["1110", "1100"], [2, 2, 1, 0]),))
    found = page.versus_best(ensemble, single)
    assert found is not None
    mean, low, high, seeds = found
    assert mean == pytest.approx(0.75 - 0.5)
    assert low <= mean <= high
    assert seeds == 1
    other = page.Group("continued", (_result(1, ["1110", "1100"], [2, 2, 1, 0]),))
    assert page.versus_best(ensemble, other) is None


def test_the_page_shows_the_saved_results_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RESULTS", tmp_path)
    (tmp_path / "figures").mkdir()
    page.write_page(tmp_path / "empty.md", {})
    assert "on test data is not computed yet" in (tmp_path / "empty.md").read_text(encoding="utf-8")
    rows = {
        "continued": (["1110", "1100", "1111", "1111"], [4, 4, 2, 1]),
        "bounded-0.5": (["0110", "0111", "0111", "0111"], [0, 2, 2, 0]),
    }
    for cell in plan.CELLS:
        if cell.label in rows and cell.k == 1 and cell.members == plan.MEMBERS:
            alone, at_once = rows[cell.label]
            result = _result(cell.seed, alone, at_once, members=4)
            work.result_of(cell).write_text(json.dumps(result), encoding="utf-8")
    names = write_figures(tmp_path / "figures")
    assert list(names) == ["methods"]
    page.write_page(tmp_path / "page.md", names)
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    # Drawn 1 − 4/16 = 75 %, the best single network 50 %.
    (row,) = [line for line in text.splitlines() if "(`bounded-0.5`)" in line]
    assert "| 75.0 |" in row
    assert "+25.0 (" in row
    assert f"6 of {len(plan.CELLS)} cells" in text
    assert "$" not in text


def test_the_verdict_is_that_of_the_test_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "RESULTS", tmp_path)
    for seed in plan.FINAL_SEEDS:
        # Drawn 75 %; the single network 50 %, in the first two seeds 75 %.
        fooled = "1000" if seed < 2 else "1100"
        result = _result(seed, ["0110"] * 4, [0, 2, 2, 0], members=4) | {
            "single": "a network",
            "single_robust": 1 - fooled.count("1") / 4,
            "single_fooled": fooled,
        }
        _keep(final.finals()[seed], result)
    page.write_page(tmp_path / "page.md", {})
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "reach 75.0 %; the best single network of the same FLOPs reaches 60.0 %" in text
    assert "The difference is +15.0 points" in text
    assert "3 of 5 seeds at 3 points or more. The target, 3 points in 4 of 5 seeds, is missed." in text
    final.result_of_single(final.finals()[4]).unlink()
    page.write_page(tmp_path / "page.md", {})
    assert "Only 4 of 5 seeds are computed so far" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_no_member_is_trained_for_longer_than_the_single_networks() -> None:
    for cell in (*(final.finals(one)[3] for one in plan.FINALS), plan.SMALL_FINALS[1]):
        alone = plan.singles(cell)
        names = [member.name for member in alone]
        assert len(set(names)) == len(names)
        assert {replace(member, seed=0, epochs=0, more=0, by="at") for member in alone} == {
            replace(cell.member, epochs=0)
        }
        total = cell.member.epochs + (0 if cell.scratch else cell.member.further)
        assert total == cell.total
        ways = {(member.epochs + member.more, member.by) for member in alone}
        assert {(total, "at"), (total, "bounded")} < ways
        assert max(epochs for epochs, _ in ways) >= total
        apart = 100 if cell.member.data == plan.MOVED else 20
        assert {member.seed // apart for member in alone} == {cell.seed}


def test_a_cell_with_a_result_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "RESULTS", tmp_path)
    cell = plan.CELLS[0]
    work.result_of(cell).write_text('{"kept": true}', encoding="utf-8")
    assert work.compute(cell, tmp_path / "runs", say=lambda text: pytest.fail(text)) == {"kept": True}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("last", "said"), [(3, "From 200 epochs on"), (2, "no plateau yet")])
def test_the_plateau_is_where_doubling_changes_nothing_any_more(
    last: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members at 1, 1, 3 of 4 for 50 to 200 epochs: equal neighbours before the end are no plateau."""
    monkeypatch.setattr(work, "RESULTS", tmp_path)
    right = {50: 1, 100: 1, 200: 3, 400: 3, 800: last}
    for cell in plan.CELLS:
        if (
            cell.method == "iat"
            and not cell.attacks
            and cell.member == plan.Member(epochs=cell.member.epochs)
            and cell.member.epochs in right
        ):
            fooled = 4 - right[cell.member.epochs]
            result = _result(cell.seed, ["1" * fooled + "0" * (4 - fooled)] * 4, [0, 0, 0, 0], members=4)
            work.result_of(cell).write_text(json.dumps(result), encoding="utf-8")
    page.write_page(tmp_path / "page.md", {})
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert said in text
    assert f"The last lengths differ by +50.0, +0.0, {'+0.0' if last == 3 else '−25.0'} points." in text


def test_ensembles_from_at_are_compared_with_the_best_network_they_start_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RESULTS", tmp_path)
    many = plan.FINAL.members
    # Drawn 75 %; of the networks by AT the best is right on two of four.
    results = {
        plan.FINAL: _result(0, ["0110"] * many, [0, many // 2, many // 2, 0], members=many),
        plan.Cell(member=plan.FINAL.member, members=many): _result(
            0, ["1110"] * (many - 1) + ["1010"], [many] * 4, members=many
        ),
    }
    for cell, result in results.items():
        assert cell in plan.CELLS
        work.result_of(cell).write_text(json.dumps(result), encoding="utf-8")
    page.write_page(tmp_path / "page.md", {})
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert f"start from by +25.0 points from {plan.FINAL.member.epochs} epochs (" in text


def test_the_standard_error_is_the_spread_over_networks_and_images() -> None:
    """Of a table with effects of its rows, of its columns and of neither, drawn again and again."""
    rng = np.random.default_rng(0)
    rows, columns = 6, 20
    drawn = [
        0.3 * rng.standard_normal((rows, 1))
        + 0.5 * rng.standard_normal((1, columns))
        + rng.standard_normal((rows, columns))
        for _ in range(2000)
    ]
    spread = np.std([table.mean() for table in drawn])
    found = np.sqrt(np.mean([page.standard_error(table) ** 2 for table in drawn]))
    assert found == pytest.approx(spread, rel=0.06)


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (
            {200: 1, 400: 2, 800: 3},
            "Every doubling changes AT by 0.5 points or more: no plateau up to 800 epochs.",
        ),
        ({200: 1, 400: 2, 800: 2}, "It is the last doubling: the plateau begins there at the earliest."),
        (
            {200: 1, 400: 2, 800: 2, 1600: 2},
            "No later doubling up to 1600 epochs changes it by 0.5 points or more: the plateau.",
        ),
        (
            {200: 1, 400: 1, 800: 2, 1600: 2},
            "has 200 epochs (+0.0 points, 95 % interval +0.0 to +0.0). It is no plateau, as later doublings change "
            "more: from 400 to 800 epochs +25.0 points.",
        ),
    ],
)
def test_the_plateau_with_copies_is_said_with_its_interval(
    right: dict[int, int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RESULTS", tmp_path)
    for cell in plan.CELLS:
        rights = right.get(cell.member.epochs)
        many = cell.member.data == plan.MOVED and cell.members == plan.MANY
        if rights is not None and many and cell.method == "iat":
            alone = ["1" * (4 - rights) + "0" * rights] * cell.members
            result = _result(cell.seed, alone, [0] * 4, members=cell.members)
            work.result_of(cell).write_text(json.dumps(result), encoding="utf-8")
    steps = page.doublings(plan.MOVED_LONG, data=plan.MOVED, members=plan.MANY)
    assert [(one.short, one.long, one.networks) for one in steps] == [
        (e, 2 * e, plan.MANY * len(plan.SEEDS)) for e in list(right)[:-1]
    ]
    assert [one.change for one in steps] == pytest.approx(np.diff(list(right.values())) / 4)
    page.write_page(tmp_path / "page.md", {})
    assert said in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_the_page_shows_what_members_of_the_zoo_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "RESULTS", tmp_path)
    assert {name for cell in plan.ZOO for name in cell.entries} <= set(randens.zoo.names())
    assert len({cell.name for cell in plan.ZOO}) == len(plan.ZOO)
    first = plan.ZOO[1]
    (twice,) = [cell for cell in plan.ZOO if cell.label == first.label and cell.k == 2]
    drawn = {first: [0, 1, 1, 0], twice: [0, 0, 1, 0]}
    for cell, at_once in drawn.items():
        result = _result(0, ["0110", "0111"], at_once) | {"k": cell.k}
        work.result_of(cell).write_text(json.dumps(result), encoding="utf-8")
    page.write_page(tmp_path / "page.md", {})
    (row,) = [
        line for line in (tmp_path / "page.md").read_text().splitlines() if f"`{first.entries[0]}`" in line
    ]
    # Members 50 and 25 %, drawn 1 − 2/8, two of them 1 − 1/8.
    assert row.split(" | ")[1:] == ["37.5", "50.0", "75.0", "87.5", "75.0", "+25.0", "0.80 |"]


def test_the_page_says_what_the_test_images_of_cifar10_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RESULTS", tmp_path)
    cell, other, _ = plan.SMALL_FINALS
    result = _result(0, ["0110", "0111"], [0, 1, 1, 0]) | {"flops": 415_744, "cell": cell.name}
    work.result_of(cell).write_text(json.dumps(result), encoding="utf-8")
    page.write_page(tmp_path / "page.md", {})
    assert "test data is not computed yet" in (tmp_path / "page.md").read_text(encoding="utf-8")
    # Drawn 75 %; the single network is fooled on two of four.
    judged = result | {
        "single": "a network",
        "single_robust": 0.5,
        "single_fooled": "1100",
        "singles": {"a": 1},
    }
    _keep(cell, judged)
    page.write_page(tmp_path / "page.md", {})
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "2 members by `x`, the network on averages (0.4 MFLOPs)" in text
    assert "drawn evenly 75.0 %" in text
    assert "difference +25.0 points" in text
    assert "the interval above 0 is missed" in text  # four images say nothing: the interval holds 0
    assert "under the portfolio, 1 seed:" in text
    # A second seed, whose single network is never fooled: 25 points below it.
    _keep(other, judged | {"single": "another", "single_robust": 1.0, "single_fooled": "0000"})
    page.write_page(tmp_path / "page.md", {})
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "2 seeds: drawn evenly 75.0 %" in text
    assert "(`a network`, `another`, chosen on validation images of 1) 75.0 %" in text
    assert "difference +0.0 points" in text
    assert "by seed +25.0, −25.0" in text


def test_a_network_on_averages_is_one_on_pixels() -> None:
    network = randens.models.create(
        "mlp", classes=3, input_shape=(2, 2, 3), width=4, depth=1, mean=0.4, std=0.3
    )
    wide = averages.spread(network)
    x = torch.rand(5, 2, 8, 12)
    means = torch.nn.functional.avg_pool2d(x, 4)
    assert wide.input_shape == (2, 8, 12)
    assert torch.allclose(wide(x), network(means), atol=1e-5)
    back = averages.gathered(wide)
    assert torch.allclose(back(means), network(means), atol=1e-5)
    # A change of l2 norm ε that moves the averages furthest: the same within each square. They move by ε / 4.
    data = randens.data.from_arrays(x.numpy(), [0, 1, 2, 0, 1])
    step = torch.full_like(x, 0.01)
    moved = averages.averaged(replace(data, stored=x + step)).stored - averages.averaged(data).stored
    assert torch.allclose(
        moved.flatten(1).norm(dim=1), step.flatten(1).norm(dim=1) / averages.SIDE, atol=1e-5
    )


def test_copies_are_moved_a_little_and_are_the_same_every_time() -> None:
    x = torch.zeros(3, 1, 8, 8)
    x[:, :, 2:6, 2:6] = 1.0
    data = randens.data.from_arrays(x.numpy(), [0, 1, 2])
    copies = moved.moved(data)
    assert len(copies) == 3 * moved.COPIES
    assert copies.y.tolist() == [0, 1, 2] * moved.COPIES
    assert torch.equal(copies.stored, moved.moved(data).stored)
    assert copies.stored.min() >= 0
    assert copies.stored.max() <= 1 + 1e-6
    # Less than a pixel: what is two pixels inside the square stays, what is two outside too.
    assert torch.allclose(copies.stored[:, :, 3:5, 3:5], torch.ones(1), atol=1e-5)
    assert copies.stored[:, :, 0].abs().max() <= 1e-6
    apart = (copies.stored - x.repeat(moved.COPIES, 1, 1, 1)).flatten(1).norm(dim=1)
    assert (apart > 0).all()
    assert len(apart.unique()) == len(apart)


def test_an_ensemble_from_random_weights_needs_no_members_before(tmp_path: Path) -> None:
    member = plan.Member(plan.MOVED, width=4, epochs=1)
    cell = plan.Cell("bounded", member, members=2, weight=0.5, scratch=True)
    said: list[str] = []
    trained.prepare([cell], tmp_path, say=said.append)
    assert [path.name for path in tmp_path.iterdir()] == [cell.run]
    rec, passes = trained.ensemble_of(cell, tmp_path)
    assert len(rec) == 2
    assert passes == pytest.approx(2 * 4 * 1257 * moved.COPIES, rel=0.02)
    trained.train_members([replace(member, by="bounded")], tmp_path, say=said.append)
    assert len(said) == 2
    assert (tmp_path / replace(member, by="bounded").name).is_dir()


def test_members_are_trained_once_and_found_again(tmp_path: Path) -> None:
    member = plan.Member(width=4, epochs=2)
    cells = [
        plan.Cell(name, member, members=2, seed=seed) for name in ("iat", "continued") for seed in (0, 1)
    ]
    cells += [plan.Cell("shared", member, members=2, seed=seed, weight=0.5) for seed in (0, 1)]
    alone = replace(member, seed=5).bounded
    said: list[str] = []
    trained.prepare(cells, tmp_path, say=said.append)
    # Four members, the same trained on, and two seeds of the method: each of them side by side.
    assert len(said) == 3
    trained.prepare(cells, tmp_path, say=lambda text: pytest.fail(text))
    for cell in cells:
        rec, passes = trained.ensemble_of(cell, tmp_path)
        assert rec.probs.tolist() == [0.5, 0.5]
        # An epoch of 1257 images takes three steps of the attack and one of training.
        epochs = 2 if cell.method == "iat" else 3
        assert passes == pytest.approx(2 * epochs * 4 * 1257, rel=0.02)
    first = torch.rand(3, 1, 8, 8)
    base, on = (trained.ensemble_of(cell, tmp_path)[0].members[0] for cell in (cells[0], cells[2]))
    assert not torch.equal(base(first), on(first))
    # One network trained on alone brings the network that it starts from.
    trained.train_members([alone], tmp_path, say=said.append)
    before, after = (trained.member_of(tmp_path / one.name) for one in (replace(member, seed=5), alone))
    assert not torch.equal(before(first), after(first))
