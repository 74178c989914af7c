"""The gallery shows what the members saw."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import randens
from randens.report.pictures import gallery, to_png
from randens.report.runs import load_run


def pixels(uri: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def test_pictures_show_what_the_members_saw(trained_run: Path) -> None:
    one, data = load_run(trained_run), randens.data.load("digits", "test")
    assert one.rec is not None
    assert one.evaluation is not None
    found = gallery(one, one.evaluation)
    assert not isinstance(found, str)
    assert 8 < len({example.index for example in found}) == len(found) <= 12
    for example in found:
        clean, perturbed = (pixels(uri) / 255.0 for uri in (example.clean, example.perturbed))
        assert clean == pytest.approx(data.x[example.index, 0].numpy(), abs=0.51 / 255)
        assert np.abs(perturbed - clean).max() <= 0.1 + 1.01 / 255
        shown = (pixels(example.difference) / 255.0 - 0.5) / example.amplified
        assert shown == pytest.approx(perturbed - clean, abs=1.6 / 255)
        assert example.risk == pytest.approx(float(one.evaluation.risk[example.index]))
        assert float(one.rec.probs.numpy()[example.fooled].sum()) == pytest.approx(example.risk)
        assert example.label not in example.said


def test_without_witnesses_or_data_the_reason_is_said(trained_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(trained_run, folder)
    one = load_run(folder)
    assert one.evaluation is not None
    one.run.manifest["recipe"]["data"]["name"] = "nowhere"
    assert "nowhere" in gallery(one, one.evaluation)
    (folder / "witnesses.sqlite").unlink()
    assert "no stored witnesses" in gallery(one, one.evaluation)


def test_color_and_size_of_pictures() -> None:
    color = torch.zeros(3, 4, 5)
    color[0] = 1.0
    assert pixels(to_png(color))[0, 0].tolist() == [255, 0, 0]
    assert pixels(to_png(color)).shape == (4, 5, 3)
    assert pixels(to_png(torch.full((2, 4, 4), 0.5)))[0, 0] == 128
    assert max(pixels(to_png(torch.rand(1, 300, 200))).shape) == 96
