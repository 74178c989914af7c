"""Prepare a classifier, data and attacks for an evaluation or a curve."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from randens import attacks
from randens.attacks import Attack
from randens.attacks.dataset import as_attacks
from randens.attacks.suite import PRESETS
from randens.core.errors import InputError, RandensWarning
from randens.data import Inputs, as_inputs, check_range
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.as_ensemble import as_rec, fitted
from randens.evaluation.labelled_data import class_count
from randens.evaluation.run_folder import open_subject
from randens.random_model import RandomizedModel
from randens.threat import Threat, norm_name, number

__all__ = ["BOX", "AttackLike", "Prepared", "choose_attacks", "doubts", "prepare"]

BOX = (0.0, 1.0)
_EPS = 8 / 255
_LOOKED_AT = 256  # inputs on which members are checked
_ENOUGH = 20  # fewer inputs do not show whether an accuracy is above chance

AttackLike = Attack | str | Sequence[Attack | str] | None


@dataclass(frozen=True)
class Prepared:
    """The prepared parts of an evaluation: the ensemble, its inputs, the attacks against one threat."""

    rec: Any
    inputs: Inputs
    attacks: tuple[Attack, ...]

    @property
    def threat(self) -> Threat:
        """The threat of all attacks."""
        return self.attacks[0].threat


def prepare(
    model: Any,
    data: Any,
    attack: AttackLike,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    bounds: tuple[float, float] | None = BOX,
    preprocessing: Any = None,
    probs: ArrayLike | Tensor | None = None,
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
) -> Prepared:
    """Make model, data and attacks fit each other; the parameters are those of `evaluate`."""
    if data is None:
        data = _own_data(model)
    # The evaluation itself expands a random classifier.
    random = getattr(model, "stochastic", False)
    rec: Any = as_rec(model, probs=probs, preprocessing=preprocessing)
    if isinstance(model, RandomizedModel):
        rec = rec.members[0]
    inputs = _in_precision(as_inputs(data, split=split, limit=limit), rec)
    known = getattr(rec, "threat", None)
    chosen = choose_attacks(attack, eps=eps, norm=norm, bounds=bounds, known=known, seed=seed)
    check_range(inputs.x, chosen[0].threat.bounds)
    return Prepared(rec if random else fitted(rec, inputs.x), inputs, chosen)


def choose_attacks(
    attack: AttackLike,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    bounds: tuple[float, float] | None = BOX,
    known: Threat | None = None,
    seed: int = 0,
) -> tuple[Attack, ...]:
    """Attacks from attacks, names or nothing (the portfolio ``standard``), all against one threat.

    `known` is the ensemble's own threat, the default for missing arguments. An attack has its own threat; an
    `eps` or `norm` that contradicts it is refused.
    """
    given = (
        ["standard"] if attack is None else list(attack) if isinstance(attack, (list, tuple)) else [attack]
    )
    made = [a for a in given if isinstance(a, Attack)]
    if made:
        threat = as_attacks(made)[0].threat
        for name, said, has in (
            ("eps", None if eps is None else number("eps", eps), threat.eps),
            ("norm", None if norm is None else norm_name(norm), threat.norm),
        ):
            if said is not None and said != has:
                raise InputError(
                    f"{name} is {said!r}, but the attack {made[0].name} has {has!r}; say it once"
                )
    elif known is not None and norm in (None, known.norm):
        threat = known if eps is None else Threat(known.norm, eps, known.bounds)  # type: ignore[arg-type]
    else:
        if known is not None and eps is None:
            raise InputError(
                f"norm is {norm!r} where the ensemble has {known.norm!r}; give its radius too, eps=..."
            )
        if norm is not None and norm_name(norm) != "linf" and eps is None:
            raise InputError(f"norm is {norm!r}; give its radius too, e.g. eps=0.5")
        threat = Threat("linf" if norm is None else norm, _EPS if eps is None else eps, bounds)  # type: ignore[arg-type]
    found = []
    for item in given:
        if isinstance(item, Attack):
            found.append(item)
        elif isinstance(item, str) and item in PRESETS:
            found.append(attacks.create("suite", threat, preset=item, seed=seed))
        elif isinstance(item, str):
            found.append(attacks.create(item, threat, seed=seed))
        else:
            raise InputError(
                f"attack holds a {type(item).__name__}; give attacks of randens.attacks.create, or names"
            )
    return as_attacks(found)


def _in_precision(inputs: Inputs, rec: Any) -> Inputs:
    """The inputs in the precision of the members' weights; half precision, or several, are refused."""
    members = list(rec.members) if isinstance(rec, RandomizedEnsemble) else [rec]
    weights = [next((p for p in m.parameters() if p.is_floating_point()), None) for m in members]
    kinds = sorted({str(w.dtype).removeprefix("torch.") for w in weights if w is not None})
    if len(kinds) > 1 or (kinds and kinds[0] not in ("float32", "float64")):
        raise InputError(
            f"the members' weights are {' and '.join(kinds)}; all must be float32, or all float64, e.g. member.float()"
        )
    wanted = torch.float64 if kinds == ["float64"] else torch.float32
    if not kinds or inputs.x.dtype == wanted:
        return inputs
    said = f"x is {str(inputs.x.dtype).removeprefix('torch.')}; it was read as {kinds[0]}, as the members' weights are"
    return dataclasses.replace(inputs, x=inputs.x.to(wanted), notes=(*inputs.notes, said))


def _own_data(model: Any) -> Any:
    if isinstance(model, (str, os.PathLike)) and (Path(model) / "manifest.json").is_file():
        return open_subject(model).data
    raise InputError("data is None; only a run folder knows its own data: give (x, y), a loader or a name")


def doubts(case: Prepared) -> tuple[str, ...]:
    """Report likely mistakes in members and labels, as warnings and as sentences for the result."""
    if not isinstance(case.rec, RandomizedEnsemble):
        return ()
    said = []
    # New wrappers are in training mode, so the wrapped module's mode counts.
    training = [
        i
        for i, member in enumerate(case.rec.members)
        if any(m.training and next(m.children(), None) is None for m in member.modules())
    ]
    if training:
        said.append(f"{_who(training, case.rec)} in training mode; evaluation is in eval mode, as always")
    y = case.inputs.y[:_LOOKED_AT]
    verdicts = case.rec.verdicts(case.inputs.x[:_LOOKED_AT]).cpu()
    if len(y) >= _ENOUGH:
        chance = 1 / class_count(case.rec, case.inputs)
        limit = chance + 2 * (chance * (1 - chance) / len(y)) ** 0.5
        right = (verdicts == y.unsqueeze(1)).double().mean(dim=0)
        for shift in (1, -1):
            shifted = (verdicts == (y + shift).unsqueeze(1)).double().mean(dim=0)
            if bool((shifted > 0.5).all()) and bool((shifted > 2 * right).all()):
                instead, now = (", ".join(f"{v:.0%}" for v in part.tolist()) for part in (shifted, right))
                said.append(
                    f"labels look shifted by one: y{shift:+d} would give accuracies of {instead}, y gives {now}"
                )
        poor = [i for i, value in enumerate(right.tolist()) if value <= limit]
        if poor:
            said.append(
                f"{_who(poor, case.rec)} right no more often than by chance ({chance:.0%}) on clean inputs: wrong "
                "preprocessing, wrong labels, or an untrained network"
            )
    for sentence in said:
        warnings.warn(sentence, RandensWarning, stacklevel=3)
    return tuple(said)


def _who(members: Sequence[int], rec: RandomizedEnsemble) -> str:
    """Subject and verb of a sentence about some of the members."""
    if len(rec) == 1:
        return "the model is"
    if len(members) == 1:
        return f"member {members[0]} is"
    return f"members {', '.join(map(str, members[:-1]))} and {members[-1]} are"
