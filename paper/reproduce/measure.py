"""All numbers that the paper's tables need of one trained ensemble, measured once and kept in its run folder.

α is chosen on validation data by one rule for every ensemble, of the first m members as of all; numbers come from test
data. What was measured for other members or under other settings is measured again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from randens import attacks
from randens.attacks import Attack, Cost
from randens.core.devices import pick_device
from randens.core.errors import FileError, InputError, unknown
from randens.core.files import read_json, write_atomic
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.data import Data, as_data
from randens.ensemble import RandomizedEnsemble, load
from randens.evaluation import Evaluation, optimize_sampling
from randens.evaluation.evaluate import evaluate_case
from randens.evaluation.inputs import prepare, run_data
from randens.evaluation.tables import Accuracy
from randens.threat import Threat
from randens.training.alpha import osp
from randens.training.recipe import SamplingPart
from randens.witness.fingerprints import fingerprint
from randens.witness.store import WitnessStore

ATTACKS = ("acw", "afgsm", "adaptive-pgd-l", "adaptive-pgd-s", "arc", "arc-r")
"""The attacks that Table 5 compares; "acw" in l2, the others in the run's norm."""
ALPHA = ("osp", "exact", "careful", "uniform")
"""How α is chosen: Algorithm 1 under attack (up to three members by the candidates of Theorems 1 and 2), the exact
optimum on the validation images, the best upper confidence bound there, or not at all."""

Pair = tuple[float, float]
"""(natural, robust) accuracy, shares."""


@dataclass(frozen=True)
class Settings:
    """How ensembles are measured. `limit`: the number of inputs; `compare`: run the attacks of Table 5 one by one."""

    attack: str = "arc-r"
    alpha: str = "careful"
    limit: int | None = None
    seed: int = 0
    compare: bool = True

    def __post_init__(self) -> None:
        if self.alpha not in ALPHA:
            unknown("rule for α", self.alpha, ALPHA)
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit is {self.limit}; it must be a whole number ≥ 1")

    def build(self, threat: Threat) -> Attack:
        return attacks.create(self.attack, threat, seed=self.seed)


@dataclass(frozen=True)
class Measured:
    """One run's numbers.

    individual: each member alone. randomized: the first m members, m = 1..M, at the chosen α. uniform: all members.
    deterministic: the first m members' logits averaged. risks: of each test image, "sampled" (chosen α) and "averaged".
    attacks: robust accuracy at uniform α by attack. curve: per epoch of the second member, on validation data. passes:
    forward and backward passes of members.
    """

    method: str
    n: int
    probs: tuple[float, ...]
    flops: tuple[int, ...]
    individual: tuple[Pair, ...]
    randomized: tuple[Pair, ...]
    uniform: Pair
    deterministic: tuple[Pair, ...] = ()
    risks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    attacks: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, float, float], ...] = ()
    epochs: int = 0
    training_passes: int = 0
    measuring_passes: int = 0

    @property
    def members(self) -> int:
        """M."""
        return len(self.individual)

    @property
    def one_hot(self) -> bool:
        """Whether one of several members has all the weight, so that nothing is sampled."""
        return self.members > 1 and max(self.probs) == 1

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Measured:
        """Inverse of `dataclasses.asdict` after JSON made lists of tuples."""
        return Measured(**{key: _tuples(part) for key, part in value.items()})


def measure(
    run: Run, settings: Settings, progress: Progress | None = None, *, device: str = "auto"
) -> Measured:
    """Measure the ensemble of a run, or read what was measured before; the result is kept in the run folder."""
    rec, path = load(run.ensemble).to(pick_device(device)), run.path / "measured.json"
    same = {"settings": asdict(settings), "ensemble": fingerprint(rec)}
    if path.is_file():
        document = read_json(path)
        if all(document.get(key) == value for key, value in same.items()):
            return Measured.from_json(document["measured"])
    if rec.threat is None:
        raise FileError(f"{run.path} names no threat; train it again")
    test, validation = (
        as_data(run_data(run), split=split, limit=settings.limit) for split in ("test", "validation")
    )
    found = _Work(run, rec, rec.threat, test, validation, settings, progress or silent).all()
    write_atomic(path, json.dumps({**same, "measured": asdict(found)}).encode())
    return found


@dataclass
class _Work:
    """One run being measured."""

    run: Run
    rec: RandomizedEnsemble
    threat: Threat
    test: Data
    validation: Data
    settings: Settings
    progress: Progress
    cost: Cost = field(default_factory=Cost)

    def all(self) -> Measured:
        recipe, spent = self.run.manifest["recipe"], self.run.read("training")["cost"]
        method = recipe["method"]
        members, averages = len(self.rec), method == "mrboost"
        rec = self._sampled(self.rec)
        whole = self._evaluate(rec, average=averages)
        each = list(self.rec.members)
        prefixes = [RandomizedEnsemble(each[:m], threat=self.threat) for m in range(1, members)]
        randomized, deterministic = [], []
        risks = {"sampled": whole.risk}
        if method == "barre":
            randomized = [_pair(self._evaluate(self._sampled(prefix))) for prefix in prefixes]
        if averages:
            every = [*(self._evaluate(prefix, average=True) for prefix in prefixes), whole]
            deterministic = [_pair(found.deterministic) for found in every if found.deterministic is not None]
            assert whole.average is not None
            risks["averaged"] = whole.average[1].astype(np.float64)
        compared = ATTACKS if members > 1 and self.settings.compare else ()
        return Measured(
            method=method,
            n=len(self.test),
            probs=tuple(rec.probs.tolist()),
            flops=whole.flops,
            individual=tuple(_pair(accuracy) for accuracy in whole.member_accuracies),
            randomized=(*randomized, _pair(whole)),
            uniform=_pair(whole.at(None)),
            deterministic=tuple(deterministic),
            risks={name: tuple(np.round(values, 6).tolist()) for name, values in risks.items()},
            attacks={name: self._compared(name) for name in compared},
            curve=self._curve(),
            epochs=recipe["epochs"],
            training_passes=spent["forwards"] + spent["backwards"],
            measuring_passes=self.cost.forwards + self.cost.backwards,
        )

    def _sampled(self, rec: RandomizedEnsemble) -> RandomizedEnsemble:
        """At the α that the rule chooses on validation data."""
        rule, attack = self.settings.alpha, self.settings.build(self.threat)
        if len(rec) == 1 or rule == "uniform":
            return rec.with_probs(None)
        if rule == "osp":
            chosen = osp(rec, self.validation.x, self.validation.y, attack, SamplingPart())
            self.cost = self.cost + chosen.cost
            return rec.with_probs(chosen.probs)
        best = optimize_sampling(
            rec,
            self.validation,
            attack,
            max_sweeps=4,
            confidence=0.95 if rule == "careful" else None,
            progress=self.progress,
            folder=WitnessStore(self.run.path),
        )
        self.cost = self.cost + best.cost
        return rec.with_probs(best.probs)

    def _evaluate(self, rec: RandomizedEnsemble, *, average: bool = False) -> Evaluation:
        attack, also = self.settings.build(self.threat), {} if len(rec) == 1 else {"uniform": None}
        with prepare(rec, self.test, attack, folder=self.run.path, progress=self.progress) as case:
            chosen = dataclasses.replace(case, chosen_on={"probs": "validation"})
            found = evaluate_case(chosen, also=also, average=average)
        self.cost = self.cost + found.cost
        return found

    def _compared(self, name: str) -> float:
        """Robust accuracy at uniform α under one attack and nothing else."""
        threat = _l2(self.threat, math.prod(self.test.shape)) if name == "acw" else self.threat
        attack = attacks.create(name, threat, seed=self.settings.seed)
        found = attack.run(self.rec.with_probs(None), (self.test.x, self.test.y))
        self.cost = self.cost + found.cost
        return found.robust_accuracy

    def _curve(self) -> tuple[tuple[int, float, float], ...]:
        epochs = (line for line in self.run.metrics() if line.get("event") == "epoch" and "robust" in line)
        return tuple(
            (line["epoch"], line["natural"], line["robust"]) for line in epochs if line["member"] == 2
        )


def _l2(threat: Threat, dimension: int) -> Threat:
    """The l2 ball of the paper's CW attack: ε = 2 beside 8/255 for 3072 pixels, 1.15 times the cube's radius."""
    if threat.norm == "l2":
        return threat
    return Threat("l2", 2.0 * (threat.eps / (8 / 255)) * math.sqrt(dimension / 3072), threat.bounds)


def _pair(found: Accuracy | Evaluation) -> Pair:
    return found.natural.value, found.robust.value


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(part) for key, part in value.items()}
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
