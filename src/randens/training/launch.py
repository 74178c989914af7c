"""`train`: checks before a run, the run folder, and the engine in every process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from randens import attacks
from randens import data as datasets
from randens.callbacks import Callback, check_callbacks
from randens.core.distributed import Workers, workers
from randens.core.errors import InputError
from randens.core.locks import only_writer
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, load
from randens.training.engine import Engine, Say
from randens.training.initial_members import Blueprint, given_member
from randens.training.recipe import Recipe, load_recipe
from randens.training.run_files import is_finished, open_folder

__all__ = ["train"]


def train(
    recipe: Recipe | str | os.PathLike[str],
    run_folder: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    say: Say | None = None,
    stop: Callable[[], bool] | None = None,
    data: tuple[Data, Data] | None = None,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
) -> RandomizedEnsemble:
    """Train an ensemble, or continue a run; under ``torchrun`` or ``srun`` every process makes the same call.

    Parameters
    ----------
    recipe : Recipe, str or path
        The recipe, or its TOML file.
    run_folder : str or path
        Receives the metrics during the run and the ensemble at its end.
    progress : callable, optional
        ``progress(task, done, total)``.
    say : callable, optional
        Receives messages for the user.
    stop : callable, optional
        Called after every step; when it returns true, the state is saved and `Stopped` is raised.
    data : (Data, Data), optional
        Training and validation data, if they are not a named data set.
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
    folder, told, speak = Path(run_folder), progress or silent, say or (lambda _: None)

    def run_in(processes: Workers) -> RandomizedEnsemble:
        """Objects that use the process group do not outlive this function."""
        name = chosen.data.name
        train_data, held = data or (datasets.load(name, "train"), datasets.load(name, "validation"))
        check(chosen, train_data, held, processes.world)
        blueprint = Blueprint.of(chosen, train_data)
        given = [given_member(path, blueprint) for path in chosen.given]
        blueprint()  # refuses a network that cannot be made before the folder is
        with only_writer(folder) if processes.writes else contextlib.nullcontext():
            if processes.writes:
                open_folder(chosen, folder, speak, force)
            processes.barrier()
            run = Run.open(folder)
            if is_finished(run):
                speak(f"{folder} is finished already; its ensemble is returned")
                return load(run.ensemble)
            engine = Engine(blueprint, run, processes, train_data, held, given, told, speak, stop, callbacks)
            return engine.run_all()

    with workers(chosen.device) as processes:
        return run_in(processes)


def check(recipe: Recipe, train: Data, held: Data, processes: int) -> None:
    """Refuse a run that could not be trained before its folder is made; `held` is the validation data.

    α and checkpoints are never chosen on test data.
    """
    if train.split != "train" or held.split != "validation":
        raise InputError(
            f"data holds the splits {train.split!r} and {held.split!r}; training takes ('train', 'validation')"
        )
    if recipe.batch_size > len(train):
        raise InputError(f"batch_size is {recipe.batch_size}; the training set has only {len(train)} images")
    if processes > 1 and recipe.batch_size < 4 * processes:
        raise InputError(f"batch_size is {recipe.batch_size}; {processes} processes need 4 images each")
    for attack in {recipe.validation.attack, recipe.sampling.attack or recipe.validation.attack}:
        attacks.create(attack, recipe.threat.build())
    if recipe.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "tensorboard is true, but it is not installed; install the extra randens[tensorboard]"
        )
