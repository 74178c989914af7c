"""Check the installation: versions, device, threads, precision, disk, data, and a self-check of a few
seconds.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from randens import attacks, models
from randens import data as datasets
from randens.core.devices import native_bfloat16, pick_device
from randens.core.errors import RandensError
from randens.core.runs import versions
from randens.ensemble import RandomizedEnsemble, load
from randens.evaluation import optimize_sampling
from randens.risk import RiskProfile, optimal_sampling
from randens.threat import Threat

__all__ = ["Finding", "Diagnosis", "diagnose"]

_DISK = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One finding. `ok` is false if randens cannot work; a remark leaves `ok` true."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings."""

    checks: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {"ok": self.ok, "checks": [vars(check) for check in self.checks]}


def diagnose(folder: str | os.PathLike[str] = ".") -> Diagnosis:
    """Run all checks; run folders would be created in `folder`."""
    return Diagnosis(
        (
            Finding("versions", True, ", ".join(f"{name} {number}" for name, number in versions().items())),
            _device(),
            Finding("threads", True, f"{torch.get_num_threads()} for torch, {os.cpu_count()} cores"),
            _bfloat16(),
            _compiled(),
            _disk(Path(folder)),
            _data(),
            _tried("theory", _theory),
            _tried("ensemble", _ensemble),
            _tried("attack", _attack),
            _tried("sampling", _sampling),
        )
    )


def _device() -> Finding:
    if torch.cuda.is_available():
        return Finding("device", True, torch.cuda.get_device_name())
    return Finding("device", True, "CPU (no CUDA device)")


def _bfloat16() -> Finding:
    used = native_bfloat16(pick_device())
    return Finding(
        "bfloat16", True, "native, used by precision = auto" if used else "not native: float32 is used"
    )


def _compiled() -> Finding:
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        packages = " and ".join(missing)
        return Finding(
            "compiled passes", True, f"not used: install {packages} for faster attacks on an x86 processor"
        )
    return Finding("compiled", True, "used for attacks on convolutional networks on an x86 processor")


def _disk(folder: Path) -> Finding:
    existing = folder.resolve()
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK):
        return Finding("disk", False, f"{existing} cannot be written to; run folders need another place")
    free = shutil.disk_usage(existing).free
    said = f"{free / 1e9:.1f} GB free in {existing}"
    return Finding("disk", free >= _DISK, said if free >= _DISK else f"{said}; at least 1 GB is needed")


def _data() -> Finding:
    here = datasets.present()
    found = [name for name, there in here.items() if there]
    absent = [name for name, there in here.items() if not there]
    more = f"; fetch with `randens data fetch`: {', '.join(absent)}" if absent else ""
    return Finding("data", "digits" in found, f"present: {', '.join(found) or 'none'}{more}")


def _tried(name: str, work: Callable[[], str | None]) -> Finding:
    """Run a self-check, which returns an error message or None."""
    try:
        wrong = work()
    except RandensError as error:
        wrong = str(error)
    except (RuntimeError, OSError, ImportError) as error:
        wrong = f"{type(error).__name__}: {error}"
    return Finding(name, wrong is None, "works" if wrong is None else wrong)


def _theory() -> str | None:
    """Two members that are never fooled together must have the optimum (½, ½) at half the risk."""
    profile = RiskProfile.from_configurations([[(1, 0), (0, 1)], [(0, 0)]], [0.6, 0.4])
    best = optimal_sampling(profile)
    if best.certificate is None or not best.certificate.verify(profile):
        return "the certificate of a known optimum does not verify"
    if abs(best.risk - 0.3) > 1e-9 or np.abs(best.probs - 0.5).max() > 1e-9:
        return f"the known optimum 0.3 at (½, ½) came out as {best.risk} at {best.probs.tolist()}"
    return None


def _ensemble() -> str | None:
    """A saved ensemble must be the same after loading."""
    members = [models.create("convnet", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    rec = RandomizedEnsemble(members, (0.25, 0.75)).eval()
    x = torch.linspace(0, 1, 64 * 4).reshape(4, 1, 8, 8)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        again = load(rec.save(Path(folder) / "ensemble"))
        if not torch.equal(again.logits(x), rec.logits(x)) or again.probs.tolist() != [0.25, 0.75]:
            return "an ensemble read back from disk answers differently"
    return None


def _planted() -> tuple[RandomizedEnsemble, torch.Tensor, torch.Tensor, Threat]:
    """Two linear members on a line, each fooled in its own direction, never both."""
    members = [models.create("linear", classes=2, input_shape=(1,), seed=0) for _ in range(2)]
    with torch.no_grad():
        for member, sign in zip(members, (1.0, -1.0), strict=True):
            weight, bias = list(member.parameters())
            weight.copy_(torch.tensor([[0.0], [sign]]))
            # Right at 0.5, wrong from 0.6 on (first member) or up to 0.4 (second member).
            bias.copy_(torch.tensor([0.0, -0.6 if sign > 0 else 0.4]))
    x, y = torch.full((4, 1), 0.5), torch.zeros(4, dtype=torch.int64)
    return RandomizedEnsemble(members), x, y, Threat("linf", 0.2)


def _attack() -> str | None:
    """Every attack of the quickstart must fool exactly one of the two planted members at every input."""
    rec, x, y, threat = _planted()
    for name in ("pgd", "arc-r", "saddle", "exact"):
        found = attacks.create(name, threat)(rec, x, y)
        if found.risk.tolist() != [0.5] * 4:
            return f"attack {name} finds the risks {found.risk.tolist()} where 0.5 is the exact value"
        if not bool(threat.contains(found.x_adv, x).all()):
            return f"attack {name} left the perturbation set"
    return None


def _sampling() -> str | None:
    rec, x, y, threat = _planted()
    best = optimize_sampling(rec.with_probs((1.0, 0.0)), (x, y), attacks.create("exact", threat), tol=0.0)
    if abs(best.risk - 0.5) > 1e-9 or best.gap > 1e-9:
        return f"the planted optimum 0.5 came out as {best.risk} with gap {best.gap}"
    return None
