"""The frame of the command line: help, versions, one-line errors, exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.docs.blocks import check_arguments

import randens
from randens.cli import main
from randens.core.errors import InputError


def test_help_lists_every_verb_with_what_it_does(shell: Shell) -> None:
    code, out, err = shell("--help")
    assert (code, err) == (0, "")
    for verb, summary in main.VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(summary)}$", out, re.MULTILINE)
    files = {path.stem for path in Path(str(main.__file__)).parent.glob("*.py")}
    assert set(main.VERBS) <= files


def test_randens_alone_shows_where_to_begin(shell: Shell) -> None:
    code, out, err = shell()
    assert (code, err) == (0, "")
    for entry in ("I have a model", "I have a randomised defence", "I want to train one"):
        assert f"\n{entry}\n  randens " in out
    for line in out.splitlines():
        if line.startswith("  randens "):
            check_arguments(line.split()[1:])


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_verb_explains_itself_with_an_example(shell: Shell, verb: str) -> None:
    code, out, _ = shell(verb, "--help")
    assert code == 0
    assert f"randens {verb}" in out
    commands = re.findall(r"^│ ([a-z]+) ", out.partition("Commands")[2], re.MULTILINE)
    for command in commands or [""]:
        code, out, _ = shell(*f"{verb} {command}".split(), "--help")
        assert code == 0
        assert f"Example: randens {verb}" in out


@pytest.mark.parametrize(
    "verb",
    [
        *("evaluate", "advise", "audit", "certify", "sample", "report", "export", "quickstart"),
    ],
)
def test_every_verb_that_runs_members_takes_a_device(
    shell: Shell, run_folder: Path, tmp_path: Path, verb: str
) -> None:
    runs = ["--runs", tmp_path / "runs"]
    where = {"quickstart": runs, "report": [run_folder, "--measure"]}
    options = {"quickstart": [], "report": []}.get(verb, ["--limit", "1"])
    line = shell.refused(verb, *where.get(verb, [run_folder]), *options, "--device", "gpu")
    assert "device is 'gpu'; valid: auto, cpu, cuda, cuda:N, mps" in line


def test_help_needs_neither_typer_nor_rich() -> None:
    code = (
        "import sys; from randens.cli.main import run; run([]); run(['--help']); run(['--version'])\n"
        "sys.exit(str([m for m in ('typer', 'rich', 'numpy', 'torch') if m in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    assert "I have a model" in done.stdout


def test_version(shell: Shell) -> None:
    assert shell("--version") == (0, f"{randens.__version__}\n", "")


def test_an_unknown_command_is_named_with_the_closest_first(shell: Shell) -> None:
    line = shell.refused("evalute", "x")
    assert line.startswith("unknown command 'evalute'; valid: evaluate, ")
    assert "quickstart" in line
    assert shell.refused("data", "lst").startswith("unknown command of 'data' 'lst'; valid: list, ")


def test_missing_and_unknown_options_are_one_line(shell: Shell) -> None:
    assert "risks" in shell.refused("explain")
    assert "run" in shell.refused("evaluate").lower()
    assert "--nope" in shell.refused("doctor", "--nope")
    assert "--wrong" in shell.refused("--wrong")
    assert "'--limit'" in shell.refused("evaluate", "r", "--limit", "x")


def test_a_bare_group_shows_its_help(shell: Shell) -> None:
    code, out, err = shell("data")
    assert code == 2
    assert "fetch" in out + err


def test_an_interrupt_has_its_exit_code_and_no_traceback(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("randens.risk.explain", interrupted)
    code, out, err = shell("explain", "0.5")
    assert (code, out) == (130, "")
    assert "Traceback" not in err


def test_errors_of_the_library_lose_their_line_breaks(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise InputError("first\n  second")

    monkeypatch.setattr("randens.risk.explain", failing)
    assert shell.refused("explain", "0.5") == "first second"


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("randens.risk.explain", broken)
    with pytest.raises(ZeroDivisionError):
        main.run(["explain", "0.5"])


def test_the_command_exits_without_a_traceback() -> None:
    code = "from randens.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_bad_input_is_noticed_before_the_work(shell: Shell, run_folder: Path, tmp_path: Path) -> None:
    assert not (tmp_path / "runs").exists()
    assert "unknown attack 'x'" in shell.refused("export", run_folder, "--int8", "--attack", "x")
    assert "limit is 0" in shell.refused("export", run_folder, "--int8", "--limit", "0")
    assert not (run_folder / "bundle").exists()
    assert "--seed" in shell.refused("quickstart", "--seed", "-5", "--runs", tmp_path / "runs")
    assert "device is 'gpu'" in shell.refused("quickstart", "--device", "gpu", "--runs", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "file").touch()
    assert "--folder" in shell.refused("data", "list", "--folder", tmp_path / "file")


def test_a_run_is_not_a_bundle(shell: Shell, run_folder: Path) -> None:
    assert "`randens export RUN` makes one" in shell.refused("serve", run_folder)
    (run_folder / "bundle").mkdir()
    assert f"did you mean {run_folder / 'bundle'}?" in shell.refused("serve", run_folder)
