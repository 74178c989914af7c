"""What evaluations are given: classifiers, data and attacks of any kind or name, made to fit each other."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from randens import models
from randens.attacks import Attack
from randens.attacks.base import AttackLike, as_attacks
from randens.core.devices import on_device, settled
from randens.core.errors import FileError, InputError, ModelError, PathLike, RandensWarning, typed, unknown
from randens.core.progress import Progress, bars, silent
from randens.core.runs import Document, Run
from randens.data import Data, as_data, check_range, names
from randens.ensemble import RandomizedEnsemble, evaluating, load
from randens.evaluation.tables import About
from randens.models import Adapted, adapt, logits_of, preprocessing_per_member
from randens.random_model import RandomizedModel
from randens.threat import FiniteThreat, Threat
from randens.witness.fingerprints import fingerprint, input_keys
from randens.witness.store import WitnessStore

MODELS = "a module, a list of modules, a RandomizedEnsemble, a run folder, torchscript:PATH, onnx:PATH, or a zoo name"
_TORCHSCRIPT = (".pt", ".pts", ".ts", ".torchscript")
_CODE = ("torchscript", "onnx")
# By which torch and others refuse a shape; other exceptions are the model's own.
_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, NotImplementedError)
_LOOKED_AT = 256  # inputs on which members are checked
_ENOUGH = 20  # fewer inputs do not show whether an accuracy is above chance
_REPEATED = 1e-3  # of the largest logit: two calls of a deterministic member may differ by rounding


class Part(TypedDict, total=False):
    """The settings that every function of this layer takes, as `randens.evaluate` explains them."""

    norm: str | float | None
    device: str | torch.device | None
    preprocessing: Any
    probs: ArrayLike | Tensor | None
    split: str | None
    limit: int | None
    seed: int
    folder: WitnessStore | str | os.PathLike[str] | None
    progress: Progress | None


class Settings(Part, total=False):
    """The same with a radius."""

    eps: float | str | None
    threat: Threat | None


class _TrainedOn(Document):
    """trained_on.json."""

    inputs: list[str]


def chosen_split(data: Any, settings: Settings) -> Settings:
    """The settings of a choice: of named data, the validation split is the default."""
    named = data is None or isinstance(data, (str, os.PathLike))
    return {**settings, "split": "validation"} if named and settings.get("split") is None else settings


@dataclass(frozen=True)
class Case:
    """An evaluation ready to begin: everything fits, notes say what was noticed, chosen_on which split chose what."""

    rec: RandomizedEnsemble
    data: Data
    attacks: tuple[Attack, ...]
    notes: tuple[str, ...] = ()
    preprocessing: str | None = None
    chosen_on: Mapping[str, str] = dataclasses.field(default_factory=dict)
    store: WitnessStore | None = None
    progress: Progress = silent

    @property
    def threat(self) -> Threat:
        """The threat of all attacks."""
        return self.attacks[0].threat

    @property
    def about(self) -> About:
        """The head of every document."""
        return About(
            ensemble=fingerprint(self.rec),
            probs=tuple(self.rec.probs.tolist()),
            data=self.data.name,
            split=self.data.split,
            n=len(self.data),
            threat=self.threat.to_dict(),
            attacks=tuple(attack.to_dict() for attack in self.attacks),
            seed=self.attacks[0].seed,
            preprocessing=self.preprocessing,
        )

    def need_members(self, what: str) -> None:
        """Refuse random models, for which `what` is not meant."""
        if self.rec.stochastic:
            raise InputError(f"model answers at random; {what} for deterministic members only")


@typed(
    threat=Threat | None,
    norm=str | float | int | None,
    device=str | torch.device | None,
    split=str | None,
    folder=WitnessStore | PathLike | None,
    progress=Callable | None,
)
@contextlib.contextmanager
def prepare(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    threat: Threat | None = None,
    device: str | torch.device | None = None,
    preprocessing: Any = None,
    probs: ArrayLike | Tensor | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **other: object,
) -> Iterator[Case]:
    """Model, data and attacks that fit each other, on the device, with gradients; members are left as they were."""
    for name in other:
        unknown("argument", name, Settings.__annotations__)
    is_run = isinstance(model, (str, os.PathLike)) and (Path(model) / "manifest.json").is_file()
    run = Run.open(model) if is_run else None
    if run is not None and data is None:
        data = run_data(run)
    if data is None:
        raise InputError("data is None; only a run folder knows its own: give (x, y), a loader or a name")
    with contextlib.ExitStack() as stack:
        stack.enter_context(settled())
        rec = as_rec(model, probs=probs, preprocessing=preprocessing)
        given = as_data(data, split=split, limit=limit, size=image_size(rec))
        if run is not None:
            check_unseen(run, given)
        inputs = _in_precision(given, rec)
        chosen = as_attacks(attack, eps=eps, norm=norm, threat=threat, known=rec.threat, seed=seed)
        finite = chosen[0].threat
        check_range(inputs.x, finite.bounds)
        if isinstance(finite, FiniteThreat):
            if rec.stochastic:
                raise InputError("model answers at random; finite sets are for deterministic members only")
            chosen = tuple(dataclasses.replace(one, threat=finite.on(inputs.x)) for one in chosen)
        rec = rec if rec.stochastic else as_logit_members(rec, inputs.x)
        stack.enter_context(on_device(rec, device))
        yield Case(
            rec,
            inputs,
            chosen,
            notes=(*inputs.notes, *(() if rec.stochastic else likely_mistakes(rec, inputs))),
            preprocessing=None if preprocessing is None else _preprocessing_text(rec),
            chosen_on={} if run is None else chosen_on_of(run),
            store=WitnessStore(folder) if isinstance(folder, (str, os.PathLike)) else folder,
            progress=stack.enter_context(bars(progress, log=False)),
        )


def load_model(spec: str | os.PathLike[str]) -> Any:
    """The classifier that a string names; a factory with a required argument is called with a seed for every draw."""
    text, path = os.fspath(spec), Path(spec)
    if path.is_dir():
        return load(path if (path / "ensemble.json").is_file() else Run.open(path).ensemble)
    if path.is_file():
        kind = "torchscript" if path.suffix in _TORCHSCRIPT else path.suffix[1:]
        code = f"this file is code; to run it, name it as {kind}:{text}"
        folder = "give a folder of RandomizedEnsemble.save, torchscript:PATH or onnx:PATH"
        raise InputError(f"model is {text!r}; {code if kind in _CODE else folder}")
    if ":" in text:
        if text.partition(":")[0] not in ("timm", "robustbench", *_CODE):
            with models.imported(text) as factory:
                arguments = inspect.signature(factory).parameters.values()
                if any(a.default is a.empty and a.kind <= a.POSITIONAL_OR_KEYWORD for a in arguments):
                    return RandomizedModel(factory)
        return models.from_spec(text)
    from randens import zoo

    if text not in zoo.names():
        raise InputError(f"model is {text!r}, which is no file, folder or name of the zoo; give {MODELS}")
    return zoo.load(text)


def run_data(run: Run) -> str:
    """The name or folder of the data that a run was trained on."""
    with contextlib.suppress(KeyError, TypeError):
        if isinstance(name := run.manifest["recipe"]["data"]["name"], str):
            return name
    raise InputError(f"{run.path} does not say which data it was trained on; name them with data= (--data)")


def check_unseen(run: Run, data: Data) -> None:
    """Refuse test data, or data of an unknown split, that hold images which a run was trained on."""
    known = data.split in ("train", "validation") or data.name in names()
    if known or not (run.path / "trained_on.json").is_file():
        return
    seen = set(_TrainedOn.parse(run.read("trained_on"), run.path / "trained_on.json").inputs)
    if again := sum(key.hex() in seen for key in input_keys(*data[:])):
        trained = f"{again} of {len(data)} inputs that {run.path} was trained on"
        raise InputError(
            f"data holds {trained}, so they test nothing; give others, e.g. a folder with a test folder"
        )


def chosen_on_of(run: Run) -> dict[str, str]:
    """Which split chose the probabilities and the checkpoints of a run, as it recorded that."""
    recorded = run.manifest.get("chosen_on")
    choices = {str(k): str(v) for k, v in recorded.items()} if isinstance(recorded, Mapping) else {}
    with contextlib.suppress(FileError, KeyError, TypeError):
        sampling = run.read("sampling")
        # Probabilities that were found but not applied do not count.
        if sampling["probs"] == load(run.ensemble).probs.tolist():
            choices["probs"] = str(sampling["about"]["split"])
    return choices


def image_size(rec: RandomizedEnsemble) -> tuple[int, int] | None:
    """Height and width of the images that the members take, if they say so."""
    taken: Any = getattr(rec.members[0], "input_shape", None)
    return (taken[1], taken[2]) if isinstance(taken, (tuple, list)) and len(taken) == 3 else None


def as_rec(
    model: Any, *, probs: ArrayLike | Tensor | None = None, preprocessing: Any = None
) -> RandomizedEnsemble:
    """A randomized ensemble of one classifier or several; over the same modules, not copies."""
    if isinstance(model, (str, os.PathLike)):
        model = load_model(model)
    several = isinstance(model, Sequence) and len(model) > 0
    if isinstance(model, RandomizedEnsemble):
        rec = model if probs is None else model.with_probs(probs)
    elif isinstance(model, nn.Module):
        rec = RandomizedEnsemble([model], probs, threat=getattr(model, "threat", None))
    elif several and all(isinstance(member, nn.Module) for member in model):
        rec = RandomizedEnsemble(list(model), probs)
    else:
        inner = f" of {[type(member).__name__ for member in model][:3]}" if several else ""
        empty = isinstance(model, Sequence) and not several
        kind = f"an empty {type(model).__name__}" if empty else f"a {type(model).__name__}{inner}"
        raise InputError(f"model is {kind}; give {MODELS}")
    if preprocessing is None:
        return rec
    members: list[nn.Module] = []
    for member, own in zip(rec.members, preprocessing_per_member(preprocessing, len(rec)), strict=True):
        if own is None:
            members.append(member)
        else:
            members.append(
                member.normalized(own) if isinstance(member, RandomizedModel) else adapt(member, own)
            )
    return _replaced(rec, members)


def _replaced(rec: RandomizedEnsemble, members: list[nn.Module]) -> RandomizedEnsemble:
    return RandomizedEnsemble(members, rec.probs, classes=rec.classes, threat=rec.threat)


def _preprocessing_text(rec: RandomizedEnsemble) -> str:
    """What is subtracted and divided, member by member; once where it is the same for all."""
    found = []
    for member in rec.members:
        inner = member.build(0) if isinstance(member, RandomizedModel) else member
        adapted = next((m for m in inner.modules() if isinstance(m, Adapted) and m.mean is not None), None)
        pair = () if adapted is None else (adapted.mean, adapted.std)
        shown = [[round(value, 4) for value in part.flatten().tolist()] for part in pair if part is not None]
        found.append("(x − {}) / {}".format(*shown) if shown else "unchanged")
    each = "; ".join(f"member {i}: {text}" for i, text in enumerate(found))
    return found[0] if len(set(found)) == 1 else each


def _in_precision(data: Data, rec: RandomizedEnsemble) -> Data:
    """The data in memory, in the precision of the members' weights; half precision, or several, are refused."""
    weights = [[p.dtype for p in member.parameters() if p.is_floating_point()] for member in rec.members]
    kinds = {own[0] for own in weights if own}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        listed = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise InputError(
            f"the members' weights are {listed}; all must be float32, or all float64, e.g. member.float()"
        )
    x, notes = data.x, data.notes
    wanted = kinds.pop() if kinds else x.dtype
    if x.dtype != wanted:
        was, read = (str(dtype).removeprefix("torch.") for dtype in (x.dtype, wanted))
        notes = (*notes, f"x is {was}; it was read as {read}, as the members' weights are")
    return dataclasses.replace(data, stored=x.to(wanted), notes=notes)


def as_logit_members(rec: RandomizedEnsemble, x: Tensor) -> RandomizedEnsemble:
    """The ensemble, with wrapped members where they do not return logits [n, classes]; tried on the first inputs."""
    members: list[nn.Module] = []
    shape = tuple(x.shape[1:])
    for index, member in enumerate(rec.members):
        wanted = getattr(member, "input_shape", None)
        if isinstance(wanted, tuple | list) and tuple(wanted) != shape:
            raise InputError(f"data has inputs of shape {shape}; member {index} takes {tuple(wanted)}")
        # Each where it is: members may have to be moved together first.
        first = next(member.parameters(), x)
        few = x[:2].to(first.device, first.dtype if first.is_floating_point() else x.dtype)
        try:
            with evaluating(member), torch.no_grad(), models.undisturbed(f"member {index}"):
                answer = member(few.clone())
        except Exception as error:
            if type(error) not in _REFUSALS:
                raise
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            resized = "; preprocessing normalizes and does not resize" if isinstance(member, Adapted) else ""
            raise InputError(
                f"data has inputs of shape {shape}, which member {index} does not take: {reason}{resized}"
            ) from error
        logits = logits_of(answer, len(few), f"member {index}")
        if not bool(torch.isfinite(logits).all()):
            raise ModelError(f"member {index} returns NaN or infinite logits; it cannot be scored")
        members.append(member if logits is answer else Adapted(member))
    return rec if members == list(rec.members) else _replaced(rec, members)


def likely_mistakes(rec: RandomizedEnsemble, data: Data) -> tuple[str, ...]:
    """Likely mistakes in members and labels, as warnings and sentences; random answers, unknown labels are refused."""
    x, y = data.x[:_LOOKED_AT], data.y[:_LOOKED_AT]
    with evaluating(rec), torch.no_grad():
        first, again = (rec.logits(x.to(rec.device).clone()).cpu() for _ in range(2))
    gaps, sizes = ((first - again).abs().amax(dim=(1, 2)), first.abs().amax(dim=(1, 2)).clamp_min(1e-30))
    if (random := gaps > _REPEATED * sizes).any():
        raise InputError(
            f"{_who(random, rec)} random: two calls on the same inputs gave different logits; wrap it in "
            "randens.RandomizedModel, which is evaluated on fresh draws"
        )
    classes, (low, high) = first.shape[2], (int(data.y.min()), int(data.y.max()))
    if low < 0 or high >= classes:
        shifted = " (do they start at 1? then give y - 1)" if low == 1 and high == classes else ""
        raise InputError(
            f"data has labels from {low} to {high}; the members have {classes} classes, from 0 on{shifted}"
        )
    # New wrappers are in training mode, so the innermost modules count.
    leaves = [[m for m in member.modules() if next(m.children(), None) is None] for member in rec.members]
    training = torch.tensor([any(m.training for m in own) for own in leaves])
    shares = ((first >= 0).all(dim=2) & ((first.sum(dim=2) - 1).abs() < 1e-4)).all(dim=1)
    predicted, chance, enough = first.argmax(dim=2), 1 / classes, len(y) >= _ENOUGH
    right = (predicted == y).double().mean(dim=1)
    poor = right <= chance + 2 * (chance * (1 - chance) / len(y)) ** 0.5
    said = {
        "in training mode; evaluation is in eval mode, as always": training,
        "returning probabilities, not logits: gradients vanish where they are near 0 and 1, and averages mean "
        "something else": shares,
        f"right no more often than by chance ({chance:.0%}) on clean inputs: wrong preprocessing, wrong labels, or an "
        "untrained network": poor & enough,
    }
    sentences = [f"{_who(which, rec)} {what}" for what, which in said.items() if which.any()]
    for shift in (1, -1) if enough else ():
        moved = (predicted == y + shift).double().mean(dim=1)
        if bool(((moved > 0.5) & (moved > 2 * right)).all()):
            instead, found = (", ".join(f"{v:.0%}" for v in part.tolist()) for part in (moved, right))
            sentences.append(
                f"labels look shifted by one: y{shift:+d} would give accuracies of {instead}, y gives {found}"
            )
    for text in sentences:
        warnings.warn(text, RandensWarning, stacklevel=5)
    return tuple(sentences)


def _who(which: Tensor, rec: RandomizedEnsemble) -> str:
    """Subject and verb of a sentence about some of the members."""
    members = which.nonzero().flatten().tolist()
    if len(rec) == 1:
        return "the model is"
    noun, verb = ("members", "are") if len(members) > 1 else ("member", "is")
    return f"{noun} {' and '.join(map(str, members))} {verb}"
