"""How members are run while gradients are taken: float32 or bfloat16, BatchNorm folded where that is possible.

Verdicts never come from a lower precision: with bfloat16 gradients, `exact` is false and the search judges
promising points again in float32.

Small fully connected members of one shape are run together (`stacked`).

Members that average the same networks (k of M) share their passes: a network is run once per point, and its
gradient is taken once per point and class, even if several averages contain it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.optimization import fuse

from randens.attacks.compiled import Compiled, compiled
from randens.attacks.stacked import Stack, stack_of
from randens.core.devices import native_bfloat16
from randens.core.errors import ModelError, RandensWarning, unknown
from randens.ensemble import DeterministicEnsemble, networks_of, to_layout
from randens.models import logits_of

__all__ = ["GradientMembers", "folded", "torch_threads"]

_PRECISIONS = ("auto", "float32", "bfloat16")
_RANDOM = 1e-3  # relative to the largest logit; sums on a GPU differ by less


class GradientMembers:
    """Callable as ``members(index, inputs) -> logits`` in float32, with a gradient for the inputs."""

    def __init__(
        self, members: Sequence[nn.Module], precision: str = "float32", *, fold: bool = True
    ) -> None:
        if precision not in _PRECISIONS:
            unknown("precision", precision, _PRECISIONS)
        convolutional = any(isinstance(m, nn.Conv2d) for member in members for m in member.modules())
        first = next((p for m in members for p in m.parameters()), None)
        self.device = first.device.type if first is not None else "cpu"
        if precision == "auto":
            low = convolutional and first is not None and native_bfloat16(first.device)
            precision = "bfloat16" if low else "float32"
        self.precision = precision
        self.exact = precision == "float32"
        networks, self.parts = networks_of(members)
        self.weights = [
            member.weights.tolist() if isinstance(member, DeterministicEnsemble) else [1.0]
            for member in members
        ]
        self.passes = [int(getattr(network, "passes", 1)) for network in networks]
        self.shares = len(networks) < sum(len(part) for part in self.parts)
        self._members = [_kept_folded(m) if fold and convolutional else m for m in networks]
        self._originals = list(networks)
        self.threads = torch.get_num_threads()
        self.alone = False  # whether compiled members have the cores to themselves, and are used
        self._compiled: list[Compiled | None] = [None] * len(networks)
        alike = self.exact and not self.shares and all(weights == [1.0] for weights in self.weights)
        self.stack: Stack | None = stack_of(networks) if alike else None
        self._sample: Tensor | None = None
        self._answers: list[Tensor] = []
        self._trusted: set[int] = set()

    def verify(self, x: Tensor) -> None:
        """Check on a few inputs, once: use compiled and folded members that agree with the originals, and warn of
        random ones.
        """
        if self._sample is not None or not len(x):
            return
        self._sample = to_layout(x[:4])
        self._answers = [self._original(network) for network in range(len(self._originals))]
        if self.stack is not None and not self._agree_together(self._sample):
            self.stack = None
        if self.stack is None:
            for network in range(len(self._originals)):
                self._compile(network, tuple(x.shape[1:]))
        random = [i for i, each in enumerate(self._compiled) if each is None and self._is_random(i)]
        if random:
            warnings.warn(
                f"members {random} answer the same input differently each time, in eval mode; what an attack finds on "
                "one draw says little about the next, so wrap them in randens.RandomizedModel",
                RandensWarning,
                stacklevel=2,
            )

    def _original(self, network: int) -> Tensor:
        """The answer of a network as it was given, on the sample."""
        assert self._sample is not None
        with torch.no_grad():
            return logits_of(self._originals[network](self._sample), len(self._sample), f"member {network}")

    def _compile(self, network: int, shape: tuple[int, ...]) -> None:
        """Compile a network, if it can be compiled and then answers as before."""
        assert self._sample is not None
        if self._sample.dtype != torch.float32:
            return
        candidate = _kept_compiled(self._members[network], shape, self.threads)
        if candidate is None:
            return
        if not self._agrees(network, candidate.logits):
            # As for a folded copy: the weights may have changed unnoticed.
            _COMPILED.pop(self._members[network], None)
            candidate = _kept_compiled(self._checked(network), shape, self.threads)
            if candidate is None or not self._agrees(network, candidate.logits):
                return
        self._compiled[network] = candidate

    def _is_random(self, network: int) -> bool:
        """Check the folded copy. Without one, does the network answer the same input differently?"""
        if self._checked(network) is not self._originals[network]:
            return False
        z, again = self._answers[network], self._original(network)
        return bool((z - again).abs().max() > _RANDOM * z.abs().max())

    def _checked(self, network: int) -> nn.Module:
        """The folded network, if it answers as the original does; checked when it is first used."""
        original, candidate = self._originals[network], self._members[network]
        if candidate is not original and network not in self._trusted and self._sample is not None:
            if not self._agrees(network, candidate):
                # The copy is from an earlier attack, and the weights changed without torch's version
                # counters noticing.
                fresh = folded(original)
                candidate = fresh if self._agrees(network, fresh) else original
            self._members[network] = candidate
        self._trusted.add(network)
        return self._members[network]

    def compiled(self, index: int) -> Compiled | None:
        """The member as one compiled network, if it is one."""
        if self.weights[index] != [1.0]:
            return None
        return self._compiled[self.parts[index][0]]

    def compiled_at(self, index: int) -> Compiled:
        """The member as one compiled network; it must be one."""
        found = self.compiled(index)
        assert found is not None
        return found

    @property
    def all_compiled(self) -> bool:
        """Whether every member is one compiled network."""
        return all(self.compiled(index) is not None for index in range(len(self.parts)))

    @property
    def together(self) -> bool:
        """Whether all members are run at once, each on its own points."""
        return self.stack is not None or self.alone

    @property
    def exact_planes(self) -> bool:
        """Whether the verdicts that come with the gradients of margins are those of float32 passes."""
        return self.exact or self.alone

    @contextlib.contextmanager
    def one_thread(self) -> Iterator[None]:
        """Use compiled members if all are, and one torch thread beside theirs.

        torch's threads wait for their next operation by running in circles, on the cores that the passes need.
        """
        before, self.alone = self.alone, self.all_compiled
        try:
            with torch_threads(1 if self.alone else torch.get_num_threads()):
                yield
        finally:
            self.alone = before

    def _agrees(self, network: int, candidate: Callable[[Tensor], Any]) -> bool:
        """Whether `candidate` answers the sample as the network does."""
        assert self._sample is not None
        try:
            with torch.no_grad():
                answer = logits_of(candidate(self._sample), len(self._sample), f"member {network}")
            return self._same(network, answer)
        except (RuntimeError, ModelError):
            return False

    def _same(self, network: int, answer: Tensor) -> bool:
        z = self._answers[network]
        return bool((answer - z).abs().max() <= 1e-5 * z.abs().max())

    def _agree_together(self, x: Tensor) -> bool:
        stack = self.stack
        assert stack is not None
        count = len(stack)
        members = torch.arange(count, device=x.device).repeat_interleave(len(x))
        try:
            answers = stack.at(x.repeat(count, *(1 for _ in x.shape[1:])), members).z.chunk(count)
        except RuntimeError:
            return False
        return all(self._same(index, z) for index, z in enumerate(answers))

    def __call__(self, index: int, inputs: Tensor) -> Tensor:
        return self.combined(index, [self.run(network, inputs) for network in self.parts[index]])

    def run(self, network: int, inputs: Tensor) -> Tensor:
        """Logits of one of the networks behind the members, in float32."""
        module = self._checked(network)  # in float32: a bfloat16 answer would not be the original's
        # Not every device has autocast, and float32 needs none.
        lower = contextlib.nullcontext() if self.exact else torch.autocast(self.device, torch.bfloat16)
        with lower:
            answer = module(inputs)
        return logits_of(answer, len(inputs), f"member {network}")

    def judge(self, network: int, inputs: Tensor) -> Tensor:
        """Return the logits for a verdict: never in lower precision, without gradients."""
        with torch.no_grad():
            if self.exact:
                return self.run(network, to_layout(inputs))
            z: Tensor = self._originals[network](to_layout(inputs))
            return z

    def combined(self, index: int, outputs: Sequence[Tensor]) -> Tensor:
        """A member's logits (or gradients) from those of its networks, in the order of `parts[index]`."""
        weights = self.weights[index]
        if len(outputs) == 1:
            return outputs[0] if weights == [1.0] else weights[0] * outputs[0]
        total = weights[0] * outputs[0]
        for weight, output in zip(weights[1:], outputs[1:], strict=True):
            total = total + weight * output
        return total

    def share(self, index: int, network: int) -> float:
        """The weight of a network in a member's average."""
        pairs = zip(self.weights[index], self.parts[index], strict=True)
        return math.fsum(weight for weight, part in pairs if part == network)

    def needed(self, wanted: Tensor) -> Tensor:
        """Bool [k, networks]: which networks the members `wanted` [k, M] are made of."""
        table = torch.zeros(len(wanted), len(self.passes), dtype=torch.bool, device=wanted.device)
        for index, part in enumerate(self.parts):
            for network in part:
                table[:, network] |= wanted[:, index]
        return table


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """So many torch threads; restored on leaving."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_COMPILED: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[object, ...], Compiled | None]] = (
    weakref.WeakKeyDictionary()
)


def _kept_compiled(network: nn.Module, shape: tuple[int, ...], threads: int) -> Compiled | None:
    """Return `compiled`, cached like `folded`."""
    try:
        state = (shape, threads, *_state(network))
        kept = _COMPILED.get(network)
    except (RuntimeError, TypeError):
        return compiled(network, shape, threads)
    if kept is None or kept[0] != state:
        kept = _COMPILED[network] = state, compiled(network, shape, threads)
    return kept[1]


def _state(network: nn.Module) -> tuple[object, ...]:
    """Changes with the weights, as far as torch's version counters notice."""
    return tuple((t.data_ptr(), t._version, t.shape) for t in (*network.parameters(), *network.buffers()))


_FOLDED: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[object, ...], nn.Module]] = (
    weakref.WeakKeyDictionary()
)


def _kept_folded(member: nn.Module) -> nn.Module:
    """Return `folded`, cached while the weights stay the same: folding takes as long as dozens of passes."""
    try:
        state = _state(member)
        kept = _FOLDED.get(member)
    except (RuntimeError, TypeError):  # Tensors of inference mode have no version; some modules have no hash.
        return folded(member)
    if kept is not None and kept[0] == state:
        return kept[1]
    made = folded(member)
    if made is not member:
        _FOLDED[member] = (state, made)
    return made


def folded(member: nn.Module) -> nn.Module:
    """A frozen copy with BatchNorm folded into convolutions, or the member itself where that is not possible."""
    if not getattr(member, "foldable", True) or not any(
        isinstance(m, nn.BatchNorm2d) for m in member.modules()
    ):
        return member
    folded = _fold(copy.deepcopy(member).eval())
    folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return folded.requires_grad_(False)


def _fold(module: nn.Module) -> nn.Module:
    """Fold the largest parts that can be traced; parts whose control flow depends on the data stay
    unchanged.
    """
    if not any(isinstance(m, nn.BatchNorm2d) for m in module.modules()):
        return module
    with contextlib.suppress(Exception):
        return _streamlined(fuse(module, inplace=True))  # of our own copy
    for name, child in module.named_children():
        setattr(module, name, _fold(child))
    return module


def _streamlined(module: nn.Module) -> nn.Module:
    """A traced network with fewer calls and less memory, which is what small batches spend their time on.

    Convolutions are called as functions and identities are left out. ReLUs overwrite what a convolution or a sum has
    just computed where nothing else reads it: neither needs its own output for the gradient.
    """
    if not isinstance(module, fx.GraphModule):
        return module
    graph, parts = module.graph, dict(module.named_modules())
    for node in list(graph.nodes):
        layer = parts.get(str(node.target)) if node.op == "call_module" else None
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            continue
        if type(layer) is nn.Identity:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif type(layer) is nn.Conv2d and layer.padding_mode == "zeros":
            with graph.inserting_before(node):
                weight, bias = (_constant(module, node.name, layer, name) for name in ("weight", "bias"))
                settings = layer.stride, layer.padding, layer.dilation, layer.groups
                call = graph.call_function(torch.conv2d, (source, weight, bias, *settings))
            node.replace_all_uses_with(call)
            graph.erase_node(node)
        elif (
            (type(layer) is nn.ReLU or node.target is nn.functional.relu)
            and source.target in (torch.conv2d, operator.add)
            and len(source.users) == 1
        ):
            node.op, node.target, node.args, node.kwargs = "call_function", torch.relu_, (source,), {}
    module.delete_all_unused_submodules()
    module.recompile()
    return module


def _constant(module: fx.GraphModule, at: str, layer: nn.Module, name: str) -> fx.Node | None:
    """A node for a parameter of `layer`, which `module` then holds itself: it is found at once when the graph runs."""
    parameter = getattr(layer, name)
    if parameter is None:
        return None
    setattr(module, f"{at}_{name}", parameter)
    return module.graph.get_attr(f"{at}_{name}")
