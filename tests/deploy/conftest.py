"""Small trained members, exported once for all tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from randens.deploy import Bundle

# Only the fixture below needs torch; most tests of this folder run without it.
if TYPE_CHECKING:
    from randens import RandomizedEnsemble


@dataclass(frozen=True)
class Exported:
    """An ensemble of two trained networks and its bundle."""

    rec: RandomizedEnsemble
    bundle: Bundle


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    import torch

    from randens import RandomizedEnsemble, Threat, data, export, models

    train, validation = data.load("digits", "train"), data.load("digits", "validation")
    torch.manual_seed(0)
    mean, std = train.mean_std()
    members = [
        models.create("convnet", classes=10, input_shape=(1, 8, 8), width=8, mean=mean, std=std, seed=seed)
        for seed in (0, 1)
    ]
    for member in members:
        optimizer = torch.optim.Adam(member.parameters(), 0.01)
        for _ in range(100):
            x, y = train[torch.randint(len(train), (64,)).numpy()]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(member(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    rec = RandomizedEnsemble(members, (0.7, 0.3), classes=train.classes, threat=Threat("linf", 0.1)).eval()
    return Exported(rec, export(rec, validation, tmp_path_factory.mktemp("deploy") / "bundle"))
