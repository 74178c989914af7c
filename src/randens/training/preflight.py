"""Checks of a recipe, its data and its processes before a run folder is made."""

from __future__ import annotations

import importlib.util

from randens import attacks
from randens.core.errors import InputError
from randens.data import ImageData
from randens.training.methods import METHODS
from randens.training.recipe import Recipe

__all__ = ["check"]


def check(recipe: Recipe, train: ImageData, held: ImageData, processes: int) -> None:
    """Refuse a run that could not be trained; `held` is the validation data.

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
    if processes > 1 and not METHODS[recipe.method].parallel:
        raise InputError(
            f"method is {recipe.method!r}, which trains in one process; there are {processes} processes"
        )
    for attack in {recipe.validation.attack, recipe.sampling.attack or recipe.validation.attack}:
        attacks.create(attack, recipe.threat.build())
    if recipe.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "tensorboard is true, but it is not installed; install the extra randens[tensorboard]"
        )
