"""`train`: find the recipe, check and plan the run, open its folder, and start the engine in every process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from randens import attacks, models
from randens import data as datasets
from randens.callbacks import Callback, check_callbacks
from randens.core.devices import Workers, settled, workers
from randens.core.errors import FileError, InputError, PathLike, typed, unknown, whole
from randens.core.files import only_writer, remove
from randens.core.progress import Progress, bars
from randens.core.runs import Document, Probabilities, Run
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, load
from randens.evaluation.tables import count
from randens.training import losses
from randens.training.alpha import attacks_per_choice, due
from randens.training.engine import Engine, Session, seed_for
from randens.training.methods import METHODS, StageMembers, uniform
from randens.training.recipe import Recipe, difference, read_toml, recipe_from, with_settings
from randens.witness.fingerprints import input_keys

Pair = tuple[Data, Data]


_Number = Annotated[float, Field(ge=0, le=1e18)]


class _Cost(Document):
    forwards: _Number
    backwards: _Number
    seconds: _Number


class _Validation(Document):
    natural_accuracy: float
    robust_accuracy: float
    attack: str
    images: int


class Summary(Document):
    """What is read of training.json, which is written when a run has finished."""

    method: str
    members: int
    probs: Probabilities
    validation: _Validation
    cost: _Cost


class Epoch(Document):
    """What is read of the lines of metrics.jsonl that end an epoch."""

    member: int | None = None
    loss: list[float] | None = None
    accuracy: _Number | None = None
    natural: _Number | None = None
    robust: _Number | None = None


@dataclass(frozen=True)
class StagePlan:
    """One stage: passes per image and epoch to craft and to train, at most."""

    epochs: int
    crafting: int
    training: int


@dataclass(frozen=True)
class Plan:
    """What a run will do at most: passes of a member on an image, forward and as many backward; and attacks.

    `crafting` passes go back to the input, `training` passes to the weights; both are less where a member stops early
    or is never sampled. ARC's depend on the images and count as 0. An attack to validate takes all `held` images, one
    to choose α all that it is `chosen_on`.
    """

    stages: tuple[StagePlan, ...]
    held: int
    chosen_on: int
    crafting: int
    training: int
    validations: int
    choices: int

    def sentence(self) -> str:
        """A sentence for the user before the run starts."""
        crafting = f"{count(self.crafting)} to craft" if self.crafting else "those of ARC to craft"
        return (
            f"at most {self.validations} attacks on {self.held:,} images to validate, {self.choices} on "
            f"{self.chosen_on:,} to choose α, and member passes: {crafting}, {count(self.training)} to train"
        )


@typed(
    recipe=Recipe | PathLike,
    run_folder=PathLike,
    progress=Callable | None,
    say=Callable | None,
    stop=Callable | None,
    data=Sequence | None,
)
@settled()
def train(
    recipe: Recipe | str | os.PathLike[str],
    run_folder: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    say: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    data: tuple[Any, Any] | None = None,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
) -> RandomizedEnsemble:
    """Train an ensemble, or continue a run; under ``torchrun`` or ``srun`` every process makes the same call.

    Parameters
    ----------
    recipe : Recipe, str or path
        The recipe, or its TOML file, or the name of one that comes with randens.
    run_folder : str or path
        Receives the metrics during the run and the ensemble at its end.
    progress : callable, optional
        ``progress(task, done, total)``.
    say : callable, optional
        Receives messages for the user, the plan first.
    stop : callable, optional
        Called after every step; when it returns true, the state is saved and `Stopped` is raised.
    data : pair, optional
        Training and validation data, as `randens.data.as_data` takes them, if the recipe does not name them.
    force : bool
        Continue although the recipe has changed.
    callbacks : sequence of Callback
        Called for batches, epochs and the end of the run, by the process that writes files.

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
    check_callbacks(callbacks)
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    folder, show = Path(run_folder), say or (lambda _: None)

    def run_in(processes: Workers, report: Progress) -> RandomizedEnsemble:
        """Objects that use the process group do not outlive this function."""
        pair = _data(chosen, data)
        _check(chosen, pair, processes.world)
        new = _members(chosen, pair[0])
        given = [_given(path, new(0)) for path in chosen.given]
        planned, main = plan(chosen, len(pair[0]), len(pair[1])), processes.is_main
        with only_writer(folder) if main else contextlib.nullcontext():
            if main:
                _open(chosen, folder, show, force)
            processes.barrier()
            run = Run.open(folder)
            if main and pair[0].name not in datasets.names() and not (folder / "trained_on.json").exists():
                # Evaluations refuse these inputs as test data; named data sets have their splits.
                keys = [key.hex() for part in pair[0].batches(1024) for key in input_keys(*part)]
                run.write("trained_on", {"inputs": keys})
            # Written last, after the ensemble.
            if (folder / "training.json").exists():
                show(f"{folder} is finished already; its ensemble is returned")
                return load(run.ensemble)
            show(planned.sentence())
            work = [stage.epochs * (stage.crafting + stage.training) for stage in planned.stages]
            listeners = callbacks if main else ()
            session = Session(run, processes, report, show, stop, listeners, work)
            return Engine(chosen, session, pair, new, given).run_all()

    with (
        workers(chosen.device, chosen.devices, chosen.nodes) as processes,
        bars(progress, log=False) as report,
    ):
        return run_in(processes, report)


def plan(recipe: Recipe, images: int | None = None, held: int | None = None) -> Plan:
    """Count what a recipe will do with `images` to train on and `held` out; default: those of its named data set."""
    if images is None or held is None:
        sizes = datasets.entry(recipe.data.name).sizes
        images, held = sizes["train"], sizes["validation"]
    images, held = whole("images", images), whole("held", held)
    method = METHODS[recipe.method](recipe.weight)
    level = "kl" if recipe.loss.name == "trades" else method.level
    craft = losses.adversary(recipe.adversary, recipe.threat.build(), level)
    counts = method.stages(recipe.members)
    stages: list[StagePlan] = []
    validations, choices = 0, attacks_per_choice(recipe.sampling, recipe.members, method.sweeps)
    for number, size in enumerate(counts):
        before, every = sum(counts[:number]), recipe.validation.every
        members = StageMembers([nn.Identity()] * before, [nn.Identity()] * size, uniform(before + size))
        attacked, _ = method.attacked(members)
        given = number < len(recipe.given) and len(counts) > 1
        epochs = 0 if given else recipe.epochs_of(number)
        updates = [e for e in range(1, epochs + 1) if due(recipe.sampling, before + size, e, epochs)]
        updates = updates if method.reweighs and before else []
        validated = {*updates, epochs, *range(every, epochs + 1, every)} - {0}
        validations += len(validated)
        choices += len(updates) * attacks_per_choice(recipe.sampling, before + size)
        training = losses.passes(recipe.loss) * size
        stages.append(StagePlan(epochs, craft.passes(len(attacked)), training))
    held = chosen_on = min(held, recipe.validation.size or held)
    if recipe.sampling.data == "train":
        chosen_on, validations = min(images, recipe.sampling.size), validations + 1
    crafting = images * sum(stage.epochs * stage.crafting for stage in stages)
    trained = images * sum(stage.epochs * stage.training for stage in stages)
    return Plan(tuple(stages), held, chosen_on, crafting, trained, validations, choices)


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with randens, by name ("cpu/digits-mlp-barre")."""
    here = Path(__file__).parent
    # Beside this module in an installed package, `recipes/` in a clone of the repository.
    folder = next((f for f in (here / "recipes", here.parents[2] / "recipes") if f.is_dir()), here)
    return {f"{path.parent.name}/{path.stem}": path for path in sorted(folder.glob("*/*.toml"))}


@typed(source=PathLike)
def find_recipe(source: str | os.PathLike[str]) -> Path:
    """The file of a recipe: `source` itself, or a shipped one by name ("digits-mlp-barre") or path in a clone."""
    path = Path(source)
    if path.exists():
        return path
    shipped = shipped_recipes()
    name = path.as_posix().removeprefix("recipes/").lower()
    if path.suffix == ".toml":
        return shipped.get(name.removesuffix(".toml"), path)
    fitting = [full for full in shipped if name in (full, full.rpartition("/")[2])]
    if not fitting:
        unknown("recipe", str(source), dict.fromkeys(full.rpartition("/")[2] for full in shipped))
    if len(fitting) > 1:
        raise InputError(f"recipe {str(source)!r} is the name of several; valid: {', '.join(fitting)}")
    return shipped[fitting[0]]


def load_recipe(path: str | os.PathLike[str], settings: Iterable[str] = ()) -> Recipe:
    """Read a recipe from a TOML file, or a shipped recipe by its name, and apply ``key=value`` settings.

    >>> load_recipe("digits-mlp-barre", ["members=2", "optimizer.lr=0.05"]).optimizer.lr
    0.05
    """
    source = find_recipe(path)
    return recipe_from(with_settings(read_toml(source), settings), str(source))


def _data(recipe: Recipe, data: tuple[Any, Any] | None) -> Pair:
    """Training and validation data: given, named, or a folder, of which a tenth is held out if it has no such part."""
    part = recipe.data
    if data is not None:
        pair = datasets.as_data(data[0], split="train"), datasets.as_data(data[1], split="validation")
        if not pair[0].classes:
            count = int(max(each.y.max() for each in pair)) + 1
            return datasets.as_data(pair[0], classes=count), datasets.as_data(pair[1], classes=count)
        return pair
    if part.name in datasets.names():
        return datasets.load(part.name, "train"), datasets.load(part.name, "validation")
    folder = Path(part.name)
    if not folder.is_dir():
        unknown("data set", part.name, datasets.names())
    images = datasets.as_data(folder, split="train", size=part.size)
    if not any((folder / name).is_dir() for name in ("validation", "val")):
        return images.hold_out(0.1)
    return images, datasets.as_data(folder, split="validation", size=part.size)


def _check(recipe: Recipe, data: Pair, processes: int) -> None:
    """Refuse a run that could not be trained before its folder is made."""
    train_data, held = data
    if train_data.shape != held.shape or train_data.classes != held.classes:
        raise InputError(f"data is {train_data} and {held}; both need one shape and the same classes")
    if recipe.batch_size > len(train_data):
        raise InputError(f"batch_size is {recipe.batch_size}; the training set has {len(train_data)} images")
    if processes > 1 and recipe.batch_size < 4 * processes:
        raise InputError(f"batch_size is {recipe.batch_size}; {processes} processes need 4 images each")
    for attack in {recipe.validation.attack, recipe.sampling.attack or recipe.validation.attack}:
        attacks.create(attack, recipe.threat.build())


def _members(recipe: Recipe, data: Data) -> Callable[[int], models.Classifier]:
    """A function that makes member i by its own seed; called once, to refuse a network that cannot be made."""
    part = recipe.model
    mean, std = data.mean_std() if part.normalize else (None, None)
    arguments: dict[str, Any] = {"input_shape": data.shape, "mean": mean, "std": std}
    arguments |= {**part.sizes, **part.options}

    def member(index: int) -> models.Classifier:
        seed = seed_for(recipe.seed, "member", index)
        return models.create(part.name, classes=len(data.classes), seed=seed, **arguments).float()

    member(0)
    return member


def _given(path: str, like: models.Classifier) -> nn.Module:
    """The first member of a run folder or an ensemble folder; another network than `like` is refused."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"first is {path!r}, no folder; name a finished run or an ensemble's folder")
    rec = load(folder / "ensemble" if (folder / "ensemble").is_dir() else folder)
    member: nn.Module = rec.members[0]
    differences = difference(getattr(member, "architecture", None) or {}, like.architecture)
    if differences:
        raise InputError(f"first is {path!r}, a network of another architecture: {'; '.join(differences)}")
    return member


def _open(recipe: Recipe, folder: Path, say: Callable[[str], None], force: bool) -> None:
    """Create the run folder, or check that an existing one was started with this recipe."""
    _clean(folder)
    if not folder.exists():
        chosen_on = {"checkpoints": "validation", "probs": recipe.sampling.data}
        Run.create(folder, kind="training", recipe=recipe.to_json(), seed=recipe.seed, chosen_on=chosen_on)
        return
    run = Run.open(folder)
    if run.manifest.get("kind") != "training":
        raise FileError(f"{folder} is a run of another kind; choose another folder with --out")
    before = run.manifest.get("recipe")
    try:
        changes = recipe_from(before or {}).changes(recipe)
    except InputError as error:
        raise FileError(f"{folder / 'manifest.json'} is damaged: start again with --out ({error})") from error
    if not changes:
        return
    if not force:
        raise InputError(
            f"{folder} was started with another recipe ({'; '.join(changes)}); choose another folder with --out, "
            "or continue with the new recipe by --force"
        )
    say(f"continuing with a changed recipe: {'; '.join(changes)}")
    earlier = [*(run.manifest.get("earlier_recipes") or []), before]
    run.write("manifest", {**run.manifest, "recipe": recipe.to_json(), "earlier_recipes": earlier})
    (folder / "training.json").unlink(missing_ok=True)


def _clean(folder: Path) -> None:
    """Remove temporary files of a killed process, and a folder that it left empty."""
    for left in (*folder.glob("**/.*.tmp"), *folder.glob("**/.*.old")):
        remove(left)
    with contextlib.suppress(OSError):
        folder.rmdir()
