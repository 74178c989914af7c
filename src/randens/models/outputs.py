"""Adapt classifiers: extract logits from their outputs and normalise their inputs.

A member takes inputs in the threat's units, for example images in [0, 1], and gives logits [n, classes]. Most
classifiers differ from that in two ways only: they wrap the logits in another object, and they need normalised inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from randens.core.errors import InputError, ModelError

__all__ = ["Adapted", "adapt", "in_precision", "logits_of", "preprocessing_of"]

_WANTED = "a member returns logits [n, classes], or a tuple that starts with them, or something with .logits"


def logits_of(answer: Any, count: int, name: str) -> Tensor:
    """The logits in a classifier's answer.

    Parameters
    ----------
    answer : Tensor, tuple, list, mapping or object
        A tensor; the first item of a tuple or list; the entry or attribute ``logits``. A single column, [n, 1] or
        [n], is the logit of class 1 against class 0: a model trained with a sigmoid. It becomes (0, z).
    count : int
        n, the number of inputs.
    name : str
        The classifier's name, for errors.

    Returns
    -------
    Tensor
        [n, classes], float32 or float64; lower precisions are widened.

    Examples
    --------
    >>> logits_of((torch.zeros(2, 3), "features"), 2, "net").shape
    torch.Size([2, 3])
    >>> logits_of(torch.tensor([[1.5]]), 1, "net").tolist()
    [[0.0, 1.5]]
    """
    if not isinstance(answer, Tensor):
        answer = _inside(answer, name)
    if answer.is_complex() or not answer.is_floating_point():
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
    """Inputs in the precision of a classifier's weights.

    Parameters
    ----------
    x : Tensor
        Inputs. Whole numbers other than bytes are not converted, because they may be tokens.
    module : nn.Module
        The module; without floating-point parameters, `x` is not converted.

    Returns
    -------
    Tensor
        `x` itself where nothing has to be done.

    Examples
    --------
    >>> in_precision(torch.zeros(2, 3, dtype=torch.float64), nn.Linear(3, 2)).dtype
    torch.float32
    """
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
    """A module as a member: normalises the input, calls the module, and extracts the logits.

    Parameters
    ----------
    module : nn.Module
        A classifier whose answer `logits_of` understands: a tensor, a tuple that starts with one, a mapping or an
        object with ``logits`` (Hugging Face), or a single logit for class 1.
    mean, std : sequence of float, optional
        Per channel; the module is given (x − mean) / std.

    Examples
    --------
    >>> member = Adapted(nn.Sequential(nn.Flatten(), nn.Linear(4, 1)), [0.5], [0.5])
    >>> member(torch.zeros(3, 1, 2, 2)).shape
    torch.Size([3, 2])
    """

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
        for values in (self.mean, self.std):
            if values is not None and x.dim() == 4 and len(values) not in (1, x.shape[1]):
                raise InputError(
                    f"preprocessing has {len(values)} channels; the inputs have shape {tuple(x.shape[1:])}"
                )
        if self.mean is not None:
            x = x - (self.mean if x.dim() == 4 else self.mean.flatten())
        if self.std is not None:
            x = x / (self.std if x.dim() == 4 else self.std.flatten())
        return logits_of(self.module(x, **options), given, type(self.module).__name__)


def adapt(
    module: nn.Module, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Adapted:
    """Make a member from any classifier, even if it needs normalised inputs or wraps its logits.

    Parameters
    ----------
    module, mean, std
        As for `Adapted`. The member itself takes plain pixels in [0, 1], so that attacks work on pixels.

    Returns
    -------
    Adapted
        A module that gives logits [n, classes].

    Examples
    --------
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    >>> adapt(net, mean=[0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2])(torch.rand(4, 3, 2, 2)).shape
    torch.Size([4, 10])
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"module={type(module).__name__} must be a torch.nn.Module")
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and not all(map(math.isfinite, values)):
            raise InputError(f"{name}={values!r} must be finite numbers, one for each channel")
    if std is not None and min(std) <= 0:
        raise InputError(f"std={std!r} must be positive")
    return Adapted(module, mean, std)


def preprocessing_of(given: Any, module: nn.Module | None = None) -> tuple[list[float], list[float]] | None:
    """Return mean and standard deviation per channel from their usual forms.

    Parameters
    ----------
    given : None, "auto", pair, mapping or object
        ``(mean, std)``, numbers or one per channel; a mapping with ``mean`` and ``std`` (timm's
        ``default_cfg``) or with ``image_mean`` and ``image_std``, or an object with such attributes (an image
        processor of transformers). ``"auto"`` reads `module`'s own configuration.
    module : nn.Module, optional
        Whose configuration ``"auto"`` reads: ``pretrained_cfg`` or ``default_cfg`` of timm.

    Returns
    -------
    (list of float, list of float) or None
        None: no preprocessing.

    Examples
    --------
    >>> preprocessing_of((0.5, 0.25))
    ([0.5], [0.25])
    >>> preprocessing_of({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 1]})[0]
    [0.1, 0.2, 0.3]
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
    pair = _read_pair(given)
    try:
        mean, std = ([float(v) for v in (part if hasattr(part, "__len__") else [part])] for part in pair)
    except (TypeError, ValueError):
        raise InputError(
            f"preprocessing is {given!r}; it must be (mean, std), numbers or one per channel"
        ) from None
    if not all(map(math.isfinite, [*mean, *std])) or min(std) <= 0:
        raise InputError(f"preprocessing is {given!r}; means must be finite and standard deviations positive")
    return mean, std


def _read_pair(given: Any) -> tuple[Any, Any]:
    for mean, std in (("mean", "std"), ("image_mean", "image_std")):
        if isinstance(given, Mapping) and mean in given and std in given:
            return given[mean], given[std]
        if getattr(given, mean, None) is not None and getattr(given, std, None) is not None:
            found = getattr(given, mean), getattr(given, std)
            if not any(map(callable, found)):
                return found
    try:
        mean_part, std_part = given
    except (TypeError, ValueError):
        raise InputError(
            f"preprocessing is {given!r}; give (mean, std), or a configuration of timm or transformers that has them"
        ) from None
    return mean_part, std_part
