"""Adapt classifiers: extract logits from their outputs and normalize their inputs.

A member takes inputs in the threat's units, for example images in [0, 1], and gives logits [n, classes]. Most
classifiers differ from that in two ways only: they wrap the logits in another object, and they need normalized inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens.core.errors import InputError, ModelError

_WANTED = "a member returns logits [n, classes], or a tuple that starts with them, or something with .logits"


def logits_of(answer: Any, count: int, name: str) -> Tensor:
    """The logits [n, classes] in a classifier's answer, in float32 or float64.

    The answer is a tensor, the first item of a tuple or list, or the entry or attribute ``logits``. A single column is
    the logit z of class 1 against class 0, from a model trained with a sigmoid; it becomes (0, z).

    >>> logits_of(torch.tensor([[1.5]]), 1, "net").tolist()
    [[0.0, 1.5]]
    """
    if not isinstance(answer, Tensor):
        answer = _inside(answer, name)
    if not answer.dtype.is_floating_point:
        raise ModelError(
            f"{name} returned {answer.dtype}; logits must be floating point, and class numbers are no logits"
        )
    if answer.dim() == 1 and len(answer) == count:
        answer = answer.unsqueeze(1)
    if answer.dim() != 2 or answer.shape[0] != count:
        raise ModelError(f"{name} returned shape {tuple(answer.shape)} for {count} inputs; {_WANTED}")
    if answer.shape[1] == 1:
        answer = torch.cat([torch.zeros_like(answer), answer], dim=1)
    return answer.float() if answer.dtype in (torch.float16, torch.bfloat16) else answer


def in_precision(x: Tensor, module: nn.Module) -> Tensor:
    """Inputs in the precision of a classifier's weights; whole numbers stay, because they may be tokens."""
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if weight is None or x.dtype == weight.dtype:
        return x
    if x.dtype in (torch.uint8, torch.bool) or x.is_complex():
        raise InputError(
            f"x has dtype {x.dtype}; inputs must be floating point, e.g. x.float() / 255 for images in 0..255"
        )
    return x.to(weight.dtype) if x.is_floating_point() else x


def _inside(answer: Any, name: str) -> Tensor:
    found: Any = None
    if isinstance(answer, Mapping):
        found = answer.get("logits")
        said = f"a {type(answer).__name__} with the keys {sorted(map(str, answer))[:6]}"
    elif hasattr(answer, "logits"):
        found, said = answer.logits, f"a {type(answer).__name__} whose .logits is no tensor"
    elif isinstance(answer, Sequence) and not isinstance(answer, str) and len(answer):
        found, said = answer[0], f"a {type(answer).__name__} that starts with a {type(answer[0]).__name__}"
    else:
        said = "None" if answer is None else f"a {type(answer).__name__}"
    if not isinstance(found, Tensor):
        raise ModelError(f"{name} returned {said}; {_WANTED}")
    return found


class Adapted(nn.Module):
    """A module as a member: its inputs are normalized by mean and std per channel, and its logits extracted."""

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self, module: nn.Module, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        self.module = module
        self.training = module.training  # keeps the mode, because a new module is in training mode
        for name, values in (("mean", mean), ("std", std)):
            buffer = None if values is None else torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        given = len(x)
        for values, change in ((self.mean, torch.sub), (self.std, torch.div)):
            if values is None:
                continue
            if x.dim() == 4 and len(values) not in (1, x.shape[1]):
                raise InputError(
                    f"preprocessing has {len(values)} channels; the inputs have shape {tuple(x.shape[1:])}"
                )
            x = change(x, values if x.dim() == 4 else values.flatten())
        return logits_of(self.module(x, **options), given, type(self.module).__name__)


def adapt(
    module: nn.Module, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Adapted:
    """Make a member of any classifier whose answer `logits_of` understands.

    The module is given (x − mean) / std, per channel; the member takes plain pixels, so that attacks work on those.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    >>> adapt(net, mean=[0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2])(torch.rand(4, 3, 2, 2)).shape
    torch.Size([4, 10])
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"module is a {type(module).__name__}; it must be a torch.nn.Module")
    if mean is not None or std is not None:
        mean, std = _checked(mean if mean is not None else 0.0, std if std is not None else 1.0, (mean, std))
    return Adapted(module, mean, std)


def preprocessing_of(given: Any, module: nn.Module | None = None) -> tuple[list[float], list[float]] | None:
    """Mean and standard deviation per channel from their usual forms, for `adapt`; None: no preprocessing.

    That is ``(mean, std)``, numbers or one per channel; a mapping or an object with ``mean`` and ``std`` (timm's
    ``default_cfg``, torchvision's ``Normalize`` and ``weights.transforms()``) or with ``image_mean`` and ``image_std``
    (transformers); a ``Compose`` that holds a ``Normalize``; or ``"auto"``, the configuration that a network of timm
    carries. Only the normalization is taken: inputs have their size already.

    >>> preprocessing_of((0.5, 0.25))
    ([0.5], [0.25])
    """
    if given is None:
        return None
    if isinstance(given, str):
        if given != "auto":
            raise InputError(f"preprocessing is {given!r}; give (mean, std), a configuration, or 'auto'")
        given = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        if given is None:
            raise InputError(
                f"preprocessing is 'auto', but {type(module).__name__} carries no configuration as timm's models do; "
                "give (mean, std), or the image processor of transformers"
            )
    pair = _find_pair(given)
    if pair is None and isinstance(given, tuple | list) and len(given) == 2:
        pair = given[0], given[1]
    if pair is None:
        raise InputError(f"preprocessing is {given!r}; give (mean, std), or something that has them")
    return _checked(*pair, given)


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


def _checked(mean: Any, std: Any, given: Any) -> tuple[list[float], list[float]]:
    try:
        means, stds = (
            [float(v) for v in (part if hasattr(part, "__len__") else [part])] for part in (mean, std)
        )
    except (TypeError, ValueError):
        raise InputError(f"preprocessing is {given!r}; it must be numbers or one per channel") from None
    if not means or not stds or not all(map(math.isfinite, [*means, *stds])) or min(stds) <= 0:
        raise InputError(f"preprocessing is {given!r}; means must be finite and standard deviations positive")
    return means, stds
