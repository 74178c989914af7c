"""`randens attack`, its pictures, the example and the pages about attacks."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import image as reader
from tests.attacks.cases import NORMS, attack, case
from tests.cli.commands import Shell, shell

from randens import RandomizedEnsemble, Threat, attacks, data, load, models
from randens.attacks import base, suite
from randens.core.errors import InputError
from randens.core.runs import Run
from randens.evaluation.attack_table import save_grid
from randens.witness.store import WitnessStore

__all__ = ["shell"]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with two untrained networks on the digits."""
    members = [models.create("linear", classes=10, input_shape=(1, 8, 8), seed=seed) for seed in range(2)]
    run = Run.create(tmp_path / "run", recipe={"data": {"name": "digits"}}, seed=0)
    RandomizedEnsemble(members, [0.7, 0.3], threat=Threat("linf", 0.05)).save(run.ensemble)
    return run.path


def test_the_command_reports_and_keeps_what_it_found(shell: Shell, run_folder: Path) -> None:
    (row,) = shell.json("attack", run_folder, "--attack", "pgd", "--set", "steps=5", "--limit", "40")
    rec, images = load(run_folder / "ensemble"), data.load("digits", "test").subset(slice(0, 40))
    assert rec.threat is not None
    expected = attacks.create("pgd", rec.threat, steps=5).survey(rec, images)
    assert row["attack"] == "pgd"
    assert row["inputs"] == 40
    assert row["natural"] == pytest.approx(rec.accuracy(images.x, images.y))
    assert row["robust"] == pytest.approx(expected.robust_accuracy)
    assert row["robust"] <= row["natural"]
    # The perturbed inputs are in the run's store, legal, and as bad as the table says.
    store = WitnessStore(run_folder / "witnesses")
    stored = attacks.create("pgd", rec.threat, steps=5).survey(rec, images, folder=store, inputs=True)
    assert stored.reused == stored.cost
    assert rec.threat.contains(stored.x_adv, images.x).all()
    assert 1 - float(rec.risk(stored.x_adv, images.y).mean()) == pytest.approx(row["robust"])


def test_the_command_continues_and_does_not_repeat(shell: Shell, run_folder: Path) -> None:
    arguments = ("attack", run_folder, "--attack", "fgsm", "--limit", "30")

    def stamps() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in (run_folder / "witnesses").rglob("*.safetensors")}

    first = shell.json(*arguments)
    before = stamps()
    assert before
    # The same question, and one on fewer inputs, are answered by what is there.
    assert shell.json(*arguments) == first
    shell.json(*arguments, "--limit", "20")
    assert stamps() == before
    # Another seed or radius is another question, and so is everything with --fresh.
    for change in (("--seed", "1"), ("--eps", "1/255"), ("--fresh",)):
        shell.json(*arguments, *change)
        assert set(stamps()) > set(before)
        before = stamps()


def test_the_command_prints_a_table_and_draws_pictures(
    shell: Shell, run_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "worst.png"
    code, out, err = shell("attack", run_folder, "--attack", "saddle", "--limit", "12", "--save-images", path)
    assert code == 0, err
    for expected in ("saddle", "natural", "robust", "digits test, 12 inputs", str(path)):
        assert expected in out.replace("\n", " ")
    assert reader.imread(path).shape[2] == 4


def test_several_attacks_and_their_worst_case(shell: Shell, run_folder: Path) -> None:
    rows = shell.json("attack", run_folder, "--attack", "fgsm", "--attack", "random", "--limit", "30")
    assert [r["attack"] for r in rows] == ["fgsm", "random", "all together"]
    assert rows[2]["robust"] <= min(rows[0]["robust"], rows[1]["robust"])
    assert rows[2]["backwards"] == rows[0]["backwards"] + rows[1]["backwards"]


def test_the_command_refuses(shell: Shell, run_folder: Path, tmp_path: Path) -> None:
    assert "unknown attack 'pdg'; valid: pgd" in shell.refused("attack", run_folder, "--attack", "pdg")
    assert "it must be name=value" in shell.refused("attack", run_folder, "--set", "steps")
    assert "limit is 0" in shell.refused("attack", run_folder, "--limit", "0")
    assert "pictures are written as PNG" in shell.refused(
        "attack", run_folder, "--attack", "fgsm", "--limit", "5", "--save-images", tmp_path / "a.gif"
    )
    assert "a single --attack" in shell.refused(
        "attack", run_folder, "--attack", "fgsm", "--attack", "pgd", "--save-images", tmp_path / "a.png"
    )
    assert not (run_folder / "witnesses").exists()
    assert "is not a run folder" in shell.refused("attack", tmp_path)


# ---- pictures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_show_the_perturbation(tmp_path: Path, channels: int) -> None:
    """Two inputs that differ in one pixel's change give pictures that differ; a grey one has a grey difference."""
    x = torch.full((2, channels, 8, 8), 0.5)
    still = save_grid(tmp_path / "still.png", x, x, ["a", "b"], Threat("linf", 0.1))
    moved = x.clone()
    moved[1, :, 3, 3] += 0.1
    other = save_grid(tmp_path / "moved.png", x, moved, ["a", "b"], Threat("linf", 0.1))
    before, after = reader.imread(still), reader.imread(other)
    width = before.shape[1]
    changed = (
        np.argwhere((before[..., :3] != after[..., :3]).any(axis=2)) if before.shape == after.shape else None
    )
    assert changed is not None
    # Pixels of the second column only, apart from the label that names the gain.
    pixels = changed[changed[:, 1] > width * 0.2]
    assert len(pixels)
    assert pixels[:, 1].min() > width * 0.5
    assert after.shape[0] > 300


def test_pictures_are_refused(tmp_path: Path) -> None:
    x = torch.zeros(2, 1, 4, 4)
    threat = Threat("linf", 0.1)
    with pytest.raises(InputError, match="pictures are written as PNG"):
        save_grid(tmp_path / "a.jpg", x, x, ["", ""], threat)
    with pytest.raises(InputError, match="pictures need"):
        save_grid(tmp_path / "a.png", x.flatten(1), x.flatten(1), ["", ""], threat)
    with pytest.raises(InputError, match="pictures need"):
        save_grid(tmp_path / "a.png", x, x[:1], ["", ""], threat)
    with pytest.raises(InputError, match="x is empty"):
        save_grid(tmp_path / "a.png", x[:0], x[:0], [], threat)


# ---- the example and the pages -------------------------------------------------------------------------------------


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
