"""The one engine under every method: epochs, batches, adversarial examples, steps, validation, checkpoints.

Everything random is drawn from generators seeded by what it is for and where in the run it happens, never
from torch's own: a run that was killed and continued draws exactly what an uninterrupted one draws.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens import attacks
from randens import data as datasets
from randens.attacks.members import folded
from randens.callbacks import Callback, TensorBoardTracker
from randens.core.distributed import Workers, workers
from randens.core.errors import InputError, ModelError, RandensError
from randens.core.locks import only_writer
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.data import Augment, ImageData
from randens.ensemble import RandomizedEnsemble, frozen, load, to_layout
from randens.risk import rule_of_thumb
from randens.training.adversaries import Adversary, Start, Victims, adversary
from randens.training.autocast import arithmetic
from randens.training.checkpoint import Checkpoints
from randens.training.cost import plan
from randens.training.initial_members import Blueprint, given_member, seed_for
from randens.training.losses import Forward, passes, training_loss
from randens.training.methods import METHODS, Lesson, Roster, Weights, mirror_descent, uniform
from randens.training.osp import due, optimal_sampling_probability
from randens.training.recipe import Recipe, SamplingPart, load_recipe
from randens.training.run_files import is_finished, open_folder, rewind_metrics
from randens.training.schedule import learning_rate
from randens.training.state import Best, Spent, Stage, Tally, pack, parameters, part, restore
from randens.training.validation import Validated, attacked, check_splits, choose, directions
from randens.training.weight_average import average
from randens.witness.store import WitnessStore

__all__ = ["Diverged", "Stopped", "train"]

Say = Callable[[str], None]


class Stopped(RandensError):
    """The run was asked to stop, and its state is saved."""


class Diverged(ModelError):
    """The loss or the weights are no longer finite; the last good checkpoint is kept."""


def train(
    recipe: Recipe | str | os.PathLike[str],
    run_folder: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    say: Say | None = None,
    stop: Callable[[], bool] | None = None,
    data: tuple[ImageData, ImageData] | None = None,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
) -> RandomizedEnsemble:
    """Train an ensemble, or continue what is there; under ``torchrun`` or ``srun`` every process calls this alike.

    Parameters
    ----------
    recipe : Recipe, str or path
        What to train, or the TOML file that says it.
    run_folder : str or path
        Holds the metrics while the run goes on and the ensemble at its end.
    progress : callable, optional
        ``progress(task, done, total)``.
    say : callable, optional
        Receives sentences for a person.
    stop : callable, optional
        Asked after every step; once it says yes, the state is saved and `Stopped` is raised.
    data : (ImageData, ImageData), optional
        Training and validation data where they are not a named data set.
    force : bool
        Continue although the recipe has changed.
    callbacks : sequence of Callback
        Told about batches, epochs and the end, by the process that writes files.

    Returns
    -------
    RandomizedEnsemble
        On the CPU, with the probabilities chosen on validation data.

    Examples
    --------
    >>> import tempfile
    >>> made = {"method": "at", "data": {"name": "digits"}, "model": {"name": "linear"}, "epochs": 1}
    >>> recipe = Recipe(**made, threat={"norm": "linf", "eps": "8/255"})
    >>> rec = train(recipe, tempfile.mkdtemp() + "/run")
    >>> len(rec)
    1
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    with workers(chosen.device) as crew:
        return _train(
            chosen, Path(run_folder), crew, progress or silent, say or _mute, stop, data, force, callbacks
        )


def _train(
    recipe: Recipe,
    folder: Path,
    crew: Workers,
    progress: Progress,
    say: Say,
    stop: Callable[[], bool] | None,
    data: tuple[ImageData, ImageData] | None,
    force: bool,
    callbacks: Sequence[Callback],
) -> RandomizedEnsemble:
    """`train` in one process of the crew; everything that holds the process group ends with this function."""
    name = recipe.data.name
    train_data, held = data or (datasets.load(name, "train"), datasets.load(name, "validation"))
    check_splits(train_data.split, held.split)
    if recipe.batch_size > len(train_data):
        raise InputError(
            f"batch_size is {recipe.batch_size}; the training set has only {len(train_data)} images"
        )
    if crew.world > 1 and recipe.batch_size < 4 * crew.world:
        raise InputError(f"batch_size is {recipe.batch_size}; {crew.world} processes need 4 images each")
    if crew.world > 1 and not METHODS[recipe.method].parallel:
        raise InputError(
            f"method is {recipe.method!r}, which trains in one process; there are {crew.world} processes"
        )
    # Whatever can be wrong with names is found before a folder is made.
    for attack in {recipe.validation.attack, recipe.sampling.attack or recipe.validation.attack}:
        attacks.create(attack, recipe.threat.build())
    if recipe.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "tensorboard is true, but it is not installed; install the extra randens[tensorboard]"
        )
    blueprint = Blueprint.of(recipe, train_data)
    given = [given_member(path, blueprint) for path in recipe.given]
    blueprint()
    with only_writer(folder) if crew.writes else contextlib.nullcontext():
        if crew.writes:
            open_folder(recipe, folder, say, force)
        crew.barrier()
        run = Run.open(folder)
        if is_finished(run):
            say(f"{folder} is finished already; its ensemble is returned")
            return load(run.ensemble)
        engine = _Engine(blueprint, run, crew, train_data, held, given, progress, say, stop, callbacks)
        return engine.run_all()


class _Engine:
    """A run in progress; see `train`."""

    def __init__(
        self,
        blueprint: Blueprint,
        run: Run,
        crew: Workers,
        train_data: ImageData,
        held: ImageData,
        given: list[nn.Module],
        progress: Progress,
        say: Say,
        stop: Callable[[], bool] | None,
        callbacks: Sequence[Callback],
    ) -> None:
        recipe = blueprint.recipe
        self.blueprint, self.recipe, self.run, self.crew = blueprint, recipe, run, crew
        self.train_data = train_data
        self.given = [self._place(member).requires_grad_(False).eval() for member in given]
        self.progress, self.say, self.stop = progress, say, stop
        self.held_x, self.held_y = held[: recipe.validation.size or len(held)]
        self.threat = recipe.threat.build()
        self.method = METHODS[recipe.method](recipe.weight)
        self.inherits = recipe.start == "previous" or (recipe.start == "auto" and self.method.inherits)
        self.sizes = self.method.stages(recipe.members)
        self.loss = training_loss(recipe.loss)
        self.attack = self._attack(self.method.attack or recipe.validation.attack)
        self.oracle = self._attack(self.method.attack or recipe.sampling.attack or recipe.validation.attack)
        self.augment = _augment(recipe)
        self.batches = math.ceil(len(train_data) / recipe.batch_size)
        self.checkpoints = Checkpoints(run.path / "checkpoints")
        self.saved_at = time.monotonic()
        self.ledger = Spent()
        self.finished: list[nn.Module] = []
        self.forwards: dict[nn.Module, Forward] = {}
        self.arithmetic = arithmetic(recipe.precision, crew.device, blueprint())
        self.work = [stage.work for stage in plan(recipe)]
        board = [TensorBoardTracker(run.path / "tensorboard")] if recipe.tensorboard and crew.writes else []
        self.callbacks: list[Callback] = [*(callbacks if crew.writes else ()), *board]

    def run_all(self) -> RandomizedEnsemble:
        """Every stage that is not done, then α, then the ensemble on disk."""
        stage = self._resume()
        if len(self.finished) > self.recipe.members:
            raise InputError(
                f"members is {self.recipe.members}; {self.run.path} holds {len(self.finished)} already"
            )
        while stage is not None or len(self.finished) < sum(self.sizes):
            if self.method.studies and self.finished and not self._studied():
                self.say(
                    f"member {len(self.finished)} did not lower the value of the game: no more are added"
                )
                break
            stage = stage or self._begin()
            self._run_stage(stage)
            self._conclude(stage)
            stage = None
        return self._finish()

    # Stages

    def _begin(self) -> Stage:
        """The next stage, with its members as the method wants them."""
        number, before = self._number(), len(self.finished)
        trained = []
        for index in range(before, before + self.sizes[number]):
            member = self._place(self.blueprint(index))
            if index < len(self.given):
                member.load_state_dict(self.given[index].state_dict())
            elif self.inherits and self.finished:
                member.load_state_dict(self.finished[-1].state_dict())
            trained.append(member)
        return self._stage_of(number, self.method.begun(trained))

    def _studied(self) -> bool:
        """What the method learns from the finished members before the next one, on training images drawn once."""
        images = torch.randperm(len(self.train_data), generator=self._generator("study"))
        images = images[: self.recipe.sampling.size].sort().values
        x, y = self.train_data[images]
        craft = adversary(self.recipe.adversary, self.threat, self.method.level)
        point = craft.begin(x, self._generator("study", len(self.finished)))
        x, y, point = (values.to(self.crew.device) for values in (to_layout(x), y, to_layout(point)))
        weights = torch.from_numpy(uniform(len(self.finished))).to(self.crew.device)
        finished = Victims.of(self.finished, weights, [self._forward(member) for member in self.finished])
        spent = len(x) * craft.passes(len(finished.members))
        self.ledger.spend(spent, spent)
        return self.method.study(craft, finished, Start(x, y, point, images=images))

    def _stage_of(self, number: int, trained: list[nn.Module]) -> Stage:
        part = self.recipe.optimizer
        for member in trained:
            self.crew.prepare(member, self.recipe.batch_norm == "synced").train()
        averaged = [self._copy(member) for member in trained] if self.recipe.ema else trained
        optimizer = torch.optim.SGD(
            parameters(trained),
            lr=part.lr,
            momentum=part.momentum,
            weight_decay=part.weight_decay,
            nesterov=part.nesterov,
            fused=True,
        )
        probs = uniform(len(self.finished) + len(trained))
        if self.method.reweighs:
            probs = _floored(probs, self.recipe.sampling.floor)
        return Stage(number, trained, averaged, optimizer, probs, Tally(np.zeros(len(trained))))

    def _run_stage(self, stage: Stage) -> None:
        """Epochs until the end, or until the watch calls it off."""
        if self.work[stage.number] == 0:
            return  # given by an earlier run
        epochs = self.recipe.epochs_of(stage.number)
        wrapped = [self._forward(self.crew.wrap(self._compiled(member))) for member in stage.trained]
        while stage.epoch < epochs and stage.watch.worst < self.recipe.validation.patience:
            begun = time.monotonic()
            self._run_epoch(stage, epochs, wrapped)
            self._judge(stage, epochs, begun)
            stage.epoch, stage.step = stage.epoch + 1, 0
            stage.tally = Tally(np.zeros(len(stage.trained)))
            self._save_if_due(stage)
            self._tell(stage, epochs)

    def _run_epoch(self, stage: Stage, epochs: int, wrapped: list[Forward]) -> None:
        generator = self._generator("order", stage.number, stage.epoch)
        order = torch.randperm(len(self.train_data), generator=generator)
        # Parts of equal size, so that no epoch ends with a batch of a few images.
        bounds = np.linspace(0, len(order), self.batches + 1).round().astype(int).tolist()
        craft, victims = self._adversary(stage), self._victims(stage)
        while stage.step < self.batches:
            rows = order[bounds[stage.step] : bounds[stage.step + 1]]
            self._run_step(stage, rows, craft, victims, wrapped, self._rate(stage, epochs))
            stage.step += 1
            if self.stop is not None and self.crew.agreed(self.stop()):
                self._save(stage)
                raise Stopped(
                    f"stopped after {self._where(stage)}; the state is saved in {self.run.path}, "
                    "and the same command continues"
                )
            self._save_if_due(stage)
            self._tell(stage, epochs)

    def _run_step(
        self,
        stage: Stage,
        rows: Tensor,
        craft: Adversary,
        victims: Victims,
        wrapped: list[Forward],
        rate: float,
    ) -> None:
        """One batch: adversarial examples of the victims, one step of every trained member on them."""
        where = (stage.number, stage.epoch, stage.step)
        generator = self._generator("batch", *where)
        x, y = self.train_data[rows]
        if self.augment is not None:
            x = self.augment(x, generator)
        # Drawn for the whole batch by every rank; each keeps its part.
        point = craft.begin(x, generator)
        own, device = self.crew.part(len(x)), self.crew.device
        x, y, point = to_layout(x[own]).to(device), y[own].to(device), to_layout(point[own]).to(device)
        learners = self.method.learners(len(wrapped), seed_for(self.recipe.seed, "learners", *where))
        with contextlib.ExitStack() as crafting:
            for member in stage.trained:
                crafting.enter_context(frozen(member))
            seed = seed_for(self.recipe.seed, "arc", *where, self.crew.rank)
            start = Start(x, y, point, seed, rows[own])
            made = self.method.examples(craft, victims, start, learners)
        x_adv = [to_layout(points.detach()) for points in made]
        forwards = [wrapped[index] for index in learners]
        lesson = Lesson(x, y, x_adv, forwards, stage.trained, self.given, self.threat)
        total = torch.zeros((), device=device)
        sums = torch.zeros(len(wrapped) + 1, dtype=torch.float64, device=device)
        # A member that learns from every tenth batch counts ten times there.
        share = len(wrapped) / len(learners)
        for index, (losses, z) in zip(learners, self.method.losses(self.loss, lesson), strict=True):
            total = total + losses.sum()
            sums[index] = losses.detach().sum() * share
            sums[-1] += (z.detach().argmax(dim=1) == y).sum() / len(learners)
        sums = self.crew.total(sums)
        if not bool(torch.isfinite(sums).all()):
            raise self._diverged(stage, "the loss is not finite")
        for group in stage.optimizer.param_groups:
            group["lr"] = rate
        stage.optimizer.zero_grad(set_to_none=True)
        # Ranks average their gradients, so each contributes its share of the whole batch's mean.
        self.crew.backward(total * (self.crew.world / len(rows)))
        stage.optimizer.step()
        if self.recipe.ema:
            for target, member in zip(stage.averaged, stage.trained, strict=True):
                average(target, member, self.recipe.ema, stage.epoch * self.batches + stage.step)
        *member_losses, correct = sums.tolist()
        stage.tally = stage.tally.plus(np.array(member_losses), correct, len(rows))
        spent = sum(self.method.passes(craft, len(victims.probs), passes(self.recipe.loss), len(wrapped)))
        spent *= len(rows)
        self.ledger.spend(spent, spent)
        means = [value / len(rows) for value in (*member_losses, correct)]
        shown = {"loss": sum(means[:-1]) / len(wrapped), "accuracy": means[-1], "lr": rate}
        for callback in self.callbacks:
            callback.batch(f"member-{len(self.finished) + 1}", stage.step + 1, self.batches, shown)
        if (stage.step + 1) % self.recipe.log_every == 0:
            self._log("step", stage, step=stage.step + 1, lr=rate, loss=means[:-1], accuracy=means[-1])

    def _judge(self, stage: Stage, epochs: int, begun: float) -> None:
        """The end of an epoch: α, validation under attack, the best checkpoint, the watch."""
        recipe, done = self.recipe, stage.epoch + 1
        losses, accuracy = stage.tally.losses / stage.tally.images, stage.tally.correct / stage.tally.images
        if self.method.descends:
            stage.probs = mirror_descent(stage.probs, losses, recipe.sampling.rate)
        line: dict[str, Any] = {"loss": losses.tolist(), "accuracy": accuracy}
        several = len(self.finished) + len(stage.trained) > 1
        reweigh = self.method.reweighs and several and due(recipe.sampling, len(stage.probs), done, epochs)
        if reweigh or done == epochs or done % recipe.validation.every == 0:
            self._average_buffers(stage)
            if reweigh:
                stage.probs = self._reweighed(stage, epochs)
            # One attack for every epoch of a member, at the α in force: what a search for α found beside it would
            # make the epochs with a new α look worse than the others.
            rec = self.method.judged(Roster(self.finished, stage.averaged, stage.probs))
            judged = self._spent(attacked(rec, self.held_x, self.held_y, self.attack))
            line.update(natural=1 - judged.natural, robust=1 - judged.risk, **self._reach(stage))
            self._keep(stage, judged)
            risks = judged.pool.profile().member_risks
            if self.method.watched:
                # Only the members in training can lose robustness; they are the last of those attacked.
                self._watch(stage, 1 - float(np.max(risks[-len(stage.trained) :])), accuracy)
            if recipe.validation.rule_of_thumb and several:
                self._measure_by_thumb(stage, risks)
        seconds = time.monotonic() - begun
        self._log("epoch", stage, **line, probs=stage.probs.tolist(), seconds=seconds)

    def _reweighed(self, stage: Stage, epochs: int) -> Weights:
        """α for the members as they are now, with the floor of the one in training (Algorithm 2, line 12)."""
        rec = self.method.judged(Roster(self.finished, stage.averaged, stage.probs))
        part = self.recipe.sampling
        if part.rule == "released":
            part = part.model_copy(update={"step": 10 * self._rate(stage, epochs)})
        return _floored(self._choice(rec, part).probs, part.floor)

    def _choice(
        self, rec: RandomizedEnsemble, part: SamplingPart, store: WitnessStore | None = None
    ) -> Validated:
        """α by the recipe's method on the recipe's split, and what was found there."""
        x, y = self._sampling_data(part)
        if part.method == "osp":
            return self._spent(optimal_sampling_probability(rec, x, y, self.oracle, part))
        return self._spent(choose(rec, x, y, self.oracle, part, store))

    def _sampling_data(self, part: SamplingPart) -> tuple[Tensor, Tensor]:
        if part.data == "validation":
            return self.held_x, self.held_y
        order = torch.randperm(len(self.train_data), generator=self._generator("osp"))
        return self.train_data[order[: part.size]]

    def _reach(self, stage: Stage) -> dict[str, float | None]:
        """The joint reach of the members so far, for metrics.jsonl; nothing while there is only one."""
        found = self._directions(RandomizedEnsemble([*self.finished, *stage.averaged]))
        return {} if found is None else {"reach": found["reach"]}

    def _directions(self, rec: RandomizedEnsemble) -> dict[str, Any] | None:
        found = directions(rec, self.held_x, self.held_y, self.attack)
        if found is None:
            return None
        self.ledger.spend(found.cost.forwards, found.cost.backwards)
        return found.to_json()

    def _keep(self, stage: Stage, choice: Validated) -> None:
        """Remember these weights and α if they are the best so far; later ones win ties."""
        best = stage.best
        better = best is None or (choice.risk, choice.natural) <= (best.risk, best.natural)
        if better or self.recipe.validation.keep == "last":
            states = [{k: v.detach().clone() for k, v in m.state_dict().items()} for m in stage.averaged]
            stage.best = Best(choice.risk, choice.natural, stage.epoch, np.array(stage.probs), states)

    def _watch(self, stage: Stage, robust: float, accuracy: float) -> None:
        part = self.recipe.validation
        stage.watch = stage.watch.seen(robust, accuracy, part.collapse)
        if not stage.watch.faults:
            return
        stops = stage.watch.faults >= part.patience
        then = "training of this member stops, its best checkpoint is kept" if stops else "watching"
        self.say(
            f"{self._where(stage)}: catastrophic overfitting, accuracy under attack fell from "
            f"{stage.watch.best:.1%} to {robust:.1%} while training accuracy rose to {accuracy:.1%}; {then}"
        )
        self._log("overfitting", stage, robust=robust, best=stage.watch.best, stops=stops)

    def _measure_by_thumb(self, stage: Stage, risks: Weights) -> None:
        """Equation 15 for the member in training, which is the last of `risks`."""
        limit = rule_of_thumb(risks[:-1]).high
        stage.watch = stage.watch.within(bool(risks[-1] <= limit))
        if stage.watch.strays:
            stops = stage.watch.strays >= self.recipe.validation.patience
            self.say(
                f"{self._where(stage)}: its risk {risks[-1]:.1%} is above {limit:.1%}, the rule of thumb's limit; "
                + ("training of this member stops, its best checkpoint is kept" if stops else "watching")
            )
            self._log("rule-of-thumb", stage, risk=float(risks[-1]), limit=float(limit), stops=stops)

    def _conclude(self, stage: Stage) -> None:
        """The members of a stage as they will stay: best weights, frozen, in eval mode."""
        best = stage.best
        states = best.states if best is not None else [m.state_dict() for m in stage.averaged]
        self.forwards.clear()
        for state in states:
            self._add_finished(state)
        if best is not None:
            kept = {"best_epoch": best.epoch + 1, "robust": 1 - best.risk, "natural": 1 - best.natural}
            self._log("member", stage, **kept, probs=best.probs.tolist())
        self._save(None)

    def _finish(self) -> RandomizedEnsemble:
        """α for the whole ensemble on validation data, then the ensemble on disk."""
        recipe, classes = self.recipe, self.train_data.classes
        rec = RandomizedEnsemble(self.finished, classes=classes, threat=self.threat)
        sampling = recipe.sampling
        if sampling.method == "exact" and self.method.choice is not None:
            sampling = sampling.model_copy(update={"method": self.method.choice})
        # The members are final here: what is found about them is worth keeping.
        choice = self._choice(rec, sampling, WitnessStore(self.run.path / "witnesses"))
        if sampling.data != "validation":
            # Chosen elsewhere; what is reported is on validation data all the same.
            held = rec.with_probs(choice.probs)
            choice = self._spent(attacked(held, self.held_x, self.held_y, self.oracle))
        rec = RandomizedEnsemble(self.finished, choice.probs, classes=classes, threat=self.threat).cpu()
        if self.crew.writes:
            rec.save(self.run.ensemble, overwrite=True)
            self.run.log(event="finished", probs=choice.probs.tolist(), robust=1 - choice.risk)
            self.run.write("training", self._summary(choice, rec))
        for callback in self.callbacks:
            callback.finished("training", {"natural": 1 - choice.natural, "robust": 1 - choice.risk})
        self.crew.barrier()
        return rec

    def _summary(self, choice: Validated, rec: RandomizedEnsemble) -> dict[str, Any]:
        profile = choice.pool.profile()
        reach = self._directions(rec)
        members = len(choice.probs)
        return {
            "finished": True,
            "method": self.recipe.method,
            "members": members,
            "probs": choice.probs.tolist(),
            "validation": {
                "images": len(self.held_y),
                "attack": self.oracle.name,
                "natural_accuracy": 1 - choice.natural,
                "robust_accuracy": 1 - choice.risk,
                "robust_accuracy_uniform": 1 - profile.risk(uniform(members)),
                "member_natural_accuracies": (1 - choice.clean_risks).tolist(),
                "member_robust_accuracies": (1 - profile.member_risks).tolist(),
                "conflict": reach,
            },
            "cost": {
                "forwards": self.ledger.forwards,
                "backwards": self.ledger.backwards,
                "seconds": self.ledger.seconds + time.monotonic() - self.saved_at,
            },
        }

    # Members and how they are run

    def _place(self, member: nn.Module) -> nn.Module:
        member.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return member.to(self.crew.device)

    def _copy(self, member: nn.Module) -> nn.Module:
        twin = self._place(self.blueprint())
        twin.load_state_dict(member.state_dict())
        return twin

    def _add_finished(self, state: Any) -> None:
        member = self._place(self.blueprint())
        member.load_state_dict(state)
        member.requires_grad_(False).eval()
        self.finished.append(member)

    def _compiled(self, member: nn.Module) -> Any:
        return torch.compile(member) if self.recipe.compile else member

    def _forward(self, member: Forward) -> Forward:
        def forward(x: Tensor) -> Tensor:
            with self.arithmetic():
                z = member(x)
            return z.float()

        return forward

    def _victims(self, stage: Stage) -> Victims:
        members, probs = self.method.victims(Roster(self.finished, stage.trained, stage.probs))
        weights = torch.from_numpy(np.array(probs)).to(self.crew.device)
        for member in members:
            if member not in self.forwards:
                # Finished members never change: their BatchNorm is folded into the convolutions once.
                still = folded(member) if member in self.finished else member
                self.forwards[member] = self._forward(self._compiled(still))
        return Victims.of(members, weights, [self.forwards[member] for member in members])

    def _adversary(self, stage: Stage) -> Adversary:
        level = "kl" if self.recipe.loss.name == "trades" else self.method.level
        if len(self.finished) + len(stage.trained) == 1 and level != "kl":
            level = "loss"  # every level is the same for one member, and then f_1 is the same by every method
        warmup = 0 if self.inherits and self.finished else self.recipe.adversary.warmup
        radius = min(1.0, (stage.epoch + 1) / (warmup + 1))
        return adversary(self.recipe.adversary, self.threat.scaled(radius), level)

    def _attack(self, name: str) -> attacks.Attack:
        options: dict[str, Any] = {"seed": self.recipe.seed, "precision": self.recipe.precision}
        if hasattr(attacks.create(name, self.threat), "steps"):
            options["steps"] = self.recipe.validation.steps
        return attacks.create(name, self.threat, **options)

    def _average_buffers(self, stage: Stage) -> None:
        """BatchNorm statistics that ranks gathered on their own parts become one."""
        if self.crew.world == 1:
            return
        for member in {*stage.trained, *stage.averaged}:
            for buffer in member.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.crew.total(buffer.clone()) / self.crew.world)

    # Positions, checkpoints, metrics

    def _number(self) -> int:
        """The stage after those whose members are finished."""
        return next(n for n in range(len(self.sizes) + 1) if sum(self.sizes[:n]) >= len(self.finished))

    def _generator(self, *purpose: object) -> torch.Generator:
        return torch.Generator().manual_seed(seed_for(self.recipe.seed, *purpose))

    def _rate(self, stage: Stage, epochs: int) -> float:
        step = stage.epoch * self.batches + stage.step
        base = self.recipe.lr_of(stage.number)
        return learning_rate(self.recipe.schedule, base, step, self.batches, epochs)

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
        checkpoint = pack(self.finished, stage, self.ledger, self.batches)
        for name, tensor in checkpoint.tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise self._diverged(stage, f"{name} is not finite")
        self.checkpoints.save(checkpoint)

    def _resume(self) -> Stage | None:
        """The state of the newest whole checkpoint; None where a stage is to be begun."""
        checkpoint, faults = self.checkpoints.load()
        for fault in faults:
            self.say(fault)
        stage = None
        if checkpoint is not None:
            try:
                for index in range(checkpoint.position["finished"]):
                    self._add_finished(part(checkpoint.tensors, f"finished.{index}"))
                self.ledger = Spent(**checkpoint.position["ledger"])
                # With fewer members than it was begun with, a run ends with those it has.
                more = len(self.finished) < self.recipe.members
                if more and checkpoint.position["stage"] is not None:
                    stage = self._begin()
                    restore(stage, checkpoint, self.batches)
            except (RuntimeError, KeyError, IndexError, StopIteration) as error:
                reason = " ".join(str(error).split())[:160]
                raise InputError(
                    f"the checkpoints in {self.checkpoints.folder} do not fit this recipe: {reason}"
                ) from error
            where = self._where(stage) if stage is not None else f"member {len(self.finished)}"
            self.say(f"continuing after {where}")
        if self.crew.writes:
            rewind_metrics(self.run, self.ledger.lines)
        return stage

    def _diverged(self, stage: Stage | None, reason: str) -> Diverged:
        kept = "the last good state is kept" if self.checkpoints.files() else "no state was saved before that"
        where = self._where(stage) if stage is not None else "the end of a member"
        return Diverged(
            f"training diverged at {where}: {reason}; {kept} in {self.checkpoints.folder}; lower the rate "
            "(--set optimizer.lr=… --force continues from there)"
        )

    def _spent(self, choice: Validated) -> Validated:
        self.ledger.spend(choice.cost.forwards, choice.cost.backwards)
        return choice

    def _log(self, event: str, stage: Stage, **values: Any) -> None:
        if not self.crew.writes:
            return
        number = sum(self.sizes[: stage.number]) + 1
        self.run.log(event=event, member=number, epoch=stage.epoch + 1, **values)
        self.ledger.lines += 1
        if event == "epoch":
            names = ("accuracy", "natural", "robust")
            scalars: dict[str, float] = {key: float(values[key]) for key in names if key in values}
            for callback in self.callbacks:
                callback.epoch(
                    f"member-{number}", stage.epoch + 1, {**scalars, "loss": float(np.mean(values["loss"]))}
                )

    def _tell(self, stage: Stage, epochs: int) -> None:
        """Progress of the epoch, the member and the run, in units of planned work."""
        steps, total = stage.epoch * self.batches + stage.step, epochs * self.batches
        self.progress("epoch", stage.step or self.batches, self.batches)
        self.progress("member", steps, total)
        done = sum(self.work[: stage.number]) + self.work[stage.number] * steps / total
        self.progress("run", done, sum(self.work))


def _floored(probs: Weights, floor: float) -> Weights:
    """α with at least floor/m for the last member (all of it at most), taken from the others in proportion."""
    least = min(1.0, floor / len(probs))
    if probs[-1] >= least:
        return probs
    others: Weights = probs[:-1] / probs[:-1].sum() * (1 - least)
    return np.append(others, least)


def _augment(recipe: Recipe) -> Augment | None:
    part = recipe.data
    return Augment(part.crop_padding, part.flip) if part.crop_padding or part.flip else None


def _mute(text: str) -> None:
    """The default: say nothing."""
