"""Prepare a classifier, data and attacks for an evaluation or a curve.

A classifier may be a module, a list of modules, a run folder, a file, a name of the zoo, or a factory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from randens import attacks, models
from randens.attacks import Attack
from randens.attacks.dataset import as_attacks
from randens.attacks.suite import PRESETS
from randens.core.errors import InputError, ModelError, RandensError, RandensWarning
from randens.core.runs import Run
from randens.data import Data, as_data, check_range
from randens.ensemble import RandomizedEnsemble, evaluating, load
from randens.evaluation.argument_checks import check_shapes, class_count
from randens.evaluation.run_folder import open_subject
from randens.models import Adapted, adapt, logits_of, preprocessing_of, preprocessing_per_member
from randens.random_model import RandomizedModel
from randens.threat import Threat, norm_name, number

__all__ = [
    "BOX",
    "AttackLike",
    "Prepared",
    "as_rec",
    "choose_attacks",
    "doubts",
    "fitted",
    "from_factory",
    "prepare",
    "random_from_factory",
]

_TAKEN = "a module, a list of modules, a RandomizedEnsemble, a run folder, a TorchScript or ONNX file, or a zoo name"
_TORCHSCRIPT = (".pt", ".pts", ".ts", ".torchscript")
BOX = (0.0, 1.0)
_EPS = 8 / 255
_LOOKED_AT = 256  # inputs on which members are checked
_ENOUGH = 20  # fewer inputs do not show whether an accuracy is above chance

AttackLike = Attack | str | Sequence[Attack | str] | None


@dataclass(frozen=True)
class Prepared:
    """The prepared parts of an evaluation: the ensemble, its inputs, the attacks against one threat."""

    rec: Any
    inputs: Data
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
    split: str | None = None,
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
    inputs = _in_precision(as_data(data, split=split, limit=limit).float(), rec)
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


def _in_precision(inputs: Data, rec: Any) -> Data:
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
    return dataclasses.replace(inputs, stored=inputs.x.to(wanted), notes=(*inputs.notes, said))


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


def as_rec(
    model: Any, *, probs: ArrayLike | Tensor | None = None, preprocessing: Any = None
) -> RandomizedEnsemble:
    """Make a randomized ensemble from one classifier or several.

    Parameters
    ----------
    model : nn.Module, sequence of nn.Module, str or path
        One module is an ensemble of one. A string or path is a run folder, a folder of `RandomizedEnsemble.save`, a
        a name of the zoo, ``torchscript:PATH``, ``onnx:PATH`` or ``timm:NAME``.
    probs : array, optional
        α; uniform for modules, the ensemble's own for ensembles.
    preprocessing : optional
        As `randens.models.preprocessing_of` takes it, for every member; a list has one for each.

    Returns
    -------
    RandomizedEnsemble
        Over the same modules, not copies.

    Examples
    --------
    >>> rec = as_rec([nn.Linear(2, 3), nn.Linear(2, 3)], probs=[0.25, 0.75])
    >>> rec.probs.tolist()
    [0.25, 0.75]
    """
    if isinstance(model, (str, os.PathLike)):
        model = _named(model)
    if isinstance(model, RandomizedEnsemble):
        rec = model if probs is None else model.with_probs(probs)
    elif isinstance(model, nn.Module):
        rec = RandomizedEnsemble([model], probs)
    elif isinstance(model, Sequence) and model and all(isinstance(m, nn.Module) for m in model):
        rec = RandomizedEnsemble(list(model), probs)
    else:
        inner = [type(m).__name__ for m in model][:3] if isinstance(model, Sequence) else ""
        raise InputError(f"model is a {type(model).__name__}{f' of {inner}' if inner else ''}; give {_TAKEN}")
    if preprocessing is None:
        return rec
    each = preprocessing_per_member(preprocessing, len(rec.members))
    members = [_normalised(member, part) for member, part in zip(rec.members, each, strict=True)]
    return RandomizedEnsemble(members, rec.probs, classes=rec.classes, threat=rec.threat)


def _normalised(member: nn.Module, preprocessing: Any) -> nn.Module:
    if isinstance(member, RandomizedModel):
        return member.normalised(preprocessing)
    pair = preprocessing_of(preprocessing, member)
    return member if pair is None else adapt(member, mean=pair[0], std=pair[1])


def fitted(rec: RandomizedEnsemble, x: Tensor) -> RandomizedEnsemble:
    """Return the ensemble, with wrapped members where they do not return logits [n, classes] themselves.

    The members are tried on the first of the inputs x [n, ...].
    """
    members: list[nn.Module] = []
    check_shapes(rec, tuple(x.shape[1:]))
    with evaluating(rec), torch.no_grad():
        for index, member in enumerate(rec.members):
            # Each where it is: members may have to be moved together first.
            first = next(member.parameters(), x)
            few = x[:2].to(first.device, first.dtype if first.is_floating_point() else x.dtype)
            try:
                answer = member(few)
            except RandensError:
                raise
            except Exception as error:
                reason = " ".join(str(error).split())[:160] or type(error).__name__
                raise InputError(
                    f"data has inputs of shape {tuple(x.shape[1:])}, which member {index} does not take: {reason}"
                ) from error
            logits = logits_of(answer, len(few), f"member {index}")
            members.append(member if logits is answer else Adapted(member))
    if all(new is old for new, old in zip(members, rec.members, strict=True)):
        return rec
    return RandomizedEnsemble(members, rec.probs, classes=rec.classes, threat=rec.threat)


def from_factory(spec: str, *, run_code: bool = False) -> Any:
    """Call a function of a module that returns one classifier or several; its code is not part of randens.

    Parameters
    ----------
    spec : str
        ``"package.module:factory"``; looked for in the current folder, too.
    run_code : bool
        Must be true: importing the module and calling the factory runs their code.

    Returns
    -------
    object
        For `as_rec`.

    Examples
    --------
    >>> from_factory("torch.nn:Identity", run_code=True)
    Identity()
    """
    if spec.partition(":")[0] in ("timm", "torchscript", "onnx"):
        return models.from_spec(spec)
    with _imported(spec, run_code) as factory:
        return factory()


def random_from_factory(
    spec: str, draws: int, *, run_code: bool = False
) -> RandomizedModel | RandomizedEnsemble:
    """Call a function of a module that returns a random classifier; its code is not part of randens.

    Parameters
    ----------
    spec : str
        ``"package.module:factory"``. A factory with a required argument is called with a seed for every draw. One
        without returns a module that draws from torch's generators, a `RandomizedModel`, or an ensemble with such
        members.
    draws : int
        K, the frozen draws that stand for the model while it is attacked.
    run_code : bool
        As for `from_factory`.

    Returns
    -------
    RandomizedModel or RandomizedEnsemble
        For `evaluate_stochastic`.

    Examples
    --------
    >>> random_from_factory("torch.nn:Identity", 4, run_code=True).draws
    4
    """
    with _imported(spec, run_code) as factory:
        if _takes_seed(factory):
            return RandomizedModel(factory, draws)
        made = factory()
    if isinstance(made, RandomizedModel):
        made.draws = RandomizedModel(made, draws).draws
        return made
    if isinstance(made, RandomizedEnsemble):
        for member in made.members:
            if isinstance(member, RandomizedModel):
                member.draws = RandomizedModel(member, draws).draws
        if made.stochastic:
            return made
    return RandomizedModel(made, draws)


def _takes_seed(factory: Any) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
    )


@contextlib.contextmanager
def _imported(spec: str, run_code: bool) -> Iterator[Any]:
    """Import ``"package.module:name"``, with the current folder on the import path during use."""
    module_name, sign, name = spec.partition(":")
    if not sign or not module_name or not name.isidentifier():
        raise InputError(f"model is {spec!r}; it must be package.module:factory, e.g. mynets:ensemble")
    if not run_code:
        raise InputError(
            f"model is {spec!r}: making it runs the code of {module_name}; say that you trust it with --run-code "
            "(run_code=True)"
        )
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"model is {spec!r}, which cannot be imported: {error}") from error
    except TypeError as error:
        raise InputError(
            f"model is {spec!r}; the factory must be callable without arguments ({error})"
        ) from error
    except RandensError:
        raise
    except Exception as error:
        # This is the user's code, which may raise any error.
        raise ModelError(
            f"model is {spec!r}; its code failed with {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(here)


def _named(model: str | os.PathLike[str]) -> Any:
    text, path = os.fspath(model), Path(model)
    if path.is_dir():
        return load(path if (path / "ensemble.json").is_file() else Run.open(path).ensemble)
    if path.is_file():
        kind = "torchscript" if path.suffix in _TORCHSCRIPT else path.suffix[1:]
        if kind in ("torchscript", "onnx"):
            raise InputError(f"model is {text!r}: this file is code; to run it, name it as {kind}:{text}")
        if path.suffix == ".safetensors":
            return _weights(path)
        raise InputError(f"model is {text!r}; files are torchscript:PATH, onnx:PATH or end in .safetensors")
    if ":" in text:
        return from_factory(text)
    from randens import zoo

    if text not in zoo.names():
        raise InputError(f"model is {text!r}, which is no file, folder or name of the zoo; give {_TAKEN}")
    return zoo.load(text)


def _weights(path: Path) -> nn.Module:
    """A member from one of the files of a saved ensemble; the manifest beside it says which network it is."""
    if not (path.parent / "ensemble.json").is_file():
        raise ModelError(
            f"{path} holds weights without a network; give a folder of RandomizedEnsemble.save, which names the "
            "network, a TorchScript or ONNX file, or package.module:factory"
        )
    rec = load(path.parent)
    files = sorted(file.name for file in path.parent.glob("member-*.safetensors"))
    return rec.members[files.index(path.name)]
