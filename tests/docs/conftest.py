"""A place to run the documentation's code in: what a clone looks like after a short quickstart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from docs.tools.pages import ROOT
from PIL import Image
from tests.once import quickstart_run

from randens.attacks import base


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/quickstart-1 and a folder of images."""
    folder = tmp_path_factory.mktemp("prepared")
    shutil.copytree(quickstart_run(tmp_path_factory), folder / "runs" / "quickstart-1")
    _images(folder)
    return folder


@pytest.fixture
def clone(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the prepared folder as the working directory."""
    folder = tmp_path / "clone"
    shutil.copytree(prepared, folder)
    for name in ("recipes", "examples", "zoo"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RANDENS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    # Attacks that a page registers are forgotten after it.
    monkeypatch.setattr(base, "REGISTRY", dict(base.REGISTRY))
    generator = torch.get_rng_state()
    yield folder
    torch.set_rng_state(generator)


def _images(folder: Path) -> None:
    colors = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, mean in (("cat", 90), ("dog", 160)):
            place = folder / "pets" / split / name
            place.mkdir(parents=True)
            for i in range(12):
                pixels = colors.normal(mean, 30, (16, 16, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")
