"""The result of an evaluation: verdicts per input, and everything computed from them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from randens._version import __version__
from randens.attacks import Cost
from randens.core.documents import Digest, Document, Probabilities, ThreatDocument, fitted
from randens.core.errors import FileError, InputError, RandensError
from randens.core.files import Plain, document_checksum, picked, read_json, seal
from randens.core.runs import Kept
from randens.ensemble import RandomizedEnsemble, check_probs
from randens.evaluation import result_tables
from randens.evaluation.argument_checks import fingerprint
from randens.evaluation.gradient_conflict import Conflict, ConflictDocument
from randens.evaluation.intervals import Estimate, estimate
from randens.risk import (
    Bounds,
    RiskProfile,
    RuleOfThumb,
    Theorem1Test,
    bounds,
    rule_of_thumb,
    theorem1_test,
    two_classifiers,
)
from randens.risk.sets import from_words, to_words
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = [
    "Accuracy",
    "Evaluation",
    "CostDocument",
    "Level",
    "Pair",
    "PassesDocument",
    "Points",
    "THREAT_MODEL",
]

_FORMAT = "randens-evaluation-1"
_MOST_LEVELS = 10  # 2^10 sums of probabilities; beyond, only those that occur are listed

THREAT_MODEL = (
    "The attacker knows the members and their probabilities but not the draw; every query is a fresh draw. "
    "Robust accuracies hold against the perturbations found: a stronger attack can only lower them."
)


Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Share = Annotated[float, Field(ge=0, le=1)]
Word = Annotated[str, Field(pattern=r"^[01]*$")]


class PassesDocument(Document):
    """Member passes."""

    forwards: Count
    backwards: Count


class CostDocument(PassesDocument):
    """Member passes and time."""

    seconds: float


class _Points(Document):
    clean: list[Word]
    worst: list[Word]
    foolable: list[Word]
    source_names: list[str]
    sources: list[Count]
    deterministic_clean: Word | None
    deterministic_worst: Word | None


class _Summary(Document):
    """Measured numbers that cannot be computed again from the verdicts."""

    conflict: ConflictDocument | None = None


class _Flags(Document):
    unstable: Share = 0.0
    gradients: dict[str, dict[str, list[Share]]] = Field(default_factory=dict)


class _AttackDocument(Document):
    """An attack and its options, which differ from one attack to the next."""

    name: str
    preset: str | None = None


class EvaluationDocument(Document):
    """evaluation.json."""

    version: str
    ensemble: Digest
    probs: Probabilities
    also: dict[str, Probabilities]
    data: str
    split: str
    classes: Annotated[int, Field(ge=1)]
    chosen_on: dict[str, str]
    threat: ThreatDocument
    attacks: list[_AttackDocument]
    flops: list[Count]
    cost: CostDocument
    confidence: Annotated[float, Field(gt=0, lt=1)]
    flags: _Flags
    summary: _Summary = _Summary()
    notes: list[str] = Field(default_factory=list)
    profile: dict[str, Any]
    points: _Points

    @model_validator(mode="after")
    def _agree(self) -> EvaluationDocument:
        members, points = len(self.probs), self.points
        tables, n = (points.clean, points.worst, points.foolable), len(points.clean)
        if any(len(probs) != members for probs in self.also.values()):
            raise ValueError(f"also: every entry must have {members} probabilities")
        if len(self.flops) != members:
            raise ValueError(f"flops: there must be {members}, one for each member")
        if n < 1 or any(len(part) != n for part in (*tables, points.sources)):
            raise ValueError("points: there must be as many inputs in every list, at least one")
        if any(len(word) != members for words in tables for word in words):
            raise ValueError(f"points: every input must have {members} verdicts")
        if any(source >= len(points.source_names) for source in points.sources):
            raise ValueError("points: a source has no name")
        lengths = {
            None if w is None else len(w) for w in (points.deterministic_clean, points.deterministic_worst)
        }
        if lengths not in ({None}, {n}):
            raise ValueError(
                f"points: the deterministic ensemble has {n} verdicts with and without attack, or none"
            )
        return self


@dataclass(frozen=True)
class Accuracy(Plain):
    """Expected accuracy of one classifier.

    Attributes
    ----------
    natural, robust : Estimate
        On unperturbed inputs, and on the worst perturbations found.
    """

    natural: Estimate
    robust: Estimate


@dataclass(frozen=True, eq=False)
class Points:
    """Verdicts per input; row j belongs to input j of the data.

    clean, worst, foolable: bool [n, M]: which members are wrong on the unperturbed input, on its worst
    perturbation at the ensemble's probabilities, and on any perturbation found. sources: the attack behind
    each worst case ("" where no member is fooled). deterministic_clean, deterministic_worst: bool [n], the
    same for the deterministic ensemble.
    """

    clean: NDArray[np.bool_]
    worst: NDArray[np.bool_]
    foolable: NDArray[np.bool_]
    sources: tuple[str, ...]
    deterministic_clean: NDArray[np.bool_] | None = None
    deterministic_worst: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Level:
    """A value that the expected accuracy of one input can take, and how many inputs have it.

    Attributes
    ----------
    accuracy : float
        Σ α_i over the members that are correct.
    natural, robust : int
        The number of inputs with this value unperturbed, and on the worst perturbation found.
    """

    accuracy: float
    natural: int
    robust: int


@dataclass(frozen=True)
class Pair(Plain):
    """Theorem 1 for members i and j: drawing between them beats both iff conflict > difference.

    together: whether an attack drew both. Where none did, `conflict` only says that no perturbation was met that
    fools both, and `helps` means nothing. test: an interval for conflict − difference over the choice of inputs.
    """

    i: int
    j: int
    conflict: float
    difference: float
    helps: bool
    together: bool
    test: Theorem1Test


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Kept):
    """The verdicts on one ensemble, one set of inputs and one threat; everything else is computed from them.

    `randens.evaluate` returns it. It prints as a table in a terminal and in a notebook.

    Attributes
    ----------
    probs : float64 [M]
        α.
    points : Points
        The verdicts on every input.
    profile : RiskProfile
        η as found.
    threat : Threat
        The perturbation set.
    data, split : str
        The data and their split.
    classes : int
        The number of classes.
    ensemble : str
        The fingerprint of the members.
    attacks : tuple of mapping
        Name and options of each.
    flops : tuple of int
        Of one inference of each member.
    cost, seconds : Cost, float
        Member passes and time of all work behind the result.
    confidence : float
        Of every interval.
    chosen_on : mapping
        The split used for each choice ("probs", "checkpoints").
    also : mapping
        Further probabilities that were attacked too, by name.
    flags : mapping
        Shares of inputs with unusable gradients, per attack and member, and `unstable`, the share whose
        verdicts changed when computed again.
    conflict : Conflict or None
        The joint reach of the members' gradients; None in files written before it was measured.
    version : str
        Of randens.
    pool : WitnessPool or None
        Every witness found; kept beside the JSON, not in it.
    notes : tuple of str
        Sentences about conversions and likely mistakes.
    x, case
        The inputs and the prepared evaluation, in memory only.
    now, reread : Cost, int
        The passes of this call, and the number of stored witnesses that it checked. These two are not in the
        JSON, so that the same evaluation gives the same document.
    """

    kept_as: ClassVar[str] = "evaluation"
    asked: ClassVar[str] = "ensemble probs also data split threat attacks confidence"

    probs: NDArray[np.float64]
    points: Points
    profile: RiskProfile
    threat: Threat
    data: str
    split: str
    classes: int
    ensemble: str
    attacks: tuple[Mapping[str, Any], ...]
    flops: tuple[int, ...]
    cost: Cost
    seconds: float
    confidence: float = 0.95
    chosen_on: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    conflict: Conflict | None = None
    version: str = __version__
    pool: WitnessPool | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    x: NDArray[np.generic] | None = field(default=None, repr=False)
    case: Any = field(default=None, repr=False)
    now: Cost = field(default_factory=Cost, repr=False)
    reread: int = field(default=0, repr=False)

    def __repr__(self) -> str:
        return result_tables.plain(self)

    def _repr_html_(self) -> str:
        return result_tables.html(self)

    @property
    def errors(self) -> NDArray[np.bool_]:
        """u on the worst perturbation of each input, bool [n, M]."""
        return self.points.worst

    @property
    def x_adv(self) -> NDArray[np.generic]:
        """The worst perturbation found of each input, [n, ...]; the input itself where no member is fooled."""
        if self.x is None or self.pool is None or self.pool.x_adv is None:
            raise InputError("the evaluation has no perturbed inputs in memory; evaluate again to get them")
        rows = self.pool.best(self.probs)[1]
        worst = self.x.copy()
        worst[rows >= 0] = self.pool.x_adv[rows[rows >= 0]]
        return worst

    def curve(self, eps: Any = None, **options: Any) -> Any:
        """Robust accuracy against ε for the same ensemble, inputs and attacks; see `randens.curve`.

        eps: radii as `randens.curve` takes them; five from 0 to twice the evaluation's by default.
        """
        from randens.evaluation.curves import curve_of

        if self.case is None:
            raise InputError(
                "the evaluation was read from a file; use randens.curve with the ensemble and the data"
            )
        radii = [self.threat.eps * k / 2 for k in range(5)] if eps is None else eps
        return curve_of(self.case, radii, **options)

    def to_frame(self) -> Any:
        """A pandas data frame, one row per classifier: natural and robust accuracy with intervals, FLOPs."""
        return result_tables.frame(self)

    @property
    def n(self) -> int:
        """How many inputs."""
        return len(self.points.clean)

    @property
    def members(self) -> int:
        """M."""
        return len(self.probs)

    @cached_property
    def risk(self) -> NDArray[np.float64]:
        """Expected error on the worst perturbation of each input, [n]."""
        return np.asarray(self.points.worst @ self.probs, dtype=np.float64)

    @cached_property
    def accuracy(self) -> Accuracy:
        """Of the randomized ensemble at its probabilities."""
        return Accuracy(self._mean(1 - self.points.clean @ self.probs), self._mean(1 - self.risk))

    @property
    def natural(self) -> Estimate:
        """Expected accuracy on the unperturbed inputs; a float with `low` and `high`."""
        return self.accuracy.natural

    @property
    def robust(self) -> Estimate:
        """Expected accuracy on the worst perturbations found; a float with `low` and `high`."""
        return self.accuracy.robust

    @cached_property
    def member_accuracies(self) -> tuple[Accuracy, ...]:
        """Of each member alone."""
        return tuple(
            Accuracy(self._mean(~self.points.clean[:, i]), self._mean(~self.points.foolable[:, i]))
            for i in range(self.members)
        )

    @cached_property
    def deterministic(self) -> Accuracy | None:
        """Of the deterministic ensemble (all logits averaged), if it was evaluated."""
        clean, worst = self.points.deterministic_clean, self.points.deterministic_worst
        if clean is None or worst is None:
            return None
        return Accuracy(self._mean(~clean), self._mean(~worst))

    def at(self, probs: ArrayLike | None) -> Accuracy:
        """Accuracy of the randomized ensemble at other probabilities (None: uniform), by the witnesses found.

        Unless they are `probs` or one of `also`, they were not attacked, so the robust value may be too high.
        """
        alpha = check_probs(probs, self.members).numpy()
        robust = self.profile.risk(alpha)
        # The profile does not keep the inputs' order, so its risks are spread over as many inputs again.
        counts = np.rint(self.profile.weights * self.n).astype(np.int64)
        values = np.repeat(1 - self.profile.configuration_risks(alpha), counts)
        interval = self._mean(values)
        return Accuracy(
            self._mean(1 - self.points.clean @ alpha), Estimate(1 - robust, interval.low, interval.high)
        )

    @property
    def member_risks(self) -> NDArray[np.float64]:
        """η_i [M]."""
        return self.profile.member_risks

    @cached_property
    def bounds(self) -> Bounds:
        """Floor and ceiling of the risk at any probabilities (Theorem 3)."""
        return bounds(self.member_risks)

    @cached_property
    def next_member(self) -> RuleOfThumb:
        """The risk that a further member should have (rule of thumb)."""
        return rule_of_thumb(self.member_risks)

    @property
    def gain(self) -> float:
        """E π = Σ α_i η_i − η(α): how much drawing lowers the members' mean risk."""
        return self.profile.gain(self.probs)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Theorem 1's condition for every two members."""
        found = []
        attacked = [self.probs, *self.also.values()]
        for i, j in itertools.combinations(range(self.members), 2):
            both = self.profile.restrict((i, j))
            two = two_classifiers(both)
            gap = abs(two.member_risks[0] - two.member_risks[1])
            together = any(alpha[i] > 0 and alpha[j] > 0 for alpha in attacked)
            test = theorem1_test(both, self.n, confidence=self.confidence)
            found.append(Pair(i, j, two.conflict, gap, two.helps, together, test))
        return tuple(found)

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The values an input's expected accuracy can take, highest first, with the number of inputs at each.

        With more than 10 members only those that occur.
        """
        natural = _keys(1 - self.points.clean @ self.probs)
        robust = _keys(1 - self.risk)
        if self.members <= _MOST_LEVELS:
            subsets = np.array(list(itertools.product((0.0, 1.0), repeat=self.members)))
            attainable = np.unique(_keys(1 - subsets @ self.probs))
        else:
            attainable = np.unique(np.concatenate([natural, robust]))
        return tuple(
            Level(float(v), int((natural == v).sum()), int((robust == v).sum())) for v in attainable[::-1]
        )

    @property
    def expected_flops(self) -> float:
        """Floating-point operations of one inference of the randomized ensemble, Σ α_i flops_i."""
        return float(self.probs @ np.array(self.flops, dtype=np.float64))

    @property
    def found_by(self) -> dict[str, int]:
        """How many worst cases each attack found; "clean" needed none, "" are inputs where no member is fooled."""
        names, counts = np.unique(np.array(self.points.sources, dtype=str), return_counts=True)
        return dict(zip(names.tolist(), counts.tolist(), strict=True))

    def check(self, rec: RandomizedEnsemble) -> None:
        """Raise an error if this is the evaluation of another ensemble."""
        if fingerprint(rec) != self.ensemble:
            raise InputError("the evaluation belongs to other members than these; evaluate them again")

    def _mean(self, values: ArrayLike) -> Estimate:
        return estimate(values, self.confidence)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON, with a checksum over all of it; `from_json` reads it back."""
        names = "version ensemble probs also data split classes chosen_on threat attacks flops confidence flags profile"
        document = {
            "format": _FORMAT,
            **picked(self, names),
            "threat_model": THREAT_MODEL,
            "cost": {**vars(self.cost), "seconds": self.seconds},
            **({"notes": list(self.notes)} if self.notes else {}),
            "summary": self.summary(),
            "points": _points_to_json(self.points),
        }
        return seal(document)

    def summary(self) -> dict[str, Any]:
        """The numbers that follow from the verdicts, as plain values."""
        names = (
            "n members natural robust member_accuracies deterministic member_risks bounds gain conflict pairs levels "
            "expected_flops found_by"
        )
        return {
            **picked(self, names),
            "also": {name: self.at(probs).to_json() for name, probs in self.also.items()},
            "next_member": picked(self.next_member, "low high necessary"),
            "deterministic_flops": sum(self.flops),
        }

    def _question(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """What the result is about; of two results with the same question the later one is kept."""
        return {**super()._question(document), "n": self.n, "deterministic": self.deterministic is not None}

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Evaluation:
        """Read what `save` wrote; a file that was altered is refused."""
        source = Path(path)
        document = read_json(source)
        try:
            return Evaluation.from_json(document)
        except RandensError as error:
            raise FileError(f"{source}: {error}") from error

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Evaluation:
        """Inverse of `to_json`; the checksum must match."""
        if not isinstance(value, Mapping) or value.get("format") != _FORMAT:
            raise InputError(f"the evaluation is not a document of format {_FORMAT}")
        if value.get("checksum") != document_checksum(value):
            raise InputError("the evaluation does not match its checksum; it was altered or damaged")
        read, document = fitted(EvaluationDocument, value, "the evaluation"), dict(value)
        members = len(document["probs"])
        profile = RiskProfile.from_json(document["profile"])
        if profile.members != members:
            raise InputError(
                f"the evaluation has {members} probabilities and {profile.members} members in its profile"
            )
        same = ("data", "split", "classes", "ensemble", "confidence", "chosen_on", "flags", "version")
        return Evaluation(
            **{key: document[key] for key in same},
            probs=np.array(document["probs"], dtype=np.float64),
            points=_points_from_json(document["points"], members),
            profile=profile,
            threat=Threat.from_dict(document["threat"]),
            attacks=tuple(document["attacks"]),
            flops=tuple(document["flops"]),
            cost=Cost(document["cost"]["forwards"], document["cost"]["backwards"]),
            seconds=document["cost"]["seconds"],
            also={name: np.array(probs, dtype=np.float64) for name, probs in document["also"].items()},
            conflict=None
            if read.summary.conflict is None
            else Conflict.from_json(vars(read.summary.conflict)),
            notes=tuple(document.get("notes", ())),
        )


def _keys(accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round sums of probabilities to twelve digits: their last bits depend on the order of addition."""
    return np.asarray(np.round(accuracies, 12) + 0.0)


def _points_to_json(points: Points) -> dict[str, Any]:
    names = sorted(set(points.sources))
    position = {name: index for index, name in enumerate(names)}
    tables = {name: to_words(getattr(points, name)) for name in ("clean", "worst", "foolable")}
    columns = {name: getattr(points, name) for name in ("deterministic_clean", "deterministic_worst")}
    return {
        **tables,
        **{name: None if column is None else to_words(column[None])[0] for name, column in columns.items()},
        "source_names": names,
        "sources": [position[name] for name in points.sources],
    }


def _points_from_json(value: Mapping[str, Any], members: int) -> Points:
    names = value["source_names"]
    clean, worst, foolable = (
        from_words("the evaluation", value[name], members) for name in ("clean", "worst", "foolable")
    )
    columns = (value["deterministic_clean"], value["deterministic_worst"])
    alone = (None if word is None else from_words("the evaluation", [word], len(word))[0] for word in columns)
    return Points(clean, worst, foolable, tuple(names[i] for i in value["sources"]), *alone)
