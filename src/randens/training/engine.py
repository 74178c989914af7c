"""The engine of all methods. Random numbers depend on purpose and place in the run only, so that it can continue."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens.attacks.members import folded
from randens.callbacks import Callback
from randens.core.devices import Workers
from randens.core.errors import FileError, InputError, ModelError, RandensError
from randens.core.files import read_file, write_atomic
from randens.core.progress import Progress
from randens.core.runs import LARGEST_METRICS, Run
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, frozen, to_layout
from randens.training import checkpoint, losses
from randens.training.alpha import AlphaRule, Validated, attacked, validation_attack
from randens.training.augment import Augment
from randens.training.checkpoint import Best, Spent, Stage
from randens.training.losses import Adversary, AttackedMembers, Forward, Start
from randens.training.methods import METHODS, Batch, StageMembers, Weights
from randens.training.recipe import Recipe


class Stopped(RandensError):
    """The run was asked to stop, and its state is saved."""


class Diverged(ModelError):
    """The loss or the weights are no longer finite; the last good checkpoint is kept."""


@dataclass(frozen=True)
class Session:
    """Where a run is written, by which processes, and what reports on it; `work` are the stages' planned passes."""

    run: Run
    processes: Workers
    progress: Progress
    say: Callable[[str], None]
    stop: Callable[[], bool] | None
    callbacks: Sequence[Callback]
    work: Sequence[int]


class Engine:
    """A run in progress; see `randens.training.train`. `new` makes member number i with its fresh weights."""

    def __init__(
        self,
        recipe: Recipe,
        session: Session,
        data: tuple[Data, Data],
        new: Callable[[int], nn.Module],
        given: Sequence[nn.Module],
    ) -> None:
        self.recipe, self.session, self.fresh = recipe, session, new
        self.processes, self.device = session.processes, session.processes.device
        self.train_data, held = data
        # Weights, losses and verdicts are float32; passes are bfloat16 where that is asked for, or native: only CUDA
        # GPUs are trusted to say so.
        native = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        self.low_precision = recipe.precision == "bfloat16" or (recipe.precision == "auto" and native)
        self.given, self.finished = given, list[nn.Module]()
        self.best_probs: Weights | None = None
        self.threat = recipe.threat.build()
        self.method = METHODS[recipe.method](recipe.weight)
        self.inherits = recipe.start == "previous" or (recipe.start == "auto" and self.method.inherits)
        self.sizes, self.loss = self.method.stages(recipe.members), losses.training_loss(recipe.loss)
        moves = (recipe.data.crop_padding, recipe.data.flip, recipe.data.rotation)
        self.augment = Augment(*moves) if any(moves) else None
        self.batches = math.ceil(len(self.train_data) / recipe.batch_size)
        # Batches of equal size, so that no epoch ends with a batch of a few images.
        bounds = np.linspace(0, len(self.train_data), self.batches + 1)
        self.bounds: list[int] = bounds.round().astype(int).tolist()
        self.held = held[: recipe.validation.size or len(held)]
        self.attack = validation_attack(recipe, self.method.attack or recipe.validation.attack)
        rows = torch.randperm(len(self.train_data), generator=self._generator("osp"))[: recipe.sampling.size]
        chosen = self.train_data[rows] if recipe.sampling.data == "train" else self.held
        self.alpha = AlphaRule(recipe, self.method, chosen, self.held)
        self.spent, self.saved_at = Spent(), time.monotonic()
        self.forwards: dict[nn.Module, Forward] = {}

    def run_all(self) -> RandomizedEnsemble:
        """Run every unfinished stage, choose α, and save the ensemble."""
        stage = self._resume()
        members, held = self.recipe.members, len(self.finished)
        if held > members:
            raise InputError(f"members is {members}; {self.session.run.path} holds {held} already")
        while stage is not None or len(self.finished) < sum(self.sizes):
            stage = stage or self._begin()
            self._run_stage(stage)
            self._conclude(stage)
            stage = None
        return self._finish()

    def _begin(self) -> Stage:
        """The next stage, with its members initialized by the method."""
        before = len(self.finished)
        number = next(n for n in range(len(self.sizes) + 1) if sum(self.sizes[:n]) >= before)
        trained = []
        for index in range(before, before + self.sizes[number]):
            sources = self.given[index : index + 1] or (self.finished[-1:] if self.inherits else [])
            trained.append(self._new(index, sources[0].state_dict() if sources else None))
        if self.processes.world > 1 and self.device.type == "cuda":
            synced: Any = nn.SyncBatchNorm
            trained = [synced.convert_sync_batchnorm(member) for member in trained]
        for member in trained:
            member.train()
        averaged = [self._new(state=m.state_dict()) for m in trained] if self.recipe.ema else trained
        probs = self.alpha.start(before + len(trained))
        steps = losses.optimizer(trained, self.recipe.optimizer)
        epochs = self.recipe.epochs_of(number)
        return Stage(number, before, epochs, self.batches, trained, averaged, steps, probs)

    def _run_stage(self, stage: Stage) -> None:
        """Run the epochs of a stage until the end, or until early stopping."""
        if self.session.work[stage.number] == 0:
            return  # given by an earlier run
        wrapped = [self._forward(member, self.processes.wrap) for member in stage.trained]
        while stage.epoch < stage.epochs and stage.stopping.overfit < self.recipe.validation.patience:
            begun = time.monotonic()
            self._run_epoch(stage, wrapped)
            self._validate(stage, begun)
            stage.next_epoch()
            self._after_step(stage)

    def _run_epoch(self, stage: Stage, wrapped: list[Forward]) -> None:
        craft = self._adversary(stage)
        members = self._attacked(StageMembers(self.finished, stage.trained, stage.probs))
        for x, y in self._loaded(stage):
            self._run_step(stage, x, y, craft, members, wrapped)
            stage.step += 1
            if self.session.stop is not None and self.processes.agreed(self.session.stop()):
                self._save(stage)
                raise Stopped(
                    f"stopped after {stage.where}; the state is saved in {self.session.run.path}, "
                    "and the same command continues"
                )
            self._after_step(stage)

    def _loaded(self, stage: Stage) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch that are left, in an order of the epoch's own."""
        generator = self._generator("order", stage.number, stage.epoch)
        order = torch.randperm(len(self.train_data), generator=generator)
        rows = [order[a:b] for a, b in zip(self.bounds, self.bounds[1:], strict=False)][stage.step :]
        # Without a batch size, the loader asks the data for all rows of a batch at once.
        yield from torch.utils.data.DataLoader(
            self.train_data,
            sampler=rows,
            batch_size=None,
            num_workers=self.recipe.data.workers,
            # The loader draws its workers' seeds from it, and must not touch torch's own generator.
            generator=generator,
        )

    def _run_step(
        self,
        stage: Stage,
        x: Tensor,
        y: Tensor,
        craft: Adversary,
        members: AttackedMembers,
        wrapped: list[Forward],
    ) -> None:
        """Craft adversarial examples for one batch, then make one step of every trained member on them."""
        where, images = (stage.number, stage.epoch, stage.step), len(x)
        generator = self._generator("batch", *where)
        if self.augment is not None:
            x = self.augment(x, generator)
        # Random starts are drawn for the whole batch by every rank; each keeps its part.
        point, own = craft.begin(x, generator), self.processes.part(images)
        x, point = (to_layout(part[own]).to(self.device) for part in (x, point))
        y = y[own].to(self.device)
        seed = seed_for(self.recipe.seed, "arc", *where, self.processes.rank)
        start = Start(x, y, point, seed, (own.start, images), self._count)
        with contextlib.ExitStack() as crafting:
            for member in stage.trained:
                crafting.enter_context(frozen(member))
            made = self.method.examples(craft, members, start, len(wrapped))
        batch = Batch(x, y, [to_layout(points.detach()) for points in made], wrapped, start.place)
        total = torch.zeros((), device=self.device)
        sums = torch.zeros(len(wrapped) + 1, dtype=torch.float64, device=self.device)
        for index, (values, z) in enumerate(self.method.losses(self.loss, batch)):
            total = total + values.sum()
            sums[index] = values.detach().sum()
            sums[-1] += (z.detach().argmax(dim=1) == y).sum() / len(wrapped)
        sums = self.processes.total(sums)
        if not bool(torch.isfinite(sums).all()):
            raise self._diverged(stage, "the loss is not finite")
        rate = self._rate(stage)
        for group in stage.optimizer.param_groups:
            group["lr"] = rate
        stage.optimizer.zero_grad(set_to_none=True)
        # Averaged over ranks afterwards, hence the factor.
        (total * (self.processes.world / images)).backward()  # type: ignore[no-untyped-call]
        stage.optimizer.step()
        if self.recipe.ema:
            for target, member in zip(stage.averaged, stage.trained, strict=True):
                losses.average(target, member, self.recipe.ema, stage.steps)
        *losses_of_members, correct = sums.tolist()
        stage.losses = stage.losses + np.array(losses_of_members)
        stage.correct, stage.images = stage.correct + correct, stage.images + images
        crafted = images * craft.passes(len(members.probs))
        trained = images * losses.passes(self.recipe.loss) * len(wrapped)
        self.spent.add(crafted + trained, crafted + trained, crafted, trained)
        means = [value / images for value in (*losses_of_members, correct)]
        for callback in self.session.callbacks:
            shown = {"loss": sum(means[:-1]) / len(wrapped), "accuracy": means[-1], "lr": rate}
            callback.batch(f"member-{stage.before + 1}", stage.step + 1, self.batches, shown)
        if (stage.step + 1) % self.recipe.log_every == 0:
            self._log("step", stage, step=stage.step + 1, lr=rate, loss=means[:-1], accuracy=means[-1])

    def _validate(self, stage: Stage, begun: float) -> None:
        """End an epoch: update α, validate by a fresh attack, keep the best checkpoint, check for early stopping."""
        done, every = stage.epoch + 1, self.recipe.validation.every
        means, accuracy = stage.losses / stage.images, stage.correct / stage.images
        stage.probs = self.alpha.descended(stage.probs, means)
        line: dict[str, Any] = {"loss": means.tolist(), "accuracy": accuracy}
        reweigh = self.alpha.due(len(stage.probs), done, stage.epochs)
        if reweigh or done == stage.epochs or done % every == 0:
            self._average_buffers([*stage.trained, *stage.averaged])
            if reweigh:
                rec = self.method.validated(StageMembers(self.finished, stage.averaged, stage.probs))
                stage.probs = self._spend(self.alpha.reweighed(rec, self._rate(stage))).probs
            rec = self.method.validated(StageMembers(self.finished, stage.averaged, stage.probs))
            found = self._spend(attacked(rec, *self.held, self.attack))
            line.update(natural=1 - found.natural, robust=1 - found.risk)
            self._keep_better(stage, found)
            if self.method.watched:
                self._watch(stage, found, accuracy)
        seconds = time.monotonic() - begun
        self._log("epoch", stage, **line, probs=stage.probs.tolist(), seconds=seconds)

    def _keep_better(self, stage: Stage, found: Validated) -> None:
        """Keep the better of the best epoch so far and this one; the later one if they are equal."""
        best, now = stage.best, (found.risk, found.natural)
        if best is None or self.recipe.validation.keep == "last" or now <= (best.risk, best.natural):
            probs = stage.probs.tolist()
            stage.best = Best(risk=found.risk, natural=found.natural, epoch=stage.epoch, probs=probs)
            stage.best_states = [{k: v.clone() for k, v in m.state_dict().items()} for m in stage.averaged]

    def _watch(self, stage: Stage, found: Validated, accuracy: float) -> None:
        """Check for catastrophic overfitting; `accuracy` is that on training examples."""
        part, watch = self.recipe.validation, stage.stopping
        # Only the members in training can lose robustness; they are the last of those attacked.
        robust = 1 - float(np.max(found.pool.profile().member_risks[-len(stage.trained) :]))
        watch.seen(robust, accuracy, part.collapse)
        if watch.overfit:
            stops = watch.overfit >= part.patience
            self.session.say(
                f"{stage.where}: catastrophic overfitting, accuracy under attack fell from {watch.best:.1%} to "
                f"{robust:.1%} while training accuracy rose to {accuracy:.1%}; "
                + ("training of this member stops, its best checkpoint is kept" if stops else "watching")
            )
            self._log("overfitting", stage, robust=robust, best=watch.best, stops=stops)

    def _conclude(self, stage: Stage) -> None:
        """Finish the members of a stage: best weights, frozen, in eval mode."""
        best = stage.best
        self.forwards.clear()
        if self.recipe.compile:
            # torch keeps a limited number of compiled versions of one function, for all members together.
            torch.compiler.reset()
        states = stage.best_states or [member.state_dict() for member in stage.averaged]
        self.finished += map(self._finished, states)
        if best is not None:
            self.best_probs = np.array(best.probs)
            kept = {"best_epoch": best.epoch + 1, "robust": 1 - best.risk, "natural": 1 - best.natural}
            self._log("member", stage, **kept, probs=best.probs)
        self._save(None)

    def _finish(self) -> RandomizedEnsemble:
        """Choose α for the whole ensemble and save the ensemble."""
        run, classes = self.session.run, self.train_data.classes
        rec = RandomizedEnsemble(self.finished, classes=classes, threat=self.threat)
        choice = self._spend(self.alpha.final(rec, self.best_probs))
        rec = RandomizedEnsemble(self.finished, choice.probs, classes=classes, threat=self.threat).cpu()
        if self.processes.is_main:
            rec.save(run.ensemble, overwrite=True)
            run.log(event="finished", probs=choice.probs.tolist(), robust=1 - choice.risk)
            self.spent.seconds += time.monotonic() - self.saved_at
            about = {"finished": True, "method": self.recipe.method, "members": len(choice.probs)}
            measured = {"validation": choice.summary(self.alpha.attack.name), "cost": self.spent.model_dump()}
            run.write("training", {**about, "probs": choice.probs.tolist(), **measured})
        for callback in self.session.callbacks:
            callback.finished("training", {"natural": 1 - choice.natural, "robust": 1 - choice.risk})
        self.processes.barrier()
        return rec

    def _resume(self) -> Stage | None:
        """The state of the newest undamaged checkpoint; None if a new stage begins."""
        folder, stage = self.session.run.path / "checkpoints", None
        found = checkpoint.load(folder)
        if found is not None:
            tensors, position, faults = found
            for fault in faults:
                self.session.say(fault)
            try:
                for index in range(position.finished):
                    state = checkpoint.state(tensors, f"finished.{index}", self.fresh(index))
                    self.finished.append(self._finished(state))
                # If the recipe now has fewer members, the run ends with the finished ones.
                if position.stage is not None and len(self.finished) < self.recipe.members:
                    stage = self._begin()
                    checkpoint.restore(stage, tensors, position.stage)
            except Exception as error:  # altered tensors make nearly anything fail
                reason = " ".join(str(error).split())[:160]
                fault = f"the checkpoints in {folder} do not fit this recipe or are damaged"
                raise FileError(f"{fault}: start again with --out ({reason})") from error
            self.spent = position.spent
            self.best_probs = None if position.probs is None else np.array(position.probs)
            if stage is not None or self.finished:
                last = f"member {len(self.finished)}" if stage is None else stage.where
                self.session.say(f"continuing after {last}")
        metrics = self.session.run.path / "metrics.jsonl"
        if self.processes.is_main and metrics.exists():
            # The steps after the checkpoint are run, and logged, again.
            kept = read_file(metrics, LARGEST_METRICS).splitlines(keepends=True)[: self.spent.lines]
            write_atomic(metrics, b"".join(kept))
        return stage

    def _after_step(self, stage: Stage) -> None:
        """Write a checkpoint if the last one is old enough, and report progress in units of planned work."""
        if time.monotonic() - self.saved_at >= self.recipe.checkpoint.seconds:
            self._save(stage)
        work, number, total = self.session.work, stage.number, stage.epochs * self.batches
        self.session.progress("epoch", stage.step or self.batches, self.batches)
        self.session.progress("member", stage.steps, total)
        self.session.progress("run", sum(work[:number]) + work[number] * stage.steps / total, sum(work))

    def _save(self, stage: Stage | None) -> None:
        """Write a checkpoint; a state that contains NaN never replaces a good one."""
        if not self.processes.is_main:
            return
        now = time.monotonic()
        self.spent.seconds += now - self.saved_at
        self.saved_at = now
        tensors, position = checkpoint.pack(self.finished, self.best_probs, stage, self.spent)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise self._diverged(stage, f"{name} is not finite")
        checkpoint.save(self.session.run.path / "checkpoints", tensors, position)

    def _log(self, event: str, stage: Stage, **values: Any) -> None:
        """A line of metrics.jsonl; members and epochs are counted from 1."""
        if not self.processes.is_main:
            return
        member, epoch = stage.before + 1, stage.epoch + 1
        self.session.run.log(event=event, member=member, epoch=epoch, **values)
        self.spent.lines += 1
        if event == "epoch":
            shown = ("loss", "accuracy", "natural", "robust")
            scalars = {key: float(np.mean(values[key])) for key in shown if key in values}
            for callback in self.session.callbacks:
                callback.epoch(f"member-{member}", epoch, scalars)

    def _diverged(self, stage: Stage | None, reason: str) -> Diverged:
        folder = self.session.run.path / "checkpoints"
        kept = "the last good state is kept" if folder.exists() else "no state was saved before that"
        return Diverged(
            f"training diverged at {stage.where if stage else 'the end of a member'}: {reason}; {kept} in {folder}; "
            "lower the rate (--set optimizer.lr=… --force continues from there)"
        )

    def _spend(self, found: Validated) -> Validated:
        self.spent.add(found.cost.forwards, found.cost.backwards, attacks=found.attacks)
        return found

    def _count(self, forwards: int, backwards: int) -> None:
        """Passes of an adversary that no plan foresees; the other ranks make about as many."""
        ranks = self.processes.world
        self.spent.add(ranks * forwards, ranks * backwards, crafting=ranks * backwards)

    def _adversary(self, stage: Stage) -> Adversary:
        level = "kl" if self.recipe.loss.name == "trades" else self.method.level
        if len(stage.probs) == 1 and level != "kl":
            level = "loss"  # with one member all levels are the same, so f_1 is the same for every method
        warmup = 0 if self.inherits and self.finished else self.recipe.adversary.warmup
        radius = min(1.0, (stage.epoch + 1) / (warmup + 1))
        return losses.adversary(self.recipe.adversary, self.threat.scaled(radius), level)

    def _attacked(self, stage: StageMembers) -> AttackedMembers:
        """The members that the training adversary attacks."""
        members, probs = self.method.attacked(stage)
        for member in members:
            if member not in self.forwards:
                # Finished members do not change, so their BatchNorm is folded into the convolutions once.
                few = to_layout(self.train_data[:4][0].to(self.device))
                fast = folded(member, few) if member in stage.finished else member
                self.forwards[member] = self._forward(fast)
        weights = torch.tensor(probs, dtype=torch.float64, device=self.device)
        return AttackedMembers.of(members, weights, [self.forwards[member] for member in members])

    def _new(self, index: int = 0, state: Mapping[str, Any] | None = None) -> nn.Module:
        """Member number `index` on the device, with the weights of `state` where that is given."""
        member = self.fresh(index).to(self.device)
        member.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if state is not None:
            member.load_state_dict(state)
        return member

    def _finished(self, state: Mapping[str, Tensor]) -> nn.Module:
        return self._new(state=state).requires_grad_(False).eval()

    def _average_buffers(self, members: Sequence[nn.Module]) -> None:
        """Average the BatchNorm statistics that the ranks gathered on their own parts."""
        if self.processes.world > 1:
            for buffer in dict.fromkeys(b for member in members for b in member.buffers()):
                if buffer.is_floating_point():
                    buffer.copy_(self.processes.total(buffer.clone()) / self.processes.world)

    def _forward(self, member: nn.Module, wrap: Callable[[Any], Forward] = lambda run: run) -> Forward:
        """How a member is run: compiled and in the precision that the recipe says, with logits in float32."""
        run = wrap(torch.compile(member) if self.recipe.compile else member)

        def forward(x: Tensor) -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.low_precision):
                z = run(x)
            return z.float()

        return forward

    def _generator(self, *purpose: object) -> torch.Generator:
        return torch.Generator().manual_seed(seed_for(self.recipe.seed, *purpose))

    def _rate(self, stage: Stage) -> float:
        base = self.recipe.lr_of(stage.number)
        return losses.learning_rate(self.recipe.schedule, base, stage.steps, self.batches, stage.epochs)


def seed_for(*purpose: object) -> int:
    """A seed that depends only on its purpose and its place in the run."""
    return int.from_bytes(hashlib.sha256(repr(purpose).encode()).digest()[:7], "big")
