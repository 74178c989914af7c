"""The run folder of a training run: create, continue, clean up after a killed process, and rewind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from randens.core.documents import Document, read_document
from randens.core.errors import FileError, InputError
from randens.core.files import write_atomic
from randens.core.runs import Run
from randens.training.recipe import Recipe, difference, recipe_from

__all__ = ["Summary", "ValidationSummary", "is_finished", "open_folder", "rewind_metrics", "write_summary"]


class ValidationSummary(Document):
    """What a finished run measured on validation data."""

    natural_accuracy: float
    robust_accuracy: float
    attack: str
    images: int


class Summary(Document):
    """training.json. A run that has not finished may lack everything but `finished`."""

    finished: bool = False
    method: str = ""
    members: int = 0
    probs: list[float] = Field(default_factory=list)
    validation: ValidationSummary | None = None


def open_folder(recipe: Recipe, folder: Path, say: Callable[[str], None], force: bool) -> None:
    """Create the run folder, or check that an existing one was started with this recipe."""
    _clean(folder)
    if not folder.exists():
        chosen_on = {"checkpoints": "validation", "probs": recipe.sampling.data}
        Run.create(folder, kind="training", recipe=recipe.to_json(), seed=recipe.seed, chosen_on=chosen_on)
        return
    run = Run.open(folder)
    if run.manifest.get("kind") != "training":
        raise FileError(f"{folder} is a run of another kind; choose another folder")
    before = run.manifest.get("recipe")
    if not isinstance(before, dict):
        raise FileError(
            f"{folder / 'manifest.json'} holds no recipe; it was altered, so choose another folder"
        )
    said = "; ".join(difference(_completed(before), recipe.to_json()))
    if not said:
        return
    if not force:
        raise InputError(
            f"{folder} was started with another recipe ({said}); choose another folder with --out, "
            "or continue with the new recipe by --force"
        )
    say(f"continuing with a changed recipe: {said}")
    earlier = [*(run.manifest.get("earlier_recipes") or []), before]
    run.write("manifest", {**run.manifest, "recipe": recipe.to_json(), "earlier_recipes": earlier})
    (folder / "training.json").unlink(missing_ok=True)


def _completed(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored recipe with the defaults of fields that were added later."""
    try:
        return recipe_from(stored).to_json()
    except InputError:
        return stored


def is_finished(run: Run) -> bool:
    """Whether the ensemble exists and is complete."""
    path = run.path / "training.json"
    return path.exists() and run.ensemble.is_dir() and read_document(path, Summary).finished


def write_summary(
    run: Run,
    method: str,
    probs: NDArray[np.float64],
    validation: Mapping[str, Any],
    cost: Mapping[str, float],
) -> None:
    """training.json of a run that has finished."""
    about = {"finished": True, "method": method, "members": len(probs), "probs": probs.tolist()}
    run.write("training", {**about, "validation": dict(validation), "cost": dict(cost)})


def rewind_metrics(run: Run, lines: int) -> None:
    """Drop the lines written after a checkpoint: those steps are run again."""
    path = run.path / "metrics.jsonl"
    if path.exists():
        write_atomic(path, b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


def _clean(folder: Path) -> None:
    """Remove temporary files of a killed process, and a folder without a manifest."""
    if not folder.is_dir():
        return
    for place in (folder, folder / "checkpoints"):
        for left in [*place.glob(".*.tmp"), *place.glob(".*.old")]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
