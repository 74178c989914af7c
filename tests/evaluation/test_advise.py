"""What to deploy: planted members for which every option's robust accuracy is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.attacks.planted import linear
from tests.evaluation.evaluated import evaluate
from tests.evaluation.planted import THREAT, exact, on_a_line

from randens import RandomizedEnsemble, Threat, advise, attacks
from randens.core.errors import InputError
from randens.evaluation import Advice


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
    assert by_name["sampled uniformly"].accuracy.robust.value == 0.5
    # The two slopes cancel: the average cannot be fooled at all.
    assert by_name["average of all 2"].accuracy.robust.value == 1.0
    assert by_name["average of all 2"].flops == 2 * by_name["sampled uniformly"].flops
    assert [(c.compute, c.option) for c in found.choices] == [
        (1, "sampled uniformly"),
        (2, "average of all 2"),
    ]
    assert found.choices[0].ahead.value == pytest.approx(0.5)
    assert found.gain.value == pytest.approx(0.5)
    assert found.conflict is not None
    assert found.conflict.reach == 0.0
    text = " ".join(found.sentences())
    assert "At 1× compute: sampled uniformly." in text
    assert "50.0 points more than the best member" in text


def test_equal_members_gain_nothing_by_drawing() -> None:
    rec, x, y = on_a_line([(1, 0.5)] * 3, [0.1, 0.4, 0.2, 0.6])
    found = advise(rec, (x, y), exact())
    assert {option.name for option in found.options} == {
        "best member, number 0",
        "sampled uniformly",
        "average of 2 of 3, sampled",
        "average of all 3",
        "vote of 3, class 1 above 0.5",
    }
    values = {option.accuracy.robust.value for option in found.options}
    assert values == {0.5}  # 0.6 is wrong as it is, and 0.4 is within reach of the boundary
    assert found.gain.value == 0
    assert all(choice.option == "best member, number 0" for choice in found.choices)
    assert [choice.compute for choice in found.choices] == [1, 2, 3]
    assert "sampling gains nothing over its members" in " ".join(found.sentences())


def test_what_few_inputs_do_not_settle_is_said() -> None:
    rec, x, y = on_a_line([(1, 0.5)] * 2, [0.1, 0.4, 0.2, 0.6])
    network = on_a_line([(1, 0.7)], [0.0])[0].members[0]
    found = advise(rec, (x, y), exact(), networks={"one network": network})
    assert found.choices[0].option == "best member, number 0"
    assert found.choices[0].reason.startswith("one network has 75.0% robust")
    assert "4 inputs do not settle it" in found.choices[0].reason


def test_a_given_network_takes_part() -> None:
    rec, data = opposite()
    constant = linear(torch.tensor([[0.0], [0.0]]), torch.tensor([1.0, 0.0]))
    attack = attacks.create("exact", Threat("linf", 0.8, None))
    found = advise(rec, data, attack, networks={"one network": constant.eval()})
    given = next(option for option in found.options if option.kind == "network")
    assert given.accuracy.robust.value == 1.0
    assert found.choices[0].option == "one network"
    with pytest.raises(InputError, match="option already"):
        advise(rec, data, attack, networks={"average of all 2": constant})


def test_attempts_decide_and_are_counted() -> None:
    """Sampling halves the error of the first attempt; of two attempts with fresh draws it is a quarter right."""
    rec, data = opposite()
    attack = attacks.create("exact", Threat("linf", 0.8, None))
    twice = advise(rec, data, attack, attempts=2)
    by_name = {option.name: option.accuracy.robust for option in twice.options}
    assert by_name["sampled uniformly"] == pytest.approx(0.25)
    assert by_name["average of all 2"] == 1.0
    assert twice.survives == float("inf")  # the best member is always fooled
    forever = advise(rec, data, attack, attempts=float("inf"))
    assert {o.name: float(o.accuracy.robust) for o in forever.options}["sampled uniformly"] == 0
    # Members 0 and 1 conflict at .5; member 1 alone resists at .3: one attempt in favor of sampling, two against.
    one, x, y = on_a_line([(1, 0.6), (-1, 0.4)], [0.5, 0.5, 0.62, 0.62, 0.62])
    found = advise(one, (x, y), exact())
    right = np.array([0.5, 0.5, 0.5, 0.5, 0.5])
    assert found.survives == sum((right**q).mean() >= 0.6 - 1e-9 for q in range(1, 20))
    for bad in (0, -1, 1.5):
        with pytest.raises(InputError, match="attempts"):
            advise(rec, data, attack, attempts=bad)


def test_the_best_threshold_vote_is_at_least_as_robust_as_sampling() -> None:
    """With two classes, for every α; and it is `rec.threshold_vote` on the same worst inputs."""
    rec, x, _ = on_a_line([(1, 0.6), (-1, 0.4), (1, 0.5)], [0.1, 0.35, 0.5, 0.55, 0.62, 0.8], [0.5, 0.2, 0.3])
    attack = attacks.create("saddle", THREAT)
    for label in (0, 1):
        y = torch.full((6,), label)
        result = evaluate(rec, (x, y), attack)
        vote = next(o for o in advise(rec, (x, y), attack).options if o.kind == "vote")
        assert (vote.k, vote.accuracy.robust) >= (3, result.robust)
        threshold = float(vote.name.rpartition(" ")[2])
        module = rec.threshold_vote(threshold)
        assert float((module(x).argmax(1) == y).double().mean()) == pytest.approx(vote.accuracy.natural)
        worst = module(torch.from_numpy(result.x_adv)).argmax(1) == y
        assert float(worst.double().mean()) == pytest.approx(vote.accuracy.robust)
    mean = np.mean(
        [(rec.threshold_vote(t)(x).argmax(1) == 1).double().mean() for t in np.linspace(0, 0.999, 200)]
    )
    share = (rec.verdicts(x) == 1).double() @ rec.probs
    assert mean == pytest.approx(float(share.mean()), abs=0.01)
    with pytest.raises(InputError, match="threshold is 1"):
        rec.threshold_vote(1)
