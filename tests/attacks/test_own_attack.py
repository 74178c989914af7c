"""An attack of one's own: the example, and what registration refuses."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import pytest
import torch
from tests.attacks.cases import NORMS, attack, case

from randens import attacks
from randens.attacks import base
from randens.core.errors import InputError

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_attack.py"


@pytest.fixture(autouse=True)
def _own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten afterwards."""
    monkeypatch.setattr(base, "REGISTRY", {k: v for k, v in base.REGISTRY.items() if k != "momentum"})


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["planted", "convnet", "zero-weight"])
def test_the_own_attack_obeys_the_laws(kind: str, norm: str) -> None:
    runpy.run_path(str(EXAMPLE))
    given = case(kind, norm)
    own = attack("momentum", given.threat, restarts=2)
    result = own(given.rec, given.x, given.y)
    assert given.threat.contains(result.x_adv, given.x).all()
    assert torch.equal(given.rec.errors(result.x_adv, given.y), result.errors)
    assert bool((result.risk >= given.rec.risk(given.x, given.y)).all())
    assert set(result.sources) <= {"clean", "momentum"}
    assert torch.equal(own(given.rec, given.x, given.y).x_adv, result.x_adv)
    once = attack("momentum", given.threat, restarts=1)(given.rec, given.x, given.y)
    assert result.cost.passes > once.cost.passes
    with pytest.raises(InputError, match="steps is 0"):
        attack("momentum", given.threat, steps=0)


def test_names_are_not_taken_twice_and_options_of_ones_own_are_checked() -> None:
    with pytest.raises(InputError, match="an attack named 'pgd' exists already: PGD"):

        @attacks.register("PGD")
        @dataclasses.dataclass(frozen=True)
        class Mine(attacks.Attack):
            """Another one."""

    @attacks.register("Empty")
    @dataclasses.dataclass(frozen=True)
    class Empty(attacks.Attack):
        """No search."""

        rounds: int = 3

    # Annotations need not be text, as they are in this file.
    Empty.__dataclass_fields__["rounds"].type = int
    given = case("mlp", "linf")
    assert attacks.create("empty", given.threat) == attacks.create("Empty", given.threat)
    with pytest.raises(InputError, match="rounds is 0; it must be a whole number from 1"):
        attacks.create("Empty", given.threat, rounds=0)
    with pytest.raises(InputError, match="Empty defines no search"):
        attacks.create("empty", given.threat)(given.rec, given.x, given.y)
