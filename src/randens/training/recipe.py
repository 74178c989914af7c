"""Recipes: all settings of a training run, as TOML, checked before the run starts.

    method = "barre"
    members = 3
    [threat]
    norm = "linf"
    eps = "8/255"

Numbers may be written as fractions in quotes. Every field has a default or says in the error that it is missing, and
every number has a limit, so that a slip of the pen is a sentence and not a machine out of memory.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from randens.core.errors import InputError, number, shown
from randens.core.files import AnyPath, file_errors, read_file
from randens.threat import Threat

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST_TOML = 1 << 14  # a dotted key takes memory by the square of its length

# Where and how fast a run is computed: a run may be continued with other values.
_OF_THE_MACHINE = (
    *("device:", "devices:", "nodes:", "precision:", "compile:"),
    *("log_every:", "checkpoint.", "data.workers:"),
)


def _number(value: object) -> object:
    """Read "8/255" as a number; other values are checked by the field itself."""
    with contextlib.suppress(InputError):
        return number("", value) if isinstance(value, str) else value
    return value


Positive = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1e6)]
NotNegative = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1e6)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=8192)]
Few = Annotated[int, Field(ge=1, le=64)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
MethodName = Literal["at", "iat", "mrboost", "barre", "bat", "joint", "bounded"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelPart(_Part):
    """The members' network. `normalize` puts the training images' mean and deviation into the model.

    `name` is one of `randens.models.names()` (with `width`, `hidden`, `depth`), "timm:NAME", or
    "package.module:factory", a function that returns a module giving logits; `options` are the arguments of the last
    two. Naming a function is the consent to import and call it.
    """

    name: Text
    width: Width | None = None
    hidden: Width | None = None
    depth: Few | None = None
    options: Annotated[dict[str, str | bool | int | float | list[int] | None], Field(max_length=64)] = {}
    normalize: bool = True

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are given."""
        names = ("width", "hidden", "depth")
        return {name: size for name in names if (size := getattr(self, name)) is not None}


class DataPart(_Part):
    """The data: a name or a folder of images; and random crops (zero padding in pixels), mirror images and rotations
    (up to so many degrees) while training.

    `size` scales the images of a folder; `workers` is the number of processes that read data which are not in memory.
    """

    name: Text
    size: tuple[Annotated[int, Field(ge=1, le=1024)], Annotated[int, Field(ge=1, le=1024)]] | None = None
    crop_padding: Annotated[int, Field(ge=0, le=128)] = 0
    flip: bool = False
    rotation: Annotated[float, Field(ge=0, le=180)] = 0.0
    workers: Annotated[int, Field(ge=0, le=64)] = 0


class ThreatPart(_Part):
    """What the adversary may do; see `randens.Threat`."""

    norm: Literal["linf", "l2", "l1"] = "linf"
    eps: Positive
    bounded: bool = True

    def build(self) -> Threat:
        return Threat(self.norm, self.eps, (0.0, 1.0) if self.bounded else None)


class AdversaryPart(_Part):
    """How training examples are made. `level` is where the expectation over members is taken.

    `loss` is what it maximizes; the releases of MRBoost and BARRE use "mce". `step` is in units of the inputs (None:
    ε/4 for pgd, ε for n-fgsm, 1.25 ε for fgsm-rs); `start` is the radius of pgd's random start and `noise` of n-fgsm's,
    in units of ε. "auto" is the method's own level. ε grows over the first `warmup` epochs of a fresh member.
    """

    name: Literal["pgd", "fgsm-rs", "n-fgsm", "arc", "arc-r"] = "pgd"
    level: Literal["auto", "loss", "softmax", "logits", "kl"] = "auto"
    loss: Literal["cross-entropy", "mce"] = "cross-entropy"
    steps: Annotated[int, Field(ge=1, le=1000)] = 10
    step: Positive | None = None
    start: Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)] = 1.0
    noise: Annotated[float, BeforeValidator(_number), Field(gt=0, le=100)] = 2.0
    warmup: Annotated[int, Field(ge=0, le=100_000)] = 0


class LossPart(_Part):
    """The training loss. `weight` is MCE's w, or TRADES's β (6 if not given)."""

    name: Literal["cross-entropy", "mce", "trades"] = "mce"
    weight: NotNegative | None = None


class OptimizerPart(_Part):
    """`momentum` is SGD's, or AdamW's first β; `later_lr` is the rate of members after the first, which may start
    from a trained one.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.1
    later_lr: Positive | None = None
    momentum: Share = 0.9
    weight_decay: NotNegative = 5e-4
    nesterov: bool = False


class SchedulePart(_Part):
    """The learning rate over a member's training: `steps` multiplies by `factor` at each of `milestones`
    (epochs), `cyclic` rises for the share `peak` of all steps and falls to 0, `constant` stays."""

    name: Literal["steps", "cyclic", "constant"] = "cyclic"
    milestones: tuple[Count, ...] = ()
    factor: Positive = 0.1
    peak: Annotated[float, Field(gt=0, lt=1)] = 0.3


class SamplingPart(_Part):
    """How α is chosen under attack.

    `exact` is the optimum over all witnesses found: optimize, attack at the result, repeat up to `sweeps` times while
    the attack finds new ones. `osp` is Algorithm 1 as printed: a fresh attack at every α that is tried, `iterations`
    (T_o) steps of size `step`/t (a/t) from `begin` ("uniform", or the "current" α as in the authors' program), and
    the candidates of Theorems 1 and 2 for up to 3 members. `uniform` is 1/M.

    `rule` says when α changes while a member is trained. "printed": every `every` epochs (E_o) from the
    second member on (Algorithm 2). "released", as in the authors' program: never for m ≤ 3, and from the
    fourth member on every `every` epochs in the second half of its training, with a = 10 times the learning
    rate. The member in training has a probability of at least `floor` times 1/m, so that its training attack
    never ignores it. A floor above 1 gives it more than the others.
    `attack` is the attack under which α is chosen (None: that of the validation; the method's own comes
    first), `data` the split it is chosen on ("train": `size` of its images, drawn once), `rate` the step of
    joint training's mirror descent. `final` says where the finished ensemble's α comes from: "chosen" by `method`, or
    the α of the last member's best "checkpoint".
    """

    method: Literal["exact", "osp", "uniform"] = "exact"
    rule: Literal["printed", "released"] = "printed"
    every: Count = 10
    iterations: Annotated[int, Field(ge=1, le=1000)] = 10
    step: Positive = 1.0
    begin: Literal["uniform", "current"] = "uniform"
    sweeps: Few = 4
    attack: Text | None = None
    data: Literal["validation", "train"] = "validation"
    size: Count = 2048
    floor: Annotated[float, Field(ge=0, le=1000)] = 0.5
    rate: Positive = 0.5
    final: Literal["chosen", "checkpoint"] = "chosen"


class ValidationPart(_Part):
    """The attack on validation data that chooses checkpoints and α, every `every` epochs.

    `attack` may name any attack of `randens.attacks`; `size` limits the number of images. Training of a member
    stops after `patience` validations in a row whose accuracy under attack is below `collapse` times the best
    while the accuracy on training examples is higher than it was then. `keep` says which checkpoint is kept.
    """

    attack: Text = "adaptive-pgd-s"
    steps: Annotated[int, Field(ge=1, le=1000)] = 10
    every: Count = 1
    size: Count | None = None
    keep: Literal["best", "last"] = "best"
    collapse: Share = 0.5
    patience: Count = 2


class CheckpointPart(_Part):
    """A checkpoint is written at the end of an epoch, or after a step, once `seconds` have passed since the
    last one; 0 writes one after every step."""

    seconds: NotNegative = 60.0


class Recipe(_Part):
    """All settings of a training run, as in a TOML file.

    Parameters
    ----------
    method : str
        "at", "iat", "mrboost", "barre", "bat", "joint", "bounded".
    members, epochs, later_epochs : int
        The number of members, the epochs of each, and those of later members if they differ.
    batch_size, seed : int
        The size of training batches, all processes together; the seed of all random numbers.
    weight : float, optional
        The share of common examples for "bounded", at most 1.
    start : str
        Later members start "fresh" or from the "previous" one; "auto" is the method's default.
    first : str or tuple of str, optional
        Takes the first member, or the first few, from earlier runs; method "at" continues its training.
    ema : float
        Decay of the weights' moving average; 0: no average.
    precision : str
        "float32", "bfloat16" for passes while training, or "auto": bfloat16 where the device has it natively.
    device, devices, nodes : str, int or "auto", int
        Where to train; the number of processes on each machine, one per GPU, and of machines.
    compile : bool
        Compile the members by `torch.compile`.
    log_every : int
        Steps between two lines of metrics.jsonl.
    model, data, threat, adversary, loss, optimizer, schedule, sampling, validation, checkpoint : mapping
        The recipe's parts, each with options of its own.

    Examples
    --------
    >>> recipe = Recipe(
    ...     method="at", epochs=2, model={"name": "linear"}, data={"name": "digits"}, threat={"eps": "8/255"}
    ... )
    >>> recipe.members, round(recipe.threat.eps, 4)
    (1, 0.0314)
    """

    method: MethodName
    members: Few = 1
    epochs: Count
    later_epochs: Count | None = None
    batch_size: Count = 128
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    weight: Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)] | None = None
    start: Literal["auto", "fresh", "previous"] = "auto"
    first: Text | tuple[Text, ...] | None = None
    ema: Share = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")] = "auto"
    devices: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = 1
    nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    compile: StrictBool = False
    log_every: Count = 50
    model: ModelPart
    data: DataPart
    threat: ThreatPart
    adversary: AdversaryPart = AdversaryPart()
    loss: LossPart = LossPart()
    optimizer: OptimizerPart = OptimizerPart()
    schedule: SchedulePart = SchedulePart()
    sampling: SamplingPart = SamplingPart()
    validation: ValidationPart = ValidationPart()
    checkpoint: CheckpointPart = CheckpointPart()

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        method, craft, members, given = self.method, self.adversary, self.members, len(self.given)
        kl, arc, barre = craft.level == "kl", craft.name in ("arc", "arc-r"), method == "barre"
        moves = self.optimizer.name == "sgd" and self.optimizer.momentum > 0
        network, sizes = self.model.name, ", ".join(self.model.sizes)
        late = max(self.schedule.milestones, default=0)
        taken = sorted({"classes", "input_shape", "mean", "std", "seed"} & set(self.model.options))
        together = method in ("joint", "bounded")
        for wrong, message in (
            (method == "at" and members > 1, f"members is {members}; method 'at' trains exactly 1"),
            (method == "bat" and members < 2, "members is 1; method 'bat' needs at least 2"),
            (self.optimizer.nesterov and not moves, "optimizer.nesterov is true; it needs sgd with momentum"),
            (":" in network and sizes, f"model {network!r} takes options; set {sizes} to none"),
            (taken, f"model.options sets {', '.join(taken)}; data and seed of the recipe decide that"),
            (late >= self.epochs, f"schedule.milestones holds {late}; there are only {self.epochs} epochs"),
            (kl and arc, "adversary.level is 'kl'; arc follows decision boundaries"),
            (
                craft.loss == "mce" and (kl or arc),
                "adversary.loss is 'mce'; arc and 'kl' climb something else",
            ),
            (self.sampling.final != "chosen" and not barre, "sampling.final is for method 'barre'"),
            (given > members, f"first names {given} runs; there are only {members} members"),
            (together and self.start == "previous", f"start is 'previous'; {method} trains all at once"),
            (self.weight is not None and method != "bounded", f"weight is given; {method!r} has none"),
        ):
            if wrong:
                raise ValueError(message)
        return self

    @property
    def given(self) -> tuple[str, ...]:
        """The runs from which the first members are taken, in order."""
        if self.first is None:
            return ()
        return (self.first,) if isinstance(self.first, str) else self.first

    def epochs_of(self, stage: int) -> int:
        """Epochs of member number `stage` (0 is the first)."""
        return self.epochs if stage == 0 or self.later_epochs is None else self.later_epochs

    def lr_of(self, stage: int) -> float:
        """The learning rate that the schedule of stage number `stage` scales."""
        part = self.optimizer
        return part.lr if stage == 0 or part.later_lr is None else part.later_lr

    def with_settings(self, settings: Iterable[str]) -> Recipe:
        """The recipe with ``key=value`` settings applied, e.g. ``optimizer.lr=0.05``."""
        return recipe_from(with_settings(self.to_json(), settings), "--set")

    def to_json(self) -> dict[str, Any]:
        """Plain values, as kept in a run's manifest."""
        return self.model_dump(mode="json")

    def changes(self, other: Recipe) -> list[str]:
        """Lines ``key: own → other's`` for what a run depends on; where and how fast it is computed is not."""
        found = difference(self.to_json(), other.to_json())
        return [line for line in found if not line.startswith(_OF_THE_MACHINE)]


def recipe_from(content: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from plain values; `source` is named in the error."""
    try:
        return Recipe.model_validate(dict(content))
    except ValidationError as error:
        # The alternatives of a field are separate errors; the first one is shown.
        found = {tuple(_where(e)): e for e in reversed(error.errors(include_url=False))}
        sentences = [_sentence(e, Recipe) for e in reversed(found.values())]
        more = f"; and {len(sentences) - 3} more" if len(sentences) > 3 else ""
        raise InputError(f"{source}: {'; '.join(sentences[:3])}{more}") from None


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Lines ``key: old → new`` for every value that differs, keys with dots."""
    lines: list[str] = []
    for key in sorted(set(old) | set(new)):
        sides = (side.get(key, "(absent)") for side in (old, new))
        before, after = (list(value) if isinstance(value, tuple) else value for value in sides)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += difference(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {before!r} → {after!r}")
    return lines


def read_toml(path: AnyPath) -> dict[str, Any]:
    """Read TOML; a missing or damaged file is named in the error."""
    with file_errors("read", path):
        return tomllib.loads(read_file(path, _LARGEST_TOML).decode())


def with_settings(content: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The content after ``key=value`` settings, in place; a value is read as TOML, or as text if it is not TOML."""
    for setting in settings:
        key, sign, text = (part.strip() for part in setting.partition("="))
        if not sign or not key:
            raise InputError(f"--set {setting!r} is not of the form key=value, e.g. optimizer.lr=0.05")
        try:
            value = tomllib.loads(f"value = {text}")["value"] if len(text) < _LARGEST_TOML else text
        except (ValueError, RecursionError):
            value = None if text == "none" else text
        *groups, last = key.split(".")
        place = content
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise InputError(f"--set {key}: {group!r} is a single value, it has no fields")
        place[last] = value
    return content


def _where(error: Mapping[str, Any]) -> list[str]:
    """The fields on the way to an error, without pydantic's names for alternatives."""
    return [str(part) for part in error["loc"] if not set("[-(") & set(str(part))]


def _sentence(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return one readable sentence for an error of pydantic."""
    where = _where(error)
    name = ".".join(where)
    if error["type"] == "extra_forbidden":
        *groups, last = map(str, error["loc"])
        valid = _fields(model, groups)
        close = difflib.get_close_matches(last[:100], valid, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return (
            f"unknown field {'.'.join([*groups, last])!r:.100}; {hint}valid here: {', '.join(sorted(valid))}"
        )
    if error["type"] == "missing":
        return f"field {name!r} is missing"
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        return f"{name}: {message}" if name else message
    given, reason = error["input"], str(error["msg"]).partition(", unable")[0]
    value = "a table or list" if isinstance(given, (dict, list)) else shown(given)[:60]
    return f"{name} is {value}; {reason[:1].lower()}{reason[1:]}"


def _fields(model: type[BaseModel], path: list[str]) -> dict[str, FieldInfo]:
    for name in path:
        annotation = model.model_fields[name].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return {}
        model = annotation
    return model.model_fields
