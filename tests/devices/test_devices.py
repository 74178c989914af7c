"""Members on another device: the attacks and the evaluation keep their tensors together and bring results back.

No GPU is needed: `elsewhere` is a device that holds numbers and refuses any mix with the CPU.
"""

from __future__ import annotations

import ast
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacks.cases import convnet, digits
from tests.devices.elsewhere import AWAY, Elsewhere, Mixed
from torch import nn

import randens
from randens import RandomizedEnsemble, Threat, attacks, models
from randens.core.errors import InputError

ROOT = Path(__file__).parents[2] / "src" / "randens"
THREATS = (Threat("linf", 0.1), Threat("l2", 0.7))


def ensemble() -> RandomizedEnsemble:
    return RandomizedEnsemble([copy.deepcopy(convnet(seed)) for seed in (0, 1)])


def test_the_device_of_these_tests_refuses_mixtures() -> None:
    with Elsewhere():
        there = torch.rand(3, 2).to(AWAY)
        assert there.device == AWAY
        assert float((there + 1).cpu().min()) >= 1
        with pytest.raises(Mixed):
            there + torch.rand(3, 2)
        with pytest.raises(Mixed):
            torch.cat([there, torch.rand(3, 2)])
        with pytest.raises(RuntimeError):
            there.numpy()
        assert (there * torch.tensor(2.0)).device == AWAY  # single numbers travel


@pytest.mark.parametrize("threat", THREATS, ids=["linf", "l2"])
@pytest.mark.parametrize("name", [n for n in attacks.names() if n != "exact"])
def test_attacks_run_on_another_device_as_on_the_cpu(name: str, threat: Threat) -> None:
    x, y = (t[:4] for t in digits("test"))
    # Every step of an attack is taken, but few times: the device of these tests is slow.
    few = {"steps": 3, "queries": 12, "restarts": 1, "relinearisations": 2, "iterations": 5, "preset": "fast"}
    fields = attacks.create(name, threat).__dataclass_fields__
    attack = attacks.create(
        name, threat, precision="float32", **{k: v for k, v in few.items() if k in fields}
    )
    rec = ensemble()
    here = attack(rec, x, y)
    with Elsewhere():
        rec.to(AWAY)
        there = attack(rec, x, y)
        rec.to("cpu")
    assert there.x_adv.device.type == there.errors.device.type == there.risk.device.type == "cpu"
    assert torch.equal(there.errors, here.errors)
    torch.testing.assert_close(there.x_adv, here.x_adv)
    assert there.pool.risk([0.5, 0.5]) == here.pool.risk([0.5, 0.5])


def test_evaluate_moves_members_there_and_back_and_results_to_the_cpu() -> None:
    x, y = (t[:4] for t in digits("test"))
    rec = ensemble()
    pgd = attacks.create("pgd", Threat("linf", 0.1), steps=3)
    here = randens.evaluate(rec, (x, y), pgd, device="cpu")
    with Elsewhere():
        there = randens.evaluate(rec, (x, y), pgd, device=AWAY)
        assert rec.device.type == "cpu"
        found = randens.curve(rec, (x, y), [0, 0.1], pgd, device=AWAY)
    assert float(there.robust) == float(here.robust)
    assert (there.errors == here.errors).all()
    assert float(found.points[1].ensemble) == float(here.robust)


def test_sampling_and_drawing_on_another_device() -> None:
    x, y = (t[:8] for t in digits("validation"))
    rec = ensemble()
    attack = attacks.create("pgd", Threat("linf", 0.1), steps=3)
    with Elsewhere():
        rec.to(AWAY)
        best = randens.optimize_sampling(rec, (x, y), attack, max_sweeps=2)
        assert rec(x.to(AWAY)).device == AWAY
        assert rec.risk(x, y).device == AWAY
        rec.to("cpu")
    assert abs(best.probs.sum() - 1) < 1e-12


def test_a_member_left_behind_is_noticed() -> None:
    x, y = (t[:4] for t in digits("test"))
    with Elsewhere():
        rec = RandomizedEnsemble([copy.deepcopy(convnet(0)).to(AWAY), convnet(1)])
        with pytest.raises(InputError, match="several devices, cpu, meta; say with device="):
            randens.evaluate(rec, (x, y), "pgd", eps=0.1)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "gpu", "cuda:x", 3.5])
def test_devices_that_are_not_there_are_named(name: object) -> None:
    if torch.cuda.is_available() and str(name).startswith("cuda"):
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match="device is"):
        models.pick_device(name)  # type: ignore[arg-type]


def test_every_gpu_is_found_by_name_and_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert models.pick_device("auto") == models.pick_device(None) == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert models.pick_device("cuda") == torch.device("cuda", 1)
    assert models.pick_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(InputError, match="torch sees 2 CUDA devices, cuda:0 to cuda:1"):
        models.pick_device("cuda:2")


def test_batches_for_a_gpu_go_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        called.append("pinned")
        return tensor

    def move(tensor: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
        called.append((where, how))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", move)
    models.send(torch.zeros(2), torch.device("cuda", 0))
    assert called == ["pinned", ((torch.device("cuda", 0),), {"non_blocking": True})]


MAKERS = {
    "zeros",
    "ones",
    "full",
    "empty",
    "arange",
    "tensor",
    "rand",
    "randn",
    "randperm",
    "eye",
    "linspace",
}
HOT: tuple[str, ...] = (
    "ensemble.py",
    "threat.py",
    "attacks/search.py",
    "attacks/gradient.py",
    "attacks/climbers.py",
    "attacks/arc.py",
)
HOT += (
    "attacks/game.py",
    "attacks/random_search.py",
    "attacks/losses.py",
    "attacks/suite.py",
    "attacks/members.py",
)
HOT += (
    "evaluation/preparation.py",
    "evaluation/curves.py",
    "evaluation/as_ensemble.py",
    "evaluation/worst_case.py",
)
# Made on the CPU on purpose: from a CPU generator, so that random numbers do not depend on the device; or results.
ON_THE_CPU = {
    ("ensemble.py", "check_probs"),
    ("ensemble.py", "draw"),
    ("threat.py", "random"),
    ("attacks/search.py", "__init__"),
    ("attacks/search.py", "uniform"),
    ("attacks/search.py", "ranks"),
    ("attacks/search.py", "order"),
}


@pytest.mark.parametrize("name", HOT)
def test_no_tensor_is_made_without_a_device(name: str) -> None:
    path = ROOT / name
    if not path.is_file():
        pytest.skip("the file has gone elsewhere")
    found = []
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            owner = call.func.value
            makes = isinstance(owner, ast.Name) and owner.id == "torch" and call.func.attr in MAKERS
            if makes and not any(k.arg == "device" for k in call.keywords):
                found.append((function.name, call.lineno))
    assert [(f, line) for f, line in found if (name, f) not in ON_THE_CPU] == []


def test_half_precision_and_unusual_layouts_come_back_as_they_were() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with models.on_device(net, "cpu") as device:
        assert device.type == "cpu"
    assert next(net.parameters()).device.type == "cpu"
