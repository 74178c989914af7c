"""Where and how members run: device, memory layout, precision, compilation, several processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens.attacks.members import folded
from randens.core.devices import native_bfloat16, widest
from randens.core.distributed import Workers
from randens.training.adversaries import Victims
from randens.training.initial_members import Blueprint
from randens.training.losses import Forward
from randens.training.methods import Method, Roster

__all__ = ["Placement", "arithmetic"]


def arithmetic(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context for passes: "float32", "bfloat16", or "auto", bfloat16 where the device has it natively.

    Weights, losses and verdicts are always float32.
    """
    if precision == "float32" or (precision == "auto" and not native_bfloat16(device)):
        return contextlib.nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


class Placement:
    """Makes the members of one run, and runs them in the processes that share its batches."""

    def __init__(self, blueprint: Blueprint, processes: Workers) -> None:
        self.blueprint, self.processes = blueprint, processes
        self.arithmetic = arithmetic(blueprint.recipe.precision, processes.device)
        self.compiles = blueprint.recipe.compile
        self._forwards: dict[nn.Module, Forward] = {}

    def place(self, member: nn.Module) -> nn.Module:
        """The same member on the device, with its channels last."""
        member.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return member.to(self.processes.device)

    def new(self, index: int = 0, state: Mapping[str, Any] | None = None) -> nn.Module:
        """Member number `index`, with the weights of `state` where that is given."""
        member = self.place(self.blueprint(index))
        if state is not None:
            member.load_state_dict(state)
        return member

    def still(self, member: nn.Module) -> nn.Module:
        """Return a finished member: on the device, frozen, in eval mode."""
        return self.place(member).requires_grad_(False).eval()

    def wrapped(self, trained: Sequence[nn.Module]) -> list[Forward]:
        """How members in training are run for a step of their weights."""
        return [self.forward(self.processes.wrap(self._compiled(member))) for member in trained]

    def victims(self, method: Method, roster: Roster) -> Victims:
        """Return the members that the training adversary attacks."""
        members, probs = method.victims(roster)
        weights = widest(torch.from_numpy(np.array(probs)), self.processes.device)
        for member in members:
            if member not in self._forwards:
                # Finished members do not change, so their BatchNorm is folded into the convolutions once.
                fast = folded(member) if member in roster.finished else member
                self._forwards[member] = self.forward(self._compiled(fast))
        return Victims.of(members, weights, [self._forwards[member] for member in members])

    def forget(self) -> None:
        """Release the members of a finished stage."""
        self._forwards.clear()
        if self.compiles:
            # torch keeps a limited number of compiled versions of one function, for all members together.
            torch.compiler.reset()

    def average_buffers(self, members: Sequence[nn.Module]) -> None:
        """Average the BatchNorm statistics that the ranks gathered on their own parts."""
        if self.processes.world == 1:
            return
        for member in dict.fromkeys(members):
            for buffer in member.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.processes.total(buffer.clone()) / self.processes.world)

    def _compiled(self, member: nn.Module) -> Any:
        return torch.compile(member) if self.compiles else member

    def forward(self, member: Forward) -> Forward:
        """How a member is run: in the recipe's precision, with logits in float32."""

        def forward(x: Tensor) -> Tensor:
            with self.arithmetic():
                z = member(x)
            return z.float()

        return forward
