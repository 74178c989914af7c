"""Classifiers by name: run folders, model files, names of the zoo, factories; and what a run says about itself."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from randens import models
from randens.core.errors import FileError, InputError
from randens.core.runs import Run
from randens.data import Data, names
from randens.ensemble import load
from randens.random_model import RandomizedModel
from randens.witness.fingerprints import input_keys

MODELS = "a module, a list of modules, a RandomizedEnsemble, a run folder, torchscript:PATH, onnx:PATH, or a zoo name"
_TORCHSCRIPT = (".pt", ".pts", ".ts", ".torchscript")
_CODE = ("torchscript", "onnx")


def load_model(spec: str | os.PathLike[str]) -> Any:
    """The classifier that a string names: a run or ensemble folder, a zoo name, or what `models.from_spec` takes.

    A factory with a required argument makes a random classifier: it is called with a seed for every draw.
    """
    text, path = os.fspath(spec), Path(spec)
    if path.is_dir():
        return load(path if (path / "ensemble.json").is_file() else Run.open(path).ensemble)
    if path.is_file():
        kind = "torchscript" if path.suffix in _TORCHSCRIPT else path.suffix[1:]
        if kind in _CODE:
            raise InputError(f"model is {text!r}: this file is code; to run it, name it as {kind}:{text}")
        if path.suffix == ".safetensors" and (path.parent / "ensemble.json").is_file():
            files = sorted(file.name for file in path.parent.glob("member-*.safetensors"))
            if path.name in files:
                return load(path.parent).members[files.index(path.name)]
        raise InputError(
            f"model is {text!r}; give a folder of RandomizedEnsemble.save, torchscript:PATH or onnx:PATH"
        )
    if ":" in text:
        if text.partition(":")[0] not in ("timm", "robustbench", *_CODE):
            with models.imported(text) as factory:
                if _takes_seed(factory):
                    return RandomizedModel(factory)
        return models.from_spec(text)
    from randens import zoo

    if text not in zoo.names():
        raise InputError(f"model is {text!r}, which is no file, folder or name of the zoo; give {MODELS}")
    return zoo.load(text)


def _takes_seed(factory: Callable[..., Any]) -> bool:
    """Whether a factory has a required argument."""
    return any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in inspect.signature(factory).parameters.values()
    )


def run_data(run: Run) -> str:
    """The name or folder of the data that a run was trained on."""
    recipe = run.manifest.get("recipe")
    part = recipe.get("data") if isinstance(recipe, Mapping) else None
    name = part.get("name") if isinstance(part, Mapping) else None
    if not isinstance(name, str):
        raise InputError(
            f"{run.path} does not say which data it was trained on; name them with data= (--data)"
        )
    return name


def check_unseen(run: Run, data: Data) -> None:
    """Refuse test data, or data of an unknown split, that hold images which a run was trained on."""
    if (
        data.split in ("train", "validation")
        or data.name in names()
        or not (run.path / "trained_on.json").is_file()
    ):
        return
    seen = set(run.read("trained_on")["inputs"])
    again = sum(key.hex() in seen for key in input_keys(*data[:]))
    if again:
        raise InputError(
            f"data holds {again} of {len(data)} inputs that {run.path} was trained on, so they test nothing; give "
            "others, e.g. a folder with train, validation and test folders in it"
        )


def chosen_on_of(run: Run) -> dict[str, str]:
    """Which split chose the probabilities and the checkpoints of a run, as it recorded that."""
    recorded = run.manifest.get("chosen_on")
    choices = {str(k): str(v) for k, v in recorded.items()} if isinstance(recorded, Mapping) else {}
    with contextlib.suppress(FileError, KeyError, TypeError):
        sampling = run.read("sampling")
        # Probabilities that were found but not applied do not count.
        if np.array_equal(sampling["probs"], load(run.ensemble).probs.tolist()):
            choices["probs"] = str(sampling["about"]["split"])
    return choices
