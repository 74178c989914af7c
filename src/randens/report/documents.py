"""Files of a run folder that only the report reads or writes; what does not fit them is named, not guessed at."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field

from randens.core.documents import Document, read_document
from randens.core.runs import Run
from randens.evaluation import Estimate

__all__ = [
    "AdviceNote",
    "AttackLine",
    "AttackTable",
    "Audit",
    "Check",
    "Example",
    "Gallery",
    "Interval",
    "Radii",
    "Radius",
    "SamplingNote",
    "StochasticNote",
    "TrainingNote",
    "read",
]

_PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")


def _picture(value: str) -> str:
    if not _PNG.fullmatch(value):
        raise ValueError("must be a PNG picture as a data URI")
    return value


Real = float  # finite, as every number of a document
Picture = Annotated[str, AfterValidator(_picture)]


class Interval(Document):
    """A mean with its confidence interval."""

    value: Real
    low: Real
    high: Real

    @staticmethod
    def of(estimate: Estimate) -> Interval:
        """The same numbers as a document."""
        return Interval(value=estimate.value, low=estimate.low, high=estimate.high)


class Radius(Document):
    """Accuracies at one radius: of the randomized ensemble, of each member, of the deterministic ensemble."""

    eps: Real
    robust: Interval
    members: list[Interval]
    deterministic: Interval | None = None


class _Measured(Document):
    """What was measured: the members by their fingerprint, at these probabilities, on these data."""

    ensemble: str
    probs: list[Real] = Field(min_length=1)
    data: str
    split: str


class Radii(_Measured):
    """Robust accuracy over ε. Witnesses of smaller radii count at larger ones, so that no curve rises."""

    format: Literal["randens-radii-1"] = "randens-radii-1"
    n: int = Field(ge=1)
    norm: str
    attacks: list[str]
    confidence: Real
    radii: list[Radius] = Field(min_length=1)


class AttackLine(Document):
    """One attack alone on the ensemble: what is left of the accuracy, and what the attack cost."""

    name: str
    robust: Interval
    forwards: int
    backwards: int
    seconds: Real


class AttackTable(_Measured):
    """Attacks compared on the same inputs; `together` is the worst case of all of them."""

    format: Literal["randens-attack-table-1"] = "randens-attack-table-1"
    n: int = Field(ge=1)
    norm: str
    eps: Real
    attacks: list[AttackLine]
    together: Interval


class Example(Document):
    """One input: the pictures, and what every member said before and after."""

    index: int
    label: int = Field(ge=0)
    risk: Real
    source: str
    clean: Picture
    perturbed: Picture
    difference: Picture
    before: list[int]
    after: list[int]


class Gallery(_Measured):
    """Worst perturbations found, with differences shown `amplified` times as large around grey."""

    format: Literal["randens-gallery-1"] = "randens-gallery-1"
    norm: str
    eps: Real
    amplified: Real
    classes: list[str]
    examples: list[Example]


class MethodNote(Document):
    """What one method of choosing probabilities found; without a risk it was not applied."""

    name: str = ""
    risk: Real | None = None


class Contribution(Document):
    """What a member adds to the ensemble."""

    prob: Real | None = None
    advice: str | None = None


class SamplingNote(Document):
    """What the report shows of sampling.json."""

    probs: list[Real] = Field(min_length=1)
    risk: Real
    lower_bound: Real
    gap: Real
    method: str
    exact_probs: list[str] | None = None
    claim: str = ""
    split: str = "unknown"
    sweeps: int = 0
    methods: list[MethodNote] = Field(default_factory=list)
    contributions: list[Contribution] = Field(default_factory=list)


class DrawStage(Document):
    """Accuracies after attacking so many draws."""

    draws: int
    in_sample: Real
    fresh: Real


class DrawAdversary(Document):
    """One attack on a random model."""

    name: str
    draws: int
    accuracy: Real
    chosen: int


class DrawSpread(Document):
    """Accuracies of single draws."""

    natural: list[Real]
    robust: list[Real]
    deviation: Real


class DrawNoise(Document):
    """How noisy gradients are, and what is left to one perturbation for all draws."""

    draws: int
    variance: Real
    agreement: Real
    single: Real
    reach: Real


class StochasticNote(Document):
    """What the report shows of stochastic.json."""

    n: int
    data: str
    split: str
    confidence: Real
    natural: Interval
    robust: Interval
    robust_over_draws: Interval
    single_draw: Real
    stages: list[DrawStage] = Field(min_length=1)
    adversaries: list[DrawAdversary]
    spread: DrawSpread
    noise: DrawNoise
    statements: list[str]
    attacks: list[str]


class TrainingNote(Document):
    """What the report shows of training.json."""

    method: str = ""
    finished: bool = True
    cost: dict[str, Real] = Field(default_factory=dict)


class OptionLine(Document):
    """One way to answer, as `randens advise` measured it."""

    name: str
    kind: str
    k: int = Field(ge=1)
    flops: Real
    natural: Interval
    robust: Interval


class AdviceNote(Document):
    """What the report shows of advice.json."""

    format: Literal["randens-advice-1"]
    options: list[OptionLine] = Field(min_length=1)
    sentences: list[str] = Field(default_factory=list)
    ensemble: str = ""
    data: str
    split: str
    n: int = Field(ge=1)
    confidence: Real
    attacks: list[str] = Field(default_factory=list)


class Check(Document):
    """One check of an audit."""

    name: str
    passed: bool
    finding: str = ""
    advice: str = ""


class Audit(Document):
    """What the report shows of audit.json."""

    passed: bool
    verdict: str = ""
    ensemble: str = ""
    checks: list[Check]


Kind = TypeVar("Kind", bound=Document)


def read(run: Run, name: str, kind: type[Kind]) -> Kind | None:
    """`name`.json of the run, or None if there is none; a file of another shape is an error that names the field."""
    path = run.path / f"{name}.json"
    return read_document(path, kind) if path.exists() else None
