"""What answers at once answers without torch: importing randens, help, the data folder, the theory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from randens.cli.main import COMMANDS

SOURCE = Path(__file__).parents[1] / "src"

# Importing any of these ends the program, whether or not they are installed.
_FORBIDDEN = """
import sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Forbidden())
"""
_SLOW = {"torch", "lightning_fabric", "sklearn", "matplotlib", "onnx", "onnxruntime"}
# What takes a moment only, but is not needed to say what there is.
_HEAVY = _SLOW | {"numpy", "scipy", "PIL", "fastapi"}
_COMMAND = "from randens.cli.main import run\nsys.exit(run(sys.argv[1:]))"


def without(forbidden: set[str], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", f"FORBIDDEN = {forbidden!r}\n{_FORBIDDEN}{code}", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "RANDENS_DATA": "a-folder", "COLUMNS": "200"},
        check=False,
    )


def test_importing_randens() -> None:
    code = "import randens, randens.risk as risk\nprint(randens.__version__, risk.bounds([0.4, 0.5]).ceiling)"
    done = without(_SLOW, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "0.5"


def test_what_is_forbidden_is_noticed() -> None:
    assert "torch was imported" in without(_SLOW, "import randens\nrandens.Threat").stderr


def test_help_of_every_command() -> None:
    # One process for all of them: starting Python takes longer than what is tested.
    code = "from randens.cli.main import run\ncodes = [run([*a.split(), '--help']) for a in sys.argv[1:]]\n"
    verbs = list(COMMANDS)
    done = without(_SLOW, code + "sys.exit(max(codes))", "", *verbs)
    assert done.returncode == 0, done.stderr
    for verb in verbs:
        assert f"Usage: randens {verb} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--version"], "."), (["--help"], "quickstart"), (["explain", "0.4", "0.5"], "ceiling  0.5000")],
)
def test_commands(arguments: list[str], said: str) -> None:
    done = without(_SLOW if arguments[0] == "explain" else _HEAVY, _COMMAND, *arguments)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
