"""Networks that are not ours, by name: "timm:resnet18", or "package.module:factory".

Naming a function in a recipe or a call is the consent to import and call it. A name that was read from a file is not:
its function runs only if it was named before in this process, by `trust` or in the variable RANDENS_TRUST.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from randens.core.errors import InputError, ModelError

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
    made = (
        _from_timm(name, classes, shape, options)
        if name.startswith("timm:")
        else _called(name, classes, options)
    )
    if not isinstance(made, nn.Module):
        raise InputError(f"model {name!r} returns a {type(made).__name__}; it must return a torch.nn.Module")
    with _sentence(name, f"does not take inputs of shape {list(shape)}"), torch.no_grad():
        z = made.eval()(torch.zeros(2, *shape))
    found = list(z.shape) if isinstance(z, torch.Tensor) else type(z).__name__
    if found != [2, classes]:
        raise InputError(f"model {name!r} returns {found} for 2 inputs; it must return logits [2, {classes}]")
    trust(name)
    return made.train()


def _from_timm(name: str, classes: int, shape: tuple[int, ...], options: Mapping[str, Any]) -> Any:
    known = name.removeprefix("timm:")
    refused = [option for option in options if option in _REFUSED]
    if refused or not known.replace("_", "").replace(".", "").isalnum():
        raise InputError(
            f"model {name!r} with {refused or known!r} would load weights; only fresh networks are trained"
        )
    try:
        import timm
    except ImportError:
        raise InputError(f"model is {name!r}, but timm is not installed: pip install timm") from None
    with _sentence(name, "cannot be made by timm"):
        return timm.create_model(known, num_classes=classes, in_chans=shape[0], **options)


def _called(name: str, classes: int, options: Mapping[str, Any]) -> Any:
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _sentence(name, "cannot be imported"):
        factory = getattr(importlib.import_module(module), function)
    if not callable(factory):
        raise InputError(
            f"model is {name!r}, a {type(factory).__name__}; name a function that returns a module"
        )
    named: list[str] = []
    # Functions that are written in C may have no signature.
    with contextlib.suppress(ValueError, TypeError):
        parameters = inspect.signature(factory).parameters
        named = [key for key in ("classes", "num_classes") if key in parameters]
    with _sentence(name, "cannot be called"):
        return factory(**{**dict.fromkeys(named, classes), **options})


@contextlib.contextmanager
def _sentence(name: str, fault: str) -> Iterator[None]:
    """Whatever other people's code raises becomes one sentence."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"model {name!r} {fault} ({reason})") from error
