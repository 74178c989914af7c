"""The wheel is the product: in an empty folder, away from a clone, its commands have all they need."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.once import made_once

import randens

ROOT = Path(__file__).parents[1]
Installed = Callable[..., str]
PROGRAMS = "Scripts" if os.name == "nt" else "bin"

pytest.importorskip("hatchling", reason="hatchling builds the wheel; `make test` installs it")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> None:
        _checked([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder)], ROOT)

    (built,) = made_once(tmp_path_factory, "wheel", build).glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`randens` of a new environment that has the wheel and, for the rest, the packages of this one.

    Runs in an empty folder of its own and gives back what was printed.
    """

    def install(environment: Path) -> None:
        venv.create(environment, with_pip=False)
        python = str(environment / PROGRAMS / "python")
        (purelib,) = _checked(
            [python, "-c", "import site; print(site.getsitepackages()[0])"], environment
        ).splitlines()
        # A path file adds folders without reading the path files in them: an editable randens there stays out.
        Path(purelib, "rest.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
        _checked([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], environment)

    environment = made_once(tmp_path_factory, "environment", install)
    folder = tmp_path_factory.mktemp("empty")

    def run(*arguments: str, program: str = "randens") -> str:
        return _checked([str(environment / PROGRAMS / program), *arguments], folder)

    return run


def _checked(command: list[str], folder: Path) -> str:
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_everything_a_command_needs_is_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert wheel.name == f"randens-{randens.__version__}-py3-none-any.whl"
    source = ROOT / "src"
    here = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {name for name in here if "__pycache__" not in name} <= inside
    recipes = {path.relative_to(ROOT / "recipes").as_posix() for path in (ROOT / "recipes").rglob("*.toml")}
    assert recipes
    assert {f"randens/training/recipes/{name}" for name in recipes} <= inside
    zoo = {path.relative_to(ROOT / "zoo").as_posix() for path in (ROOT / "zoo").rglob("*") if path.is_file()}
    assert {f"randens/zoo_runs/{name}" for name in zoo} <= inside
    # And nothing else: no tests, no benchmarks, no page of the documentation.
    assert {name.partition("/")[0] for name in inside} == {
        "randens",
        f"randens-{randens.__version__}.dist-info",
    }


# Importing torch takes longer than what is asked of most commands: one process runs all of them, as the program would.
COMMANDS = """
import contextlib, io, json, sys
from randens.cli.main import run

for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = run(arguments)
    print(json.dumps([code, said.getvalue()]))
"""


def test_commands_work_in_an_empty_folder(installed: Installed) -> None:
    found = installed("-c", "import randens; print(randens.__file__, randens.__version__)", program="python")
    assert str(ROOT) not in found
    assert found.split()[1] == randens.__version__
    assert installed("--version").strip() == randens.__version__
    run = str(Path("runs", "digits-mlp-barre"))
    small = ("epochs=1", "later_epochs=1", "validation.size=20", "members=2", "model.width=8")
    commands = [
        # A recipe by its name; its run is evaluated and shown; the zoo, and the theory.
        ["doctor"],
        ["train", "digits-mlp-barre", *(word for text in small for word in ("--set", text)), "--json"],
        ["evaluate", run, "--attack", "pgd", "--limit", "10", "--json"],
        ["report", run],
        ["zoo", "list", "--json"],
        ["explain", "0.4", "0.5"],
    ]
    said = installed("-c", COMMANDS, json.dumps(commands), program="python").splitlines()
    codes, (checked, trained, evaluated, _, listed, explained) = zip(*map(json.loads, said), strict=True)
    assert codes == (0,) * len(commands)
    assert "torch" in checked
    assert json.loads(trained)["run"] == run
    assert json.loads(evaluated)["summary"]["n"] == 10
    assert any(entry["name"] == "cifar10-resnet20-barre-m3" for entry in json.loads(listed))
    assert "floor" in explained


@pytest.mark.slow
def test_the_quickstart_works_in_an_empty_folder(installed: Installed) -> None:
    said = json.loads(installed("quickstart", "--json"))
    assert said["ensemble"]["summary"]["n"] == said["at"]["summary"]["n"] == 360
    assert "than AT" in said["verdict"]
