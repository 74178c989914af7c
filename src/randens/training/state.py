"""The state of a run, to and from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens.core.files import picked
from randens.training.checkpoint import Checkpoint
from randens.training.methods import Weights
from randens.training.recipe import OptimizerPart

__all__ = ["Best", "Spent", "Stage", "Tally", "Watch", "pack", "parameters", "part", "restore", "sgd"]


_NOISE = 0.1  # a smaller loss of accuracy may be noise around chance level


@dataclass(frozen=True)
class Watch:
    """Early stopping by catastrophic overfitting and by the rule of thumb (Equation 15): the validations so far.

    best: the best accuracy under attack; training: the training accuracy then; faults: failures in a row since.
    was_within, strays: whether the member ever satisfied the rule of thumb, and the number of validations in a
    row since then that violate it. A fresh member violates it at first, which does not count.
    """

    best: float = 0.0
    training: float = 0.0
    faults: int = 0
    was_within: bool = False
    strays: int = 0

    @property
    def worst(self) -> int:
        """The longer of the two series in a row."""
        return max(self.faults, self.strays)

    def seen(self, robust: float, training: float, collapse: float) -> Watch:
        """Update after a validation with accuracy `robust` under attack and accuracy `training` on the training
        adversary's examples. It counts as a failure if `robust` is below collapse × best, the training accuracy has
        not dropped, and the loss of accuracy is no noise.
        """
        if robust >= self.best:
            return replace(self, best=robust, training=training, faults=0)
        lost = robust < collapse * self.best and self.best - robust >= _NOISE
        return replace(self, faults=self.faults + 1 if lost and training >= self.training else 0)

    def within(self, holds: bool) -> Watch:
        """Update after a validation in which the rule of thumb `holds` or not."""
        if holds:
            return replace(self, was_within=True, strays=0)
        return replace(self, strays=self.strays + 1 if self.was_within else 0)


@dataclass(frozen=True)
class Best:
    """The best checkpoint of a stage so far: its risk and natural error on validation data, and α."""

    risk: float
    natural: float
    epoch: int
    probs: Weights
    states: Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Tally:
    """Sums over the epoch so far: each trained member's loss, correct answers (their mean), images."""

    losses: Weights
    correct: float = 0.0
    images: int = 0

    def plus(self, losses: Weights, correct: float, images: int) -> Tally:
        return Tally(self.losses + losses, self.correct + correct, self.images + images)


@dataclass
class Stage:
    """A stage in progress. `before` is the number of members finished earlier, `trained` are the members in
    training, `averaged` are the members that are validated and kept: their moving averages, or the same
    members.
    """

    number: int
    before: int
    trained: list[nn.Module]
    averaged: list[nn.Module]
    optimizer: torch.optim.SGD
    probs: Weights
    epoch: int = 0
    step: int = 0
    best: Best | None = None
    watch: Watch = field(default_factory=Watch)
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(np.zeros(len(self.trained)))

    def next_epoch(self) -> None:
        """Go to the first step of the next epoch."""
        self.epoch, self.step, self.tally = self.epoch + 1, 0, Tally(np.zeros(len(self.trained)))

    @property
    def where(self) -> str:
        """The position in words."""
        return f"member {self.before + 1}, epoch {self.epoch + 1}, step {self.step}"


@dataclass
class Spent:
    """The cost over all sessions of the run: member passes, seconds, lines of metrics."""

    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    lines: int = 0

    def spend(self, forwards: int, backwards: int) -> None:
        self.forwards += forwards
        self.backwards += backwards


def parameters(members: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Return the weights of all members; shared weights appear once."""
    return list(dict.fromkeys(p for member in members for p in member.parameters()))


def sgd(members: Sequence[nn.Module], part: OptimizerPart) -> torch.optim.SGD:
    """The optimiser of a stage."""
    return torch.optim.SGD(
        parameters(members),
        lr=part.lr,
        momentum=part.momentum,
        weight_decay=part.weight_decay,
        nesterov=part.nesterov,
        fused=True,
    )


def pack(finished: Sequence[nn.Module], stage: Stage | None, ledger: Spent, batches: int) -> Checkpoint:
    """Return the state that a continued run needs; random numbers depend only on the position."""
    tensors: dict[str, Tensor] = {}
    _put(tensors, "finished", [m.state_dict() for m in finished])
    position: dict[str, Any] = {"finished": len(finished), "ledger": asdict(ledger), "stage": None}
    if stage is not None:
        _put(tensors, "trained", [m.state_dict() for m in stage.trained])
        if stage.averaged is not stage.trained:
            _put(tensors, "averaged", [m.state_dict() for m in stage.averaged])
        for index, parameter in enumerate(parameters(stage.trained)):
            momentum = stage.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{index}"] = momentum
        about = picked(stage, "epoch step probs watch") | picked(stage.tally, "losses correct images")
        position["stage"] = {**about, "batches": batches, "best": None}
        if stage.best is not None:
            _put(tensors, "best", stage.best.states)
            position["stage"]["best"] = picked(stage.best, "risk natural epoch probs")
    return Checkpoint(tensors, position)


def restore(stage: Stage, checkpoint: Checkpoint, batches: int) -> None:
    """Bring a stage that was just begun to the checkpoint's position.

    If the number of batches per epoch has changed (another recipe), the epoch starts again.
    """
    tensors, position = checkpoint.tensors, checkpoint.position["stage"]
    for name, members in (("trained", stage.trained), ("averaged", stage.averaged)):
        if name == "averaged" and stage.averaged is stage.trained:
            continue
        for index, member in enumerate(members):
            member.load_state_dict(part(tensors, f"{name}.{index}"))
    for index, parameter in enumerate(parameters(stage.trained)):
        if f"momentum.{index}" in tensors:
            momentum = torch.empty_like(parameter).copy_(tensors[f"momentum.{index}"])
            stage.optimizer.state[parameter] = {"momentum_buffer": momentum}
    stage.probs = np.array(position["probs"])
    stage.epoch = position["epoch"]
    stage.watch = Watch(**position["watch"])
    if position["batches"] == batches:
        stage.step = position["step"]
        stage.tally = Tally(np.array(position["losses"]), position["correct"], position["images"])
    if position["best"] is not None:
        best = {**position["best"], "probs": np.array(position["best"]["probs"])}
        stage.best = Best(**best, states=[part(tensors, f"best.{i}") for i in range(len(stage.trained))])


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under ``prefix.``, without it."""
    cut = len(prefix) + 1
    return {key[cut:]: value for key, value in tensors.items() if key.startswith(f"{prefix}.")}


def _put(tensors: dict[str, Tensor], name: str, states: Sequence[Mapping[str, Tensor]]) -> None:
    """Write shared tensors once per member, because safetensors refuses memory with two names."""
    seen: set[int] = set()
    for index, state in enumerate(states):
        for key, value in state.items():
            tensors[f"{name}.{index}.{key}"] = value.clone() if value.data_ptr() in seen else value
            seen.add(value.data_ptr())
