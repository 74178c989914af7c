"""A run's state to and from safetensors files with checksums, written completely or not at all; two are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import safetensors.torch
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from randens.core.devices import read_tensors, tensor_checksum
from randens.core.errors import FileError
from randens.core.files import write_atomic
from randens.core.runs import first_fault
from randens.training.methods import Weights

_FORMAT = "randens-checkpoint-2"
_KEPT = 2
_NOISE = 0.1  # a smaller loss of accuracy may be noise around chance level

Numbers = Annotated[list[float], BeforeValidator(lambda value: np.asarray(value).tolist())]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, from_attributes=True)


class Spent(_Record):
    """The cost over all sessions of the run: member passes per image by kind, attacks on held-out images, seconds."""

    crafting: int = 0
    training: int = 0
    attacks: int = 0
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    lines: int = 0  # of metrics.jsonl

    def add(
        self, forwards: int, backwards: int, crafting: int = 0, training: int = 0, attacks: int = 0
    ) -> None:
        """Count passes, and how many of those backward craft examples or train."""
        self.forwards, self.backwards = self.forwards + forwards, self.backwards + backwards
        self.crafting, self.training = self.crafting + crafting, self.training + training
        self.attacks += attacks


class EarlyStopping(_Record):
    """The best accuracy under attack so far, the training accuracy then, and failures in a row since (`overfit`)."""

    best: float = 0.0
    training: float = 0.0
    overfit: int = 0

    def seen(self, robust: float, training: float, collapse: float) -> None:
        """Count a validation as failed if `robust` fell below collapse × best while training accuracy did not drop."""
        if robust >= self.best:
            self.best, self.training, self.overfit = robust, training, 0
            return
        lost = robust < collapse * self.best and self.best - robust >= _NOISE
        self.overfit = self.overfit + 1 if lost and training >= self.training else 0


class Best(_Record):
    """The best checkpoint of a stage so far: its risk and natural error on validation data, and α."""

    risk: float
    natural: float
    epoch: int
    probs: Numbers


class _StageRecord(_Record):
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    batches: int = Field(ge=1)
    probs: Numbers
    losses: Numbers
    correct: float
    images: int
    stopping: EarlyStopping
    best: Best | None


class Position(_Record):
    """Where a run is: how many members are finished, the α of the last one's best checkpoint, and the stage."""

    finished: int = Field(ge=0, le=64)
    probs: Numbers | None
    spent: Spent
    stage: _StageRecord | None


@dataclass
class Stage:
    """Members in training after `before` finished ones; `averaged` are validated and kept; sums are the epoch's."""

    number: int
    before: int
    epochs: int
    batches: int
    trained: list[nn.Module]
    averaged: list[nn.Module]
    optimizer: torch.optim.Optimizer
    probs: Weights
    epoch: int = 0
    step: int = 0
    best: Best | None = None
    best_states: Sequence[Mapping[str, Tensor]] = ()
    stopping: EarlyStopping = field(default_factory=EarlyStopping)
    losses: Weights = field(init=False)
    correct: float = 0.0
    images: int = 0

    def __post_init__(self) -> None:
        self.losses = np.zeros(len(self.trained))

    def next_epoch(self) -> None:
        """Go to the first step of the next epoch."""
        self.epoch, self.step = self.epoch + 1, 0
        self.losses, self.correct, self.images = np.zeros(len(self.trained)), 0.0, 0

    @property
    def steps(self) -> int:
        """Steps made so far."""
        return self.epoch * self.batches + self.step

    @property
    def where(self) -> str:
        """The position in words."""
        return f"member {self.before + 1}, epoch {self.epoch + 1}, step {self.step}"


def pack(
    finished: Sequence[nn.Module], probs: Weights | None, stage: Stage | None, spent: Spent
) -> tuple[dict[str, Tensor], Position]:
    """The state that a continued run needs."""
    tensors: dict[str, Tensor] = {}
    _put(tensors, "finished", [m.state_dict() for m in finished])
    record = None
    if stage is not None:
        _put(tensors, "trained", [m.state_dict() for m in stage.trained])
        if stage.averaged is not stage.trained:
            _put(tensors, "averaged", [m.state_dict() for m in stage.averaged])
        for index, parameter in enumerate(_parameters(stage)):
            for key, value in stage.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{index}.{key}"] = value
        _put(tensors, "best", stage.best_states)
        record = _StageRecord.model_validate(stage)
    position = {"finished": len(finished), "probs": probs, "spent": spent, "stage": record}
    return tensors, Position.model_validate(position)


def restore(stage: Stage, tensors: Mapping[str, Tensor], record: _StageRecord) -> None:
    """Bring a stage just begun to the checkpoint; with another number of batches per epoch, the epoch starts again."""
    for index, (trained, averaged) in enumerate(zip(stage.trained, stage.averaged, strict=True)):
        trained.load_state_dict(part(tensors, f"trained.{index}"))
        if averaged is not trained:
            averaged.load_state_dict(part(tensors, f"averaged.{index}"))
    for index, parameter in enumerate(_parameters(stage)):
        for key, value in part(tensors, f"optimizer.{index}").items():
            if key != "step" and value.shape != parameter.shape:  # torch would write beyond it
                raise RuntimeError(
                    f"{key} has shape {tuple(value.shape)}, its weight {tuple(parameter.shape)}"
                )
            like = torch.empty_like(parameter) if value.shape == parameter.shape else torch.empty_like(value)
            stage.optimizer.state[parameter][key] = like.copy_(value)
    stage.probs, stage.epoch, stage.stopping = np.array(record.probs), record.epoch, record.stopping
    if record.batches == stage.batches:
        stage.step, stage.losses = record.step, np.array(record.losses)
        stage.correct, stage.images = record.correct, record.images
    stage.best = record.best
    if record.best is not None:
        stage.best_states = [part(tensors, f"best.{index}") for index in range(len(stage.trained))]


def save(folder: Path, tensors: Mapping[str, Tensor], position: Position) -> Path:
    """Write a new file, then remove all but the newest two."""
    existing = _files(folder)
    number = int(existing[0].stem) + 1 if existing else 1
    held = {k: t.detach().cpu().contiguous() for k, t in sorted(tensors.items())}
    text = position.model_dump_json()
    metadata = {"format": _FORMAT, "position": text, "sha256": tensor_checksum(held, {"position": text})}
    path = folder / f"{number:08d}.safetensors"
    write_atomic(path, safetensors.torch.save(held, metadata))
    for old in existing[_KEPT - 1 :]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def load(folder: Path) -> tuple[dict[str, Tensor], Position, list[str]] | None:
    """The newest undamaged file and what is wrong with others, None without files; if all are damaged, an error."""
    faults: list[str] = []
    files = _files(folder)
    for path in files:
        try:
            return *_read(path), faults
        except FileError as error:
            faults.append(f"{error}; the checkpoint before it is used")
    if files:
        raise FileError(f"every checkpoint in {folder} is damaged: start again with --out")
    return None


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under ``prefix.``, without it."""
    cut = len(prefix) + 1
    return {key[cut:]: value for key, value in tensors.items() if key.startswith(f"{prefix}.")}


def _read(path: Path) -> tuple[dict[str, Tensor], Position]:
    """One file, verified."""
    tensors, metadata = read_tensors(path)
    text = metadata.get("position", "")
    checksum = tensor_checksum(tensors, {"position": text})
    if (metadata.get("format"), metadata.get("sha256")) != (_FORMAT, checksum):
        raise FileError(f"the checkpoint {path} is damaged or of another version")
    try:
        return tensors, Position.model_validate_json(text)
    except ValidationError as error:
        raise FileError(f"the checkpoint {path} is damaged ({first_fault(error)})") from error


def _files(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("[0-9]" * 8 + ".safetensors"), reverse=True)


def _parameters(stage: Stage) -> Iterator[nn.Parameter]:
    for group in stage.optimizer.param_groups:
        yield from group["params"]


def _put(tensors: dict[str, Tensor], name: str, states: Sequence[Mapping[str, Tensor]]) -> None:
    """Write shared tensors once per member, because safetensors refuses memory with two names."""
    seen: set[int] = set()
    for index, state in enumerate(states):
        for key, value in state.items():
            tensors[f"{name}.{index}.{key}"] = value.clone() if value.data_ptr() in seen else value
            seen.add(value.data_ptr())
