"""Members on another device: attacks and evaluation keep their tensors together and bring results back.

No GPU is needed: `elsewhere` is a device that holds numbers and refuses any mix with the CPU.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.attacks.cases import convnet, digits
from tests.devices.elsewhere import AWAY, Elsewhere, Mixed
from tests.evaluation.evaluated import evaluate

from randens import RandomizedEnsemble, Threat, attacks
from randens.core.devices import on_device, pick_device
from randens.core.errors import InputError

BALLS = (Threat("linf", 0.1), Threat("l2", 0.7), Threat("l1", 3.0))
CASES = [
    pytest.param(name, threat, id=f"{name}-{threat.norm}")
    for name in attacks.names()
    for threat in (BALLS if name in ("pgd", "saddle") else BALLS[:1])
    if name not in ("exact", "finite", "suite", "standard", "thorough")
]


def ensemble() -> RandomizedEnsemble:
    return RandomizedEnsemble([copy.deepcopy(convnet(seed)) for seed in (0, 1)])


def test_the_device_of_these_tests_refuses_mixtures() -> None:
    with Elsewhere():
        there = torch.rand(3, 2).to(AWAY)
        assert float((there + 1).cpu().min()) >= 1
        with pytest.raises(Mixed):
            there + torch.rand(3, 2)
        with pytest.raises(RuntimeError):
            there.numpy()


def test_verdicts_and_attacks_never_use_tf32() -> None:
    switches: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    rec, seen = ensemble(), []
    for member in rec.members:
        member.register_forward_pre_hook(lambda *_: seen.append([switch.allow_tf32 for switch in switches]))
    x, y = (t[:4] for t in digits("test"))
    try:
        for switch in switches:
            switch.allow_tf32 = True
        rec.errors(x, y)
        attacks.create("fgsm", BALLS[0])(rec, x, y)
        assert len(seen) >= 4
        assert not any(map(any, seen))
        assert all(switch.allow_tf32 for switch in switches)
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


@pytest.mark.parametrize(("name", "threat"), CASES)
def test_attacks_run_on_another_device_as_on_the_cpu(name: str, threat: Threat) -> None:
    x, y = (t[:4] for t in digits("test"))
    # Every step of an attack is taken, but few times: the device of these tests is slow.
    few = {"steps": 3, "queries": 8, "restarts": 2, "moves": 2, "iterations": 5}
    fields = attacks.create(name, threat).__dataclass_fields__
    attack = attacks.create(name, threat, **{k: v for k, v in few.items() if k in fields})
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
    here = evaluate(rec, (x, y), pgd, device="cpu")
    with Elsewhere():
        there = evaluate(rec, (x, y), pgd, device=AWAY)
        assert rec.device.type == "cpu"
    assert float(there.robust) == float(here.robust)


def test_a_member_on_another_device_is_noticed() -> None:
    with Elsewhere():
        rec = RandomizedEnsemble([copy.deepcopy(convnet(0)).to(AWAY), convnet(1)])
        with pytest.raises(InputError, match="on cpu, meta; say with device="), on_device(rec):
            pass


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:999", "mps", "gpu", "cuda:x", 3.5])
def test_devices_that_are_not_there_are_named(name: object) -> None:
    if torch.cuda.is_available() and str(name).startswith("cuda"):
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match="device is"):
        pick_device(name)  # type: ignore[arg-type]


def test_every_gpu_is_found_by_name_and_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert pick_device("auto") == pick_device(None) == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("cuda") == torch.device("cuda", 1)
    assert pick_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(InputError, match="torch sees 2 CUDA devices"):
        pick_device("cuda:2")
