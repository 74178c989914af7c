"""Networks that are not ours, by name: "timm:resnet18", "package.module:factory", "robustbench:NAME", "onnx:PATH".

Naming code in a recipe or a call is the consent to run it. A name that was read from a file is not: its function runs
only if it was named before in this process, by `trust` or in the variable RANDENS_TRUST.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from randens.core.errors import InputError, ModelError, RandensError
from randens.models.from_files import onnx, torchscript
from randens.models.outputs import adapt, preprocessing_of

_FILES: Mapping[str, Callable[[str], nn.Module]] = {"torchscript": torchscript, "onnx": onnx}
_TRUSTED = set(filter(None, os.environ.get("RANDENS_TRUST", "").split(",")))
# Arguments by which timm would load weights, some of them pickled, from elsewhere.
_REFUSED = ("pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")


def trust(name: str) -> None:
    """Allow networks of "package.module:factory" to be made when an ensemble is loaded."""
    _TRUSTED.add(name)


def check_trusted(name: str) -> None:
    """Refuse to import a function that a file names and the user did not."""
    if ":" in name and not name.startswith("timm:") and name not in _TRUSTED:
        raise ModelError(
            f"its network is made by {name[:200]!r}, whose code would be run; if you trust it, call "
            f"randens.models.trust({name[:200]!r}) before, or set RANDENS_TRUST"
        )


def make(name: str, classes: int, shape: tuple[int, ...], options: Mapping[str, Any]) -> nn.Module:
    """The network, checked to give logits [n, classes] for inputs [n, *shape]."""
    if name.startswith("timm:"):
        if refused := [option for option in options if option in _REFUSED]:
            raise InputError(
                f"model {name!r} with {refused} would load weights; only fresh networks are trained"
            )
        made = _from_timm(name, {"num_classes": classes, "in_chans": shape[0], **options})
    else:
        with imported(name) as factory:
            named: list[str] = []
            # Functions that are written in C may have no signature.
            with contextlib.suppress(ValueError, TypeError):
                parameters = inspect.signature(factory).parameters
                named = [key for key in ("classes", "num_classes") if key in parameters]
            made = factory(**{**dict.fromkeys(named, classes), **options})
    if not isinstance(made, nn.Module):
        raise InputError(f"model {name!r} returns a {type(made).__name__}; it must return a torch.nn.Module")
    with _sentence(name, f"does not take inputs of shape {list(shape)}"), torch.no_grad():
        z = made.eval()(torch.zeros(2, *shape))
    found = list(z.shape) if isinstance(z, torch.Tensor) else type(z).__name__
    if found != [2, classes]:
        raise InputError(f"model {name!r} returns {found} for 2 inputs; it must return logits [2, {classes}]")
    trust(name)
    return made.train()


def from_spec(spec: str, **options: Any) -> Any:
    """The classifier that ``timm:NAME``, ``torchscript:PATH``, ``onnx:PATH`` or ``package.module:factory`` names.

    ``robustbench:NAME`` is RobustBench's of CIFAR-10 and l∞, ``robustbench:cifar100/L2/NAME`` another. All this is
    code, which is run: naming it is the consent. Modules are looked for in the current folder, too; `options` go to
    timm or to the factory, which may return several classifiers.

    >>> from_spec("torch.nn:Linear", in_features=4, out_features=3)
    Linear(in_features=4, out_features=3, bias=True)
    """
    kind, _, rest = spec.partition(":")
    if kind in _FILES:
        return _FILES[kind](rest)
    if kind == "robustbench":
        *where, name = rest.split("/")
        if len(where) not in (0, 2):
            raise InputError(f"model is {spec!r}; give robustbench:NAME or robustbench:DATASET/NORM/NAME")
        data, norm = where or ("cifar10", "Linf")
        with imported("robustbench.utils:load_model") as load:
            return load(model_name=name, dataset=data, threat_model=norm)
    if kind == "timm":
        module = _from_timm(spec, options)
        pair = preprocessing_of("auto", module)
        return adapt(module) if pair is None else adapt(module, mean=pair[0], std=pair[1])
    with imported(spec) as factory:
        return factory(**options)


@contextlib.contextmanager
def imported(spec: str) -> Iterator[Any]:
    """The function that ``package.module:name`` names, with the current folder on the import path during use."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name.isidentifier():
        raise InputError(f"model is {spec[:200]!r}; it must be package.module:factory, e.g. mynets:ensemble")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        with _sentence(spec, "cannot be imported"):
            factory = getattr(importlib.import_module(module_name), name)
        if not callable(factory):
            raise InputError(f"model is {spec!r}, a {type(factory).__name__}; name a function")
        with _sentence(spec, "cannot be called"):
            yield factory
    finally:
        sys.path.remove(here)


def _from_timm(name: str, options: Mapping[str, Any]) -> nn.Module:
    known = name.removeprefix("timm:")
    if not known.replace("_", "").replace(".", "").isalnum():
        raise InputError(f"model is {name[:200]!r}; give the name of a network of timm, e.g. timm:resnet18")
    try:
        timm = importlib.import_module("timm")
    except ImportError as error:
        raise InputError(f"model is {name!r}, which needs timm ({error}); run `pip install timm`") from error
    with _sentence(name, "cannot be made by timm"):
        return timm.create_model(known, **options)


@contextlib.contextmanager
def _sentence(name: str, fault: str) -> Iterator[None]:
    """Whatever other people's code raises becomes one sentence."""
    try:
        yield
    except RandensError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"model {name!r} {fault} ({reason})") from error
