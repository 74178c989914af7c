"""Networks by name, and back from JSON: a `Classifier` carries an `architecture`, of which `build` makes it again."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from randens.core.errors import InputError, ModelError, RandensError, expect, shown, typed, unknown, whole
from randens.models import networks, outside
from randens.models.outputs import Normalized, evaluating, preprocessing_of

_MOST_INPUTS = 1 << 28
_MOST_WEIGHTS = 1 << 30
# Initial weights come from torch's global generator, which two threads must not seed at once.
_SEEDED = threading.Lock()


class Classifier(Normalized):
    """logits = body((x − mean) / std), with mean and std per channel: attacks work on pixels in [0, 1]."""

    def __init__(self, body: nn.Module, architecture: dict[str, Any]) -> None:
        shape = tuple(architecture["input_shape"])
        super().__init__(architecture.get("mean"), architecture.get("std"), len(shape))
        self.architecture = architecture
        self.input_shape: tuple[int, ...] = shape
        self.classes: int = architecture["classes"]
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        expect("x", x, torch.Tensor)
        # A traced graph has fixed shapes already; comparing there would only warn.
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if not tracing and tuple(x.shape[1:]) != self.input_shape:
            raise InputError(
                f"x has shape {tuple(x.shape)}, but this {self.architecture['name']} takes "
                f"[n, {', '.join(map(str, self.input_shape))}]"
            )
        return self.body(self.normalize(x))

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.architecture.items())


@dataclass(frozen=True)
class _Network:
    """smallest: the least height and width of an image, if inputs must be images. options: with their usual values."""

    make: Callable[..., nn.Module]
    smallest: int | None = None
    options: Mapping[str, int] = field(default_factory=dict)


_small_resnet = partial(networks.ResNet, projections=False)
_NETWORKS: Mapping[str, _Network] = {
    "convnet": _Network(networks.convnet, 2, {"width": 16, "hidden": 64}),
    "linear": _Network(networks.linear),
    "mlp": _Network(networks.mlp, None, {"width": 128, "depth": 2}),
    "mobilenetv1": _Network(networks.MobileNetV1, 8, {"width": 32}),
    "resnet18": _Network(partial(networks.ResNet, blocks=(2, 2, 2, 2), projections=True), 8, {"width": 64}),
    "resnet20": _Network(partial(_small_resnet, blocks=(3, 3, 3)), 4, {"width": 16}),
    "resnet8": _Network(partial(_small_resnet, blocks=(1, 1, 1)), 4, {"width": 16}),
}


def names() -> tuple[str, ...]:
    """The networks that `create` knows."""
    return tuple(sorted(_NETWORKS))


@typed(name=str)
def create(
    name: str,
    *,
    classes: int,
    input_shape: Sequence[int] = (3, 32, 32),
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    seed: int | None = None,
    **options: Any,
) -> Classifier:
    """A network with fresh weights.

    Parameters
    ----------
    name : str
        One of `names()`, ``"timm:NAME"``, or ``"package.module:factory"``, a function that is imported and called.
    classes : int
        How many classes.
    input_shape : sequence of int
        Of one input.
    mean, std : float or sequence of float, optional
        To normalize by, per channel or one number for all.
    seed : int, optional
        Decides the weights. None: they come from torch's global generator, so two calls give different members.
    **options
        The network's own: `width` (channels or units of the first layer), `hidden` of convnet, `depth` of mlp, those
        of timm or the factory. None: the usual value.

    Returns
    -------
    Classifier
        In training mode.

    Examples
    --------
    >>> model = create("resnet20", classes=10, seed=0)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    shape = _input_shape(input_shape)
    name = name if ":" in name else name.lower()
    whole("classes", classes, 2, 1 << 20)
    if seed is not None:
        seed = whole("seed", seed, 0, 2**63 - 1)
    make, options = _maker(name, shape, classes, {k: v for k, v in options.items() if v is not None})
    architecture: dict[str, Any] = {"name": name, "classes": classes, "input_shape": list(shape), **options}
    if mean is not None or std is not None:
        pair = preprocessing_of((0.0 if mean is None else mean, 1.0 if std is None else std))
        for key, values in zip(("mean", "std"), pair or (), strict=True):
            if len(values) not in (1, shape[0]):
                raise InputError(f"{key} has {len(values)} values; the input has {shape[0]} channels")
            architecture[key] = values * (shape[0] // len(values))
    with _SEEDED, torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        body = make()
        if name in _NETWORKS:
            networks.initialize(body)
    return Classifier(body, architecture)


@typed(model=nn.Module, input_shape=Sequence | None)
def flops(model: nn.Module, input_shape: Sequence[int] | None = None) -> int:
    """Floating-point operations of one inference, two for each multiply-accumulate, counted by torch.

    >>> flops(nn.Linear(4, 3), (4,))
    24
    """
    # Takes a second, which only those pay who count.
    from torch.utils.flop_counter import FlopCounterMode

    shape = getattr(model, "input_shape", None) if input_shape is None else input_shape
    if shape is None:
        raise InputError("input_shape is None; give it as (channels, height, width)")
    parameter = next(model.parameters(), torch.zeros(()))
    sizes = [whole("input_shape", size, 0) for size in shape]
    x = torch.zeros(1, *sizes, device=parameter.device, dtype=parameter.dtype)
    # Counting must not change batch statistics.
    with evaluating(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(x)
    return int(counter.get_total_flops())


@typed(architecture=Mapping)
def build(architecture: Mapping[str, Any]) -> Classifier:
    """Build the network that `architecture` describes (as read from JSON), to load weights into."""
    try:
        plain = {**json.loads(json.dumps(dict(architecture))), "seed": 0}
        name = plain.pop("name")
        outside.check_trusted(name)
        return create(name, input_shape=plain.pop("input_shape"), **plain)
    except RandensError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        shown = str(dict(architecture))[:200]
        raise ModelError(f"architecture {shown} does not describe a model ({str(error)[:200]})") from error


def _maker(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> tuple[Callable[[], nn.Module], dict[str, Any]]:
    """A function that makes the body, and its options with the usual values filled in."""
    if ":" in name:
        return partial(outside.make, name, classes, shape, options), options
    if name not in _NETWORKS:
        unknown("model", name, _NETWORKS)
    known = _NETWORKS[name]
    for option, value in options.items():
        if option not in known.options:
            unknown(f"option of {name}", option, known.options)
        whole(option, value, 1, 1000 if option == "depth" else 1 << 16)
    if known.smallest is not None and (len(shape) != 3 or min(shape[1:]) < known.smallest):
        raise InputError(
            f"input_shape is {shape}; {name} takes (channels, height, width) of at least "
            f"{known.smallest}×{known.smallest} pixels"
        )
    options = {**known.options, **options}
    make = partial(known.make, shape, classes, **options)
    with torch.device("meta"):
        weights = sum(parameter.numel() for parameter in make().parameters())
    if weights > _MOST_WEIGHTS:
        raise InputError(f"{name} of {options} has {weights} weights; at most {_MOST_WEIGHTS} are made")
    return make, options


def _input_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in input_shape)
    except (TypeError, ValueError, OverflowError):
        shape = ()
    if not 1 <= len(shape) <= 3 or min(shape) < 1 or math.prod(shape) > _MOST_INPUTS:
        raise InputError(
            f"input_shape is {shown(input_shape)}; give positive sizes such as (3, 32, 32) or (64,)"
        )
    return shape
