"""What evaluations are given: classifiers, data and attacks of any kind, made to fit each other.

A classifier may be a module, a list of modules, an ensemble, a run folder, a file, a name of the zoo, or
``package.module:factory``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from randens import attacks
from randens.attacks import Attack
from randens.core.errors import InputError, RandensError, RandensWarning
from randens.core.runs import Run
from randens.data import Data, as_data, check_range
from randens.ensemble import RandomizedEnsemble, evaluating
from randens.evaluation.loading import MODELS, chosen_on_of, load_model, run_data
from randens.evaluation.loop import attack_options
from randens.evaluation.tables import About
from randens.models import Adapted, adapt, logits_of, on_device, preprocessing_of, preprocessing_per_member
from randens.random_model import RandomizedModel
from randens.threat import Threat, norm_name, number
from randens.witness.fingerprints import fingerprint

__all__ = [
    "AttackLike",
    "Case",
    "Settings",
    "as_attacks",
    "as_rec",
    "likely_mistakes",
    "prepare",
]

_LOOKED_AT = 256  # inputs on which members are checked
_ENOUGH = 20  # fewer inputs do not show whether an accuracy is above chance
_REPEATED = 1e-3  # of the largest logit: two calls of a deterministic member may differ by rounding

AttackLike = Attack | str | Sequence[Attack | str] | None


class Part(TypedDict, total=False):
    """The settings that every function of this layer takes, as `randens.evaluate` explains them."""

    norm: str | float | None
    preprocessing: Any
    probs: ArrayLike | Tensor | None
    split: str | None
    limit: int | None
    seed: int
    device: str | torch.device | None


class Settings(Part, total=False):
    """The same with a radius."""

    eps: float | str | None
    threat: Threat | None


@dataclass(frozen=True)
class Case:
    """An evaluation ready to begin: ensemble, inputs, attacks against one threat, and what was noticed on the way."""

    rec: RandomizedEnsemble | RandomizedModel
    data: Data
    attacks: tuple[Attack, ...]
    notes: tuple[str, ...] = ()
    preprocessing: str | None = None
    chosen_on: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def threat(self) -> Threat:
        """The threat of all attacks."""
        return self.attacks[0].threat

    @property
    def about(self) -> About:
        """The head of every document."""
        rec = self.rec
        return About(
            fingerprint(rec)
            if isinstance(rec, RandomizedEnsemble)
            else fingerprint(RandomizedEnsemble([rec])),
            tuple(rec.probs.tolist()) if isinstance(rec, RandomizedEnsemble) else (1.0,),
            self.data.name,
            self.data.split,
            len(self.data),
            self.threat.to_dict(),
            tuple(attack_options(attack) for attack in self.attacks),
            self.attacks[0].seed,
            self.preprocessing,
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
    preprocessing: Any = None,
    probs: ArrayLike | Tensor | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> Iterator[Case]:
    """Model, data and attacks that fit each other, on the device; the parameters are those of `evaluate`.

    Inside, gradients are possible whatever mode the caller is in; on leaving, members are where and as they were.
    """
    chosen_on: Mapping[str, str] = {}
    if isinstance(model, (str, os.PathLike)) and (Path(model) / "manifest.json").is_file():
        run = Run.open(model)
        chosen_on = chosen_on_of(run)
        data = run_data(run) if data is None else data
    if data is None:
        raise InputError(
            "data is None; only a run folder knows its own data: give (x, y), a loader or a name"
        )
    with torch.inference_mode(False), torch.enable_grad():
        rec: Any = as_rec(model, probs=probs, preprocessing=preprocessing)
        inputs = _in_precision(as_data(data, split=split, limit=limit), rec)
        chosen = as_attacks(attack, eps=eps, norm=norm, threat=threat, known=rec.threat, seed=seed)
        check_range(inputs.x, chosen[0].threat.bounds)
        if isinstance(model, RandomizedModel):
            rec = rec.members[0]
        elif not rec.stochastic:
            rec = as_logit_members(rec, inputs.x)
        with on_device(rec, device):
            notes = () if rec.stochastic else likely_mistakes(rec, inputs)
            said = None if preprocessing is None else _preprocessing_text(rec)
            yield Case(rec, inputs, chosen, (*inputs.notes, *notes), said, chosen_on)


def as_attacks(
    attack: AttackLike,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    threat: Threat | None = None,
    known: Threat | None = None,
    seed: int = 0,
) -> tuple[Attack, ...]:
    """Attacks from attacks, names, presets or nothing (the preset ``standard``), all against one threat.

    `known` is the ensemble's own threat, the default for missing arguments. An attack has its own threat; an
    `eps`, `norm` or `threat` that contradicts it is refused.
    """
    several = isinstance(attack, Sequence) and not isinstance(attack, str)
    given: list[Any] = ["standard"] if attack is None else list(attack) if several else [attack]  # type: ignore[arg-type]
    if not given or not all(isinstance(item, (Attack, str)) for item in given):
        raise InputError(f"attack is {attack!r}; give attacks of randens.attacks.create, or names")
    own = {item.threat for item in given if isinstance(item, Attack)}
    if len(own) > 1:
        raise InputError(f"the attacks have different threats {sorted(map(str, own))}; they must share one")
    if own:
        chosen = own.pop()
        _agree("threat", threat, chosen)
        _agree("eps", None if eps is None else number("eps", eps), getattr(chosen, "eps", None))
        _agree("norm", None if norm is None else norm_name(norm), chosen.norm)
    elif threat is not None:
        if eps is not None or norm is not None:
            raise InputError("threat and eps or norm are given; say it once")
        chosen = threat
    else:
        chosen = _threat(eps, norm, known)
    return tuple(
        item if isinstance(item, Attack) else attacks.create(item, chosen, seed=seed) for item in given
    )


def _agree(name: str, said: object, has: object) -> None:
    if said is not None and said != has:
        raise InputError(f"{name} is {said!r}, but the attack has {has!r}; say it once")


def _threat(eps: float | str | None, norm: str | float | None, known: Threat | None) -> Threat:
    name = None if norm is None else norm_name(norm)
    if known is not None and name in (None, known.norm):
        return known if eps is None else Threat(known.norm, number("eps", eps), known.bounds)
    if eps is None and (known is not None or name not in (None, "linf")):
        raise InputError(f"norm is {norm!r}; give its radius too, e.g. eps=0.5")
    return Threat(name or "linf", 8 / 255 if eps is None else number("eps", eps))


def as_rec(
    model: Any, *, probs: ArrayLike | Tensor | None = None, preprocessing: Any = None
) -> RandomizedEnsemble:
    """A randomized ensemble of one classifier or several; over the same modules, not copies.

    preprocessing: for every member, or a list with one entry per member.
    """
    if isinstance(model, (str, os.PathLike)):
        model = load_model(model)
    if isinstance(model, RandomizedEnsemble):
        rec = model if probs is None else model.with_probs(probs)
    elif isinstance(model, nn.Module):
        rec = RandomizedEnsemble([model], probs, threat=getattr(model, "threat", None))
    elif isinstance(model, Sequence) and model and all(isinstance(m, nn.Module) for m in model):
        rec = RandomizedEnsemble(list(model), probs)
    else:
        inner = (
            f" of {[type(m).__name__ for m in model][:3]}" if isinstance(model, Sequence) and model else ""
        )
        empty = (
            "an empty list"
            if isinstance(model, Sequence) and not model
            else f"a {type(model).__name__}{inner}"
        )
        raise InputError(f"model is {empty}; give {MODELS}")
    if preprocessing is None:
        return rec
    each = preprocessing_per_member(preprocessing, len(rec))
    members = [_normalized(member, one) for member, one in zip(rec.members, each, strict=True)]
    return RandomizedEnsemble(members, rec.probs, classes=rec.classes, threat=rec.threat)


def _normalized(member: nn.Module, preprocessing: Any) -> nn.Module:
    if isinstance(member, RandomizedModel):
        return member.normalised(preprocessing)
    pair = None if preprocessing is None else preprocessing_of(preprocessing, member)
    return member if pair is None else adapt(member, mean=pair[0], std=pair[1])


def _preprocessing_text(rec: RandomizedEnsemble | RandomizedModel) -> str:
    """What is subtracted and divided, member by member; once where it is the same for all."""
    found = []
    for member in rec.members if isinstance(rec, RandomizedEnsemble) else [rec]:
        inner = [
            m for m in member.modules() if isinstance(m, Adapted) and m.mean is not None and m.std is not None
        ]
        texts = [f"(x − {_numbers(m.mean)}) / {_numbers(m.std)}" for m in inner]
        found.append(texts[0] if texts else "unchanged")
    return (
        found[0] if len(set(found)) == 1 else "; ".join(f"member {i}: {text}" for i, text in enumerate(found))
    )


def _numbers(values: Tensor | None) -> str:
    return "" if values is None else str([round(v, 4) for v in values.flatten().tolist()])


def _in_precision(data: Data, rec: RandomizedEnsemble) -> Data:
    """The data in memory, in the precision of the members' weights; half precision, or several, are refused."""
    weights = [next((p for p in m.parameters() if p.is_floating_point()), None) for m in rec.members]
    kinds = sorted({str(w.dtype).removeprefix("torch.") for w in weights if w is not None})
    if len(kinds) > 1 or (kinds and kinds[0] not in ("float32", "float64")):
        raise InputError(
            f"the members' weights are {' and '.join(kinds)}; all must be float32, or all float64, e.g. member.float()"
        )
    x = data.x
    wanted = {"float64": torch.float64}.get(
        kinds[0] if kinds else "", x.dtype if not kinds else torch.float32
    )
    if x.dtype == wanted:
        return dataclasses.replace(data, stored=x)
    said = (
        f"x is {str(x.dtype).removeprefix('torch.')}; it was read as {kinds[0]}, as the members' weights are"
    )
    return dataclasses.replace(data, stored=x.to(wanted), notes=(*data.notes, said))


def as_logit_members(rec: RandomizedEnsemble, x: Tensor) -> RandomizedEnsemble:
    """The ensemble, with wrapped members where they do not return logits [n, classes]; tried on the first inputs."""
    members: list[nn.Module] = []
    for index, member in enumerate(rec.members):
        wanted = getattr(member, "input_shape", None)
        if wanted is not None and tuple(wanted) != tuple(x.shape[1:]):
            raise InputError(
                f"data has inputs of shape {tuple(x.shape[1:])}; member {index} takes {tuple(wanted)}"
            )
        # Each where it is: members may have to be moved together first.
        first = next(member.parameters(), x)
        few = x[:2].to(first.device, first.dtype if first.is_floating_point() else x.dtype)
        try:
            with evaluating(member), torch.no_grad():
                answer = member(few.clone())
        except RandensError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise InputError(
                f"data has inputs of shape {tuple(x.shape[1:])}, which member {index} does not take: {reason}"
            ) from error
        logits = logits_of(answer, len(few), f"member {index}")
        if type(logits) is Tensor and logits.is_meta:
            raise InputError(
                f"the weights of member {index} are on the device 'meta' and have no values; load them"
            )
        members.append(member if logits is answer else Adapted(member))
    if all(new is old for new, old in zip(members, rec.members, strict=True)):
        return rec
    return RandomizedEnsemble(members, rec.probs, classes=rec.classes, threat=rec.threat)


def likely_mistakes(rec: RandomizedEnsemble, data: Data) -> tuple[str, ...]:
    """Likely mistakes in members and labels, as warnings and as sentences for the result.

    Members that answer at random are refused, as are labels that the members do not have.
    """
    x, y = data.x[:_LOOKED_AT], data.y[:_LOOKED_AT]
    with evaluating(rec), torch.no_grad():
        first, again = (rec.logits(x.to(rec.device).clone()).cpu() for _ in range(2))
    size = first.abs().amax(dim=(1, 2)).clamp_min(1e-30)
    random = ((first - again).abs().amax(dim=(1, 2)) > _REPEATED * size).nonzero().flatten().tolist()
    if random:
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
    said = []
    # New wrappers are in training mode, so the wrapped module's mode counts.
    modes = [
        [m.training for m in member.modules() if next(m.children(), None) is None] for member in rec.members
    ]
    if training := [i for i, found in enumerate(modes) if any(found)]:
        said.append(f"{_who(training, rec)} in training mode; evaluation is in eval mode, as always")
    probabilities = ((first >= 0).all(dim=2) & ((first.sum(dim=2) - 1).abs() < 1e-4)).all(dim=1)
    if bool(probabilities.any()):
        said.append(
            f"{_who(probabilities.nonzero().flatten().tolist(), rec)} returning probabilities, not logits: gradients "
            "vanish where they are near 0 and 1, and averages mean something else"
        )
    said += _unlikely_labels(rec, first.argmax(dim=2).T, y, classes) if len(y) >= _ENOUGH else []
    for sentence in said:
        warnings.warn(sentence, RandensWarning, stacklevel=4)
    return tuple(said)


def _unlikely_labels(rec: RandomizedEnsemble, predicted: Tensor, y: Tensor, classes: int) -> list[str]:
    """Sentences about labels that look shifted, and about members that are no better than chance."""
    said, right = [], (predicted == y.unsqueeze(1)).double().mean(dim=0)
    for shift in (1, -1):
        shifted = (predicted == (y + shift).unsqueeze(1)).double().mean(dim=0)
        if bool((shifted > 0.5).all()) and bool((shifted > 2 * right).all()):
            instead, now = (", ".join(f"{v:.0%}" for v in part.tolist()) for part in (shifted, right))
            said.append(
                f"labels look shifted by one: y{shift:+d} would give accuracies of {instead}, y gives {now}"
            )
    chance = 1 / classes
    limit = chance + 2 * (chance * (1 - chance) / len(y)) ** 0.5
    if poor := [i for i, value in enumerate(right.tolist()) if value <= limit]:
        said.append(
            f"{_who(poor, rec)} right no more often than by chance ({chance:.0%}) on clean inputs: wrong "
            "preprocessing, wrong labels, or an untrained network"
        )
    return said


def _who(members: Sequence[int], rec: RandomizedEnsemble) -> str:
    """Subject and verb of a sentence about some of the members."""
    if len(rec) == 1:
        return "the model is"
    if len(members) == 1:
        return f"member {members[0]} is"
    return f"members {', '.join(map(str, members[:-1]))} and {members[-1]} are"
