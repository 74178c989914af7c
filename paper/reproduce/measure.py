"""All numbers that the paper's tables need of one trained ensemble, measured once and kept in its run folder.

The probabilities of every ensemble, of the first m members as of all, are chosen in the same way: cutting planes on
validation data under the attack of the settings. Numbers come from test data. What was measured for other members,
under other settings or by an earlier rule is measured again, not reused.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from randens import attacks
from randens.attacks import Attack, Cost
from randens.core.devices import pick_device
from randens.core.errors import FileError
from randens.core.files import document_checksum, read_json, seal, write_json
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.data import Data, as_data
from randens.ensemble import RandomizedEnsemble, load
from randens.evaluation.evaluate import evaluate_case
from randens.evaluation.inputs import prepare
from randens.evaluation.loading import run_data
from randens.evaluation.result import Evaluation
from randens.evaluation.sampling import optimize_sampling
from randens.evaluation.tables import Accuracy
from randens.threat import Threat
from randens.witness.fingerprints import fingerprint
from randens.witness.store import WitnessStore

__all__ = ["ATTACKS", "Measured", "Settings", "measure", "measured"]

ATTACKS = ("acw", "afgsm", "adaptive-pgd-l", "adaptive-pgd-s", "arc", "arc-r")
"""The attacks that Table 5 compares; "acw" in l2, the others in the run's norm."""

_FORMAT = "randens-measured-2"
_EARLIER = ("randens-measured-1",)
_FILE = "measured.json"

Pair = tuple[float, float]
"""(natural, robust) accuracy, shares."""


@dataclass(frozen=True)
class Settings:
    """How ensembles are measured. `test` and `validation` limit the number of inputs (None: all); `compare` is
    whether the attacks of Table 5 are run one by one."""

    attack: str = "arc-r"
    test: int | None = None
    validation: int | None = None
    seed: int = 0
    compare: bool = True

    def build(self, threat: Threat) -> Attack:
        return attacks.create(self.attack, threat, seed=self.seed)


@dataclass(frozen=True)
class Measured:
    """One run's numbers.

    individual: each member alone. randomized: the first m members, m = 1..M, at probabilities chosen on validation
    data. uniform: all members, each as likely. deterministic: the first m members' logits averaged. attacks: robust
    accuracy at uniform probabilities by attack. curve: per epoch of the second member, on validation data. passes:
    member passes (forward and backward) to train, to measure. epochs: of the first member.
    """

    method: str
    data: str
    threat: Mapping[str, Any]
    n: int
    probs: tuple[float, ...]
    flops: tuple[int, ...]
    individual: tuple[Pair, ...]
    randomized: tuple[Pair, ...]
    uniform: Pair
    deterministic: tuple[Pair, ...] = ()
    attacks: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, float, float], ...] = ()
    epochs: int = 0
    training_passes: int = 0
    training_seconds: float = 0.0
    measuring_passes: int = 0

    @property
    def members(self) -> int:
        """M."""
        return len(self.individual)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return json.loads(json.dumps(asdict(self)))

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Measured:
        """Inverse of `to_json`."""
        found = {key: _tuples(part) for key, part in value.items()}
        names = dict(found.pop("attacks", {}))
        return Measured(**found, attacks=names)


def measured(run: Run, settings: Settings) -> Measured | None:
    """What was measured before under these settings; None if that was never done. An altered file is refused."""
    path = run.path / _FILE
    if not path.is_file():
        return None
    document = read_json(path)
    if isinstance(document, dict) and document.get("format") in _EARLIER:
        return None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise FileError(f"{path} is not a document of format {_FORMAT}")
    if document.get("checksum") != document_checksum(document):
        raise FileError(f"{path} does not match its checksum; it was altered or damaged")
    if document["settings"] != asdict(settings):
        return None
    rec = load(run.ensemble)
    if document["ensemble"] != fingerprint(rec) or document["probs"] != rec.probs.tolist():
        return None
    return Measured.from_json(document["measured"])


def measure(
    run: Run, settings: Settings, progress: Progress | None = None, *, device: str = "auto"
) -> Measured:
    """Measure the ensemble of a run, or read what was measured before; the result is kept in the run folder."""
    known = measured(run, settings)
    if known is not None:
        return known
    rec = load(run.ensemble).to(pick_device(device))
    if rec.threat is None:
        raise FileError(f"{run.path} names no threat; train it again")
    test = as_data(run_data(run), split="test", limit=settings.test)
    validation = as_data(run_data(run), split="validation", limit=settings.validation)
    found = _Work(run, rec, rec.threat, test, validation, settings, progress or silent).all()
    document = {
        "format": _FORMAT,
        "settings": asdict(settings),
        "ensemble": fingerprint(rec),
        "probs": rec.probs.tolist(),
        "measured": found.to_json(),
    }
    write_json(run.path / _FILE, seal(document))
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

    @cached_property
    def store(self) -> WitnessStore:
        """The run's witnesses."""
        return WitnessStore(self.run.path)

    def all(self) -> Measured:
        recipe = self.run.manifest.get("recipe") or {}
        method = str(recipe.get("method", "at"))
        members = len(self.rec)
        rec = self._sampled(self.rec)
        whole = self._evaluate(rec, deterministic=method == "mrboost")
        uniform = whole.at(None)
        randomized = [self._prefix(m) for m in range(1, members)] if method == "barre" else []
        deterministic = [self._deterministic(m) for m in range(1, members)] if method == "mrboost" else []
        if whole.deterministic is not None:
            deterministic.append(_pair(whole.deterministic))
        wanted = ATTACKS if members > 1 and self.settings.compare else ()
        compared = {name: self._compared(name) for name in wanted}
        passes, seconds = self._trained()
        return Measured(
            method=method,
            data=self.test.name,
            threat=self.threat.to_dict(),
            n=len(self.test),
            probs=tuple(rec.probs.tolist()),
            flops=whole.flops,
            individual=tuple(_pair(a) for a in whole.member_accuracies),
            randomized=(*randomized, _pair(whole.accuracy)),
            uniform=_pair(uniform),
            deterministic=tuple(deterministic),
            attacks=compared,
            curve=self._curve(),
            epochs=int(recipe.get("epochs", 0)),
            training_passes=passes,
            training_seconds=seconds,
            measuring_passes=self.cost.forwards + self.cost.backwards,
        )

    def _evaluate(self, rec: RandomizedEnsemble, *, deterministic: bool = False) -> Evaluation:
        with prepare(rec, self.test, self.settings.build(self.threat)) as case:
            found = evaluate_case(
                dataclasses.replace(case, chosen_on={"probs": self.validation.split}),
                also={} if len(rec) == 1 else {"uniform": None},
                average=deterministic,
                folder=self.store,
                progress=self.progress,
            )
        self.cost = self.cost + found.cost
        return found

    def _prefix(self, m: int) -> Pair:
        """The first m members at probabilities chosen on validation data; what is known about them is used."""
        rec = self._sampled(RandomizedEnsemble(list(self.rec.members)[:m], threat=self.threat))
        return _pair(self._evaluate(rec).accuracy)

    def _sampled(self, rec: RandomizedEnsemble) -> RandomizedEnsemble:
        """At the probabilities that are best on validation data."""
        if len(rec) == 1:
            return rec
        best = optimize_sampling(
            rec,
            self.validation,
            self.settings.build(self.threat),
            max_sweeps=4,
            progress=self.progress,
            folder=self.store,
        )
        self.cost = self.cost + best.cost
        return rec.with_probs(best.probs)

    def _deterministic(self, m: int) -> Pair:
        rec = RandomizedEnsemble(list(self.rec.members)[:m], threat=self.threat)
        found = self._evaluate(rec, deterministic=True)
        assert found.deterministic is not None
        return _pair(found.deterministic)

    def _compared(self, name: str) -> float:
        """Robust accuracy at uniform probabilities under one attack and nothing else."""
        threat = _l2(self.threat, math.prod(self.test.shape)) if name == "acw" else self.threat
        attack = attacks.create(name, threat, seed=self.settings.seed)
        self.progress(f"{name} at uniform probabilities", 0, 1)
        data = (self.test.x, self.test.y)
        found = attack.run(self.rec.with_probs(None), data)
        self.progress(f"{name} at uniform probabilities", 1, 1)
        self.cost = self.cost + found.cost
        return found.robust_accuracy

    def _curve(self) -> tuple[tuple[int, float, float], ...]:
        return tuple(
            (int(line["epoch"]), float(line["natural"]), float(line["robust"]))
            for line in self.run.metrics()
            if line.get("event") == "epoch" and line.get("member") == 2 and "robust" in line
        )

    def _trained(self) -> tuple[int, float]:
        """Member passes and seconds that training took, as the run recorded them."""
        if not (self.run.path / "training.json").is_file():
            return 0, 0.0
        cost = self.run.read("training").get("cost", {})
        return int(cost.get("forwards", 0)) + int(cost.get("backwards", 0)), float(cost.get("seconds", 0.0))


def _l2(threat: Threat, dimension: int) -> Threat:
    """The l2 ball of the paper's CW attack: ε = 2 beside 8/255 for 3072 pixels, 1.15 times the cube's radius."""
    if threat.norm == "l2":
        return threat
    return Threat("l2", 2.0 * (threat.eps / (8 / 255)) * math.sqrt(dimension / 3072), threat.bounds)


def _pair(accuracy: Accuracy) -> Pair:
    return accuracy.natural.value, accuracy.robust.value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
