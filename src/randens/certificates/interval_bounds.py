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

__all__ = ["Interval", "Refine", "propagate"]

Refine = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Called at the k-th ReLU with the bounds of its input, float64 [n, ...]; returns bounds that are no wider."""

# Float64 sums of fewer than 4000 terms are off by less than this, relative to the sum of absolute values.
_ROUNDING = 1e-12


class Interval:
    """All tensors within `radius` of `center`, coordinate by coordinate; both float64 [n, ...]."""

    def __init__(self, center: Tensor, radius: Tensor, relus: _Relus) -> None:
        self.center = center
        self.radius = radius
        self.relus = relus

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
        return _apply(func.__name__, args, dict(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _METADATA.split():
            return getattr(self.center, name)
        return lambda *args, **kwargs: _apply(name, (self, *args), kwargs)

    def __len__(self) -> int:
        return len(self.center)

    def __bool__(self) -> bool:
        raise InputError("the network decides by values of its input, which cannot be certified")

    def _compared(self, _: object) -> bool:
        return bool(self)

    __lt__ = __le__ = __gt__ = __ge__ = _compared

    def __getitem__(self, index: Any) -> Interval:
        return self._with(self.center[index], self.radius[index])

    def __add__(self, other: Any) -> Interval:
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Interval:
        return _add(self, -other)

    def __rsub__(self, other: Any) -> Interval:
        return _add(-self, other)

    def __neg__(self) -> Interval:
        return self._with(-self.center, self.radius)

    def __mul__(self, other: Any) -> Interval:
        return _scale(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Interval:
        if isinstance(other, Interval):
            _refuse("division by something that depends on the input")
        return _scale(self, 1 / other)

    # In place, so that all references to the same values change, as in torch.
    def __iadd__(self, other: Any) -> Interval:
        return self._become(self + other)

    def __isub__(self, other: Any) -> Interval:
        return self._become(self - other)

    def __imul__(self, other: Any) -> Interval:
        return self._become(self * other)

    def __itruediv__(self, other: Any) -> Interval:
        return self._become(self / other)

    def __matmul__(self, other: Any) -> Interval:
        if isinstance(other, Interval):
            _refuse("a product of two things that depend on the input")
        return _linear(self, other.T)

    def _with(self, center: Tensor, radius: Tensor) -> Interval:
        return Interval(center, radius, self.relus)

    def _become(self, other: Interval) -> Interval:
        self.center, self.radius = other.center, other.radius
        return self

    def _averaged(self, operation: Callable[[Tensor], Tensor]) -> Interval:
        """Through an operation whose weights are all ≥ 0."""
        center = operation(self.center)
        return self._with(center, operation(self.radius + 2 * _ROUNDING * (self.center.abs() + self.radius)))


class _Relus:
    """The ReLUs so far, in order, with the bounds of their inputs."""

    def __init__(self, refine: Refine | None) -> None:
        self.refine = refine
        self.bounds: list[tuple[Tensor, Tensor]] = []

    def through(self, value: Interval) -> tuple[Tensor, Tensor]:
        """Bounds of relu(value)."""
        low, high = value.low, value.high
        if self.refine is not None:
            low, high = self.refine(len(self.bounds), low, high)
        self.bounds.append((low, high))
        return low.clamp_min(0), high.clamp_min(0)


def propagate(
    member: nn.Module, low: Tensor, high: Tensor, refine: Refine | None = None
) -> tuple[Interval, list[tuple[Tensor, Tensor]]]:
    """The logits of a float64 member for inputs between `low` and `high`, and the bounds of every ReLU's input."""
    relus = _Relus(refine)
    center = (low + high) / 2
    start = Interval(center, (high - low) / 2 + _ROUNDING * center.abs(), relus)
    try:
        found = member(start)
    except (TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{type(member).__name__} cannot be certified: {reason}") from error
    if not isinstance(found, Interval):
        raise InputError(f"{type(member).__name__} cannot be certified: it does not return what it computes")
    return found, relus.bounds


def _apply(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rule = _RULES.get(name)
    if rule is None:
        _refuse(name)
    return rule(*args, **kwargs)


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
    return here._with(center, radius.expand_as(center) + _ROUNDING * (size + center.abs()))


def _scale(first: Any, second: Any) -> Interval:
    value, factor = (first, second) if isinstance(first, Interval) else (second, first)
    if isinstance(factor, Interval):
        _refuse("a product of two things that depend on the input")
    size = factor.abs() if isinstance(factor, Tensor) else abs(factor)
    center = value.center * factor
    return value._with(center, value.radius * size * (1 + _ROUNDING) + _ROUNDING * center.abs())


def _linear(value: Interval, weight: Tensor, bias: Tensor | None = None) -> Interval:
    return _weighted(value, weight, bias, F.linear)


def _conv2d(
    value: Interval, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Interval:
    return _weighted(value, weight, bias, lambda x, w, b: F.conv2d(x, w, b, *args, **kwargs))


def _weighted(value: Any, weight: Tensor, bias: Tensor | None, operation: Callable[..., Tensor]) -> Interval:
    if not isinstance(value, Interval) or isinstance(weight, Interval):
        _refuse("weights that depend on the input")
    center = operation(value.center, weight, bias)
    reach = operation(value.radius + _ROUNDING * value.center.abs(), weight.abs(), None)
    offset = 0.0 if bias is None else float(bias.abs().max())
    return value._with(center, reach * (1 + _ROUNDING) + _ROUNDING * (center.abs() + offset))


def _batch_norm(
    value: Interval,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = None,
    eps: float = 1e-5,
) -> Interval:
    del momentum  # changes stored statistics only in training mode
    if training or running_mean is None or running_var is None:
        _refuse("batch statistics")
    shape = (1, -1) + (1,) * (value.center.dim() - 2)
    factor = (running_var + eps).rsqrt() * (1.0 if weight is None else weight)
    offset = -running_mean * factor + (0.0 if bias is None else bias)
    return _add(_scale(value, factor.reshape(shape)), offset.reshape(shape))


def _relu(value: Interval, inplace: bool = False) -> Interval:
    low, high = value.relus.through(value)
    center = (low + high) / 2
    result = value._with(center, (high - low) / 2 + _ROUNDING * center.abs())
    return value._become(result) if inplace else result


def _pad(tensor: Interval, pad: Any, mode: str = "constant", value: float | None = None) -> Interval:
    if mode != "constant":
        _refuse(f"padding of mode {mode!r}")
    return tensor._with(F.pad(tensor.center, pad, value=value or 0.0), F.pad(tensor.radius, pad))


def _cat(parts: Any, dim: int = 0) -> Interval:
    first = next(part for part in parts if isinstance(part, Interval))
    centers = [part.center if isinstance(part, Interval) else part for part in parts]
    radii = [part.radius if isinstance(part, Interval) else torch.zeros_like(part) for part in parts]
    return first._with(torch.cat(centers, dim), torch.cat(radii, dim))


def _dropout(value: Interval, p: float = 0.5, training: bool = True, inplace: bool = False) -> Interval:
    del inplace  # nothing is changed in eval mode
    if training and p > 0:
        _refuse("dropout in training mode")
    return value


def _reshaping(name: str) -> Callable[..., Interval]:
    operation = getattr(torch.Tensor, name)

    def rule(value: Interval, *args: Any, **kwargs: Any) -> Interval:
        return value._with(operation(value.center, *args, **kwargs), operation(value.radius, *args, **kwargs))

    return rule


def _averaging(operation: Callable[..., Tensor]) -> Callable[..., Interval]:
    def rule(value: Interval, *args: Any, **kwargs: Any) -> Interval:
        return value._averaged(lambda x: operation(x, *args, **kwargs))

    return rule


_METADATA = "shape ndim dtype device is_floating_point dim size numel stride"
_RESHAPING = (
    "flatten view reshape permute transpose unsqueeze squeeze contiguous clone expand unflatten narrow "
    "select double"
)

_RULES: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "conv2d": _conv2d,
    "batch_norm": _batch_norm,
    "relu": _relu,
    "relu_": lambda value: _relu(value, inplace=True),
    "pad": _pad,
    "cat": _cat,
    "concat": _cat,
    "dropout": _dropout,
    "add": _add,
    "sub": lambda first, second, *, alpha=1: _add(first, -second, alpha=alpha),
    "mul": _scale,
    "multiply": _scale,
    "div": lambda value, divisor: value / divisor,
    "true_divide": lambda value, divisor: value / divisor,
    "neg": lambda value: -value,
    "matmul": lambda value, other: value @ other,
    "__add__": _add,
    "__radd__": _add,
    "__sub__": lambda first, second: _add(first, -second),
    "rsub": lambda value, other: _add(-value, other),
    "__rsub__": lambda value, other: _add(-value, other),
    "__mul__": _scale,
    "__rmul__": _scale,
    "__truediv__": lambda value, divisor: value / divisor,
    "mean": _averaging(torch.Tensor.mean),
    "sum": _averaging(torch.Tensor.sum),
    "avg_pool2d": _averaging(F.avg_pool2d),
    "adaptive_avg_pool2d": _averaging(F.adaptive_avg_pool2d),
    **{name: _reshaping(name) for name in _RESHAPING.split()},
}
