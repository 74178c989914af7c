"""What is measured for a report: curves that cannot rise, attacks that can be scored again, true pictures."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.evaluation.evaluated import evaluate
from tests.report.made_runs import THREAT

import randens
from randens.core.errors import InputError
from randens.report import measure
from randens.report.load import load_run
from randens.report.pictures import make_gallery, to_png


def pixels(uri: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def test_no_curve_rises_and_the_middle_is_the_evaluation(trained_run: Path) -> None:
    one = load_run(trained_run)
    assert one.radii is not None
    assert one.evaluation is not None
    assert [r.eps for r in one.radii.radii] == pytest.approx([0.05, 0.1, 0.2])
    robust = [r.robust.value for r in one.radii.radii]
    assert robust == sorted(robust, reverse=True)
    for member in range(3):
        values = [r.members[member].value for r in one.radii.radii]
        assert values == sorted(values, reverse=True)
    # The witnesses of the evaluation were passed on, so nothing can look more robust here than there.
    assert robust[1] <= one.evaluation.robust + 1e-12


def test_attacks_compared_score_again(trained_run: Path) -> None:
    rec = randens.load(trained_run / "ensemble")
    data = randens.data.load("digits", "test").subset(slice(0, 40))
    table = load_run(trained_run).attacks
    assert table is not None
    for line in table.attacks:
        found = randens.attacks.create(line.name, THREAT)(rec, data.x, data.y)
        assert 1 - float(rec.risk(found.x_adv, data.y).mean()) == pytest.approx(line.robust.value)
        assert (found.cost.forwards, found.cost.backwards) == (line.forwards, line.backwards)
    assert table.together is not None
    assert table.together.value <= min(line.robust.value for line in table.attacks)


def test_pictures_show_what_the_members_saw(trained_run: Path) -> None:
    rec, data = randens.load(trained_run / "ensemble"), randens.data.load("digits", "test")
    gallery = load_run(trained_run).gallery
    assert gallery is not None
    assert gallery.examples
    for example in gallery.examples:
        clean = torch.from_numpy(pixels(example.clean) / 255.0).float()[None]
        assert clean.numpy() == pytest.approx(data.x[example.index].numpy(), abs=0.51 / 255)
        perturbed = torch.from_numpy(pixels(example.perturbed) / 255.0).float()[None]
        assert float((perturbed - clean).abs().max()) <= THREAT.eps + 1.01 / 255
        shown = (pixels(example.difference) / 255.0 - 0.5) / gallery.amplified
        assert shown == pytest.approx((perturbed - clean)[0].numpy(), abs=1.6 / 255)
        assert example.before == [example.label] * 3
        fooled = np.array(example.after) != example.label
        assert fooled.any()
        assert float(fooled @ rec.probs.numpy()) == pytest.approx(example.risk)


def test_colour_and_size_of_pictures() -> None:
    colour = torch.zeros(3, 4, 5)
    colour[0] = 1.0
    assert pixels(to_png(colour))[0, 0].tolist() == [255, 0, 0]
    assert pixels(to_png(colour)).shape == (4, 5, 3)
    assert pixels(to_png(torch.full((2, 4, 4), 0.5)))[0, 0] == 128
    assert max(pixels(to_png(torch.rand(1, 300, 200))).shape) == 96


def test_bad_input(trained_run: Path) -> None:
    rec, data = (
        randens.load(trained_run / "ensemble"),
        randens.data.load("digits", "test").subset(slice(0, 4)),
    )
    with pytest.raises(InputError, match="factors is"):
        measure(rec, data, THREAT, factors=())
    with pytest.raises(InputError, match=r"compared is \(\); name at least one attack"):
        measure(rec, data, THREAT, compared=())
    with pytest.raises(InputError, match="unknown attack 'sadle'; did you mean saddle"):
        measure(rec, data, THREAT, attack=("sadle",))
    result = evaluate(rec, data, randens.attacks.create("pgd", THREAT))
    assert result.pool is not None
    with pytest.raises(InputError, match="pool describes 4 inputs; data has 2"):
        make_gallery(rec, data.subset(slice(0, 2)), result.pool, THREAT)
