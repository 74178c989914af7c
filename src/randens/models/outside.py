"""Networks that are not ours, by name: "timm:resnet18", "package.module:factory", "robustbench:NAME", "onnx:PATH".

All of them are code, which can read and write any file of yours and run forever: naming it in a recipe or a call is the
consent to run it. A name that was read from a file is not: its function runs only if it was named before in this
process, by `trust` or in the variable RANDENS_TRUST. Saved ensembles are safetensors, which hold numbers and no code.
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

import numpy as np
import torch
from torch import nn

from randens.core.errors import FileError, InputError, ModelError, PathLike, RandensError, typed
from randens.core.files import onnx_session, open_file, sha256
from randens.models.outputs import adapt, logits_of

_TRUSTED = set(filter(None, os.environ.get("RANDENS_TRUST", "").split(",")))
# Arguments by which timm would load weights, some of them pickled, from elsewhere.
_REFUSED = ("pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")
_LARGEST = 1 << 36
_LARGEST_BATCH = 1 << 12


@typed(name=str)
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
    """The network to train that a name stands for, checked to give logits [n, classes] for inputs [n, *shape]."""
    if name.startswith("timm:"):
        if refused := [option for option in options if option in _REFUSED]:
            raise InputError(f"model {name!r} with {refused} loads weights; only fresh networks are trained")
        made = _from_timm(name, {"num_classes": classes, "in_chans": shape[0], **options})
    else:
        with imported(name) as factory:
            takes = inspect.signature(factory).parameters
            known = {key: classes for key in ("classes", "num_classes") if key in takes}
            made = factory(**{**known, **options})
    if not isinstance(made, nn.Module):
        raise InputError(f"model {name!r} returns a {type(made).__name__}; it must return a torch.nn.Module")
    with _sentence(name, f"does not take inputs of shape {list(shape)}"), torch.no_grad():
        z = made.eval()(torch.zeros(2, *shape))
    found = list(z.shape) if isinstance(z, torch.Tensor) else type(z).__name__
    if found != [2, classes]:
        raise InputError(f"model {name!r} returns {found} for 2 inputs; it must return logits [2, {classes}]")
    trust(name)
    return made.train()


@typed(spec=str)
def from_spec(spec: str) -> Any:
    """The classifier that ``timm:NAME``, ``torchscript:PATH``, ``onnx:PATH`` or ``package.module:factory`` names.

    ``robustbench:NAME`` is RobustBench's of CIFAR-10 and l∞, ``robustbench:cifar100/L2/NAME`` another. All this is
    code, which is run: naming it is the consent. Modules are looked for in the current folder, too; a factory may
    return several classifiers.

    >>> from_spec("torch.nn:Flatten")
    Flatten(start_dim=1, end_dim=-1)
    """
    kind, _, rest = spec.partition(":")
    if kind == "torchscript":
        return torchscript(rest)
    if kind == "onnx":
        return onnx(rest)
    if kind == "robustbench":
        *where, name = rest.split("/")
        if len(where) not in (0, 2):
            raise InputError(f"model is {spec!r}; give robustbench:NAME or robustbench:DATASET/NORM/NAME")
        data, norm = where or ("cifar10", "Linf")
        with imported("robustbench.utils:load_model") as load, _sentence(spec, "cannot be loaded"):
            return load(model_name=name, dataset=data, threat_model=norm)
    if kind == "timm":
        module = _from_timm(spec, {})
        return adapt(module, "auto" if hasattr(module, "default_cfg") else None)
    with imported(spec) as factory:
        return factory()


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


@typed(path=PathLike)
def torchscript(path: str | os.PathLike[str]) -> nn.Module:
    """A member from a TorchScript file, whose code runs: load only what you trust. Gradients work."""
    with open_file(path, _LARGEST) as file:
        return adapt(torch.jit.load(file, map_location="cpu"))  # type: ignore[no-untyped-call]


class OnnxMember(nn.Module):
    """An ONNX classifier run on the CPU, without gradients, which attacks flag; witness stores know it by `sha256`."""

    def __init__(self, session: Any, file: Path, sha256: str = "") -> None:
        super().__init__()
        self._session, self._file, self.sha256 = session, file, sha256
        self.training = False
        inputs = session.get_inputs()
        if not inputs or not inputs[0].shape:
            raise FileError(f"{file} has no input of shape [n, ...]")
        self._input: str = inputs[0].name
        size = inputs[0].shape[0]
        # A file exported without a dynamic batch takes exactly this many images.
        self._batch: int | None = size if isinstance(size, int) and size > 0 else None
        if self._batch is not None and self._batch > _LARGEST_BATCH:
            raise FileError(f"{file} takes {size} inputs at once; export it for any number, or for fewer")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = np.ascontiguousarray(x.detach().cpu().float().numpy())
        step = self._batch or max(1, len(images))
        missing = -len(images) % step if len(images) else step
        filled = np.concatenate([images, np.zeros((missing, *images.shape[1:]), np.float32)])
        try:
            parts = [
                self._session.run(None, {self._input: filled[start : start + step]})[0]
                for start in range(0, len(filled), step)
            ]
        # ONNX Runtime's exceptions have no public base class.
        except Exception as error:
            raise InputError(f"{self._file} takes no inputs of shape {images.shape[1:]}: {error}") from error
        # A file that gives another number of answers than it is given inputs is refused.
        answers = np.concatenate(parts)
        answers = answers[: len(x)] if len(answers) == len(filled) else answers
        return logits_of(torch.from_numpy(answers), len(x), self._file.name).to(x.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxMember:
        # A session cannot be copied and holds nothing that changes.
        return self


@typed(path=PathLike)
def onnx(path: str | os.PathLike[str]) -> OnnxMember:
    """A member, without gradients, from an ONNX file (images to logits), which may run forever: load what you trust."""
    with open_file(path, _LARGEST) as file:
        checksum = sha256(file.read())
    # By its path, because weights may lie in files beside it.
    session = onnx_session(os.fspath(path), path, torch.get_num_threads())
    return OnnxMember(session, Path(path), checksum)


def _from_timm(name: str, options: Mapping[str, Any]) -> nn.Module:
    known = name.removeprefix("timm:")
    if not known.replace("_", "").replace(".", "").isalnum():
        raise InputError(f"model is {name[:200]!r}; give the name of a network of timm, e.g. timm:resnet18")
    with _sentence(name, "cannot be made by timm"):
        return importlib.import_module("timm").create_model(known, **options)


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
