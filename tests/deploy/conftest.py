"""Small trained members, exported once for all tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from randens.deploy import Bundle

# Only the fixtures below need torch; most tests of this folder run without it.
if TYPE_CHECKING:
    from torch import nn

    from randens import RandomizedEnsemble
    from randens.data import Data


@dataclass(frozen=True)
class Exported:
    """An ensemble of two trained networks and its bundle."""

    rec: RandomizedEnsemble
    bundle: Bundle


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    from randens import RandomizedEnsemble, Threat, data, models
    from randens.deploy.exporting import export

    train = data.load("digits", "train")
    mean, std = train.mean_std()
    members = [
        models.create("convnet", classes=10, input_shape=(1, 8, 8), width=8, mean=mean, std=std, seed=seed)
        for seed in (0, 1)
    ]
    for seed, member in enumerate(members):
        fit(member, train, seed)
    rec = RandomizedEnsemble(members, (0.7, 0.3), classes=train.classes, threat=Threat("linf", 0.1)).eval()
    path = tmp_path_factory.mktemp("deploy") / "bundle"
    return Exported(rec, export(rec, data.load("digits", "validation"), path))


def fit(member: nn.Module, train: Data, seed: int) -> None:
    import torch
    from torch import nn

    optimizer = torch.optim.Adam(member.parameters(), 0.01)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        for x, y in train.batches(64, generator=generator):
            optimizer.zero_grad()
            nn.functional.cross_entropy(member(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
