"""Read a run folder for the report: its documents, validated against models, and the run as a whole.

An invalid entry is named in an error. Unknown entries are ignored, so that files of earlier and later
versions can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, InstanceOf, PlainSerializer

from randens.core.documents import Document, ThreatDocument, fitted
from randens.core.errors import FileError, InputError
from randens.core.files import read_json
from randens.core.runs import Run
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import Estimate, Evaluation
from randens.evaluation.tables import Accuracy, Row, attack_name
from randens.threat import Threat
from randens.training.methods import METHOD_NAMES
from randens.witness.fingerprints import fingerprint

__all__ = [
    "AttackLine",
    "AttackTable",
    "AuditCheck",
    "AuditNote",
    "TrainingCurve",
    "Example",
    "Gallery",
    "LoadedRun",
    "Radii",
    "Radius",
    "SamplingNote",
    "StochasticNote",
    "TrainingNote",
    "load_run",
    "measured_on",
    "load_runs",
]

_PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")


def _picture(value: str) -> str:
    if not _PNG.fullmatch(value):
        raise ValueError("must be a PNG picture as a data URI")
    return value


Picture = Annotated[str, AfterValidator(_picture)]


def _stored(value: Any) -> Any:
    return Estimate(**value) if isinstance(value, Mapping) else value


Stored = Annotated[
    InstanceOf[Estimate], BeforeValidator(_stored), PlainSerializer(lambda value: value.to_json())
]
"""An estimate in a document."""


class Radius(Document):
    """Accuracies at one radius: of the randomized ensemble, of each member, of the deterministic ensemble."""

    eps: float
    robust: Stored
    members: list[Stored]
    deterministic: Stored | None = None


class _Measured(Document):
    """What was measured: the members by their fingerprint, at these probabilities, on these data."""

    ensemble: str
    probs: list[float] = Field(min_length=1)
    data: str
    split: str


def measured_on(rec: RandomizedEnsemble, data: Data, threat: Threat) -> dict[str, Any]:
    """What was measured, as every document has it."""
    return {
        "ensemble": fingerprint(rec),
        "probs": rec.probs.tolist(),
        "data": data.name,
        "split": data.split,
        "n": len(data),
        "norm": threat.norm,
        "eps": threat.eps,
    }


class Radii(_Measured):
    """Robust accuracy over ε. Witnesses of smaller radii count at larger ones, so that no curve rises."""

    format: Literal["randens-radii-1"] = "randens-radii-1"
    n: int = Field(ge=1)
    norm: str
    attacks: list[str]
    confidence: float
    radii: list[Radius] = Field(min_length=1)


class AttackLine(Document):
    """One attack alone on the ensemble: the robust accuracy and the attack's cost.

    options: those that are not the attack's defaults. n: the number of inputs, if it is not that of the table.
    """

    name: str
    robust: Stored
    forwards: int
    backwards: int
    seconds: float
    options: str = ""
    n: int | None = Field(default=None, ge=1)

    @property
    def label(self) -> str:
        """The name with the options."""
        return f"{self.name} ({self.options})" if self.options else self.name


class AttackTable(_Measured):
    """Attacks compared; `together` is the worst case of all of them, which a store gives to the evaluation instead."""

    format: Literal["randens-attack-table-1"] = "randens-attack-table-1"
    n: int = Field(ge=1)
    norm: str
    eps: float
    attacks: list[AttackLine] = Field(min_length=1)
    together: Stored | None


class Example(Document):
    """One input: the pictures, and the members that are fooled.

    before, after: every member's prediction; empty if only its verdict is known.
    """

    index: int
    label: int = Field(ge=0)
    risk: float
    source: str
    clean: Picture
    perturbed: Picture
    difference: Picture
    before: list[int] = Field(default_factory=list)
    after: list[int] = Field(default_factory=list)
    fooled: list[int] = Field(default_factory=list)

    @property
    def wrong(self) -> list[int]:
        """The fooled members."""
        return [i for i, said in enumerate(self.after) if said != self.label] or self.fooled


class Gallery(_Measured):
    """Worst perturbations found, with differences shown `amplified` times as large around grey."""

    format: Literal["randens-gallery-1"] = "randens-gallery-1"
    n: int | None = Field(default=None, ge=1)
    norm: str
    eps: float
    amplified: float
    classes: list[str]
    examples: list[Example]


class MethodNote(Document):
    """The result of one method of choosing probabilities; without a risk it was not applied."""

    name: str = ""
    risk: float | None = None


class StoredContribution(Document):
    """What a member adds to the ensemble."""

    prob: float | None = None
    advice: str | None = None


class SamplingNote(Document):
    """What the report shows of sampling.json."""

    probs: list[float] = Field(min_length=1)
    risk: float
    lower_bound: float
    gap: float
    method: str
    claim: str = ""
    data: str = ""
    split: str = "unknown"
    n: int | None = None
    threat: ThreatDocument | None = None
    attacks: list[str] = Field(default_factory=list)
    sweeps: int = 0
    upper: float | None = None
    confidence: float | None = None
    methods: list[MethodNote] = Field(default_factory=list)
    contributions: list[StoredContribution] = Field(default_factory=list)


class StochasticNote(Document):
    """What the report shows of stochastic.json."""

    n: int
    data: str
    split: str
    threat: ThreatDocument | None = None
    confidence: float
    natural: Stored
    robust: Stored
    robust_over_draws: Stored
    single_draw: float
    in_sample: float
    fresh: float
    draws: int
    adversaries: list[dict[str, Any]]
    sentences: list[str]
    attacks: list[str]


class ValidationNote(Document):
    """The images and the attack that chose checkpoints."""

    images: int | None = None
    attack: str = ""


class TrainingNote(Document):
    """What the report shows of training.json."""

    method: str = ""
    finished: bool = True
    cost: dict[str, float] = Field(default_factory=dict)
    validation: ValidationNote = ValidationNote()


class AuditCheck(Document):
    """One check of an audit."""

    name: str
    status: str
    finding: str = ""
    advice: str = ""

    @property
    def passed(self) -> bool:
        """Whether the check did not fail."""
        return self.status != "fail"


class AuditNote(Document):
    """What the report shows of audit.json."""

    passed: bool
    complete: bool = True
    seed: int = 0
    probs: list[float] = Field(default_factory=list)
    verdict: str = ""
    ensemble: str = ""
    data: str = ""
    split: str = ""
    n: int | None = None
    threat: ThreatDocument | None = None
    checks: list[AuditCheck]


class OptionNote(Document):
    """One option of advice.json."""

    name: str
    kind: str
    k: int = Field(ge=1)
    flops: float
    natural: Stored
    robust: Stored

    @property
    def row(self) -> Row:
        """As a line of a table."""
        return Row(self.name, Accuracy(self.natural, self.robust), self.flops, self.kind)


class AdviceNote(Document):
    """What the report shows of advice.json."""

    options: list[OptionNote] = Field(min_length=1)
    sentences: list[str] = Field(default_factory=list)
    ensemble: str = ""
    data: str
    split: str
    n: int = Field(ge=1)
    threat: ThreatDocument | None = None
    confidence: float
    attacks: list[str] = Field(default_factory=list)


Kind = TypeVar("Kind", bound=Document)
Part = TypeVar("Part")


@dataclass(frozen=True)
class TrainingCurve:
    """Training curves: the validation accuracies and losses after every epoch, over all members in a row."""

    name: str
    epochs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run for the report. Missing parts are None; `problems` lists files that could not be read.

    passes: member passes to train it, 0 if they are not recorded.
    """

    run: Run
    name: str
    evaluation: Evaluation | None = None
    sampling: SamplingNote | None = None
    radii: Radii | None = None
    attacks: AttackTable | None = None
    gallery: Gallery | None = None
    audit: AuditNote | None = None
    stochastic: StochasticNote | None = None
    advice: AdviceNote | None = None
    trainings: tuple[tuple[str, TrainingNote], ...] = ()
    curves: tuple[TrainingCurve, ...] = ()
    passes: float = 0.0
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The training method, spelled for sentences and tables; "" if it is unknown."""
        method = _recipe(self.run).get("method")
        return METHOD_NAMES.get(str(method), str(method)) if method else ""

    @property
    def attacked_with(self) -> str:
        """The attacks behind the evaluation's numbers; "" without an evaluation."""
        if self.evaluation is None:
            return ""
        return " + ".join(attack_name(attack) for attack in self.evaluation.about.attacks)


def load_runs(paths: Sequence[str | os.PathLike[str]]) -> tuple[LoadedRun, ...]:
    """The runs in these folders, each under the shortest name that tells it from the others."""
    if not paths:
        raise InputError("runs is empty; give at least one run folder, e.g. runs/quickstart-1")
    folders = [Path(path).resolve() for path in paths]
    if len(set(folders)) < len(folders):
        raise InputError(f"runs names the same folder twice: {', '.join(map(str, paths))}")
    return tuple(load_run(path, name) for path, name in zip(paths, _short_names(folders), strict=True))


def load_run(path: str | os.PathLike[str], name: str | None = None) -> LoadedRun:
    """Read one run folder. A damaged evaluation is an error; damaged extras become `problems`."""
    run = Run.open(path)
    problems: dict[str, str] = {}

    def extra(part: str, read: Callable[[], Part | None]) -> Part | None:
        try:
            return read()
        except FileError as error:
            problems[part] = str(error)
            return None

    source = run.path / "evaluation.json"
    trainings = extra("cost", lambda: _trainings(run)) or []
    return LoadedRun(
        run=run,
        name=name or Path(path).resolve().name,
        evaluation=_evaluation(source) if source.exists() else None,
        sampling=extra("sampling", lambda: read_note(run, "sampling", SamplingNote)),
        radii=extra("radii", lambda: read_note(run, "curve", Radii)),
        attacks=extra("attacks", lambda: read_note(run, "report/attacks", AttackTable)),
        gallery=extra("gallery", lambda: read_note(run, "report/gallery", Gallery)),
        audit=extra("audit", lambda: read_note(run, "audit", AuditNote)),
        stochastic=extra("stochastic", lambda: read_note(run, "stochastic", StochasticNote)),
        advice=extra("advice", lambda: read_note(run, "advice", AdviceNote)),
        trainings=tuple((one.path.name, note) for one, note in trainings),
        curves=extra("training", lambda: _curves(run)) or (),
        passes=_passes(run, trainings),
        problems=problems,
    )


def _evaluation(source: Path) -> Evaluation:
    try:
        return Evaluation.load(source)
    except (KeyError, TypeError, IndexError) as error:
        raise FileError(
            f"{source} is of another version: {error!r}; run randens evaluate {source.parent} again"
        ) from error
    except FileError as error:
        raise FileError(f"{error}; run randens evaluate {source.parent} again") from error


def _curves(run: Run) -> tuple[TrainingCurve, ...]:
    found = []
    for one in _inside(run):
        lines = [line for line in one.metrics() if isinstance(line, dict) and line.get("event") == "epoch"]
        if lines:
            found.append(TrainingCurve(one.path.name, lines))
    return tuple(found)


def _trainings(run: Run) -> list[tuple[Run, TrainingNote]]:
    notes = ((one, read_note(one, "training", TrainingNote)) for one in _inside(run))
    return [(one, note) for one, note in notes if note is not None]


def _passes(run: Run, trainings: Sequence[tuple[Run, TrainingNote]]) -> float:
    """Member passes to train the run: those of its own method, and those of the runs that it started from.

    Another network in the folder, such as a baseline that it is compared with, does not count.
    """
    notes = {one.path.name: note for one, note in trainings}
    method = _recipe(run).get("method")
    counted: dict[str, TrainingNote] = {}
    for one, note in trainings:
        if one.path == run.path or note.method == method:
            first = _recipe(one).get("first") or []
            names = [Path(str(path)).name for path in ([first] if isinstance(first, str) else first)]
            counted |= {name: notes[name] for name in (one.path.name, *names) if name in notes}
    return sum(note.cost.get(key, 0.0) for note in counted.values() for key in ("forwards", "backwards"))


def _recipe(run: Run) -> Mapping[str, Any]:
    recipe = run.manifest.get("recipe")
    return recipe if isinstance(recipe, Mapping) else {}


def _inside(run: Run) -> list[Run]:
    """The run itself and the runs in its folder: what was trained on the way to it."""
    found = [run]
    for folder in sorted(p for p in run.path.iterdir() if (p / "manifest.json").is_file()):
        try:
            found.append(Run.open(folder))
        except FileError:
            continue  # other folders do not belong to the run
    return found


def _short_names(folders: Sequence[Path]) -> list[str]:
    longest = max(len(folder.parts) for folder in folders)
    for depth in range(1, longest + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def read_note(run: Run, name: str, kind: type[Kind]) -> Kind | None:
    """`name`.json of the run, or None if there is none; a file of another shape is an error that names the field."""
    path = run.path / f"{name}.json"
    if not path.exists():
        return None
    document = read_json(path)
    if isinstance(document, dict) and isinstance(about := document.get("about"), dict):
        names = [attack_name(a) for a in about.get("attacks", ()) if isinstance(a, dict) and "name" in a]
        threat: dict[str, Any] = about["threat"] if isinstance(about.get("threat"), dict) else {}
        document = {
            **about,
            **document,
            "attacks": names,
            "norm": threat.get("norm"),
            "eps": threat.get("eps"),
        }
        if kind is Radii and isinstance(document.get("points"), list):
            renamed = {"ensemble": "robust", "average": "deterministic"}
            document["format"] = "randens-radii-1"
            document["radii"] = [{renamed.get(k, k): v for k, v in p.items()} for p in document["points"]]
        known = run.path / "evaluation.json"
        if (
            kind is SamplingNote
            and known.exists()
            and (other := _members_of(known)) not in ("", about.get("ensemble"))
        ):
            raise FileError(
                f"{path} is about other members than evaluation.json ({other[:8]}…); sample again"
            )
    return fitted(kind, document, path)


def _members_of(path: Path) -> str:
    document = read_json(path)
    about = document.get("about") if isinstance(document, dict) else None
    return str(about.get("ensemble", "")) if isinstance(about, dict) else ""
