"""The training engine of all methods: stages, epochs, batches, adversarial examples, steps.

The rule for α is `randens.training.alpha`, the rule for checkpoints `randens.training.selection`. All random
numbers come from generators that are seeded by their purpose and their place in the run, never from torch's
global generator. So a run that was killed and continued uses the same random numbers as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens.callbacks import Callback, TensorBoardTracker
from randens.core.devices import widest
from randens.core.distributed import Workers
from randens.core.errors import InputError, RandensError
from randens.core.progress import Progress
from randens.core.runs import Run
from randens.data import Augment, Data
from randens.ensemble import RandomizedEnsemble, frozen, to_layout
from randens.training.adversaries import Adversary, Start, Victims, adversary
from randens.training.alpha import AlphaRule
from randens.training.cost import plan
from randens.training.initial_members import Blueprint, seed_for
from randens.training.journal import Journal
from randens.training.losses import Forward, passes, training_loss
from randens.training.methods import METHODS, Lesson, Roster
from randens.training.placement import Placement
from randens.training.run_files import write_summary
from randens.training.schedule import learning_rate
from randens.training.selection import CheckpointRule
from randens.training.state import Stage, part, restore, sgd
from randens.training.validation import directions
from randens.training.weight_average import average
from randens.witness.store import WitnessStore

__all__ = ["Engine", "Say", "Stopped"]

Say = Callable[[str], None]


class Stopped(RandensError):
    """The run was asked to stop, and its state is saved."""


class Engine:
    """A run in progress; see `randens.training.train`."""

    def __init__(
        self,
        blueprint: Blueprint,
        run: Run,
        processes: Workers,
        train_data: Data,
        held: Data,
        given: list[nn.Module],
        progress: Progress,
        say: Say,
        stop: Callable[[], bool] | None,
        callbacks: Sequence[Callback],
    ) -> None:
        recipe = blueprint.recipe
        self.recipe, self.run, self.processes, self.train_data = recipe, run, processes, train_data
        self.say, self.stop = say, stop
        self.place = Placement(blueprint, processes)
        self.given = [self.place.still(member) for member in given]
        self.finished: list[nn.Module] = []
        self.threat = recipe.threat.build()
        self.method = METHODS[recipe.method](recipe.weight)
        self.inherits = recipe.start == "previous" or (recipe.start == "auto" and self.method.inherits)
        self.sizes = self.method.stages(recipe.members)
        self.loss, crops = training_loss(recipe.loss), recipe.data
        self.augment = Augment(crops.crop_padding, crops.flip) if crops.crop_padding or crops.flip else None
        self.batches = math.ceil(len(train_data) / recipe.batch_size)
        # Batches of equal size, so that no epoch ends with a batch of a few images.
        bounds = np.linspace(0, len(train_data), self.batches + 1).round()
        self.bounds: list[int] = bounds.astype(int).tolist()
        self.held = held[: recipe.validation.size or len(held)]
        self.checkpoints = CheckpointRule(recipe, self.method, self.held)
        self.alpha = AlphaRule(recipe, self.method, train_data, self.held)
        board = (
            [TensorBoardTracker(run.path / "tensorboard")] if recipe.tensorboard and processes.writes else []
        )
        told = [*(callbacks if processes.writes else ()), *board]
        work = [stage.work for stage in plan(recipe)]
        self.journal = Journal(run, processes, recipe.checkpoint.seconds, self.batches, work, progress, told)

    def run_all(self) -> RandomizedEnsemble:
        """Run every unfinished stage, choose α, and save the ensemble."""
        stage = self._resume()
        if len(self.finished) > self.recipe.members:
            raise InputError(
                f"members is {self.recipe.members}; {self.run.path} holds {len(self.finished)} already"
            )
        while stage is not None or len(self.finished) < sum(self.sizes):
            stage = stage or self._begin()
            self._run_stage(stage)
            self._conclude(stage)
            stage = None
        return self._finish()

    def _begin(self) -> Stage:
        """Create the next stage, with its members initialised by the method."""
        before = len(self.finished)
        number = next(n for n in range(len(self.sizes) + 1) if sum(self.sizes[:n]) >= before)
        trained = []
        for index in range(before, before + self.sizes[number]):
            source = None
            if index < len(self.given):
                source = self.given[index]
            elif self.inherits and self.finished:
                source = self.finished[-1]
            trained.append(self.place.new(index, None if source is None else source.state_dict()))
        for member in trained:
            self.processes.prepare(member, self.recipe.batch_norm == "synced").train()
        averaged = [self.place.new(state=m.state_dict()) for m in trained] if self.recipe.ema else trained
        probs = self.alpha.start(before + len(trained))
        return Stage(number, before, trained, averaged, sgd(trained, self.recipe.optimizer), probs)

    def _run_stage(self, stage: Stage) -> None:
        """Run the epochs of a stage until the end, or until the checkpoint rule stops it early."""
        if self.journal.work[stage.number] == 0:
            return  # given by an earlier run
        epochs = self.recipe.epochs_of(stage.number)
        wrapped = self.place.wrapped(stage.trained)
        while stage.epoch < epochs and self.checkpoints.goes_on(stage):
            begun = time.monotonic()
            self._run_epoch(stage, epochs, wrapped)
            self._judge(stage, epochs, begun)
            stage.next_epoch()
            self.journal.save_if_due(self.finished, stage)
            self.journal.tell(stage, epochs)

    def _run_epoch(self, stage: Stage, epochs: int, wrapped: list[Forward]) -> None:
        generator = self._generator("order", stage.number, stage.epoch)
        order = torch.randperm(len(self.train_data), generator=generator)
        craft = self._adversary(stage)
        victims = self.place.victims(self.method, Roster(self.finished, stage.trained, stage.probs))
        while stage.step < self.batches:
            rows = order[self.bounds[stage.step] : self.bounds[stage.step + 1]]
            self._run_step(stage, rows, craft, victims, wrapped, self._rate(stage, epochs))
            stage.step += 1
            if self.stop is not None and self.processes.agreed(self.stop()):
                self.journal.save(self.finished, stage)
                raise Stopped(
                    f"stopped after {stage.where}; the state is saved in {self.run.path}, "
                    "and the same command continues"
                )
            self.journal.save_if_due(self.finished, stage)
            self.journal.tell(stage, epochs)

    def _run_step(
        self,
        stage: Stage,
        rows: Tensor,
        craft: Adversary,
        victims: Victims,
        wrapped: list[Forward],
        rate: float,
    ) -> None:
        """Process one batch: craft adversarial examples, then make one step of every trained member on them."""
        where = (stage.number, stage.epoch, stage.step)
        generator = self._generator("batch", *where)
        x, y = self.train_data[rows]
        if self.augment is not None:
            x = self.augment(x, generator)
        # Drawn for the whole batch by every rank; each keeps its part.
        point = craft.begin(x, generator)
        own, device = self.processes.part(len(x)), self.processes.device
        x, y, point = to_layout(x[own]).to(device), y[own].to(device), to_layout(point[own]).to(device)
        with contextlib.ExitStack() as crafting:
            for member in stage.trained:
                crafting.enter_context(frozen(member))
            seed = seed_for(self.recipe.seed, "arc", *where, self.processes.rank)
            made = self.method.examples(craft, victims, Start(x, y, point, seed), len(wrapped))
        x_adv = [to_layout(points.detach()) for points in made]
        lesson = Lesson(x, y, x_adv, wrapped)
        total = torch.zeros((), device=device)
        sums = widest(torch.zeros(len(wrapped) + 1), device)
        for index, (losses, z) in enumerate(self.method.losses(self.loss, lesson)):
            total = total + losses.sum()
            sums[index] = losses.detach().sum()
            sums[-1] += (z.detach().argmax(dim=1) == y).sum() / len(wrapped)
        sums = self.processes.total(sums)
        if not bool(torch.isfinite(sums).all()):
            raise self.journal.diverged(stage, "the loss is not finite")
        for group in stage.optimizer.param_groups:
            group["lr"] = rate
        stage.optimizer.zero_grad(set_to_none=True)
        # Ranks average their gradients, so each contributes its share of the whole batch's mean.
        self.processes.backward(total * (self.processes.world / len(rows)))
        stage.optimizer.step()
        if self.recipe.ema:
            for target, member in zip(stage.averaged, stage.trained, strict=True):
                average(target, member, self.recipe.ema, stage.epoch * self.batches + stage.step)
        *member_losses, correct = sums.tolist()
        stage.tally = stage.tally.plus(np.array(member_losses), correct, len(rows))
        spent = len(rows) * (craft.passes(len(victims.probs)) + passes(self.recipe.loss) * len(wrapped))
        self.journal.spent.spend(spent, spent)
        means = [value / len(rows) for value in (*member_losses, correct)]
        shown = {"loss": sum(means[:-1]) / len(wrapped), "accuracy": means[-1], "lr": rate}
        self.journal.batch(stage, shown)
        if (stage.step + 1) % self.recipe.log_every == 0:
            self.journal.log("step", stage, step=stage.step + 1, lr=rate, loss=means[:-1], accuracy=means[-1])

    def _judge(self, stage: Stage, epochs: int, begun: float) -> None:
        """End an epoch: update α, validate under attack, keep the best checkpoint, check for early stopping."""
        done, spend = stage.epoch + 1, self.journal.spend
        losses, accuracy = stage.tally.losses / stage.tally.images, stage.tally.correct / stage.tally.images
        stage.probs = self.alpha.descended(stage.probs, losses)
        line: dict[str, Any] = {"loss": losses.tolist(), "accuracy": accuracy}
        reweigh = self.alpha.due(len(stage.probs), done, epochs)
        if reweigh or self.checkpoints.due(done, epochs):
            self.place.average_buffers([*stage.trained, *stage.averaged])
            if reweigh:
                rec = self.method.judged(Roster(self.finished, stage.averaged, stage.probs))
                stage.probs = spend(self.alpha.reweighed(rec, self._rate(stage, epochs))).probs
            verdict = spend(self.checkpoints.judged(Roster(self.finished, stage.averaged, stage.probs)))
            line.update(natural=1 - verdict.natural, robust=1 - verdict.risk)
            reach = directions([*self.finished, *stage.averaged], *self.held, self.threat)
            if reach is not None:
                line["reach"] = spend(reach).to_json()["reach"]
            stage.best = self.checkpoints.kept(stage, verdict)
            for remark in self.checkpoints.remarks(stage, verdict, accuracy):
                self.say(f"{stage.where}: {remark.sentence}")
                self.journal.log(remark.event, stage, **remark.values)
        seconds = time.monotonic() - begun
        self.journal.log("epoch", stage, **line, probs=stage.probs.tolist(), seconds=seconds)

    def _conclude(self, stage: Stage) -> None:
        """Finish the members of a stage: best weights, frozen, in eval mode."""
        best = stage.best
        states = best.states if best is not None else [m.state_dict() for m in stage.averaged]
        self.place.forget()
        self.add_finished(states)
        if best is not None:
            kept = {"best_epoch": best.epoch + 1, "robust": 1 - best.risk, "natural": 1 - best.natural}
            self.journal.log("member", stage, **kept, probs=best.probs.tolist())
        self.journal.save(self.finished, None)

    def _finish(self) -> RandomizedEnsemble:
        """Choose α for the whole ensemble and save the ensemble."""
        classes = self.train_data.classes or None
        rec = RandomizedEnsemble(self.finished, classes=classes, threat=self.threat)
        # The members are final here, so the witnesses are stored.
        choice = self.journal.spend(self.alpha.final(rec, WitnessStore(self.run.path / "witnesses")))
        rec = RandomizedEnsemble(self.finished, choice.probs, classes=classes, threat=self.threat).cpu()
        if self.processes.writes:
            rec.save(self.run.ensemble, overwrite=True)
            self.run.log(event="finished", probs=choice.probs.tolist(), robust=1 - choice.risk)
            reach = directions(list(rec.members), *self.held, self.threat)
            measured = choice.summary(self.alpha.oracle.name, reach and self.journal.spend(reach))
            write_summary(self.run, self.recipe.method, choice.probs, measured, self.journal.cost())
        for callback in self.journal.callbacks:
            callback.finished("training", {"natural": 1 - choice.natural, "robust": 1 - choice.risk})
        self.processes.barrier()
        return rec

    def _resume(self) -> Stage | None:
        """Return the state of the newest undamaged checkpoint; None if a new stage begins."""
        checkpoints = self.journal.checkpoints
        checkpoint, faults = checkpoints.load()
        for fault in faults:
            self.say(fault)
        stage = None
        if checkpoint is not None:
            try:
                indices = range(checkpoint.position["finished"])
                self.add_finished([part(checkpoint.tensors, f"finished.{index}") for index in indices])
                # If the recipe now has fewer members, the run ends with the finished ones.
                if checkpoint.position["stage"] is not None and len(self.finished) < self.recipe.members:
                    stage = self._begin()
                    restore(stage, checkpoint, self.batches)
            except (RuntimeError, KeyError, IndexError, StopIteration) as error:
                reason = " ".join(str(error).split())[:160]
                raise InputError(
                    f"the checkpoints in {checkpoints.folder} do not fit this recipe: {reason}"
                ) from error
            if stage is not None or self.finished:
                last = f"member {len(self.finished)}"
                self.say(f"continuing after {last if stage is None else stage.where}")
        self.journal.rewind(checkpoint)
        return stage

    def add_finished(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Add members with these weights to the finished ones."""
        self.finished += [self.place.still(self.place.new(state=state)) for state in states]

    def _adversary(self, stage: Stage) -> Adversary:
        level = "kl" if self.recipe.loss.name == "trades" else self.method.level
        if len(stage.probs) == 1 and level != "kl":
            level = "loss"  # with one member all levels are the same, so f_1 is the same for every method
        warmup = 0 if self.inherits and self.finished else self.recipe.adversary.warmup
        radius = min(1.0, (stage.epoch + 1) / (warmup + 1))
        return adversary(self.recipe.adversary, self.threat.scaled(radius), level)

    def _generator(self, *purpose: object) -> torch.Generator:
        return torch.Generator().manual_seed(seed_for(self.recipe.seed, *purpose))

    def _rate(self, stage: Stage, epochs: int) -> float:
        step = stage.epoch * self.batches + stage.step
        base = self.recipe.lr_of(stage.number)
        return learning_rate(self.recipe.schedule, base, step, self.batches, epochs)
