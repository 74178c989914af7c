"""Recipes: all settings of a training run, as TOML, checked before the run starts.

    method = "barre"
    members = 3
    [threat]
    norm = "linf"
    eps = "8/255"

Numbers may be written as fractions in quotes. Every field has a default or says in the error that it is missing.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from randens.attacks.base import current_name
from randens.core.errors import FileError, InputError, unknown
from randens.risk.theorems import MOST_CANDIDATE_MEMBERS
from randens.threat import Threat

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Recipe", "difference", "find_recipe", "load_recipe", "shipped_recipes"]


def _fraction(value: object) -> object:
    """Read "8/255" as a number; other values are checked by the field itself."""
    if not isinstance(value, str):
        return value
    try:
        return float(Fraction(value.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        return value


def _device(value: str) -> str:
    """The name of a device; whether it is there shows when training begins."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?|mps", value):
        raise ValueError(f"{value!r} is no device; valid: auto, cpu, cuda, cuda:N, mps")
    return value


Positive = Annotated[float, BeforeValidator(_fraction), Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, BeforeValidator(_fraction), Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_fraction), Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
MethodName = Literal["at", "iat", "mrboost", "barre", "bat", "joint", "bounded"]


AttackName = Annotated[str, AfterValidator(current_name)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelPart(_Part):
    """The members' network. `normalise` puts the training images' mean and deviation into the model."""

    name: str
    width: Count | None = None
    hidden: Count | None = None
    depth: Count | None = None
    stride: Count | None = None
    normalise: bool = True


class DataPart(_Part):
    """The data set, and random crops (zero padding in pixels) and mirror images while training."""

    name: str
    crop_padding: Annotated[int, Field(ge=0)] = 0
    flip: bool = False


class ThreatPart(_Part):
    """What the adversary may do; see `randens.Threat`."""

    norm: Literal["linf", "l2", "l1"] = "linf"
    eps: Positive
    bounded: bool = True

    def build(self) -> Threat:
        return Threat(self.norm, self.eps, (0.0, 1.0) if self.bounded else None)


class AdversaryPart(_Part):
    """How training examples are made. `level` is where the expectation over members is taken.

    `loss` is what the adversary maximises; the releases of MRBoost and BARRE use "mce". `step` is in units
    of the inputs (None: ε/4 for pgd, ε for n-fgsm, 1.25 ε for fgsm-rs); `start` is the radius of pgd's random
    start and `noise` of n-fgsm's, both in units of ε. "auto" is the method's own level. ε grows over the first
    `warmup` epochs of a fresh member, because some networks learn nothing from the strongest examples at first.
    """

    name: Literal["pgd", "fgsm-rs", "n-fgsm", "arc", "arc-r"] = "pgd"
    level: Literal["auto", "loss", "softmax", "logits", "kl"] = "auto"
    loss: Literal["cross-entropy", "mce"] = "cross-entropy"
    steps: Count = 10
    step: Positive | None = None
    start: Annotated[float, BeforeValidator(_fraction), Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    noise: Positive = 2.0
    warmup: Annotated[int, Field(ge=0)] = 0


class LossPart(_Part):
    """The training loss. `weight` is MCE's w, or TRADES's β (6 if not given)."""

    name: Literal["cross-entropy", "mce", "trades"] = "mce"
    weight: NotNegative | None = None


class OptimizerPart(_Part):
    """Stochastic gradient descent; `later_lr` is the rate of members after the first, which may start from a
    trained one."""

    lr: Positive = 0.1
    later_lr: Positive | None = None
    momentum: Share = 0.9
    weight_decay: NotNegative = 5e-4
    nesterov: bool = False

    @model_validator(mode="after")
    def _needs_momentum(self) -> OptimizerPart:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class SchedulePart(_Part):
    """The learning rate over a member's training: `steps` multiplies by `factor` at each of `milestones`
    (epochs), `cyclic` rises for the share `peak` of all steps and falls to 0, `constant` stays."""

    name: Literal["steps", "cyclic", "constant"] = "cyclic"
    milestones: tuple[Count, ...] = ()
    factor: Positive = 0.1
    peak: Annotated[float, Field(gt=0, lt=1)] = 0.3


class SamplingPart(_Part):
    """How α is chosen under attack.

    `exact` is the certified optimum. `paper` is the candidate search for up to 3 members and the subgradient
    OSP with `iterations` (T_o) steps for more. `subgradient` and `candidates` are one of these for any number
    of members. All four use the pool of witnesses. `osp` is like `paper`, but as Algorithm 1 prints it: with
    a fresh attack at every α that is tried and the first step `step` (a). `sweep` is a grid over the first
    member's probability, `uniform` is 1/M.

    `rule` says when α changes while a member is trained. "printed": every `every` epochs (E_o) from the
    second member on (Algorithm 2). "released", as in the authors' program: never for m ≤ 3, and from the
    fourth member on every `every` epochs in the second half of its training, with a = 10 times the learning
    rate. The member in training has a probability of at least `floor` times 1/m, so that its training attack
    never ignores it. A floor above 1 gives it more than the others.
    `attack` is the attack under which α is chosen (None: that of the validation; the method's own comes
    first), `data` the split it is chosen on ("train": `size` of its images, drawn once), `rate` the step of
    joint training's mirror descent.
    """

    method: Literal["exact", "paper", "osp", "subgradient", "candidates", "sweep", "uniform"] = "exact"
    rule: Literal["printed", "released"] = "printed"
    every: Count = 10
    iterations: Count = 10
    step: Positive = 1.0
    sweeps: Count = 4
    attack: AttackName | None = None
    data: Literal["validation", "train"] = "validation"
    size: Count = 2048
    floor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    rate: Positive = 0.5


class ValidationPart(_Part):
    """The attack on validation data that chooses checkpoints and α, every `every` epochs.

    `attack` may name any attack of `randens.attacks`; `size` limits the number of images. Training of a member
    stops after `patience` validations in a row whose accuracy under attack is below `collapse` times the best
    while the accuracy on training examples is higher than it was then. `keep` says which checkpoint is kept.
    With `rule_of_thumb`, training of member m+1 also stops after `patience` validations in a row whose risk is above
    (1 + 1/m) times that of the members before it, once it was below (Equation 15).
    """

    attack: AttackName = "adaptive-pgd-s"
    steps: Count = 10
    every: Count = 1
    size: Count | None = None
    keep: Literal["best", "last"] = "best"
    collapse: Share = 0.5
    patience: Count = 2
    rule_of_thumb: bool = False


class CheckpointPart(_Part):
    """A checkpoint is written at the end of an epoch, or after a step, once `seconds` have passed since the
    last one; 0 writes one after every step."""

    seconds: Annotated[float, Field(ge=0)] = 60.0


class Recipe(_Part):
    """All settings of a training run, as in a TOML file.

    Parameters
    ----------
    method : str
        "at", "iat", "mrboost", "barre", "bat", "joint", "bounded".
    members, epochs, later_epochs : int
        The number of members, the epochs of each, and those of later members if they differ.
    batch_size, seed : int
        The size of training batches; the seed of all random numbers.
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
    device, batch_norm : str
        How passes are computed.
    compile : bool
        Compile the members by `torch.compile`.
    log_every, tensorboard : int, bool
        Steps between two lines of metrics.jsonl; write TensorBoard's files too.
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
    members: Count = 1
    epochs: Count
    later_epochs: Count | None = None
    batch_size: Count = 128
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    weight: NotNegative | None = None
    start: Literal["auto", "fresh", "previous"] = "auto"
    first: str | tuple[str, ...] | None = None
    ema: Share = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Annotated[str, AfterValidator(_device)] = "auto"
    compile: StrictBool = False
    batch_norm: Literal["local", "synced"] = "synced"
    log_every: Count = 50
    tensorboard: bool = False
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
        if self.method == "at" and self.members != 1:
            raise ValueError(f"members is {self.members}; method 'at' trains exactly 1")
        if self.method == "bat" and self.members < 2:
            raise ValueError(f"members is {self.members}; method 'bat' needs at least 2")
        late = [m for m in self.schedule.milestones if m >= self.epochs]
        if late:
            raise ValueError(f"schedule.milestones holds {late[0]}; there are only {self.epochs} epochs")
        if self.adversary.level == "kl" and self.adversary.name in ("arc", "arc-r"):
            raise ValueError("adversary.level is 'kl'; arc follows decision boundaries and has no level")
        if self.sampling.method == "candidates" and self.members > MOST_CANDIDATE_MEMBERS:
            raise ValueError(
                f"sampling.method is 'candidates'; that is for up to {MOST_CANDIDATE_MEMBERS} members, "
                f"not {self.members}"
            )
        if self.adversary.loss == "mce" and (
            self.adversary.name in ("arc", "arc-r") or self.adversary.level == "kl"
        ):
            raise ValueError("adversary.loss is 'mce'; arc and level 'kl' climb something of their own")
        if self.validation.rule_of_thumb and self.method != "barre":
            raise ValueError(
                f"validation.rule_of_thumb is true; it is for method 'barre', not {self.method!r}, "
                "whose validation does not attack all members"
            )
        if len(self.given) > self.members:
            raise ValueError(f"first names {len(self.given)} runs; there are only {self.members} members")
        if self.method in ("joint", "bounded") and self.start == "previous":
            raise ValueError(
                f"start is 'previous'; {self.method} trains all members at once: there is no previous member"
            )
        if self.weight is not None and self.method != "bounded":
            raise ValueError(f"weight is {self.weight}; method {self.method!r} has no weight")
        if self.weight is not None and self.weight > 1:
            raise ValueError(f"weight is {self.weight}; it is a share of the batch, at most 1")
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
        return recipe_from(_with(self.to_json(), settings), "--set")

    def to_json(self) -> dict[str, Any]:
        """Plain values, as kept in a run's manifest."""
        return self.model_dump(mode="json")


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with randens.

    Returns
    -------
    dict of str to Path
        Files by name.

    Examples
    --------
    >>> "cpu/digits-mlp-barre" in shipped_recipes()
    True
    """
    here = Path(__file__).parent
    # Beside this module in an installed package, `recipes/` in a clone of the repository.
    folder = next((f for f in (here / "recipes", here.parents[2] / "recipes") if f.is_dir()), here)
    found = sorted(folder.glob("*/*.toml"))
    return {f"{path.parent.name}/{path.stem}": path for path in found}


def find_recipe(source: str | os.PathLike[str]) -> Path:
    """The file of a recipe.

    Parameters
    ----------
    source : path or str
        A file; else the name of a recipe that ships with randens ("digits-mlp-barre", with its folder if two
        folders have it, "paper/cifar10-resnet20-barre"), or the path of such a recipe in a clone
        ("recipes/cpu/digits-mlp-barre.toml").

    Returns
    -------
    Path
        An existing file.

    Examples
    --------
    >>> find_recipe("digits-mlp-barre").name
    'digits-mlp-barre.toml'
    """
    path = Path(source)
    if path.exists():
        return path
    shipped = shipped_recipes()
    name = path.as_posix().removeprefix("recipes/")
    if path.suffix == ".toml":
        return shipped.get(name.removesuffix(".toml"), path)
    fitting = [full for full in shipped if name in (full, full.rpartition("/")[2])]
    if not fitting:
        unknown("recipe", str(source), dict.fromkeys(full.rpartition("/")[2] for full in shipped))
    if len(fitting) > 1:
        raise InputError(f"recipe {str(source)!r} is the name of several; valid: {', '.join(fitting)}")
    return shipped[fitting[0]]


def load_recipe(path: str | os.PathLike[str], settings: Iterable[str] = ()) -> Recipe:
    """Read a recipe from a TOML file, or a shipped recipe by its name, and apply ``key=value`` settings.

    Parameters
    ----------
    path : str or path
        A TOML file, or a name.
    settings : iterable of str
        ``key=value``, with dots for parts.

    Returns
    -------
    Recipe
        Checked.

    Examples
    --------
    >>> load_recipe("digits-mlp-barre", ["members=2", "optimizer.lr=0.05"]).optimizer.lr
    0.05
    """
    source = find_recipe(path)
    try:
        content = tomllib.loads(source.read_bytes().decode())
    except OSError as error:
        raise FileError(f"cannot read the recipe {source}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{source} is not valid TOML: {error}") from error
    return recipe_from(_with(content, settings), str(source))


def recipe_from(content: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from plain values; `source` is named in the error."""
    try:
        return Recipe.model_validate(dict(content))
    except ValidationError as error:
        found = error.errors(include_url=False)
        said = "; ".join(dict.fromkeys(_sentence(e, Recipe) for e in found[:3]))
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        raise InputError(f"{source}: {said}{more}") from None


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines ``key: old → new`` for every value that differs, keys with dots."""
    before, after = _flat(old), _flat(new)
    return [
        f"{key}: {before.get(key, '(absent)')!r} → {after.get(key, '(absent)')!r}"
        for key in sorted(set(before) | set(after))
        if before.get(key, math.nan) != after.get(key, math.nan)
    ]


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        elif key == "attack" and isinstance(value, str):
            flat[f"{prefix}{key}"] = current_name(value)  # a renamed attack is the same recipe
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _with(content: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The content after ``key=value`` settings, in place; a value is read as TOML, or as text if it is not TOML."""
    for setting in settings:
        key, sign, text = (part.strip() for part in setting.partition("="))
        if not sign or not key:
            raise InputError(f"--set {setting!r} is not of the form key=value, e.g. optimizer.lr=0.05")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = None if text == "none" else text
        *groups, last = key.split(".")
        place = content
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise InputError(f"--set {key}: {group!r} is a single value, it has no fields")
        place[last] = value
    return content


def _sentence(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return one readable sentence for an error of pydantic."""
    where = [str(part) for part in error["loc"]]
    name = ".".join(where)
    if error["type"] == "extra_forbidden":
        valid = _fields(model, where[:-1])
        close = difflib.get_close_matches(where[-1], valid, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"unknown field {name!r}; {hint}valid here: {', '.join(sorted(valid))}"
    if error["type"] == "missing":
        return f"field {name!r} is missing"
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        return f"{name}: {message}" if name else message
    given = error["input"]
    shown = f" {given!r}" if not isinstance(given, (dict, list)) else ""
    close = []
    if error["type"] == "literal_error" and isinstance(given, str):
        choices = map(str, get_args(_fields(model, where[:-1])[where[-1]].annotation))
        close = difflib.get_close_matches(given, list(choices), n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    reason = str(error["msg"])
    return f"{name} is{shown or ' a table or list'}; {reason[:1].lower()}{reason[1:]}{hint}"


def _fields(model: type[BaseModel], path: list[str]) -> dict[str, FieldInfo]:
    for name in path:
        annotation = model.model_fields[name].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return {}
        model = annotation
    return model.model_fields
