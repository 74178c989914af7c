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
from tests.evaluation.evaluated import evaluate
from torch import nn

import randens
from randens import RandomizedEnsemble, Threat, attacks, models, random_model, training
from randens.core import devices, distributed
from randens.core.errors import InputError

ROOT = Path(__file__).parents[2] / "src" / "randens"
BALLS = (Threat("linf", 0.1), Threat("l2", 0.7))
WITHOUT_FLOAT64 = ("apgd", "arc-r", "cw", "eot", "lattice", "pgd", "random", "saddle", "sparse")
CASES = [
    pytest.param(name, threat, float64, id=f"{name}-{threat.norm}-{'float64' if float64 else 'float32'}")
    for float64 in (True, False)
    for name in attacks.names()
    for threat in (*BALLS, *((Threat("l1", 3.0),) if name == "pgd" else ()))
    if name != "exact" and (float64 or name in WITHOUT_FLOAT64)
]


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


@pytest.fixture(params=[True, False], ids=["float64", "float32-only"])
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """Another device; the second one has no float64, as Apple's GPUs."""
    if not request.param:
        monkeypatch.setattr(devices, "_SINGLE", frozenset({"mps", AWAY.type}))
    return Elsewhere(float64=request.param)


def test_the_device_without_float64_refuses_it() -> None:
    with Elsewhere(float64=False):
        assert torch.rand(2).to(AWAY).device == AWAY
        with pytest.raises(TypeError, match="no float64"):
            torch.rand(2).to(AWAY).double()
        with pytest.raises(TypeError, match="no float64"):
            torch.rand(2, dtype=torch.float64).to(AWAY)


@pytest.mark.parametrize(("name", "threat", "elsewhere"), CASES, indirect=["elsewhere"])
def test_attacks_run_on_another_device_as_on_the_cpu(name: str, threat: Threat, elsewhere: Elsewhere) -> None:
    x, y = (t[:4] for t in digits("test"))
    # Every step of an attack is taken, but few times: the device of these tests is slow.
    few = {"steps": 3, "queries": 12, "restarts": 1, "relinearisations": 2, "iterations": 5, "preset": "fast"}
    fields = attacks.create(name, threat).__dataclass_fields__
    attack = attacks.create(name, threat, **{k: v for k, v in few.items() if k in fields})
    rec = ensemble()
    here = attack(rec, x, y)
    with elsewhere:
        rec.to(AWAY)
        there = attack(rec, x, y)
        rec.to("cpu")
    assert there.x_adv.device.type == there.errors.device.type == there.risk.device.type == "cpu"
    assert torch.equal(there.errors, here.errors)
    torch.testing.assert_close(there.x_adv, here.x_adv)
    assert there.pool.risk([0.5, 0.5]) == here.pool.risk([0.5, 0.5])


@pytest.mark.parametrize("threat", [*BALLS, Threat("l1", 3.0)])
def test_projections_on_another_device_are_the_cpus(threat: Threat, elsewhere: Elsewhere) -> None:
    x, _ = (t[:4] for t in digits("test"))
    moved = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    here = threat.project(moved, x)
    with elsewhere:
        there = threat.project(x_adv=moved.to(AWAY), x=x.to(AWAY))
        assert there.device == AWAY
        assert bool(threat.contains(there, x.to(AWAY)).cpu().all())
        low, high = threat.interval(x.to(AWAY))
        assert bool(((there >= low) & (there <= high)).cpu().all())
        there = there.cpu()
    assert torch.equal(there, here)


def test_evaluate_moves_members_there_and_back_and_results_to_the_cpu(elsewhere: Elsewhere) -> None:
    x, y = (t[:4] for t in digits("test"))
    rec = ensemble()
    pgd = attacks.create("pgd", Threat("linf", 0.1), steps=3)
    here = evaluate(rec, (x, y), pgd, device="cpu")
    with elsewhere:
        there = evaluate(rec, (x, y), pgd, device=AWAY)
        assert rec.device.type == "cpu"
        found = randens.curve(rec, (x, y), pgd, eps=[0, 0.1], device=AWAY)
    assert float(there.robust) == float(here.robust)
    assert (there.errors == here.errors).all()
    assert float(found.points[1].ensemble) == float(here.robust)


def test_sampling_and_drawing_on_another_device(elsewhere: Elsewhere) -> None:
    x, y = (t[:8] for t in digits("validation"))
    rec = ensemble()
    attack = attacks.create("pgd", Threat("linf", 0.1), steps=3)
    with elsewhere:
        rec.to(AWAY)
        best = randens.optimize_sampling(rec, (x, y), attack, max_sweeps=2)
        assert rec(x.to(AWAY)).device == AWAY
        risk = rec.risk(x, y)
        assert risk.dtype == torch.float64
        assert risk.device.type == (AWAY.type if elsewhere.float64 else "cpu")
        assert rec.mixture(x.to(AWAY)).device == AWAY
        rec.to("cpu")
    assert abs(best.probs.sum() - 1) < 1e-12


def test_training_on_another_device(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = torch.optim.SGD
    # Fused steps exist for the devices that torch knows.
    monkeypatch.setattr(torch.optim, "SGD", lambda *given, **how: plain(*given, **{**how, "fused": False}))
    monkeypatch.setattr(distributed, "pick_device", lambda _: AWAY)
    recipe = training.Recipe.model_validate(
        {
            "method": "barre",
            "members": 2,
            "epochs": 1,
            "batch_size": 600,
            "precision": "float32",
            "model": {"name": "mlp", "width": 8, "depth": 1},
            "data": {"name": "digits"},
            "threat": {"norm": "linf", "eps": 0.1},
            "adversary": {"name": "pgd", "steps": 1},
        }
    )
    with elsewhere:
        made = training.train(recipe, tmp_path / "run")
    assert made.device.type == "cpu"
    assert all(bool(torch.isfinite(p).all()) for p in made.parameters())


def test_members_in_float64_cannot_go_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_SINGLE", frozenset({"mps", AWAY.type}))
    net = nn.Linear(2, 2).double()
    with (
        Elsewhere(float64=False),
        pytest.raises(InputError, match="device is 'meta', which has no float64"),
        models.on_device(net, AWAY),
    ):
        pass
    assert next(net.parameters()).device.type == "cpu"


def test_mps_is_taken_where_torch_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert models.pick_device("mps").type == "mps"
    assert models.pick_device("auto").type != "mps"
    with (
        pytest.raises(InputError, match="random numbers cannot be repeated draw by draw"),
        random_model._seeded(0, torch.device("mps")),
    ):
        pass


def test_a_member_on_another_device_is_noticed() -> None:
    x, y = (t[:4] for t in digits("test"))
    with Elsewhere():
        rec = RandomizedEnsemble([copy.deepcopy(convnet(0)).to(AWAY), convnet(1)])
        with pytest.raises(InputError, match="several devices, cpu, meta; say with device="):
            evaluate(rec, (x, y), "pgd", eps=0.1)


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
    "evaluation/worst_case.py",
)
# Made on the CPU on purpose: from a CPU generator, so that random numbers do not depend on the device; or results.
ON_THE_CPU = {
    ("ensemble.py", "check_probs"),
    ("ensemble.py", "draw"),
    ("threat.py", "noisy"),
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
