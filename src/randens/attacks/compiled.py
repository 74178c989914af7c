"""Convolutional networks as graphs for ONNX Runtime, in which a narrow batch costs no more per input than a wide one.

An attack soon works on few inputs. There torch spends most of its time between the operations of a network, and waits
for its threads after each of them. Here a whole pass is one call, with the gradients of margins or of the cross-entropy
if they are wanted, and the inputs are divided among threads that do not wait for each other.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import platform
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from randens.attacks.onnx_graphs import Network, NotKnown

__all__ = ["Compiled", "Pass", "compiled", "joined_passes", "passes"]

Array = NDArray[np.float32]

_LARGEST = 2**22  # weights of a network; larger ones use the processor fully by themselves
_PROCESSORS = ("x86_64", "amd64")  # elsewhere ONNX Runtime's convolutions may be slower than torch's


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass of one network that is still to be made: its graph, its inputs, and how many of them one call takes."""

    session: Any
    inputs: dict[str, Array]
    width: int

    @property
    def calls(self) -> list[slice]:
        return [slice(begin, begin + self.width) for begin in range(0, len(self.inputs["x"]), self.width)]

    def call(self, part: slice) -> list[Array]:
        found: list[Array] = self.session.run(
            None, {name: array[part] for name, array in self.inputs.items()}
        )
        return found


class Compiled:
    """One network on inputs of one shape: its logits, and the gradients of its margins or of its cross-entropy.

    Always float32.
    """

    def __init__(self, network: Network, threads: int) -> None:
        self.threads = threads
        self.classes = network.classes
        self._network = network
        self._sessions: dict[str, Any] = {"logits": _session(network.forward())}

    def logits(self, x: Tensor) -> Tensor:
        """Inputs [n, ...] → logits [n, C]."""
        return passes([self.forward(x)], self.threads)[0][0]

    def forward(self, x: Tensor) -> Pass:
        """The pass that gives the logits [n, C] of inputs [n, ...]."""
        return self._pass("logits", self._network.forward, x=x)

    def planes(self, x: Tensor, right: Tensor, count: int) -> Pass:
        """The pass that gives the logits [n, C], and the gradients [n, ...] of z_y − z_j for each of the `count`
        largest other logits z_j; `right` [n, C] is 1 at the label y, and 0 elsewhere.
        """
        graph = functools.partial(self._network.planes, count)
        return self._pass(f"planes {count}", graph, x=x, right=right)

    def entropy(self, x: Tensor, right: Tensor) -> Pass:
        """The pass that gives the logits [n, C], and the gradient [n, ...] of the cross-entropy with those labels."""
        return self._pass("entropy", self._network.entropy, x=x, right=right)

    def _pass(self, kind: str, graph: Callable[[], Any], **inputs: Tensor) -> Pass:
        if kind not in self._sessions:
            self._sessions[kind] = _session(graph())
        arrays = {name: value.detach().contiguous().numpy() for name, value in inputs.items()}
        return Pass(self._sessions[kind], arrays, self._network.width)


def passes(wanted: Sequence[Pass], threads: int) -> list[list[Tensor]]:
    """Make passes of one or several networks, side by side on `threads` threads; the outputs of each."""
    found = iter(_calls(wanted, threads))
    return [_joined(list(itertools.islice(found, len(each.calls)))) for each in wanted]


def joined_passes(wanted: Sequence[Pass], threads: int) -> list[Tensor]:
    """`passes` with the same outputs, those of one network after those of another."""
    return _joined(_calls(wanted, threads))


def _calls(wanted: Sequence[Pass], threads: int) -> list[list[Array]]:
    """Every call's outputs, in order."""
    calls = [(each, part) for each in wanted for part in each.calls]
    found: list[list[Array]] = [[] for _ in calls]
    threads = max(1, min(threads, len(calls)))
    # Neighbours together, because the weights of a network stay in the cache of the core that uses them. The caller,
    # who begins at once, has the larger share.
    ends = [-(-len(calls) * number // threads) for number in range(threads + 1)]
    shares = [deque(range(begin, end)) for begin, end in itertools.pairwise(ends)]

    def run(number: int) -> None:
        """Make one thread's share of the calls, and then those that other threads have not begun, from the end."""
        for share in (shares[number], *shares[number + 1 :], *shares[:number]):
            take = share.popleft if share is shares[number] else share.pop
            while share:
                try:
                    place = take()
                except IndexError:  # another thread has just taken the last one
                    break
                each, part = calls[place]
                found[place] = each.call(part)

    others = [_workers(threads - 1).submit(run, number) for number in range(1, threads)]
    run(0)
    for other in others:
        other.result()
    return found


def _joined(calls: Sequence[list[Array]]) -> list[Tensor]:
    return [torch.from_numpy(np.concatenate(column)) for column in zip(*calls, strict=True)]


def compiled(network: nn.Module, shape: tuple[int, ...], threads: int) -> Compiled | None:
    """`network`, in eval mode, for inputs of `shape`.

    None where ONNX or its runtime is not installed, for large networks, on processors where it was not measured, and
    where the network has other parts than convolutions, linear layers, ReLUs, sums and means.
    """
    if platform.machine().lower() not in _PROCESSORS:
        return None
    parameters = [*network.parameters(), *network.buffers()]
    fits = len(shape) == 3 and sum(p.numel() for p in parameters) <= _LARGEST
    plain = all(p.device.type == "cpu" and p.dtype in (torch.float32, torch.int64) for p in parameters)
    convolutional = any(isinstance(part, (nn.Conv2d, fx.GraphModule)) for part in network.modules())
    if not fits or not plain or not convolutional:
        return None
    try:
        return Compiled(Network(network, shape), threads)
    except (ImportError, NotKnown):
        return None


@functools.cache
def _workers(threads: int) -> ThreadPoolExecutor:
    """Threads beside the caller's own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="randens-pass")


# Threads do not survive a fork; the child starts its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)


def _session(model: Any) -> Any:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime's exceptions have no public base class.
        raise NotKnown("a graph that ONNX Runtime refuses") from error
