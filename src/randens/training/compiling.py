"""Whether members are compiled: with ``compile = "auto"`` a measured trial decides, once per run.

The trial times the passes of a training step on a copy of a member, eager and compiled, so that weights and
random numbers of the run stay as they are. It is made only if so much training is left that compiling can
pay. The result is kept in the checkpoints, so a continued run does what the stopped one did.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from randens.ensemble import frozen
from randens.training.cost import Cast, Clock, StagePlan, crafting_pass, seconds_of, training_pass

__all__ = ["CompileChoice", "CompileTrial"]

_REPEATS = 3


@dataclass(frozen=True)
class CompileChoice:
    """The result of a trial: whether members are compiled, why, how many times as fast their passes are, and
    the seconds that compiling took; both None if it did not work.
    """

    compiled: bool
    reason: str
    ratio: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class CompileTrial:
    """Compares eager and compiled passes.

    least: seconds of training that must be left. margin: the expected saving must be this many times the time to
    compile. least_ratio: compiled passes must be this many times as fast; less is within the noise of the
    measurement. clock, compiler: measure seconds, and compile a member.
    """

    least: float = 1200.0
    margin: float = 2.0
    least_ratio: float = 1.05
    clock: Clock = time.perf_counter
    compiler: Callable[..., Any] = torch.compile

    def __call__(
        self,
        member: nn.Module,
        batches: Sequence[Tensor],
        stage: StagePlan,
        cast: Cast,
        left: float,
        members: int,
    ) -> CompileChoice:
        """Try it on a copy of `member`, with one batch of every size that occurs.

        stage: how many passes craft and train. left: seconds of training. members: to be compiled.
        """
        tried = copy.deepcopy(member).train()

        def step(forward: Any) -> float:
            """Seconds of the passes of a step, from one pass of either kind on every batch."""
            seconds = 0.0
            for x in batches:
                with frozen(tried):
                    seconds += stage.crafting * seconds_of(crafting_pass, forward, x, cast, self.clock)
                seconds += stage.training * seconds_of(training_pass, forward, x, cast, self.clock)
            return seconds

        try:
            with torch.random.fork_rng(devices=[]):
                step(tried)
                eager = min(step(tried) for _ in range(_REPEATS))
                begun = self.clock()
                # Without breaks in the graph: control flow that depends on data is refused.
                fast = self.compiler(tried, dynamic=len(batches) > 1, fullgraph=True)
                step(fast)
                seconds = self.clock() - begun
                compiled = min(step(fast) for _ in range(_REPEATS))
        except Exception as error:  # Compiling needs a C++ compiler and fails in many ways.
            reason = f"torch.compile does not work here ({type(error).__name__}), so members are not compiled"
            return CompileChoice(False, reason)
        ratio = eager / compiled
        saved = left * (1 - compiled / eager)
        pays = ratio >= self.least_ratio and saved > self.margin * seconds * members
        return CompileChoice(
            pays,
            f"compiled passes are {ratio:.2f} times as fast and compiling takes {seconds:.0f} s per member; "
            f"{'it pays' if pays else 'it does not pay'} with {left / 60:.0f} min of training left",
            ratio,
            seconds,
        )
