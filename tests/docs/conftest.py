"""A place to run the documentation's code in: what a clone looks like after the quickstart, with small networks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.docs.blocks import ROOT
from tests.once import made_once

import randens
from randens import data as datasets
from randens.attacks import base
from randens.core.runs import Run
from randens.data import Data

# How many inputs of each split the code of the documentation gets to see: it is run, not measured.
_SEEN = {"train": 64, "validation": 10, "test": 10}


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/quickstart-1 and what else the pages take for granted."""
    return made_once(tmp_path_factory, "clone", _prepare)


@pytest.fixture
def clone(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the prepared folder as the working directory; data sets are cut to their first inputs."""
    folder = tmp_path / "clone"
    shutil.copytree(prepared, folder)
    for name in ("recipes", "examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RANDENS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    whole = datasets.load

    def first_inputs(name: str, split: str, **options: Any) -> Data:
        return whole(name, split, **options).subset(slice(0, _SEEN[split]))

    monkeypatch.setattr(datasets, "load", first_inputs)
    # Attacks that a page registers are forgotten after it.
    monkeypatch.setattr(base, "REGISTRY", {k: v for k, v in base.REGISTRY.items() if k != "momentum"})
    generator = torch.get_rng_state()
    yield folder
    torch.set_rng_state(generator)


def _prepare(folder: Path) -> None:
    threat = randens.Threat("linf", 0.05)
    train = datasets.load("digits", "train")
    test = datasets.load("digits", "test").subset(slice(0, _SEEN["test"]))
    members = [_member(train, seed) for seed in range(3)]
    attack = randens.attacks.create("pgd", threat, steps=2)
    for path, kept in (("quickstart-1", members), ("quickstart-1/at", members[:1])):
        run = Run.create(
            folder / "runs" / path,
            recipe={"method": "barre", "data": {"name": "digits"}},
            seed=0,
            chosen_on={"checkpoints": "validation", "probs": "validation"},
        )
        rec = randens.RandomizedEnsemble(kept, classes=train.classes, threat=threat)
        rec.save(run.ensemble)
        randens.evaluate(rec, test, attack).save(run.path / "evaluation.json")
    for name, split in (("cat", "train"), ("dog", "train"), ("cat", "test"), ("dog", "test")):
        place = folder / "pets" / split / name
        place.mkdir(parents=True)
        for i in range(12):
            pixels = np.random.default_rng(i + (name == "dog") * 100).integers(
                0, 256, (16, 16, 3), dtype=np.uint8
            )
            Image.fromarray(pixels).save(place / f"{i}.png")


def _member(data: Data, seed: int) -> torch.nn.Module:
    """A small network after a pass over the digits."""
    member = randens.models.create("mlp", classes=10, input_shape=data.shape, width=16, depth=1, seed=seed)
    optimizer = torch.optim.SGD(member.parameters(), lr=0.5)
    for _ in range(3):
        for x, y in data.batches(64, generator=torch.Generator().manual_seed(seed)):
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(member(x), y))
            optimizer.step()
    return member.eval()
