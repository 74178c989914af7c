"""Networks by name, and back from JSON.

A created model is a `Classifier`: input normalisation (buffers) followed by a body.  It carries
`architecture`, a dictionary of plain JSON values from which `build` makes the same network again.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from randens.core.errors import InputError, ModelError, unknown
from randens.models import networks

__all__ = ["Classifier", "build", "create", "names", "weights"]

Shape = tuple[int, ...]

_LARGEST = {"width": 1 << 16, "hidden": 1 << 16, "depth": 1000}
_MOST_CLASSES = 1 << 20
_MOST_INPUTS = 1 << 28


class Classifier(nn.Module):
    """A network that takes images in [0, 1] and normalises them itself, so attacks work on pixels.

    logits = body((x − mean) / std), with mean and std per channel.  Shapes: [n, *input_shape] → [n, classes].

    Parameters
    ----------
    body : nn.Module
        Takes normalised inputs.
    architecture : dict
        Plain JSON values from which `build` makes the network.
    mean, std : sequence of float or None
        Per channel.

    Examples
    --------
    >>> create("linear", classes=3, input_shape=(4,), mean=0.5, std=0.5).mean.flatten().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    mean: torch.Tensor | None
    std: torch.Tensor | None

    def __init__(
        self,
        body: nn.Module,
        architecture: dict[str, Any],
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.input_shape: Shape = tuple(architecture["input_shape"])
        self.classes: int = architecture["classes"]
        trailing = (1,) * (len(self.input_shape) - 1)
        for name, values in (("mean", mean), ("std", std)):
            buffer = None if values is None else torch.tensor(values, dtype=torch.float32).view(-1, *trailing)
            self.register_buffer(name, buffer)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # A traced graph has fixed shapes already; comparing there would only warn.
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if not tracing and tuple(x.shape[1:]) != self.input_shape:
            raise InputError(
                f"x has shape {tuple(x.shape)}, but this {self.architecture['name']} takes "
                f"[n, {', '.join(map(str, self.input_shape))}]"
            )
        if self.mean is not None:
            x = x - self.mean
        if self.std is not None:
            x = x / self.std
        logits: torch.Tensor = self.body(x)
        return logits

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.architecture.items())


def _resnet20(*, classes: int, input_shape: Shape, width: int = 16) -> nn.Module:
    channels, _, _ = _image(input_shape, "resnet20", minimum=4)
    return networks.ResNet(channels, classes, width, blocks=(3, 3, 3), projections=False)


def _resnet8(*, classes: int, input_shape: Shape, width: int = 16, stride: int = 1) -> nn.Module:
    channels, _, _ = _image(input_shape, "resnet8", minimum=4)
    stem = _positive("stride", stride)
    return networks.ResNet(channels, classes, width, blocks=(1, 1, 1), projections=False, stride=stem)


def _resnet18(*, classes: int, input_shape: Shape, width: int = 64) -> nn.Module:
    channels, _, _ = _image(input_shape, "resnet18", minimum=8)
    return networks.ResNet(channels, classes, width, blocks=(2, 2, 2, 2), projections=True)


def _mobilenetv1(*, classes: int, input_shape: Shape, width: int = 32) -> nn.Module:
    channels, _, _ = _image(input_shape, "mobilenetv1", minimum=8)
    return networks.MobileNetV1(channels, classes, width)


def _convnet(*, classes: int, input_shape: Shape, width: int = 16, hidden: int = 64) -> nn.Module:
    image = _image(input_shape, "convnet", minimum=2)
    return networks.ConvNet(image, classes, width, _positive("hidden", hidden))


def _strided(*, classes: int, input_shape: Shape, width: int = 16) -> nn.Module:
    return networks.StridedNet(_image(input_shape, "strided", minimum=4), classes, width)


def _mlp(*, classes: int, input_shape: Shape, width: int = 128, depth: int = 2) -> nn.Module:
    return networks.MLP(math.prod(input_shape), classes, width, _positive("depth", depth))


def _linear(*, classes: int, input_shape: Shape) -> nn.Module:
    return networks.Linear(math.prod(input_shape), classes)


_BODIES: Mapping[str, Callable[..., nn.Module]] = {
    "convnet": _convnet,
    "linear": _linear,
    "mlp": _mlp,
    "mobilenetv1": _mobilenetv1,
    "resnet18": _resnet18,
    "resnet20": _resnet20,
    "resnet8": _resnet8,
    "strided": _strided,
}


def names() -> tuple[str, ...]:
    """The networks that `create` knows.

    Returns
    -------
    tuple of str
        For `create`.

    Examples
    --------
    >>> "resnet20" in names()
    True
    """
    return tuple(sorted(_BODIES))


def create(
    name: str,
    *,
    classes: int,
    input_shape: Sequence[int],
    width: int | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    seed: int | None = None,
    **arguments: Any,
) -> Classifier:
    """A network with fresh weights.

    Parameters
    ----------
    name : str
        One of `names()`.
    classes : int
        How many classes.
    input_shape : sequence of int
        Of one input.
    width : int, optional
        Channels or units of the first layer; None: the usual number.
    mean, std : float or sequence of float, optional
        To normalise by, per channel or one number for all.
    seed : int, optional
        Decides the weights. None: they come from torch's global generator, so two calls give different members.
    **arguments
        The network's own: `hidden` of convnet, `depth` of mlp.

    Returns
    -------
    Classifier
        With fresh weights, in training mode.

    Examples
    --------
    >>> model = create("resnet20", classes=10, input_shape=(3, 32, 32), seed=0)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    if name not in _BODIES:
        unknown("model", name, _BODIES)
    make = _BODIES[name]
    shape = _input_shape(input_shape)
    _positive("classes", classes, minimum=2)
    valid = {p.name: p for p in inspect.signature(make).parameters.values()}
    if width is not None:
        if "width" not in valid:
            raise InputError(f"width={width!r} was given, but the {name} model has no width")
        arguments["width"] = _positive("width", width)
    for argument in arguments:
        if argument not in valid or argument in ("classes", "input_shape"):
            unknown(f"argument of {name}", argument, set(valid) - {"classes", "input_shape"})
    for argument, parameter in valid.items():
        if parameter.default is not inspect.Parameter.empty:
            arguments.setdefault(argument, parameter.default)
    architecture: dict[str, Any] = {"name": name, "classes": classes, "input_shape": list(shape), **arguments}
    means, stds = _per_channel("mean", mean, shape[0]), _per_channel("std", std, shape[0])
    if stds is not None and min(stds) <= 0:
        raise InputError(f"std={std!r} must be positive")
    if means is not None:
        architecture["mean"] = means
    if stds is not None:
        architecture["std"] = stds
    if seed is None:
        body = _initialised(make, classes, shape, arguments)
    else:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise InputError(f"seed={seed!r} must be an integer from 0 to 2**63 - 1, or None")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            body = _initialised(make, classes, shape, arguments)
    return Classifier(body, architecture, means, stds)


def build(architecture: Mapping[str, Any], *, seed: int = 0) -> Classifier:
    """Build the network that `architecture` describes (as read from JSON), so that weights can be loaded into
    it.

    Its initial weights are those of `seed`; torch's global generator is not used.

    Parameters
    ----------
    architecture : mapping
        As a `Classifier` carries it.
    seed : int
        Of the weights until others are loaded.

    Returns
    -------
    Classifier
        With fresh weights.

    Examples
    --------
    >>> build({"name": "linear", "classes": 3, "input_shape": [4]})(torch.zeros(1, 4)).shape
    torch.Size([1, 3])
    """
    try:
        plain = json.loads(json.dumps(dict(architecture)))
        name = plain.pop("name")
        plain.pop("seed", None)
        return create(name, seed=seed, **plain)
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"architecture {dict(architecture)!r} does not describe a model ({error}); "
            "it needs name, classes and input_shape"
        ) from error


def weights(architecture: Mapping[str, Any]) -> int:
    """Count the weights of the network that `architecture` describes, without allocating memory for them.

    Parameters
    ----------
    architecture : mapping
        As `network.architecture` gives it: name, classes, input_shape and the network's own options.

    Returns
    -------
    int
        Parameters and running statistics.

    Examples
    --------
    >>> weights({"name": "linear", "classes": 3, "input_shape": [1, 2, 2]})
    15
    """
    if str(architecture.get("name")) not in _BODIES:
        unknown("model", str(architecture.get("name")), _BODIES)
    try:
        with torch.device("meta"):
            body = build(architecture).body
    except (ValueError, OverflowError, RuntimeError) as error:
        said = f"architecture {str(dict(architecture))[:200]} does not describe a model ({str(error)[:200]})"
        raise ModelError(said) from error
    return sum(value.numel() for value in body.state_dict().values())


def _initialised(
    make: Callable[..., nn.Module], classes: int, shape: Shape, arguments: Mapping[str, Any]
) -> nn.Module:
    body = make(classes=classes, input_shape=shape, **arguments)
    # Weights on the device "meta" have no values, and to draw them torch would import its compiler: 2 seconds.
    if torch.get_default_device().type != "meta":
        networks.initialise(body)
    return body


def _input_shape(input_shape: Sequence[int]) -> Shape:
    try:
        shape = tuple(int(size) for size in input_shape)
    except (TypeError, ValueError, OverflowError):
        shape = ()
    if not 1 <= len(shape) <= 3 or min(shape) < 1 or math.prod(shape) > _MOST_INPUTS:
        raise InputError(f"input_shape={input_shape!r} must be positive sizes such as (3, 32, 32) or (64,)")
    return shape


def _image(shape: Shape, name: str, minimum: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < minimum:
        raise InputError(
            f"input_shape={shape} does not fit {name}, which takes (channels, height, width) of at least "
            f"{minimum}×{minimum} pixels"
        )
    return shape[0], shape[1], shape[2]


def _positive(name: str, value: int, minimum: int = 1) -> int:
    largest = _LARGEST.get(name, _MOST_CLASSES)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{name}={value!r} must be an integer of at least {minimum}")
    if value > largest:
        raise InputError(f"{name}={str(value)[:40]} must be an integer of at most {largest}")
    return value


def _per_channel(name: str, values: float | Sequence[float] | None, channels: int) -> list[float] | None:
    if values is None:
        return None
    numbers = [float(values)] * channels if isinstance(values, (int, float)) else [float(v) for v in values]
    if len(numbers) != channels or not all(map(math.isfinite, numbers)):
        raise InputError(f"{name}={values!r} must be a finite number, or one for each of {channels} channels")
    return numbers
