"""What to deploy: planted members for which every option's robust accuracy is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.attacks.planted import linear
from tests.evaluation.planted import THREAT, exact, on_a_line
from torch import nn

from randens import RandomizedEnsemble, Threat, attacks
from randens.core.errors import InputError
from randens.evaluation import Advice, Evaluation, advise, evaluate
from randens.evaluation.deployment_advice import AdviceDocument
from randens.report.verdicts import drawing


def opposite(n: int = 60) -> tuple[RandomizedEnsemble, tuple[torch.Tensor, torch.Tensor]]:
    """Two members that no perturbation fools together although each can be fooled everywhere: drawing gains a half."""
    rows = torch.tensor([[[1.0], [0.0]], [[-1.0], [0.0]]])
    rec = RandomizedEnsemble(
        [linear(row, torch.tensor([0.5, 0.0])) for row in rows], threat=Threat("linf", 0.8, None)
    )
    return rec.eval(), (torch.zeros(n, 1), torch.zeros(n, dtype=torch.int64))


def decided() -> Advice:
    rec, data = opposite()
    return advise(rec, data, attacks.create("exact", Threat("linf", 0.8, None)))


def test_members_in_conflict_are_drawn_or_averaged() -> None:
    found = decided()
    by_name = {option.name: option for option in found.options}
    assert by_name["best member, number 0"].accuracy.robust.value == 0.0
    assert by_name["drawn evenly"].accuracy.robust.value == 0.5
    # The two slopes cancel: the average cannot be fooled at all.
    assert by_name["deterministic, all 2"].accuracy.robust.value == 1.0
    assert by_name["deterministic, all 2"].flops == 2 * by_name["drawn evenly"].flops
    assert [(c.compute, c.option) for c in found.choices] == [
        (1, "drawn evenly"),
        (2, "deterministic, all 2"),
    ]
    assert found.choices[0].ahead.value == pytest.approx(0.5)
    assert found.gain.value == pytest.approx(0.5)
    assert found.conflict.reach == 0.0
    assert found.pair == (0, 1)
    assert found.apart is not None
    assert found.apart.value == 1.0
    assert found.apart.low < 1.0
    text = " ".join(found.sentences)
    assert "At 1× compute: drawn evenly." in text
    assert "50.0 points more than the best member" in text
    assert "members 0 and 1" in text


def test_equal_members_gain_nothing_by_drawing() -> None:
    rec, x, y = on_a_line([(1, 0.5)] * 3, [0.1, 0.4, 0.2, 0.6])
    found = advise(rec, (x, y), exact())
    assert {option.name for option in found.options} == {
        "best member, number 0",
        "drawn evenly",
        "2 of 3 averaged",
        "deterministic, all 3",
    }
    values = {option.accuracy.robust.value for option in found.options}
    assert values == {0.5}  # 0.6 is wrong as it is, and 0.4 is within reach of the boundary
    assert found.gain.value == 0
    assert all(choice.option == "best member, number 0" for choice in found.choices)
    assert [choice.compute for choice in found.choices] == [1, 2, 3]
    assert "drawing gains nothing over its members" in " ".join(found.sentences)


def test_what_few_inputs_do_not_settle_is_said() -> None:
    rec, x, y = on_a_line([(1, 0.5)] * 2, [0.1, 0.4, 0.2, 0.6])
    network = on_a_line([(1, 0.7)], [0.0])[0].members[0]
    found = advise(rec, (x, y), exact(), networks={"one network": network})
    assert found.choices[0].option == "best member, number 0"
    assert found.choices[0].reason.startswith(
        "one network has 75.0%, 25.0 points more, but 4 inputs do not settle it"
    )
    assert found.choices[0].reason.endswith("; both are single networks.")


def test_a_one_hot_alpha_draws_nothing_and_says_so() -> None:
    rec, x, y = on_a_line([(1, 0.5), (1, 0.7)], [0.1, 0.4, 0.2, 0.6], [0.0, 1.0])
    found = advise(rec, (x, y), exact())
    assert found.drawn == (1,)
    assert found.sentences[0] == "α selects member 1: nothing is drawn."
    assert not any(option.name == "drawn with α" for option in found.options)


def test_a_given_network_takes_part() -> None:
    rec, data = opposite()
    constant = linear(torch.tensor([[0.0], [0.0]]), torch.tensor([1.0, 0.0]))
    attack = attacks.create("exact", Threat("linf", 0.8, None))
    found = advise(rec, data, attack, networks={"one network": constant.eval()})
    given = next(option for option in found.options if option.kind == "network")
    assert given.accuracy.robust.value == 1.0
    assert found.choices[0].option == "one network"
    with pytest.raises(InputError, match="option already"):
        advise(rec, data, attack, networks={"deterministic, all 2": constant})


class Hollow(nn.Module):
    """Says class 0 except where the second feature is near 0.4; its gradient at 0 is zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = 1 - 2 * (1 - (x[:, 1] - 0.4).abs() / 0.38).clamp_min(0)
        return torch.stack([margin, torch.zeros_like(margin)], dim=1)


def beside_members(network: nn.Module, folder: Path | None = None) -> Advice:
    """Two opposite members that look at the first feature, and a single network, under PGD from the clean input."""
    rows = torch.zeros(2, 2, 3)
    rows[:, 0, 0] = torch.tensor([1.0, -1.0])
    rec = RandomizedEnsemble([linear(row, torch.tensor([0.5, 0.0])) for row in rows]).eval()
    x = torch.zeros(40, 3)
    x[:, 2] = torch.linspace(0, 1, 40)  # only to tell the inputs apart
    data = (x, torch.zeros(40, dtype=torch.int64))
    attack = attacks.create("pgd", Threat("linf", 0.8, None))
    return advise(rec, data, attack, networks={"one network": network.eval()}, folder=folder)


def test_the_passes_of_members_and_single_networks_are_counted_and_said() -> None:
    robust = linear(torch.tensor([[0.01, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0.5, 0.0]))
    found = beside_members(robust)
    assert found.options[-1].accuracy.robust.value == 1.0
    # Every pass through a member counts: alone, together with the other, and in the average.
    networks = found.cost.passes - found.passes["one network"] * found.n
    assert 2 * found.passes["each member"] * found.n <= networks
    assert found.passes["one network"] >= found.passes["each member"] > 40
    counts = ", ".join(f"{name} {count:.0f}" for name, count in found.passes.items())
    assert found.sentences[-1] == f"Attack passes per input: {counts}."
    assert found.to_json()["passes"] == found.passes
    assert list(decided().passes) == ["each member"]
    assert not any("Attack passes" in sentence for sentence in decided().sentences)


def test_passes_of_earlier_commands_count(tmp_path: Path) -> None:
    """Witnesses in the store come from passes on the members, so the single network is given as many."""
    rec, x, y = on_a_line([(1, 0.5), (-1, 0.3)], [0.35, 0.45, 0.4, 0.42])
    rec.eval()
    network = on_a_line([(1, 9.0)], [0.0])[0].members[0]
    attack = attacks.create("pgd", THREAT, steps=3)
    before = advise(rec, (x, y), attack, networks={"one": network})
    evaluate(rec, (x, y), attacks.create("apgd", THREAT, steps=20), folder=tmp_path)
    after = advise(rec, (x, y), attack, networks={"one": network}, folder=tmp_path)
    assert after.passes["each member"] > before.passes["each member"]
    assert after.passes["one"] >= after.passes["each member"]


def test_every_option_is_tested_with_all_perturbations() -> None:
    """An attack that finds little for the average cannot make it look better than what others' witnesses show."""
    rec, x, y = on_a_line([(1, 0.5), (1, 0.55), (1, 0.6)], [0.35, 0.45, 0.2, 0.1])
    weak = attacks.create("fgsm", THREAT)
    found = advise(rec, (x, y), weak)
    values = [o.accuracy.robust.value for o in found.options if o.kind != "member"]
    assert max(values) <= found.options[0].accuracy.robust.value + 1e-12 or found.gain.value > 0


def test_advice_is_written_for_the_report() -> None:
    document = json.loads(json.dumps(decided().to_json(), allow_nan=False))
    note = AdviceDocument.model_validate(document)
    assert [option.k for option in note.options] == [1, 1, 2]
    assert note.sentences == list(decided().sentences)


def one_hot(evaluation: Evaluation) -> Evaluation:
    import dataclasses

    members = evaluation.members
    return dataclasses.replace(
        evaluation,
        probs=np.eye(members)[0],
        points=dataclasses.replace(evaluation.points, worst=evaluation.points.foolable),
    )


def test_the_headline_says_when_nothing_is_drawn_or_gained() -> None:
    rec, data = opposite()
    attack = attacks.create("exact", Threat("linf", 0.8, None))
    drawn = evaluate(rec, data, attack, deterministic=False)
    assert drawing(drawn).startswith(
        "Drawing pays: the ensemble is 50.0 points more robust than its best member alone"
    )
    nothing = drawing(one_hot(drawn))
    assert nothing.startswith("α selects member 0: nothing is drawn.")
    same, x, y = on_a_line([(1, 0.5)] * 2, [0.1, 0.4, 0.2, 0.6])
    even = evaluate(same, (x, y), exact(), deterministic=False)
    assert drawing(even).startswith(
        "Drawing gains nothing: the ensemble is not more robust than its best member alone"
    )
