"""A convolutional network as an ONNX graph, forward, and back from its margins or its loss to its input.

The reverse pass is written into the graph: the transposed convolutions, and the ReLUs' masks. What is not written here
raises `NotKnown`, and the network is left to torch.
"""

from __future__ import annotations

import copy
import functools
import importlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from randens.models import Classifier

__all__ = ["Network", "NotKnown"]

Pull = Callable[[str], Sequence[str]]
"""From the name of an output's gradient to those of the inputs' gradients, one for each."""

_CALL = 2**24  # multiplications of one call, after which its overhead does not matter
_WIDEST = 64  # inputs of one call
_STEEP = 3e38  # the slope of a mask: 0 where a ReLU is 0, and 1 elsewhere
_OPSET, _IR = 17, 8


class NotKnown(Exception):
    """A part of a network that is not written here."""


@dataclass
class _Graph:
    """Operations and constants of a graph under construction, and how to go back through each operation.

    Values have names; `shapes` are without the batch.
    """

    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    multiplications: int = 0
    tape: list[tuple[tuple[str, ...], str, Pull]] = field(default_factory=list)

    def call(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}-{len(self.nodes)}"
        self.nodes.append(_onnx().helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Any, dtype: type = np.float32) -> str:
        name = f"constant-{len(self.constants)}"
        array: NDArray[Any] = np.asarray(
            values.detach().numpy() if isinstance(values, Tensor) else values, dtype, order="C"
        )
        self.constants.append(_onnx().numpy_helper.from_array(array, name))
        return name

    def done(self, inputs: tuple[str, ...], output: str, shape: tuple[int, ...], pull: Pull) -> str:
        self.shapes[output] = shape
        self.tape.append((inputs, output, pull))
        return output

    def gradient(self, output: str, slope: str, source: str) -> str:
        """The gradient for `source` if `slope` is that for `output`."""
        found = {output: slope}
        for inputs, value, pull in reversed(self.tape):
            if value not in found:
                continue
            for name, part in zip(inputs, pull(found.pop(value)), strict=True):
                found[name] = self.call("Add", found[name], part) if name in found else part
        if source not in found:
            raise NotKnown("logits that do not depend on the input")
        return found[source]

    def blocked(self, x: str, channels: int) -> str:
        """The same value [n, channels, ...] in the layout of convolutions, which is kept until something needs another.

        ONNX Runtime has no name for this layout, so a convolution with an identity matrix makes it.
        """
        identity = self.constant(np.eye(channels).reshape(channels, channels, 1, 1))
        return self.call("Conv", x, identity, kernel_shape=(1, 1))

    # The operations of a network, forward and back.

    def normalise(self, x: str, mean: Tensor | None, std: Tensor | None) -> str:
        moved = x if mean is None else self.call("Sub", x, self.constant(mean.unsqueeze(0)))
        if std is None:
            return self.done((x,), moved, self.shapes[x], lambda g: [g])
        scale = self.constant(std.unsqueeze(0))
        output = self.call("Div", moved, scale)
        return self.done((x,), output, self.shapes[x], lambda g: [self.call("Div", g, scale)])

    def convolution(
        self,
        x: str,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
    ) -> str:
        if isinstance(padding, str) or len(self.shapes[x]) != 3:
            raise NotKnown("padding by name")
        stride, padding, dilation = (_pair(value) for value in (stride, padding, dilation))
        channels, size, kernel = self.shapes[x][0], self.shapes[x][1:], tuple(weight.shape[2:])
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        form = {"kernel_shape": kernel, "dilations": dilation, "group": groups}
        after = tuple(
            (s + 2 * p - r - 1) // t + 1 for s, p, r, t in zip(size, padding, reach, stride, strict=True)
        )
        self.multiplications += weight.numel() * math.prod(after)
        weights = self.constant(weight)
        operands = [x, weights] if bias is None else [x, weights, self.constant(bias)]
        output = self.call("Conv", *operands, strides=stride, pads=(*padding, *padding), **form)
        back = [r - p for r, p in zip(reach, padding, strict=True)]
        turned = functools.cache(lambda: self.constant(_turned(weight, groups)))
        # Positions at the end that a stride leaves out; the transposed convolution must know of them.
        lost = [
            s - ((a - 1) * t - 2 * p + r + 1)
            for s, a, t, p, r in zip(size, after, stride, padding, reach, strict=True)
        ]

        def pull(g: str) -> list[str]:
            if max(stride) == 1 and min(back) >= 0:
                return [self.call("Conv", g, turned(), pads=(*back, *back), **form)]
            transposed = {"strides": stride, "pads": (*padding, *padding), "output_padding": lost}
            return [self.blocked(self.call("ConvTranspose", g, weights, **transposed, **form), channels)]

        return self.done((x,), output, (len(weight), *after), pull)

    def relu(self, x: str) -> str:
        output = self.call("Relu", x)
        mask = functools.cache(lambda: self.call("HardSigmoid", output, alpha=_STEEP, beta=0.0))
        return self.done((x,), output, self.shapes[x], lambda g: [self.call("Mul", g, mask())])

    def add(self, a: str, b: str) -> str:
        if self.shapes[a] != self.shapes[b]:
            raise NotKnown("a sum of two shapes")
        return self.done((a, b), self.call("Add", a, b), self.shapes[a], lambda g: [g, g])

    def mean(self, x: str) -> str:
        """Over all positions: [n, c, h, w] → [n, c, 1, 1]."""
        c, h, w = self.shapes[x]
        share, scales = self.constant(1 / (h * w)), self.constant([1, 1, h, w])

        def pull(g: str) -> list[str]:
            flat = self.blocked(self.call("Mul", g, share), c)
            nearest = {
                "mode": "nearest",
                "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor",
            }
            return [self.call("Resize", flat, "", scales, **nearest)]

        return self.done((x,), self.call("GlobalAveragePool", x), (c, 1, 1), pull)

    def flatten(self, x: str) -> str:
        shape = self.shapes[x]
        before = self.constant([0, *shape], np.int64)

        def pull(g: str) -> list[str]:
            return [self.call("Reshape", g, before)]

        return self.done((x,), self.call("Flatten", x), (math.prod(shape),), pull)

    def linear(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        if len(self.shapes[x]) != 1:
            raise NotKnown("a linear layer over the last dimension")
        weights = self.constant(weight)
        operands = [x, weights] if bias is None else [x, weights, self.constant(bias)]
        output = self.call("Gemm", *operands, transB=1)
        return self.done((x,), output, (len(weight),), lambda g: [self.call("MatMul", g, weights)])

    def every_second(self, x: str, stride: int, before: int, after: int) -> str:
        """Every `stride`-th position, between channels of zeros: a convolution with weights 0 and 1."""
        channels = self.shapes[x][0]
        weight = torch.zeros(before + channels + after, channels, 1, 1)
        weight[before : before + channels, :, 0, 0] = torch.eye(channels)
        return self.convolution(x, weight, stride=(stride, stride))


class Network:
    """A network's traced layers; each kind of pass is a graph of its own."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.mean = self.std = None
        body = network
        if isinstance(network, Classifier) and type(network) is Classifier:
            self.mean, self.std, body = network.mean, network.std, network.body
        # A copy: who keeps this object by the network must not keep the network alive.
        self.body = copy.deepcopy(body) if isinstance(body, fx.GraphModule) else _traced(body)
        graph, z = self._forward()
        if len(graph.shapes[z]) != 1 or not graph.multiplications:
            raise NotKnown("an output that is no row of logits, or no convolution")
        self.classes = graph.shapes[z][0]
        self.width = max(1, min(_WIDEST, _CALL // graph.multiplications))

    def forward(self) -> Any:
        graph, z = self._forward()
        return self._model(graph, {"x": self.shape}, [z])

    def planes(self, count: int) -> Any:
        """Forward, and back once per runner-up; `right` [n, C] is 1 at the label."""
        graph, z = self._forward()
        others = graph.call("Sub", z, graph.call("Mul", "right", graph.constant(1e30)))
        operands = [others, graph.constant([count], np.int64)]
        graph.nodes.append(_onnx().helper.make_node("TopK", operands, ["largest", "near"]))
        hot = graph.call("OneHot", "near", graph.constant(self.classes, np.int64), graph.constant([0, 1]))
        gradients = []
        for number in range(count):
            other = graph.call("Gather", hot, graph.constant(number, np.int64), axis=1)
            gradients.append(graph.gradient(z, graph.call("Sub", "right", other), "x"))
        return self._model(graph, {"x": self.shape, "right": (self.classes,)}, [z, *gradients])

    def entropy(self) -> Any:
        """Forward, and back from the cross-entropy with the label at which `right` [n, C] is 1."""
        graph, z = self._forward()
        slope = graph.call("Sub", graph.call("Softmax", z, axis=1), "right")
        gradient = graph.gradient(z, slope, "x")
        return self._model(graph, {"x": self.shape, "right": (self.classes,)}, [z, gradient])

    def _forward(self) -> tuple[_Graph, str]:
        graph = _Graph(shapes={"x": self.shape})
        values: dict[fx.Node, Any] = {}
        start = "x" if self.mean is self.std is None else graph.normalise("x", self.mean, self.std)
        for node in self.body.graph.nodes:
            if node.op == "placeholder":
                if values:
                    raise NotKnown("a second input")
                values[node] = start
            elif node.op == "output":
                found = values.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
                if not isinstance(found, str):
                    raise NotKnown("an output that is not one tensor")
                return graph, found
            else:
                values[node] = self._step(graph, node, values)
        raise NotKnown("a network without output")

    def _step(self, graph: _Graph, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        arguments: Any = fx.node.map_arg(node.args, lambda each: values[each])
        named: Any = fx.node.map_arg(node.kwargs, lambda each: values[each])
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.body).detach()
        if node.op == "call_module":
            return _of_module(graph, self.body.get_submodule(str(node.target)), *arguments, **named)
        known = _FUNCTIONS.get(node.target)
        if known is None:
            raise NotKnown(str(node.target))
        try:
            return known(graph, *arguments, **named)
        except (TypeError, ValueError, KeyError) as error:
            raise NotKnown(str(node.target)) from error

    def _model(self, graph: _Graph, inputs: dict[str, tuple[int, ...]], outputs: Sequence[str]) -> Any:
        onnx = _onnx()
        describe = onnx.helper.make_tensor_value_info
        # With a batch of known size, masks are applied in the layout of the convolutions; otherwise every one of them
        # is converted twice.
        batch = 1 if self.width == 1 else "n"
        given = [describe(name, onnx.TensorProto.FLOAT, [batch, *shape]) for name, shape in inputs.items()]
        wanted = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
        for value in wanted:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        made = onnx.helper.make_graph(graph.nodes, "network", given, wanted, graph.constants)
        return onnx.helper.make_model(
            made, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR
        )


def _traced(network: nn.Module) -> fx.GraphModule:
    try:
        return fx.symbolic_trace(network)
    except Exception as error:  # Tracing runs the network's own code, which may raise anything.
        raise NotKnown(type(network).__name__) from error


def _onnx() -> Any:
    return importlib.import_module("onnx")


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _turned(weight: Tensor, groups: int) -> Tensor:
    """Weights [o, i/groups, h, w] of the convolution back: [i, o/groups, h, w], turned by half a turn."""
    parts = [part.transpose(0, 1).flip(2, 3) for part in weight.chunk(groups)]
    return torch.cat(parts)


@dataclass(frozen=True)
class _EverySecond:
    """Every `stride`-th position of a value; the zeros for further channels follow."""

    value: str
    stride: int


def _every_second(_: _Graph, x: str, index: tuple[Any, ...]) -> _EverySecond:
    whole, stride = slice(None, None, None), index[2].step
    if len(index) != 4 or index[:2] != (whole, whole) or index[2:] != (slice(None, None, stride),) * 2:
        raise NotKnown("an index")
    return _EverySecond(x, int(stride))


def _padded(
    graph: _Graph, x: _EverySecond, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> str:
    if not isinstance(x, _EverySecond) or mode != "constant" or value or len(pad) != 6 or any(pad[:4]):
        raise NotKnown("padding")
    return graph.every_second(x.value, x.stride, pad[4], pad[5])


def _mean(graph: _Graph, x: str, dim: Any, keepdim: bool = False) -> str:
    if sorted(d % 4 for d in dim) != [2, 3]:
        raise NotKnown("a mean of other dimensions")
    return graph.mean(x) if keepdim else graph.flatten(graph.mean(x))


def _flatten(graph: _Graph, x: str, start_dim: int = 0, end_dim: int = -1) -> str:
    if start_dim != 1 or end_dim != -1:
        raise NotKnown("flattening of some dimensions")
    return graph.flatten(x)


def _relu(graph: _Graph, x: str, inplace: bool = False) -> str:  # noqa: ARG001 - as torch calls it
    return graph.relu(x)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.conv2d: _Graph.convolution,
    F.conv2d: _Graph.convolution,
    torch.relu: _relu,
    torch.relu_: _relu,
    F.relu: _relu,
    "relu": _relu,
    operator.add: _Graph.add,
    operator.iadd: _Graph.add,
    torch.add: _Graph.add,
    operator.getitem: _every_second,
    F.pad: _padded,
    torch.mean: _mean,
    "mean": _mean,
    torch.flatten: _flatten,
    "flatten": _flatten,
}


def _of_module(graph: _Graph, layer: nn.Module, x: str) -> str:
    if type(layer) is nn.Conv2d and layer.padding_mode == "zeros":
        form = layer.stride, layer.padding, layer.dilation, layer.groups
        return graph.convolution(x, layer.weight, layer.bias, *form)  # type: ignore[arg-type]
    if type(layer) is nn.ReLU:
        return graph.relu(x)
    if type(layer) is nn.Linear:
        return graph.linear(x, layer.weight, layer.bias)
    if type(layer) is nn.Flatten:
        return _flatten(graph, x, layer.start_dim, layer.end_dim)
    if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
        return graph.mean(x)
    if type(layer) in (nn.Identity, nn.Dropout) and not layer.training:
        return x
    raise NotKnown(type(layer).__name__)
