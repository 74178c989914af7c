"""The example and the pages about attacks."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from tests.attacks.cases import NORMS, attack, case

from randens import Threat, attacks
from randens.attacks import base, suite
from randens.core.errors import InputError

ROOT = Path(__file__).parents[2]


def _own_attack() -> None:
    if "momentum" not in attacks.names():
        spec = importlib.util.spec_from_file_location("own_attack", ROOT / "examples" / "own_attack.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["own_attack"] = module
        spec.loader.exec_module(module)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["planted", "convnet", "mlp", "zero-weight"])
def test_the_own_attack_obeys_the_laws(kind: str, norm: str, tmp_path: Path) -> None:
    _own_attack()
    given = case(kind, norm)
    own = attack("momentum", given.threat, restarts=2)
    result = own(given.rec, given.x, given.y)
    assert given.threat.contains(result.x_adv, given.x).all()
    assert torch.equal(given.rec.errors(result.x_adv, given.y), result.errors)
    assert bool((result.risk >= given.rec.risk(given.x, given.y)).all())
    assert torch.equal(own(given.rec, given.x, given.y).x_adv, result.x_adv)
    kept = dataclasses.replace(own, drop_finished=False)(given.rec, given.x, given.y)
    assert torch.equal(kept.errors, result.errors)
    survey = own.survey(given.rec, (given.x, given.y), folder=tmp_path)
    assert torch.equal(survey.errors, result.errors)
    with pytest.raises(InputError, match="steps is 0"):
        attack("momentum", given.threat, steps=0)


def test_names_are_not_taken_twice() -> None:
    with pytest.raises(InputError, match="an attack named 'pgd' exists already: PGD"):

        @attacks.register("pgd")
        @dataclasses.dataclass(frozen=True)
        class Mine(attacks.Attack):
            """Another one."""

    @dataclasses.dataclass(frozen=True)
    class Empty(attacks.Attack):
        """No search."""

    given = case("mlp", "linf")
    with pytest.raises(InputError, match="Empty defines no search"):
        Empty(given.threat)(given.rec, given.x, given.y)


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # What the example registers is forgotten afterwards.
    known = {name: made for name, made in base._REGISTRY.items() if name != "momentum"}
    monkeypatch.setattr(base, "_REGISTRY", known)
    runpy.run_path(str(ROOT / "examples" / "own_attack.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    accuracy = {line.split()[0]: float(line.split()[1]) for line in lines}
    assert list(accuracy) == ["clean", "momentum", "adaptive-pgd-l", "saddle"]
    assert accuracy["clean"] > 0.9
    assert accuracy["saddle"] <= accuracy["momentum"] < accuracy["clean"]


def test_the_example_is_the_pages_code_and_ten_lines() -> None:
    page = (ROOT / "docs" / "write-an-attack.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "own_attack.py").read_text(encoding="utf-8")
    block, *_ = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    body = [line for line in block[block.index("@attacks") :].splitlines() if line.strip()]
    assert all(line in example for line in body)
    assert len(body[body.index("    steps: int = 20") :]) <= 10
    for method in re.findall(r"`s\.(\w+)", page):
        assert hasattr(attacks.Search, method) or method in _search_fields(), method


def _search_fields() -> set[str]:
    given = case("mlp", "linf")
    return set(vars(attacks.Search(given.rec, given.x, given.y, given.threat)))


def test_the_page_names_every_attack_and_every_budget() -> None:
    page = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    for name in attacks.names():
        assert f"`{name}`" in page or name == "momentum", name
    for preset in suite.PRESETS:
        told = [
            " ".join(
                [part.name]
                + [
                    f"{f.name}={getattr(part, f.name)}"
                    for key in ("steps", "orders", "queries", "restarts")
                    for f in dataclasses.fields(part)
                    if f.name == key
                ]
            )
            for part in suite.parts(preset, Threat("linf", 0.1))
        ]
        assert f"| `{preset}` | {'; '.join(told)} |" in page
