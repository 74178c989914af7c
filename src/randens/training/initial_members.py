"""The members of a recipe, and the seeds of all random numbers in a run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from randens import models
from randens.core.errors import InputError
from randens.data import Data
from randens.ensemble import load
from randens.training.recipe import Recipe, difference

__all__ = ["Blueprint", "given_member", "seed_for"]


@dataclass(frozen=True)
class Blueprint:
    """The common settings of a run's members; called with a number it makes that member."""

    recipe: Recipe
    classes: int
    shape: tuple[int, ...]
    mean: list[float] | None = None
    std: list[float] | None = None

    @staticmethod
    def of(recipe: Recipe, data: Data) -> Blueprint:
        """Return the blueprint for members that are trained on `data`, which also sets the normalisation."""
        mean, std = data.mean_std() if recipe.model.normalise else (None, None)
        return Blueprint(recipe, len(data.counts()), data.shape, mean, std)

    def __call__(self, index: int = 0) -> models.Classifier:
        """Member number `index`, with weights of its own seed."""
        part = self.recipe.model
        given = {"width": part.width, "hidden": part.hidden, "depth": part.depth, "stride": part.stride}
        return models.create(
            part.name,
            classes=self.classes,
            input_shape=self.shape,
            mean=self.mean,
            std=self.std,
            seed=seed_for(self.recipe.seed, "member", index),
            **{key: value for key, value in given.items() if value is not None},
        )


def given_member(path: str, blueprint: Blueprint) -> nn.Module:
    """The first member of a run folder or an ensemble folder; another network is refused."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(
            f"first is {path!r}; there is no folder there. Name a finished run or an ensemble's folder"
        )
    rec = load(folder / "ensemble" if (folder / "ensemble").is_dir() else folder)
    member: nn.Module = rec.members[0]
    said = difference(getattr(member, "architecture", None) or {}, blueprint().architecture)
    if said:
        raise InputError(f"first is {path!r}, a network of another architecture: {'; '.join(said)}")
    return member


def seed_for(*purpose: object) -> int:
    """Return a seed that depends only on its purpose and its place in the run."""
    return int.from_bytes(hashlib.sha256(repr(purpose).encode()).digest()[:7], "big")
