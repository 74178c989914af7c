"""What Tab completes, what help lists, and what is said where a package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from randens import attacks, data
from randens.cli import names
from randens.report import FIGURES
from randens.threat import Threat

ROOT = Path(__file__).parents[2]


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        check=False,
    )


def _bash(line: str) -> list[str]:
    """What bash would offer for the line."""
    words = line.split(" ")
    done = _run(
        *("-m", "randens"), _RANDENS_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_names_are_those_of_the_library() -> None:
    # Attacks that other tests register while they run are not part of the library.
    threat = Threat("linf", 0.1)
    made = {name: type(attacks.create(name, threat)) for name in attacks.names()}
    library = {name for name, kind in made.items() if kind.__module__.startswith("randens.")}
    assert set(names.ATTACKS) == library
    assert data.names() == names.DATA_SETS
    assert names.SPLITS == data.SPLITS
    assert set(names.FIGURES) == set(FIGURES)
    assert [Threat(norm, 1).norm for norm in names.NORMS] == list(names.NORMS)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("randens ev", ["evaluate"]),
        ("randens evaluate --att", ["--attack"]),
        ("randens evaluate runs/x --attack arc", ["arc", "arc-r"]),
        ("randens sample runs/x --data ci", ["cifar10", "cifar100"]),
        ("randens data f", ["fetch"]),
        ("randens data fetch mn", ["mnist"]),
        ("randens report x --figure la", ["landscape"]),
        ("randens certify runs/x --norm l", ["linf", "l2", "l1", "l0"]),
        ("randens nonsense --x", []),
    ],
)
def test_tab(line: str, offered: list[str]) -> None:
    assert _bash(line) == offered


def test_other_shells_ask_in_another_way() -> None:
    typed = "randens sample runs/x --split v"
    zsh = _run("-m", "randens", _RANDENS_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed)
    assert '"validation"' in zsh.stdout
    assert '"train"' not in zsh.stdout


def test_the_script_is_installed_where_bash_looks(tmp_path: Path) -> None:
    script = "from randens.cli.main import run; import shellingham; shellingham.detect_shell = lambda: ('bash', ''); "
    done = _run("-c", script + "run(['--install-completion'])", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (installed,) = (tmp_path / ".bash_completions").iterdir()
    assert "_RANDENS_COMPLETE=complete_bash" in installed.read_text()
    assert str(installed) in (tmp_path / ".bashrc").read_text()


@pytest.mark.parametrize("package", ["granian", "fastapi"])
def test_a_missing_extra_is_one_line(package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; from randens.cli.main import run; "
    done = _run("-c", script + "sys.exit(run(['serve', 'bundle']))")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"randens: {package} is not installed and 'serve' needs it; pip install 'randens[serve]'\n"
    )
