"""k of M on disk, evaluated and exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evaluation.evaluated import evaluate
from torch import nn

import randens
from randens import DeterministicEnsemble, RandomizedEnsemble, Threat, attacks, models
from randens.core.errors import FileError, InputError
from randens.core.files import read_json, write_json


def made(count: int = 4) -> RandomizedEnsemble:
    members = [
        models.create("mlp", classes=3, input_shape=(5,), width=8, depth=1, seed=i) for i in range(count)
    ]
    return RandomizedEnsemble(members, classes=["a", "b", "c"], threat=Threat("linf", 0.1)).eval()


def test_networks_are_stored_once_and_shared_again(tmp_path: Path) -> None:
    pairs = made().subsets(2).with_probs([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    folder = pairs.save(tmp_path / "pairs")
    assert len(list(folder.glob("*.safetensors"))) == 4
    again = randens.load(folder)
    assert again.probs.tolist() == pairs.probs.tolist()
    assert len(again.networks) == 4
    x = torch.rand(7, 5)
    with torch.no_grad():
        assert torch.equal(again.logits(x), pairs.logits(x))
    assert again.threat == pairs.threat
    assert again.classes == pairs.classes


def test_averages_keep_their_weights_and_ordinary_members_their_format(tmp_path: Path) -> None:
    rec = made(3)
    mixed = RandomizedEnsemble(
        [DeterministicEnsemble(list(rec.members), [0.2, 0.3, 0.5]), rec.members[1]]
    ).eval()
    again = randens.load(mixed.save(tmp_path / "mixed"))
    x = torch.rand(4, 5)
    with torch.no_grad():
        torch.testing.assert_close(again.logits(x), mixed.logits(x))
    assert read_json(tmp_path / "mixed" / "ensemble.json")["format"] == "randens-ensemble-1"
    assert read_json(rec.save(tmp_path / "plain") / "ensemble.json")["format"] == "randens-ensemble-1"
    manifest = read_json(tmp_path / "plain" / "ensemble.json")
    changes = {"format": "randens-ensemble-9", "averages": [{"of": [0] * 5000, "weights": None}]}
    for name, value in changes.items():
        write_json(tmp_path / "plain" / "ensemble.json", {**manifest, name: value})
        with pytest.raises(FileError, match=f"of another version: {name}"):
            randens.load(tmp_path / "plain")


def test_k_is_checked() -> None:
    rec = made()
    for k in (0, 5, True, 1.5):
        with pytest.raises(InputError, match="from 1 to 4"):
            rec.subsets(k)  # type: ignore[arg-type]
    many = RandomizedEnsemble([nn.Linear(2, 2) for _ in range(9)])
    with pytest.raises(InputError, match="number of subsets is 126"):
        many.subsets(4)


def test_subsets_are_evaluated_and_their_probabilities_chosen() -> None:
    pairs = made(3).subsets(2)
    x = torch.rand(30, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = pairs.logits(x).mean(dim=0).argmax(dim=1)
    attack = attacks.create("saddle", Threat("linf", 0.1), restarts=1)
    result = evaluate(pairs, (x, y), attack)
    assert result.members == 3
    assert result.expected_flops == 2 * models.flops(pairs.networks[0], (5,))
    assert result.conflict is not None
    assert result.conflict.reach > 0.5
    # The mean of all averages is the mean of all networks.
    deterministic = DeterministicEnsemble(list(pairs.networks)).eval()
    with torch.no_grad():
        wrong = (deterministic(x).argmax(dim=1) != y).numpy()
    assert result.average is not None
    assert np.array_equal(result.average[0], wrong)
    best = randens.optimize_sampling(pairs, (x, y), attack, max_sweeps=2)
    assert best.certificate is not None
    assert best.certificate.verify(best.profile)
