"""Networks by name, and back from JSON.

A created model is a `Classifier`: input normalisation (buffers) followed by a body.  It carries
`architecture`, a dictionary of plain JSON values from which `build` makes the same network again.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from randens.core.errors import InputError, ModelError, unknown
from randens.models import factories, networks

__all__ = ["Classifier", "build", "create", "names", "weights"]

Shape = tuple[int, ...]

_LARGEST = {"width": 1 << 16, "hidden": 1 << 16, "depth": 1000}
_MOST_CLASSES = 1 << 20
_MOST_INPUTS = 1 << 28
# Initial weights come from torch's global generator: two threads that seed it at once would get each other's numbers.
_SEEDED = threading.Lock()


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
        return self.body(x)

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.architecture.items())


@dataclass(frozen=True)
class _Network:
    """make: called with input shape, classes and options. smallest: the least height and width of an image, None
    where inputs need not be images. options: the network's own, with their usual values."""

    make: Callable[..., nn.Module]
    smallest: int | None = None
    options: Mapping[str, int] = field(default_factory=dict)


_small_resnet = partial(networks.ResNet, projections=False)
_NETWORKS: Mapping[str, _Network] = {
    "convnet": _Network(networks.ConvNet, 2, {"width": 16, "hidden": 64}),
    "linear": _Network(networks.Linear),
    "mlp": _Network(networks.MLP, None, {"width": 128, "depth": 2}),
    "mobilenetv1": _Network(networks.MobileNetV1, 8, {"width": 32}),
    "resnet18": _Network(partial(networks.ResNet, blocks=(2, 2, 2, 2), projections=True), 8, {"width": 64}),
    "resnet20": _Network(partial(_small_resnet, blocks=(3, 3, 3)), 4, {"width": 16}),
    "resnet8": _Network(partial(_small_resnet, blocks=(1, 1, 1)), 4, {"width": 16, "stride": 1}),
    "strided": _Network(networks.StridedNet, 4, {"width": 16}),
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
    return tuple(sorted(_NETWORKS))


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
        One of `names()`; or "timm:NAME"; or "package.module:factory", a function that returns a module, which is
        imported and called. These two get the further arguments as they are.
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
    shape = _input_shape(input_shape)
    _positive("classes", classes, minimum=2)
    if ":" in name:
        if width is not None:
            arguments["width"] = width
        with _seeded(seed):
            body = factories.make(name, classes, shape, arguments)
        about = {"name": name, "classes": classes, "input_shape": list(shape), **arguments}
        return _normalized(body, about, mean, std)
    if name not in _NETWORKS:
        unknown("model", name, _NETWORKS)
    known = _NETWORKS[name]
    if width is not None:
        if "width" not in known.options:
            raise InputError(f"width={width!r} was given, but the {name} model has no width")
        arguments["width"] = width
    for argument in arguments:
        if argument not in known.options:
            unknown(f"argument of {name}", argument, known.options)
        _positive(argument, arguments[argument])
    smallest = known.smallest
    if smallest is not None and (len(shape) != 3 or min(shape[1:]) < smallest):
        raise InputError(
            f"input_shape={shape} does not fit {name}, which takes (channels, height, width) of at least "
            f"{smallest}×{smallest} pixels"
        )
    arguments = {**known.options, **arguments}
    architecture: dict[str, Any] = {"name": name, "classes": classes, "input_shape": list(shape), **arguments}
    with _seeded(seed):
        body = known.make(shape, classes, **arguments)
        # Weights on the device "meta" have no values, and to draw them torch would import its compiler: 2 seconds.
        if torch.get_default_device().type != "meta":
            networks.initialise(body)
    return _normalized(body, architecture, mean, std)


def build(architecture: Mapping[str, Any], *, seed: int = 0) -> Classifier:
    """Build the network that `architecture` describes (as read from JSON), to load weights into.

    Its initial weights are those of `seed`; torch's global generator is not used.

    Parameters
    ----------
    architecture : mapping
        As a `Classifier` carries it: name, classes, input_shape and the network's own options.
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
        if isinstance(name, str):
            factories.check_trusted(name)
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
        As for `build`.

    Returns
    -------
    int
        Parameters and running statistics.

    Examples
    --------
    >>> weights({"name": "linear", "classes": 3, "input_shape": [1, 2, 2]})
    15
    """
    name = str(architecture.get("name"))
    if ":" in name:
        return 0
    if name not in _NETWORKS:
        unknown("model", name, _NETWORKS)
    try:
        with torch.device("meta"):
            body = build(architecture).body
    except (ValueError, OverflowError, RuntimeError) as error:
        said = f"architecture {str(dict(architecture))[:200]} does not describe a model ({str(error)[:200]})"
        raise ModelError(said) from error
    return sum(value.numel() for value in body.state_dict().values())


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Weights of this seed; torch's global generator is left as it was."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise InputError(f"seed={seed!r} must be an integer from 0 to 2**63 - 1, or None")
    with _SEEDED, torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


def _normalized(
    body: nn.Module,
    architecture: dict[str, Any],
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
) -> Classifier:
    channels = architecture["input_shape"][0]
    means, stds = _per_channel("mean", mean, channels), _per_channel("std", std, channels)
    if stds is not None and min(stds) <= 0:
        raise InputError(f"std={std!r} must be positive")
    if means is not None:
        architecture["mean"] = means
    if stds is not None:
        architecture["std"] = stds
    return Classifier(body, architecture, means, stds)


def _input_shape(input_shape: Sequence[int]) -> Shape:
    try:
        shape = tuple(int(size) for size in input_shape)
    except (TypeError, ValueError, OverflowError):
        shape = ()
    if not 1 <= len(shape) <= 3 or min(shape) < 1 or math.prod(shape) > _MOST_INPUTS:
        raise InputError(f"input_shape={input_shape!r} must be positive sizes such as (3, 32, 32) or (64,)")
    return shape


def _positive(name: str, value: int, minimum: int = 1) -> None:
    largest = _LARGEST.get(name, _MOST_CLASSES)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{name}={value!r} must be an integer of at least {minimum}")
    if value > largest:
        raise InputError(f"{name}={str(value)[:40]} must be an integer of at most {largest}")


def _per_channel(name: str, values: float | Sequence[float] | None, channels: int) -> list[float] | None:
    if values is None:
        return None
    numbers = [float(values)] * channels if isinstance(values, (int, float)) else [float(v) for v in values]
    if len(numbers) != channels or not all(map(math.isfinite, numbers)):
        raise InputError(f"{name}={values!r} must be a finite number, or one for each of {channels} channels")
    return numbers
