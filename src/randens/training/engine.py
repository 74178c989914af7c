"""The one engine under every method: epochs, batches, adversarial examples, steps, validation, checkpoints.

Everything random is drawn from generators seeded by what it is for and where in the run it happens, never from
torch's own: a run that was killed and continued draws exactly what an uninterrupted one draws.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens import attacks, models
from randens import data as datasets
from randens.data import Augment, ImageData
from randens.ensemble import RandomizedEnsemble, frozen, load, to_layout
from randens.errors import FileError, InputError, ModelError, RandensError
from randens.files import read_json, write_atomic
from randens.models.precision import bfloat16_pays
from randens.progress import Progress, silent
from randens.runs import Run
from randens.training.adversaries import Adversary, Victims, adversary
from randens.training.average import average
from randens.training.checkpoint import Checkpoint, Checkpoints
from randens.training.cost import network, plan
from randens.training.distributed import Workers, workers
from randens.training.losses import Forward, passes, training_loss
from randens.training.methods import METHODS, Method, Weights
from randens.training.recipe import Recipe, difference, load_recipe
from randens.training.schedule import learning_rate
from randens.training.validation import attacked, check_splits, choose
from randens.training.watch import Watch

__all__ = ["Diverged", "Stopped", "arithmetic", "train"]

Say = Callable[[str], None]


class Stopped(RandensError):
    """The run was asked to stop, and its state is saved."""


class Diverged(ModelError):
    """The loss or the weights are no longer finite; the last good checkpoint is kept."""


@dataclass
class Best:
    """The checkpoint that counts so far in a stage."""

    risk: float
    natural: float
    epoch: int
    probs: Weights
    states: list[dict[str, Tensor]]


@dataclass
class Stage:
    """A stage in progress. `trained` are the members that learn now, `averaged` what is validated and kept: their
    moving averages, or they themselves. `losses`, `correct` and `images` add up over the epoch."""

    number: int
    trained: list[nn.Module]
    averaged: list[nn.Module]
    optimizer: torch.optim.SGD
    probs: Weights
    losses: Weights
    epoch: int = 0
    step: int = 0
    correct: float = 0.0
    images: float = 0.0
    best: Best | None = None
    watch: Watch = field(default_factory=Watch)


@dataclass
class Ledger:
    """What has been spent: member passes and seconds, over all sessions of the run."""

    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    lines: int = 0


def train(
    recipe: Recipe | str | os.PathLike[str],
    run_folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    say: Say | None = None,
    stop: Callable[[], bool] | None = None,
    data: tuple[ImageData, ImageData] | None = None,
    force: bool = False,
) -> RandomizedEnsemble:
    """Train an ensemble by `recipe` (or the path of one) in `run_folder`, or continue what is there.

    The folder holds the metrics while the run goes on and the ensemble at its end. `data` is (train, validation)
    where they are not a named data set. `stop` is asked after every step; once it says yes, the state is saved
    and `Stopped` is raised. A changed recipe is refused unless `force`. `say` receives sentences for a person.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    with workers(chosen.device) as crew:
        return _train(chosen, Path(run_folder), crew, progress or silent, say or _mute, stop, data, force)


def arithmetic(
    recipe: Recipe, device: torch.device, model: nn.Module
) -> Callable[[], AbstractContextManager[Any]]:
    """The precision of forward and backward passes; weights, losses and verdicts are always float32."""
    convolutional = any(isinstance(m, nn.Conv2d) for m in model.modules())
    low = recipe.precision == "bfloat16" or (
        recipe.precision == "auto" and convolutional and bfloat16_pays(device.type)
    )
    if not low:
        return contextlib.nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def _train(
    recipe: Recipe,
    folder: Path,
    crew: Workers,
    progress: Progress,
    say: Say,
    stop: Callable[[], bool] | None,
    data: tuple[ImageData, ImageData] | None,
    force: bool,
) -> RandomizedEnsemble:
    train_data, held = data or tuple(datasets.load(recipe.data.name, s) for s in ("train", "validation"))
    check_splits(train_data.split, held.split)
    if recipe.batch_size > len(train_data):
        raise InputError(
            f"batch_size is {recipe.batch_size}; the training set has only {len(train_data)} images"
        )
    if recipe.batch_size < 2 * crew.world:
        raise InputError(f"batch_size is {recipe.batch_size}; {crew.world} processes need 2 images each")
    # Whatever can be wrong with names is found before a folder is made.
    first = _first_member(recipe, train_data)
    attacks.create(recipe.validation.attack, recipe.threat.build())
    if crew.writes:
        _open(recipe, folder, say, force)
    crew.barrier()
    run = Run.open(folder)
    if _finished(run):
        say(f"{folder} is finished already; its ensemble is returned")
        return load(run.ensemble)
    engine = _Engine(recipe, run, crew, train_data, held, first, progress, say, stop)
    return engine.run_all()


class _Engine:
    """A run in progress; see `train`."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        crew: Workers,
        train_data: ImageData,
        held: ImageData,
        first: nn.Module | None,
        progress: Progress,
        say: Say,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.recipe, self.run, self.crew = recipe, run, crew
        self.progress, self.say, self.stop = progress, say, stop
        self.train_data, self.first = train_data, first
        limit = recipe.validation.size or len(held)
        self.held_x, self.held_y = held[: min(limit, len(held))]
        self.method: Method = METHODS[recipe.method]()
        self.threat = recipe.threat.build()
        self.loss = training_loss(recipe.loss)
        self.checkpoints = Checkpoints(run.path / "checkpoints")
        self.sizes = self.method.stages(recipe.members)
        self.plan = plan(recipe)
        self.batches = math.ceil(len(train_data) / recipe.batch_size)
        self.augment = _augment(recipe)
        self.finished: list[nn.Module] = []
        self.ledger = Ledger()
        self.mean_std = train_data.mean_std() if recipe.model.normalise else None
        self.arithmetic = arithmetic(recipe, crew.device, self._fresh(0))
        self.forwards: dict[int, Forward] = {}
        self.saved_at = time.monotonic()
        self.board = _board(run) if recipe.tensorboard and crew.writes else None

    def run_all(self) -> RandomizedEnsemble:
        """Every stage that is not done, then α."""
        stage = self._resume()
        while stage is not None or len(self.finished) < sum(self.sizes):
            if stage is None:
                stage = self._begin()
            self._stage(stage)
            self._conclude(stage)
            stage = None
        return self._finish()

    # Stages

    def _begin(self) -> Stage:
        """The next stage, with its members as the method wants them."""
        number = self._number()
        before = len(self.finished)
        indices = range(before, before + self.sizes[number])
        previous = self.recipe.start == "previous" or (self.recipe.start == "auto" and self.method.previous)
        trained = []
        for index in indices:
            member = self._fresh(index)
            if index == 0 and self.first is not None:
                member.load_state_dict(self.first.state_dict())
            elif previous and self.finished:
                member.load_state_dict(self.finished[-1].state_dict())
            trained.append(member)
        return self._stage_of(number, trained)

    def _stage_of(self, number: int, trained: list[nn.Module]) -> Stage:
        for member in trained:
            self.crew.prepare(member, self.recipe.batch_norm == "synced")
            member.train()
            self.forwards[id(member)] = self._forward(self.crew.wrap(self._compiled(member)))
        averaged = trained
        if self.recipe.ema:
            averaged = [self._fresh(0) for _ in trained]
            for target, member in zip(averaged, trained, strict=True):
                target.load_state_dict(member.state_dict())
        part = self.recipe.optimizer
        optimizer = torch.optim.SGD(
            [p for member in trained for p in member.parameters()],
            lr=part.lr,
            momentum=part.momentum,
            weight_decay=part.weight_decay,
            nesterov=part.nesterov,
            fused=True,
        )
        everyone = len(self.finished) + len(trained)
        return Stage(
            number, trained, averaged, optimizer, np.full(everyone, 1 / everyone), np.zeros(len(trained))
        )

    def _stage(self, stage: Stage) -> None:
        """Epochs until the end, or until the watch calls it off."""
        if stage.number == 0 and self.first is not None and len(self.sizes) > 1:
            return  # the first member is shared, not trained
        epochs = self.recipe.epochs_of(stage.number)
        while stage.epoch < epochs and stage.watch.faults < self.recipe.validation.patience:
            begun = time.monotonic()
            self._epoch(stage, epochs)
            self._judge(stage, epochs, begun)
            stage.epoch, stage.step = stage.epoch + 1, 0
            stage.losses, stage.correct, stage.images = np.zeros(len(stage.trained)), 0.0, 0.0
            self._save_if_due(stage)
            self._tell(stage, epochs)

    def _epoch(self, stage: Stage, epochs: int) -> None:
        order = torch.randperm(
            len(self.train_data), generator=self._generator("order", stage.number, stage.epoch)
        )
        # Parts of equal size, so that no epoch ends with a batch of a few images.
        bounds = np.linspace(0, len(order), self.batches + 1).round().astype(int)
        craft = self._adversary(stage)
        victims = self._victims(stage)
        while stage.step < self.batches:
            self._step(stage, epochs, order[bounds[stage.step] : bounds[stage.step + 1]], craft, victims)
            stage.step += 1
            if self.stop is not None and self.crew.agreed(self.stop()):
                self._save(stage)
                where = self._where(stage)
                raise Stopped(
                    f"stopped after {where}; the state is saved in {self.run.path}, continue with the same command"
                )
            self._save_if_due(stage)
            self._tell(stage, epochs)

    def _step(self, stage: Stage, epochs: int, rows: Tensor, craft: Adversary, victims: Victims) -> None:
        """One batch: adversarial examples of the victims, one step of every trained member on them."""
        generator = self._generator("batch", stage.number, stage.epoch, stage.step)
        x, y = self.train_data[rows]
        if self.augment is not None:
            x = self.augment(x, generator)
        # Drawn for the whole batch by every rank; each keeps its part.
        start = craft.start(x, generator)
        part, device = self.crew.part(len(x)), self.crew.device
        x, y, start = (
            self._layout(x[part]).to(device),
            y[part].to(device),
            self._layout(start[part]).to(device),
        )
        with contextlib.ExitStack() as frozen_members:
            for member in stage.trained:
                frozen_members.enter_context(frozen(member))
            x_adv = craft.craft(
                victims, x, y, start, _seed(self.recipe.seed, "arc", stage.number, stage.epoch, stage.step)
            )
        x_adv = self._layout(x_adv.detach())
        total = torch.zeros((), device=device)
        sums = torch.zeros(len(stage.trained) + 1, dtype=torch.float64, device=device)
        for index, member in enumerate(stage.trained):
            losses, z = self.loss(self.forwards[id(member)], x, x_adv, y)
            total = total + losses.sum()
            sums[index] = losses.detach().double().sum()
            sums[-1] += (z.detach().argmax(dim=1) == y).sum() / len(stage.trained)
        sums = self.crew.total(sums)
        if not bool(torch.isfinite(sums).all()):
            raise self._diverged(stage, "the loss is not finite")
        step = stage.epoch * self.batches + stage.step
        rate = learning_rate(self.recipe.schedule, self.recipe.optimizer.lr, step, self.batches, epochs)
        for group in stage.optimizer.param_groups:
            group["lr"] = rate
        stage.optimizer.zero_grad(set_to_none=True)
        # Ranks average their gradients, so each contributes its share of the whole batch's mean.
        self.crew.backward(total * (self.crew.world / len(rows)))
        stage.optimizer.step()
        if self.recipe.ema:
            for target, member in zip(stage.averaged, stage.trained, strict=True):
                average(target, member, self.recipe.ema, step)
        stage.losses = stage.losses + sums[:-1].cpu().numpy()
        stage.correct += float(sums[-1])
        stage.images += len(rows)
        crafted = craft.passes(len(victims.probs))
        learned = passes(self.recipe.loss) * len(stage.trained)
        self.ledger.forwards += (crafted + learned) * len(rows)
        self.ledger.backwards += (crafted + learned) * len(rows)
        if (stage.step + 1) % self.recipe.log_every == 0:
            self._log(
                event="step", member=len(self.finished) + 1, epoch=stage.epoch + 1, step=stage.step + 1,
                lr=rate, loss=[float(v) / len(rows) for v in sums[:-1]], accuracy=float(sums[-1]) / len(rows),
            )  # fmt: skip

    def _judge(self, stage: Stage, epochs: int, begun: float) -> None:
        """The end of an epoch: α, validation under attack, the best checkpoint, the watch."""
        recipe, last = self.recipe, stage.epoch + 1 == epochs
        losses = stage.losses / stage.images
        training = stage.correct / stage.images
        stage.probs = self.method.moved(stage.probs, losses, recipe.sampling.rate)
        line: dict[str, Any] = {
            "event": "epoch", "member": len(self.finished) + 1, "epoch": stage.epoch + 1,
            "loss": losses.tolist(), "accuracy": training,
        }  # fmt: skip
        everyone = len(self.finished) + len(stage.trained)
        reweigh = self.method.reweighs and everyone > 1 and (stage.epoch + 1) % recipe.sampling.every == 0
        if reweigh or last or (stage.epoch + 1) % recipe.validation.every == 0:
            self._average_buffers(stage)
            rec = self.method.judged(self.finished, stage.averaged, stage.probs)
            if reweigh:
                choice = choose(rec, self.held_x, self.held_y, self._attack(), recipe.sampling, self.crew)
                stage.probs, verdict = _floored(choice.probs, recipe.sampling.floor), choice.verdict
                kept = choice.probs
            else:
                verdict = attacked(rec, self.held_x, self.held_y, self._attack(), self.crew)
                kept = stage.probs
            self.ledger.forwards += verdict.forwards
            self.ledger.backwards += verdict.backwards
            line.update(natural=1 - verdict.natural, robust=1 - verdict.risk)
            self._keep(stage, verdict.risk, verdict.natural, kept)
            # Only what is trained now can be at fault; the judged members end with it.
            own = verdict.pool.profile().member_risks[-len(stage.trained) :]
            if self.method.watched:
                self._watch(stage, 1 - float(np.max(own)), training)
        line.update(probs=stage.probs.tolist(), seconds=time.monotonic() - begun)
        self._log(**line)

    def _keep(self, stage: Stage, risk: float, natural: float, probs: Weights) -> None:
        better = stage.best is None or (risk, natural) <= (stage.best.risk, stage.best.natural)
        if better or self.recipe.validation.keep == "last":
            states = [{k: v.detach().clone() for k, v in m.state_dict().items()} for m in stage.averaged]
            stage.best = Best(risk, natural, stage.epoch, np.array(probs), states)

    def _watch(self, stage: Stage, robust: float, training: float) -> None:
        part = self.recipe.validation
        stage.watch = stage.watch.seen(robust, training, part.collapse)
        if stage.watch.faults:
            stops = stage.watch.faults >= part.patience
            said = (
                f"catastrophic overfitting: accuracy under attack fell from {stage.watch.best:.1%} to {robust:.1%} "
                f"while training accuracy rose to {training:.1%}"
            )
            then = "training of this member stops and its best checkpoint is kept" if stops else "watching"
            self.say(f"{self._where(stage)}: {said}; {then}")
            self._log(event="overfitting", member=len(self.finished) + 1, epoch=stage.epoch + 1,
                      robust=robust, best=stage.watch.best, stops=stops)  # fmt: skip

    def _conclude(self, stage: Stage) -> None:
        """The members of a stage as they will stay: best weights, frozen, in eval mode."""
        states = stage.best.states if stage.best is not None else [m.state_dict() for m in stage.averaged]
        for member, state in zip(stage.trained, states, strict=True):
            self.forwards.pop(id(member))
            done = self._fresh(len(self.finished))
            done.load_state_dict(state)
            self._freeze(done)
            self.finished.append(done)
        if stage.best is not None:
            self._log(event="member", member=len(self.finished), best_epoch=stage.best.epoch + 1,
                      robust=1 - stage.best.risk, natural=1 - stage.best.natural, probs=stage.best.probs.tolist())  # fmt: skip
        self._save(None)

    def _finish(self) -> RandomizedEnsemble:
        """α for the whole ensemble on validation data, then the ensemble on disk."""
        recipe = self.recipe
        rec = RandomizedEnsemble(self.finished, classes=self.train_data.classes, threat=self.threat)
        part = recipe.sampling
        if part.method == "exact" and self.method.choice != "exact":
            part = part.model_copy(update={"method": self.method.choice})
        choice = choose(rec, self.held_x, self.held_y, self._attack(), part, self.crew)
        self.ledger.forwards += choice.verdict.forwards
        self.ledger.backwards += choice.verdict.backwards
        rec = RandomizedEnsemble(
            self.finished, choice.probs, classes=self.train_data.classes, threat=self.threat
        ).cpu()
        rec.requires_grad_(False).eval()
        if self.crew.writes:
            rec.save(self.run.ensemble, overwrite=True)
            profile = choice.verdict.pool.profile()
            uniform = np.full(len(rec), 1 / len(rec))
            self._log(event="finished", probs=choice.probs.tolist(), robust=1 - choice.verdict.risk,
                      natural=1 - choice.verdict.natural)  # fmt: skip
            self.run.write("training", {
                "finished": True,
                "method": recipe.method,
                "members": len(rec),
                "probs": choice.probs.tolist(),
                "validation": {
                    "images": len(self.held_y),
                    "attack": self._attack().name,
                    "natural_accuracy": 1 - choice.verdict.natural,
                    "robust_accuracy": 1 - choice.verdict.risk,
                    "robust_accuracy_uniform": 1 - profile.risk(uniform),
                    "member_robust_accuracies": (1 - profile.member_risks).tolist(),
                    "member_natural_accuracies": (1 - choice.verdict.clean_risks).tolist(),
                },
                "cost": {"forwards": self.ledger.forwards, "backwards": self.ledger.backwards,
                         "seconds": self.ledger.seconds + time.monotonic() - self.saved_at},
            })  # fmt: skip
        if self.board is not None:
            self.board.close()
        self.crew.barrier()
        return rec

    # Members

    def _fresh(self, index: int) -> nn.Module:
        """Member number `index` with weights of its own seed, on the device, in channels_last."""
        member = make_member(self.recipe, self.train_data, self.mean_std, index)
        if self.recipe.channels_last:
            member.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return member.to(self.crew.device)

    def _freeze(self, member: nn.Module) -> None:
        member.requires_grad_(False).eval()
        self.forwards[id(member)] = self._forward(self._compiled(member))

    def _compiled(self, member: nn.Module) -> Any:
        return torch.compile(member) if self.recipe.compile else member

    def _forward(self, member: Forward) -> Forward:
        def forward(x: Tensor) -> Tensor:
            with self.arithmetic():
                z = member(x)
            return z.float()

        return forward

    def _layout(self, x: Tensor) -> Tensor:
        return to_layout(x) if self.recipe.channels_last else x.contiguous()

    def _victims(self, stage: Stage) -> Victims:
        members, probs = self.method.victims(self.finished, stage.trained, stage.probs)
        weights = torch.from_numpy(np.array(probs)).to(self.crew.device)
        raw = {id(member): self._forward(self._compiled(member)) for member in stage.trained}
        return Victims.of(members, weights, [raw.get(id(m), self.forwards[id(m)]) for m in members])

    def _adversary(self, stage: Stage) -> Adversary:
        level = "kl" if self.recipe.loss.name == "trades" else self.method.level
        if len(self.finished) + len(stage.trained) == 1 and level != "kl":
            level = "loss"  # every level is the same for one member; this one is the cheapest
        return adversary(self.recipe.adversary, self.threat, level)

    def _attack(self) -> attacks.Attack:
        part = self.recipe.validation
        name = self.method.attack or part.attack
        options = {"steps": part.steps} if _has_steps(name, self.threat) else {}
        return attacks.create(
            name, self.threat, seed=self.recipe.seed, precision=self.recipe.precision, **options
        )

    def _average_buffers(self, stage: Stage) -> None:
        """BatchNorm statistics that ranks gathered on their own parts become one."""
        if self.crew.world == 1:
            return
        for member in {id(m): m for m in [*stage.trained, *stage.averaged]}.values():
            for buffer in member.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.crew.total(buffer.clone()) / self.crew.world)

    # Positions, checkpoints, metrics

    def _number(self) -> int:
        done, number = 0, 0
        while done < len(self.finished):
            done, number = done + self.sizes[number], number + 1
        return number

    def _generator(self, *purpose: object) -> torch.Generator:
        return torch.Generator().manual_seed(_seed(self.recipe.seed, *purpose))

    def _where(self, stage: Stage) -> str:
        return f"member {len(self.finished) + 1}, epoch {stage.epoch + 1}, step {stage.step}"

    def _save_if_due(self, stage: Stage) -> None:
        if self.crew.writes and time.monotonic() - self.saved_at >= self.recipe.checkpoint.seconds:
            self._save(stage)

    def _save(self, stage: Stage | None) -> None:
        """Write a checkpoint; a state with NaN in it never replaces a good one."""
        if not self.crew.writes:
            return
        now = time.monotonic()
        self.ledger.seconds += now - self.saved_at
        self.saved_at = now
        tensors: dict[str, Tensor] = {}
        for index, member in enumerate(self.finished):
            tensors.update(_prefixed(f"finished.{index}", member.state_dict()))
        position: dict[str, Any] = {
            "finished": len(self.finished),
            "ledger": asdict(self.ledger),
            "stage": None,
        }
        if stage is not None:
            for index, member in enumerate(stage.trained):
                tensors.update(_prefixed(f"trained.{index}", member.state_dict()))
            if stage.averaged is not stage.trained:
                for index, member in enumerate(stage.averaged):
                    tensors.update(_prefixed(f"averaged.{index}", member.state_dict()))
            for index, parameter in enumerate(_parameters(stage)):
                momentum = stage.optimizer.state.get(parameter, {}).get("momentum_buffer")
                if momentum is not None:
                    tensors[f"momentum.{index}"] = momentum
            if stage.best is not None:
                for index, state in enumerate(stage.best.states):
                    tensors.update(_prefixed(f"best.{index}", state))
            position["stage"] = _position(stage, self.batches)
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise self._diverged(stage, f"the tensor {name} is not finite")
        self.checkpoints.save(Checkpoint(tensors, position))

    def _resume(self) -> Stage | None:
        """The state of the newest whole checkpoint; None where a stage is to be begun."""
        checkpoint, faults = self.checkpoints.load()
        for fault in faults:
            self.say(fault)
        if checkpoint is None:
            self._rewind_metrics()
            return None
        tensors, position = checkpoint.tensors, checkpoint.position
        try:
            for index in range(position["finished"]):
                member = self._fresh(index)
                member.load_state_dict(_part(tensors, f"finished.{index}"))
                self._freeze(member)
                self.finished.append(member)
            self.ledger = Ledger(**position["ledger"])
            self._rewind_metrics()
            stage = None
            if position["stage"] is not None:
                stage = self._restore(tensors, position["stage"])
                self.say(f"continuing after {self._where(stage)}")
            elif self.finished:
                self.say(f"continuing after member {len(self.finished)}")
            return stage
        except (RuntimeError, KeyError, IndexError) as error:
            reason = " ".join(str(error).split())[:160]
            raise InputError(
                f"the checkpoint in {self.checkpoints.folder} does not fit this recipe: {reason}"
            ) from error

    def _restore(self, tensors: Any, position: dict[str, Any]) -> Stage:
        number = self._number()
        before = len(self.finished)
        trained = [self._fresh(before + k) for k in range(self.sizes[number])]
        for index, member in enumerate(trained):
            member.load_state_dict(_part(tensors, f"trained.{index}"))
        stage = self._stage_of(number, trained)
        if stage.averaged is not stage.trained:
            for index, member in enumerate(stage.averaged):
                member.load_state_dict(_part(tensors, f"averaged.{index}"))
        for index, parameter in enumerate(_parameters(stage)):
            if f"momentum.{index}" in tensors:
                momentum = torch.empty_like(parameter).copy_(tensors[f"momentum.{index}"])
                stage.optimizer.state[parameter] = {"momentum_buffer": momentum}
        stage.probs = np.array(position["probs"])
        stage.epoch = position["epoch"]
        stage.watch = Watch(**position["watch"])
        if position["batches"] == self.batches:
            stage.step, stage.losses = position["step"], np.array(position["losses"])
            stage.correct, stage.images = position["correct"], position["images"]
        if position["best"] is not None:
            states = [
                {k: v.to(self.crew.device) for k, v in _part(tensors, f"best.{i}").items()}
                for i in range(len(trained))
            ]
            best = position["best"]
            stage.best = Best(best["risk"], best["natural"], best["epoch"], np.array(best["probs"]), states)
        return stage

    def _diverged(self, stage: Stage, reason: str) -> Diverged:
        kept = "the last good state is kept" if self.checkpoints.files() else "no checkpoint was written yet"
        return Diverged(
            f"training diverged at {self._where(stage)}: {reason}; {kept} in {self.checkpoints.folder}; "
            "lower optimizer.lr (--set optimizer.lr=… --force continues from there)"
        )

    def _log(self, **values: Any) -> None:
        if not self.crew.writes:
            return
        self.run.log(**values)
        self.ledger.lines += 1
        if self.board is not None and values["event"] == "epoch":
            step = self.ledger.lines
            for key in ("accuracy", "natural", "robust"):
                if key in values:
                    self.board.add_scalar(f"member-{values['member']}/{key}", values[key], values["epoch"])
            self.board.add_scalar("loss", float(np.mean(values["loss"])), step)

    def _rewind_metrics(self) -> None:
        """Drop the lines written after the checkpoint: those epochs are run again."""
        path = self.run.path / "metrics.jsonl"
        if self.crew.writes and path.exists():
            lines = path.read_bytes().splitlines(keepends=True)[: self.ledger.lines]
            write_atomic(path, b"".join(lines))

    def _tell(self, stage: Stage, epochs: int) -> None:
        """Progress of the epoch, the member and the run, in units of planned work."""
        steps = stage.epoch * self.batches + stage.step
        if stage.step:
            self.progress("epoch", stage.step, self.batches)
        self.progress("member", steps, epochs * self.batches)
        weights = [(s.crafting + s.training) * s.epochs for s in self.plan]
        done = sum(weights[: stage.number]) + weights[stage.number] * steps / (epochs * self.batches)
        self.progress("run", done, sum(weights))


def make_member(
    recipe: Recipe, train_data: ImageData, mean_std: tuple[list[float], list[float]] | None, index: int
) -> models.Classifier:
    """Member number `index` of a recipe, with weights of its own seed."""
    mean, std = mean_std if mean_std is not None else (None, None)
    return models.create(
        recipe.model.name,
        classes=len(train_data.classes),
        input_shape=train_data.shape,
        mean=mean,
        std=std,
        seed=_seed(recipe.seed, "member", index),
        **network(recipe),
    )


def _seed(*purpose: object) -> int:
    """A seed that depends on what it is for, and on nothing else."""
    return int.from_bytes(hashlib.sha256(repr(purpose).encode()).digest()[:7], "big")


def _floored(probs: Weights, floor: float) -> Weights:
    """α with at least floor/m for the last member, taken from the others in proportion."""
    least = floor / len(probs)
    if probs[-1] >= least:
        return probs
    others: Weights = probs[:-1] / probs[:-1].sum() * (1 - least)
    return np.append(others, least)


def _augment(recipe: Recipe) -> Augment | None:
    part = recipe.data
    return Augment(part.crop_padding, part.flip) if part.crop_padding or part.flip else None


def _has_steps(name: str, threat: Any) -> bool:
    return hasattr(attacks.create(name, threat), "steps")


def _board(run: Run) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "tensorboard is true, but it is not installed: pip install 'randens[tensorboard]'"
        ) from None
    return SummaryWriter(str(run.path / "tensorboard"))


def _parameters(stage: Stage) -> list[nn.Parameter]:
    return [p for member in stage.trained for p in member.parameters()]


def _prefixed(prefix: str, state: dict[str, Any]) -> dict[str, Tensor]:
    return {f"{prefix}.{key}": value for key, value in state.items()}


def _part(tensors: Any, prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{prefix}.")}


def _position(stage: Stage, batches: int) -> dict[str, Any]:
    best = stage.best
    return {
        "epoch": stage.epoch,
        "step": stage.step,
        "batches": batches,
        "probs": stage.probs.tolist(),
        "losses": stage.losses.tolist(),
        "correct": stage.correct,
        "images": stage.images,
        "watch": asdict(stage.watch),
        "best": None
        if best is None
        else {"risk": best.risk, "natural": best.natural, "epoch": best.epoch, "probs": best.probs.tolist()},
    }


def _first_member(recipe: Recipe, train_data: ImageData) -> nn.Module | None:
    """The shared first member, from a run folder or an ensemble folder; another network is refused."""
    if recipe.first is None:
        return None
    folder = Path(recipe.first)
    rec = load(folder / "ensemble" if (folder / "ensemble").is_dir() else folder)
    member = rec.members[0]
    mean_std = train_data.mean_std() if recipe.model.normalise else None
    wanted = make_member(recipe, train_data, mean_std, 0).architecture
    given = getattr(member, "architecture", None)
    if given != wanted:
        said = difference(given or {}, wanted)
        raise InputError(f"first is {recipe.first!r}, a network of another architecture: {'; '.join(said)}")
    return member


def _open(recipe: Recipe, folder: Path, say: Say, force: bool) -> None:
    """Create the run folder, or check that what is there is this recipe's."""
    _clean(folder)
    if not folder.exists():
        Run.create(folder, kind="training", recipe=recipe.to_json(), seed=recipe.seed)
        return
    run = Run.open(folder)
    if run.manifest.get("kind") != "training":
        raise FileError(f"{folder} is a run of another kind; choose another folder")
    said = difference(run.manifest["recipe"], recipe.to_json())
    if not said:
        return
    if not force:
        raise InputError(
            f"{folder} was started with another recipe ({'; '.join(said)}); "
            "choose another folder with --out, or continue with the new recipe by --force"
        )
    say(f"continuing with a changed recipe: {'; '.join(said)}")
    history = [*run.manifest.get("earlier_recipes", []), run.manifest["recipe"]]
    run.write("manifest", {**run.manifest, "recipe": recipe.to_json(), "earlier_recipes": history})
    if (folder / "training.json").exists():
        (folder / "training.json").unlink()


def _clean(folder: Path) -> None:
    """Remove what a killed process left half done: temporary files, and a folder that never got its manifest."""
    if not folder.is_dir():
        return
    for place in (folder, folder / "checkpoints"):
        for left in [*place.glob(".*.tmp"), *place.glob(".*.old")] if place.is_dir() else []:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _finished(run: Run) -> bool:
    path = run.path / "training.json"
    return path.exists() and run.ensemble.is_dir() and bool(read_json(path).get("finished"))


def _mute(text: str) -> None:
    """The default: say nothing."""
