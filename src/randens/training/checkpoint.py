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
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from randens.core.devices import is_dense, read_tensors, tensor_checksum
from randens.core.errors import FileError
from randens.core.files import write_atomic
from randens.core.runs import first_fault
from randens.training.methods import Weights

_FORMAT = "randens-checkpoint-3"
_KEPT = 2
_NOISE = 0.1  # a smaller loss of accuracy may be noise around chance level
_ROUNDING = 1e-6  # by so much may sums of shares leave [0, 1]
_OPTIMIZERS = {torch.optim.SGD: {"momentum_buffer"}, torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}}

Count = Annotated[int, Field(ge=0, le=1 << 53)]
Share = Annotated[float, Field(ge=-_ROUNDING, le=1 + _ROUNDING)]
_PLAIN = BeforeValidator(lambda value: value.tolist() if isinstance(value, np.ndarray) else value)
Numbers = Annotated[list[float], _PLAIN, Field(min_length=1, max_length=64)]
Alpha = Annotated[list[Share], _PLAIN, Field(min_length=1, max_length=64)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, from_attributes=True)


class Spent(_Record):
    """The cost over all sessions of the run: member passes per image by kind, attacks on held-out images, seconds."""

    crafting: Count = 0
    training: Count = 0
    attacks: Count = 0
    forwards: Count = 0
    backwards: Count = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    lines: Count = 0  # of metrics.jsonl

    def add(
        self, forwards: int, backwards: int, crafting: int = 0, training: int = 0, attacks: int = 0
    ) -> None:
        """Count passes, and how many of those backward craft examples or train."""
        self.forwards, self.backwards = self.forwards + forwards, self.backwards + backwards
        self.crafting, self.training = self.crafting + crafting, self.training + training
        self.attacks += attacks


class EarlyStopping(_Record):
    """The best accuracy under attack so far, the training accuracy then, and failures in a row since (`overfit`)."""

    best: Share = 0.0
    training: Share = 0.0
    overfit: Count = 0

    def seen(self, robust: float, training: float, collapse: float) -> None:
        """Count a validation as failed if `robust` fell below collapse × best while training accuracy did not drop."""
        if robust >= self.best:
            self.best, self.training, self.overfit = robust, training, 0
            return
        lost = robust < collapse * self.best and self.best - robust >= _NOISE
        self.overfit = self.overfit + 1 if lost and training >= self.training else 0


class Best(_Record):
    """The best checkpoint of a stage so far: its risk and natural error on validation data, and α."""

    risk: Share
    natural: Share
    epoch: Count
    probs: Alpha


class _StageRecord(_Record):
    epochs: Count
    epoch: Count
    step: Count
    batches: Count
    probs: Alpha
    losses: Numbers
    correct: float
    images: Count
    stopping: EarlyStopping
    best: Best | None


class Position(_Record):
    """Where a run is: how many members are finished, the α of the last one's best checkpoint, and the stage."""

    finished: int = Field(ge=0, le=64)
    probs: Alpha | None
    spent: Spent
    stage: _StageRecord | None

    @model_validator(mode="after")
    def _consistent(self) -> Position:
        now = self.stage
        best = None if now is None else now.best
        chosen = [self.probs, *(None if one is None else one.probs for one in (now, best))]
        right = all(alpha is None or abs(sum(alpha) - 1) <= _ROUNDING for alpha in chosen)
        right &= self.probs is None or len(self.probs) <= self.finished
        if now is not None:
            right &= len(now.probs) == self.finished + len(now.losses)
            right &= now.epoch <= now.epochs and now.step <= now.batches
            right &= bool(now.images) == bool(now.step) and 0 <= now.correct <= now.images * (1 + _ROUNDING)
            right &= best is None or (best.epoch <= now.epoch and len(best.probs) == len(now.probs))
        if not right:
            raise ValueError("its entries contradict each other")
        return self


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
    if (len(record.probs), len(record.losses)) != (len(stage.probs), len(stage.trained)):
        raise RuntimeError(f"{len(record.losses)} members were in training, not {len(stage.trained)}")
    for index, (trained, averaged) in enumerate(zip(stage.trained, stage.averaged, strict=True)):
        trained.load_state_dict(state(tensors, f"trained.{index}", trained))
        if averaged is not trained:
            averaged.load_state_dict(state(tensors, f"averaged.{index}", averaged))
    begun = any(key.startswith("optimizer.") for key in tensors)
    for index, parameter in enumerate(_parameters(stage)):
        held = part(tensors, f"optimizer.{index}")
        for key in _OPTIMIZERS[type(stage.optimizer)] if begun else ():
            # Zeros are what an optimizer begins with: for parameters that have no gradient, and for another optimizer.
            value = torch.zeros(()) if key == "step" else torch.zeros_like(parameter)
            if key in held:
                if _kind(held[key]) != _kind(value):  # torch would write beyond it
                    raise RuntimeError(f"optimizer.{index}.{key} is {_kind(held[key])}, not {_kind(value)}")
                value.copy_(held[key])
            stage.optimizer.state[parameter][key] = value
    stage.probs, stage.epoch, stage.stopping = np.array(record.probs), record.epoch, record.stopping
    if record.batches == stage.batches:
        stage.step, stage.losses = record.step, np.array(record.losses)
        stage.correct, stage.images = record.correct, record.images
    stage.best = record.best
    if record.best is not None:
        kept = enumerate(stage.averaged)
        stage.best_states = [state(tensors, f"best.{index}", member) for index, member in kept]


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


def state(tensors: Mapping[str, Tensor], prefix: str, module: nn.Module) -> dict[str, Tensor]:
    """The state of a module under ``prefix.``; other types than its own, which torch would convert, are refused."""
    found, own = part(tensors, prefix), module.state_dict()
    for key in sorted({*found, *own}):
        kinds = [_kind(side[key]) if key in side else "missing" for side in (found, own)]
        if kinds[0] != kinds[1]:
            raise RuntimeError(f"{prefix}.{key} is {kinds[0]}, not {kinds[1]}")
    return found


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _read(path: Path) -> tuple[dict[str, Tensor], Position]:
    """One file, verified."""
    tensors, metadata = read_tensors(path)
    text = metadata.get("position", "")
    checksum = tensor_checksum(tensors, {"position": text})
    if (metadata.get("format"), metadata.get("sha256")) != (_FORMAT, checksum):
        raise FileError(f"the checkpoint {path} is damaged or of another version")
    if not all(is_dense(tensor) and bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise FileError(f"the checkpoint {path} is damaged (it holds NaN, or numbers of another kind)")
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
