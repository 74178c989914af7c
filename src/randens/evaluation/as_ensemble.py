"""Any classifier as a randomized ensemble: modules, lists of them, run folders, files, names of the zoo, factories."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from randens import models
from randens.core.errors import InputError, ModelError, RandensError
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble, evaluating, load
from randens.evaluation.labelled_data import check_shapes
from randens.models import Adapted, adapt, logits_of, preprocessing_of
from randens.random_model import RandomizedModel

__all__ = ["as_rec", "fitted", "from_factory", "random_from_factory"]

_TAKEN = "a module, a list of modules, a RandomizedEnsemble, a run folder, a TorchScript or ONNX file, or a zoo name"
_TORCHSCRIPT = (".pt", ".pts", ".ts", ".torchscript")


def as_rec(
    model: Any, *, probs: ArrayLike | Tensor | None = None, preprocessing: Any = None
) -> RandomizedEnsemble:
    """Make a randomized ensemble from one classifier or several.

    Parameters
    ----------
    model : nn.Module, sequence of nn.Module, str or path
        One module is an ensemble of one. A string or path is a run folder, a folder of `RandomizedEnsemble.save`, a
        TorchScript (``.pt``, ``.ts``) or ONNX file, or a name of the zoo.
    probs : array, optional
        α; uniform for modules, the ensemble's own for ensembles.
    preprocessing : optional
        As `randens.models.preprocessing_of` takes it, for every member.

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
    members = [_normalised(member, preprocessing) for member in rec.members]
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
            "(run_code=True), or give a TorchScript or ONNX file"
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
        if path.suffix in _TORCHSCRIPT:
            return models.torchscript(path)
        if path.suffix == ".onnx":
            return models.onnx(path)
        if path.suffix == ".safetensors":
            return _weights(path)
        raise InputError(
            f"model is {text!r}; files must end in {', '.join(_TORCHSCRIPT)}, .onnx or .safetensors"
        )
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
