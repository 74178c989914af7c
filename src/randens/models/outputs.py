"""Members from classifiers: extract logits from what they return, and normalize their inputs."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens.core.devices import is_dense
from randens.core.errors import InputError, ModelError, expect

_SWITCHED: dict[tuple[str, int], tuple[Any, set[object]]] = {}  # the value found, and who needs another
_SWITCHING = threading.RLock()
Channels = Sequence[float] | None
_WANTED = "a member returns logits [n, classes], or a tuple that starts with them, or something with .logits"


def logits_of(answer: Any, count: int, name: str, classes: int = 0) -> Tensor:
    """The logits [n, classes] in a classifier's answer, in float32 or float64; of any number of classes if 0 is given.

    The answer is a tensor, the first item of a tuple or list, or the entry or attribute ``logits``. A single column is
    the logit z of class 1 against class 0, from a model trained with a sigmoid; it becomes (0, z).

    >>> logits_of(torch.tensor([[1.5]]), 1, "net").tolist()
    [[0.0, 1.5]]
    """
    if not isinstance(answer, Tensor):
        kind = type(answer).__name__
        if isinstance(answer, Mapping):
            answer = answer.get("logits")
        elif isinstance(answer, (tuple, list)) and not hasattr(answer, "logits"):
            answer = answer[0] if answer else None
        else:
            answer = getattr(answer, "logits", None)
        if not isinstance(answer, Tensor):
            raise ModelError(f"{name} returned a {kind} without logits; {_WANTED}")
    if not answer.dtype.is_floating_point or not is_dense(answer):
        raise ModelError(
            f"{name} returned {answer.dtype} ({answer.layout}, on {answer.device}); logits must be floating point and "
            "dense, and class numbers are no logits"
        )
    if answer.dim() == 1 and len(answer) == count:
        answer = answer.unsqueeze(1)
    if answer.dim() != 2 or answer.shape[0] != count or not answer.shape[1]:
        raise ModelError(f"{name} returned shape {tuple(answer.shape)} for {count} inputs; {_WANTED}")
    if answer.shape[1] == 1:
        answer = torch.cat([torch.zeros_like(answer), answer], dim=1)
    if answer.shape[1] != (classes or answer.shape[1]):
        given = f"{name} returned {answer.shape[1]} logits"
        raise ModelError(f"{given}, and {classes} were returned before; all must agree")
    return answer.float() if answer.dtype in (torch.float16, torch.bfloat16) else answer


def in_precision(x: Tensor, module: nn.Module) -> Tensor:
    """A copy of inputs, as a classifier may write into them, in its weights' precision; whole numbers may be tokens."""
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if weight is None or x.dtype == weight.dtype:
        return x.clone()
    if x.dtype in (torch.uint8, torch.bool) or x.is_complex():
        raise InputError(f"x has dtype {x.dtype}; inputs must be floating point, e.g. x.float() / 255")
    return x.to(weight.dtype) if x.is_floating_point() else x.clone()


@contextlib.contextmanager
def undisturbed(name: str) -> Iterator[None]:
    """Around a call of a classifier: it may switch gradients; if it changes torch's defaults, it is refused."""
    before = torch.get_default_device(), torch.get_default_dtype()
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        yield
    after = torch.get_default_device(), torch.get_default_dtype()
    if after != before:
        torch.set_default_device(None)
        torch.set_default_dtype(before[1])
        raise ModelError(f"{name} sets torch's default device and type to {after}; it must leave both")


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put every submodule into eval mode; on leaving, restore exactly the modes that were found."""
    # A frozen TorchScript module has no mode.
    with switched("training", [m for m in module.modules() if hasattr(m, "training")], module.eval):
        yield


@contextlib.contextmanager
def switched(flag: str, things: Sequence[Any], switch: Callable[[], object]) -> Iterator[None]:
    """Around the switch of a flag of modules or parameters, which the last of its nested and concurrent users undoes.

    Threads that share a model would otherwise take each other's switch for what was found, and undo it too early.
    """
    user = object()
    try:  # from here, as Ctrl-C may come at any moment
        with _SWITCHING:
            for thing in things:
                _SWITCHED.setdefault((flag, id(thing)), (getattr(thing, flag), set()))[1].add(user)
        switch()
        yield
    finally:
        with _SWITCHING:
            for key, thing in [((flag, id(thing)), thing) for thing in things]:
                found, users = _SWITCHED.get(key, (None, set()))
                users.discard(user)
                if not users and key in _SWITCHED:
                    del _SWITCHED[key]
                    setattr(thing, flag, found)


class Normalized(nn.Module):
    """The base of modules that normalize their inputs by `mean` and `std` per channel, where these are given."""

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, mean: Channels, std: Channels, dimensions: int = 3) -> None:
        super().__init__()
        shape = (-1, *(1,) * (dimensions - 1))
        for name, values in (("mean", mean), ("std", std)):
            buffer = None if values is None else torch.tensor(values, dtype=torch.float32).view(shape)
            self.register_buffer(name, buffer)

    def normalize(self, x: Tensor) -> Tensor:
        """(x − mean) / std; inputs of other dimensions are taken along their last one."""
        for values, change in ((self.mean, torch.sub), (self.std, torch.div)):
            if values is not None:
                x = change(x, values if values.dim() == x.dim() - 1 else values.flatten())
        return x


class Adapted(Normalized):
    """A module as a member: its inputs are normalized, and its logits extracted."""

    def __init__(self, module: nn.Module, mean: Channels = None, std: Channels = None) -> None:
        super().__init__(mean, std)
        self.module = module
        self.training = getattr(module, "training", False)  # a new module is in training mode

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        expect("x", x, Tensor)
        channels = {len(values) for values in (self.mean, self.std) if values is not None} - {1}
        if x.dim() == 4 and channels - {x.shape[1]}:
            raise InputError(f"preprocessing has {max(channels)} channels; x has shape {tuple(x.shape[1:])}")
        given = len(x)
        return logits_of(self.module(self.normalize(x), **options), given, type(self.module).__name__)


def adapt(module: nn.Module, preprocessing: Any = None) -> Adapted:
    """Make a member of any classifier whose answer `logits_of` understands.

    The module is given (x − mean) / std, per channel; the member takes plain pixels, so that attacks work on those.
    `preprocessing` is what `preprocessing_of` takes.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    >>> adapt(net, ([0.5, 0.5, 0.5], [0.2, 0.2, 0.2]))(torch.rand(4, 3, 2, 2)).shape
    torch.Size([4, 10])
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"module is a {type(module).__name__}; it must be a torch.nn.Module")
    pair = preprocessing_of(preprocessing, module)
    return Adapted(module) if pair is None else Adapted(module, *pair)


def preprocessing_of(given: Any, module: nn.Module | None = None) -> tuple[list[float], list[float]] | None:
    """Mean and standard deviation per channel from their usual forms; None: no preprocessing.

    That is ``(mean, std)``, numbers or one per channel; a mapping or an object with ``mean`` and ``std`` (timm's
    ``default_cfg``, torchvision's ``Normalize`` and ``weights.transforms()``) or with ``image_mean`` and ``image_std``
    (transformers); a ``Compose`` that holds a ``Normalize``; or ``"auto"``, the configuration that a network of timm
    carries. Only the normalization is taken: inputs have their size already.

    >>> preprocessing_of((0.5, 0.25))
    ([0.5], [0.25])
    """
    if given is None:
        return None
    found = given
    if isinstance(given, str) and given == "auto":
        found = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
    pair = _find_pair(found) or found
    try:
        means, stds = ([float(v) for v in (p if hasattr(p, "__len__") else [p])] for p in pair)
    except (TypeError, ValueError):
        raise InputError(
            f"preprocessing is {given!r:.100}; give (mean, std), numbers or one per channel, something that has "
            "them, or 'auto' for a network that carries timm's configuration"
        ) from None
    if not means or not stds or not all(map(math.isfinite, [*means, *stds])) or min(stds) <= 0:
        raise InputError(f"preprocessing is (mean, std) = {pair}; means must be finite, deviations positive")
    return means, stds


def preprocessing_per_member(given: Any, count: int) -> list[Any]:
    """What each of `count` members is given: a list has one entry for each (None, a pair, a configuration ...)."""
    numbers = (int, float, list, Tensor, np.ndarray)
    if isinstance(given, list) and not all(isinstance(part, numbers) for part in given):
        if len(given) != count:
            raise InputError(f"preprocessing is a list of {len(given)}; there are {count} members")
        return given
    return [given] * count


def _find_pair(given: Any) -> tuple[Any, Any] | None:
    """mean and std of a mapping or an object, or of the last of its transforms that has them."""
    for mean, std in (("mean", "std"), ("image_mean", "image_std")):
        if isinstance(given, Mapping):
            found = given.get(mean), given.get(std)
        else:
            found = getattr(given, mean, None), getattr(given, std, None)
        if found[0] is not None and found[1] is not None and not any(map(callable, found)):
            return found
    inner = getattr(given, "transforms", None)
    parts = list(inner) if isinstance(inner, list | tuple) else []
    return next((pair for part in reversed(parts) if (pair := _find_pair(part)) is not None), None)
