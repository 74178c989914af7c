"""Interval bound propagation: bounds of every layer when every input coordinate lies in its own interval.

An `Interval` passes through a module in place of a tensor, by torch's override protocol. Every operation on
it must be in the table below, where its bounds are known to be sound. Other operations, and control flow that
depends on values, are refused. So an accepted network consists of affine operations and ReLU only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from randens.core.errors import InputError

Refine = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Called at the k-th ReLU with the bounds of its input, float64 [n, ...]; returns bounds that are no wider."""

# Float64 sums of fewer than 4000 terms are off by less than this, relative to the sum of absolute values.
_ROUNDING = 1e-12


class Interval(Tensor):
    """All tensors within `radius` of `center`, coordinate by coordinate; both float64 [n, ...]."""

    center: Tensor
    radius: Tensor
    at_relu: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # bounds of a ReLU's input

    @staticmethod
    def __new__(cls, center: Tensor, radius: Tensor, at_relu: Callable[..., Any]) -> Interval:
        made: Interval = Tensor._make_wrapper_subclass(cls, center.shape, dtype=center.dtype)
        made.center, made.radius, made.at_relu = center, radius, at_relu
        return made

    @property
    def low(self) -> Tensor:
        """The smallest value of every coordinate."""
        return self.center - self.radius * (1 + _ROUNDING) - _ROUNDING * self.center.abs()

    @property
    def high(self) -> Tensor:
        """The largest value of every coordinate."""
        return self.center + self.radius * (1 + _ROUNDING) + _ROUNDING * self.center.abs()

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Of an attribute, the name is that of its descriptor: x.shape calls shape.__get__.
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if name in _METADATA.split():
            return func(args[0].center, *args[1:], **(kwargs or {}))
        dunder = name.startswith("__")
        in_place = name.startswith("__i") if dunder else name.endswith("_")
        plain = name.strip("_").removeprefix("i" if in_place and dunder else "")
        if plain in _DECIDING.split():
            raise InputError("the network decides by values of its input, which cannot be certified")
        if plain not in _RULES:
            _refuse(plain)
        found = _RULES[plain](*args, **(kwargs or {}))
        return args[0].become(found) if in_place else found

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> NoReturn:  # type: ignore[override]
        _refuse(func.__name__)  # nothing may pass the table

    def become(self, other: Interval) -> Interval:
        """Take other values in place, so that all references to this object change, as in torch."""
        self.center, self.radius = other.center, other.radius
        return self

    def like(self, center: Tensor, radius: Tensor) -> Interval:
        """Another interval of the same pass through the network."""
        return Interval(center, radius, self.at_relu)


def propagate(
    member: nn.Module, low: Tensor, high: Tensor, refine: Refine | None = None
) -> tuple[Interval, list[tuple[Tensor, Tensor]]]:
    """The logits of a float64 member for inputs between `low` and `high`, and the bounds of every ReLU's input."""
    bounds: list[tuple[Tensor, Tensor]] = []

    def relu(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        bounds.append((low, high) if refine is None else refine(len(bounds), low, high))
        return bounds[-1]

    center = (low + high) / 2
    start = Interval(center, (high - low) / 2 + _ROUNDING * center.abs(), relu)
    try:
        found = member(start)
    except (TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{type(member).__name__} cannot be certified: {reason}") from error
    if not isinstance(found, Interval):
        raise InputError(f"{type(member).__name__} cannot be certified: it does not return what it computes")
    return found, bounds


def _refuse(what: str) -> NoReturn:
    raise InputError(
        f"the network uses {what}, which cannot be certified; certifiable are linear and convolutional layers, "
        "BatchNorm in eval mode, ReLU, average pooling, sums, constants and changes of shape"
    )


def _add(first: Any, second: Any, *, alpha: float = 1) -> Interval:
    scaled = second if alpha == 1 else second * alpha
    here, other = (first, scaled) if isinstance(first, Interval) else (scaled, first)
    if isinstance(other, Interval):
        center, radius = here.center + other.center, here.radius + other.radius
        size = here.center.abs() + other.center.abs()
    else:
        center, radius, size = here.center + other, here.radius, here.center.abs()
    # A constant may have more dimensions than what it is added to.
    return here.like(center, radius.expand_as(center) + _ROUNDING * (size + center.abs()))


def _scale(first: Any, second: Any) -> Interval:
    value, factor = (first, second) if isinstance(first, Interval) else (second, first)
    if isinstance(factor, Interval):
        _refuse("a product of two things that depend on the input")
    size = factor.abs() if isinstance(factor, Tensor) else abs(factor)
    center = value.center * factor
    return value.like(center, value.radius * size * (1 + _ROUNDING) + _ROUNDING * center.abs())


def _weighted(value: Any, weight: Tensor, bias: Tensor | None, operation: Callable[..., Tensor]) -> Interval:
    if not isinstance(value, Interval) or isinstance(weight, Interval):
        _refuse("weights that depend on the input")
    center = operation(value.center, weight, bias)
    reach = operation(value.radius + _ROUNDING * value.center.abs(), weight.abs(), None)
    offset = 0.0 if bias is None else float(bias.detach().abs().max())
    return value.like(center, reach * (1 + _ROUNDING) + _ROUNDING * (center.abs() + offset))


def _batch_norm(value: Interval, mean: Tensor | None, var: Tensor | None, **options: Any) -> Interval:
    if options["training"] or mean is None or var is None:
        _refuse("batch statistics")
    weight, bias = options["weight"], options["bias"]
    shape = (1, -1) + (1,) * (value.center.dim() - 2)
    factor = (var + options["eps"]).rsqrt() * (1.0 if weight is None else weight)
    offset = -mean * factor + (0.0 if bias is None else bias)
    return _add(_scale(value, factor.reshape(shape)), offset.reshape(shape))


def _relu(value: Interval, inplace: bool = False) -> Interval:
    low, high = (bound.clamp_min(0) for bound in value.at_relu(value.low, value.high))
    center = (low + high) / 2
    result = value.like(center, (high - low) / 2 + _ROUNDING * center.abs())
    return value.become(result) if inplace else result


def _pad(tensor: Interval, pad: Any, mode: str = "constant", value: float | None = None) -> Interval:
    if mode != "constant":
        _refuse(f"padding of mode {mode!r}")
    return tensor.like(F.pad(tensor.center, pad, value=value or 0.0), F.pad(tensor.radius, pad))


def _cat(parts: Any, dim: int = 0) -> Interval:
    first = next(part for part in parts if isinstance(part, Interval))
    centers = [part.center if isinstance(part, Interval) else part for part in parts]
    radii = [part.radius if isinstance(part, Interval) else torch.zeros_like(part) for part in parts]
    return first.like(torch.cat(centers, dim), torch.cat(radii, dim))


def _dropout(value: Interval, p: float = 0.5, training: bool = True, inplace: bool = False) -> Interval:
    del inplace  # nothing is changed in eval mode
    if training and p > 0:
        _refuse("dropout in training mode")
    return value


def _reshaping(name: str) -> Callable[..., Interval]:
    operation = getattr(torch.Tensor, name)

    def rule(value: Interval, *args: Any, **kwargs: Any) -> Interval:
        return value.like(operation(value.center, *args, **kwargs), operation(value.radius, *args, **kwargs))

    return rule


def _averaging(operation: Callable[..., Tensor]) -> Callable[..., Interval]:
    """The rule of an operation whose weights are all ≥ 0."""

    def rule(value: Interval, *args: Any, **kwargs: Any) -> Interval:
        center = operation(value.center, *args, **kwargs)
        wide = value.radius + 2 * _ROUNDING * (value.center.abs() + value.radius)
        return value.like(center, operation(wide, *args, **kwargs))

    return rule


_METADATA = (
    "shape ndim dtype device layout is_meta is_nested is_quantized is_floating_point dim size numel "
    "stride __len__"
)
_DECIDING = "bool gt lt ge le"
_RESHAPING = (
    "flatten view reshape permute transpose unsqueeze squeeze contiguous clone expand unflatten narrow select double "
    "__getitem__"
)

_RULES: dict[str, Callable[..., Interval]] = {
    "linear": lambda value, weight, bias=None: _weighted(value, weight, bias, F.linear),
    "conv2d": lambda value, weight, bias=None, *args, **kwargs: _weighted(
        value, weight, bias, lambda x, w, b: F.conv2d(x, w, b, *args, **kwargs)
    ),
    "batch_norm": _batch_norm,
    "relu": _relu,
    "pad": _pad,
    **dict.fromkeys(("cat", "concat"), _cat),
    "dropout": _dropout,
    **dict.fromkeys(("add", "radd"), _add),
    "sub": lambda first, second, *, alpha=1: _add(first, -second, alpha=alpha),
    "rsub": lambda value, other: _add(-value, other),
    **dict.fromkeys(("mul", "rmul", "multiply"), _scale),
    **dict.fromkeys(("div", "truediv", "true_divide"), lambda value, by: _scale(value, 1 / by)),
    "neg": lambda value: _scale(value, -1),
    "matmul": lambda value, other: _weighted(value, other.T, None, F.linear),
    "mean": _averaging(torch.Tensor.mean),
    "sum": _averaging(torch.Tensor.sum),
    "avg_pool2d": _averaging(F.avg_pool2d),
    "adaptive_avg_pool2d": _averaging(F.adaptive_avg_pool2d),
    **{name.strip("_"): _reshaping(name) for name in _RESHAPING.split()},
}
