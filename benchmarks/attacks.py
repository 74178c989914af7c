"""Attacks on a randomized ensemble against the textbook ARC-R, PGD-20 on one member against other libraries.

CIFAR-10 test images that no setting was chosen on. Every side attacks one batch after the other, in turns; its passes,
robust accuracy and seconds are those of all batches. With an earlier checkout (--old), passes against its passes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import randens
from benchmarks import textbook
from benchmarks.harness import Row, Settings, Timed, commit, in_turns, installed
from benchmarks.textbook import Counted
from randens import RandomizedEnsemble, Threat
from randens.attacks import Attack, AttackResult

ABOUT = (
    "Three ResNet-20s of the zoo (cifar10-resnet20-barre-m3, uniform), CIFAR-10 test images from 9000 on, which no "
    "setting was chosen on, linf, ε = 8/255; against ARC-R as its algorithm box reads (20 steps), and PGD-20 on one "
    "member against other libraries. Robust accuracies and passes per image: ours / theirs."
)
ENSEMBLE = "cifar10-resnet20-barre-m3"
FIRST, IMAGES, BATCH = 9000, 512, 128
STEPS = 20
ATTACKS: dict[str, tuple[str, dict[str, int]]] = {
    "saddle (restarts=1, orders=1)": ("saddle", {"restarts": 1, "orders": 1}),
    "saddle": ("saddle", {}),
    "arc-r": ("arc-r", {}),
    "standard": ("standard", {}),
}
PEERS = {"foolbox": textbook.foolbox_pgd, "torchattacks": textbook.torchattacks_pgd}
OLD_ATTACKS = ("saddle", "arc-r")
# Run by the earlier checkout's own interpreter and package.
OLD_PROGRAM = """
import json, sys
import numpy, randens, torch
torch.set_num_threads(1)
images = numpy.load(sys.argv[1])
x, y = torch.from_numpy(images["x"]), torch.from_numpy(images["y"])
rec = randens.zoo.load(sys.argv[2]).with_probs(None)
found = {}
for name in sys.argv[5:]:
    threat = randens.Threat("linf", float(sys.argv[3]))
    result = randens.attacks.create(name, threat, precision="float32")(rec, x, y)
    found[name] = [result.robust_accuracy, result.cost.forwards / len(x), result.cost.backwards / len(x)]
with open(sys.argv[4], "w") as file:
    json.dump(found, file)
"""


@dataclass(frozen=True)
class Side:
    """What one side reached and spent: robust accuracy, passes per image."""

    accuracy: float
    forwards: float
    backwards: float

    @property
    def passes(self) -> float:
        return self.forwards + self.backwards

    @classmethod
    def of_ours(cls, parts: Sequence[AttackResult]) -> Side:
        count = sum(len(part) for part in parts)
        return cls(
            1 - sum(float(part.risk.sum()) for part in parts) / count,
            sum(part.cost.forwards for part in parts) / count,
            sum(part.cost.backwards for part in parts) / count,
        )

    @classmethod
    def of_theirs(
        cls, rec: RandomizedEnsemble, points: Sequence[Tensor], y: Tensor, members: Sequence[Counted]
    ) -> Side:
        return cls(
            1 - float(rec.risk(torch.cat(list(points)), y).mean()),
            sum(member.forwards for member in members) / len(y),
            sum(member.backwards for member in members) / len(y),
        )


def compared(ours: Side, theirs: Side) -> str:
    """Accuracies and passes of both sides, for a row's note."""
    passes = (f"{side.forwards:.1f} + {side.backwards:.1f}" for side in (ours, theirs))
    return f"accuracy {ours.accuracy:.1%} / {theirs.accuracy:.1%}; passes {' / '.join(passes)}"


def images(first: int, count: int) -> tuple[Tensor, Tensor]:
    x, y = randens.data.load("cifar10", "test")[np.arange(first, first + count)]
    return x, y


def batched(attack: Attack, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[int], AttackResult]:
    """The attack on a batch of the images, by the batch's number."""
    return lambda number: attack.run(model, (x, y), rows=_rows(number, len(x)))


def _rows(number: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(number * BATCH, min(count, (number + 1) * BATCH))


def rows(settings: Settings) -> Iterator[Row]:
    rec = randens.zoo.load(ENSEMBLE).with_probs(None)
    x, y = images(FIRST, 32 if settings.quick else IMAGES)
    threat = Threat("linf", 8 / 255)
    randens.attacks.create("saddle", threat)(rec, x[:8], y[:8])  # loads what is loaded once
    ours = {name: randens.attacks.create(kind, threat, **given) for name, (kind, given) in ATTACKS.items()}
    plain = [Counted(member) for member in rec.members]

    def arc_r(number: int) -> Tensor:
        part = _rows(number, len(x))
        return textbook.arc_r(plain, x[part], y[part], threat.eps, steps=STEPS, planes=2, seed=number)

    cases: dict[str, Callable[[int], Any]] = {"textbook": arc_r}
    cases |= {name: batched(attack, rec, x, y) for name, attack in ours.items()}
    measured = in_turns(cases, -(-len(x) // BATCH))
    theirs = Side.of_theirs(rec, measured["textbook"].values, y, plain)
    sides = {name: Side.of_ours(measured[name].values) for name in ours}
    for name in ours:
        yield _faster(name, "textbook ARC-R", measured[name], measured["textbook"], sides[name], theirs)
    yield from pgd_rows(rec.members[0], x, y, threat)
    if settings.old is not None:
        yield from old_rows(settings.old, sides, x, y, threat)


def pgd_rows(member: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Iterator[Row]:
    """PGD-20 on one member against each library that is installed."""
    alone = RandomizedEnsemble([member])
    counted = {name: Counted(member) for name in PEERS if importlib.util.find_spec(name)}

    def peer(name: str, number: int) -> Tensor:
        part = _rows(number, len(x))
        return PEERS[name](counted[name], x[part], y[part], threat.eps, STEPS)

    for name in counted:
        PEERS[name](member, x[:1], y[:1], threat.eps, 1)  # imports it
    cases: dict[str, Callable[[int], Any]] = {name: partial(peer, name) for name in counted}
    cases["ours"] = batched(randens.attacks.create("pgd", threat, steps=STEPS), alone, x, y)
    measured = in_turns(cases, -(-len(x) // BATCH))
    side = Side.of_ours(measured["ours"].values)
    for name, model in counted.items():
        theirs = Side.of_theirs(alone, measured[name].values, y, [model])
        label = f"{name} {installed(name)}"
        yield _faster("PGD-20, one member", label, measured["ours"], measured[name], side, theirs)


def _faster(name: str, other: str, ours: Timed[Any], theirs: Timed[Any], side: Side, their_side: Side) -> Row:
    ratio = theirs.total / ours.total
    note = compared(side, their_side)
    return Row(f"{name}, against {other}", ours.total, theirs.total, "s", ratio, "× as fast", note)


def old_rows(old: Path, sides: dict[str, Side], x: Tensor, y: Tensor, threat: Threat) -> Iterator[Row]:
    """The passes of attacks against those that an earlier checkout's package makes on the same images."""
    with tempfile.TemporaryDirectory() as folder:
        given, written = Path(folder) / "images.npz", Path(folder) / "found.json"
        np.savez(given, x=x.numpy(), y=y.numpy())
        python = old.absolute() / ".venv" / "bin" / "python"
        command = [str(python), "-c", OLD_PROGRAM, str(given), ENSEMBLE, repr(threat.eps), str(written)]
        environment = {**os.environ, "PYTHONPATH": str(old.absolute() / "src"), "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *OLD_ATTACKS], env=environment, cwd=old, check=True)
        found = {name: Side(*values) for name, values in json.loads(written.read_text()).items()}
    for name, theirs in found.items():
        ours = sides[name]
        label, ratio = f"{name}, against commit {commit(old)}", ours.passes / theirs.passes
        yield Row(label, ours.passes, theirs.passes, "passes", ratio, "× the passes", compared(ours, theirs))
