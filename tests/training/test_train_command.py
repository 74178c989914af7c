"""`randens train`: the result for people and programs, bad input in one line, Ctrl-C and the same command again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from randens.cli import train as command
from randens.cli.main import run
from randens.core.progress import Progress
from randens.core.runs import Run

_TINY = ["--set", "epochs=1", "--set", "validation.size=30", "--set", "model.width=8"]
_OWN = ["--set", "model.width=none", "--set", "model.depth=none"]
RECIPE = str(Path(__file__).resolve().parents[2] / "recipes" / "cpu" / "digits-mlp-barre.toml")


def test_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run(["train", RECIPE, "--out", str(folder), *_TINY, "--set", "later_epochs=1", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["run"] == str(folder)
    assert (result["method"], result["members"], len(result["probs"])) == ("barre", 3, 3)
    assert "member passes" in captured.err
    assert run(["train", RECIPE, "--out", str(folder), *_TINY, "--set", "later_epochs=1"]) == 0
    captured = capsys.readouterr()
    assert "finished already" in captured.err
    assert captured.out.startswith("barre, 3 members, α = (")
    assert f"randens evaluate {folder}" in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "batch_size=5000"], "the training set has 1257 images"),
        (["--set", "model.name=resnet21"], "unknown model 'resnet21'"),
        (["--set", "first=nowhere"], "first is 'nowhere', no folder"),
        (["--set", "model.name=timm:resnet18"], "set width, depth to none"),
        ([*_OWN, "--set", "model.name=nowhere:net"], "cannot be imported"),
        (["--devices", "4000"], "devices is 4000"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    folder = tmp_path / "run"
    assert run(["train", RECIPE, "--out", str(folder), *arguments]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("randens: ")
    assert message in last
    assert not folder.exists()


def test_ctrl_c_finishes_the_step_and_the_same_command_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def interrupting() -> Iterator[Progress]:
        steps = 0

        def progress(task: str, done: float, total: float) -> None:
            nonlocal steps
            steps += task == "epoch" and done < total
            if task == "epoch" and steps == 4:
                os.kill(os.getpid(), signal.SIGINT)

        yield progress

    arguments = ["train", RECIPE, "--out", str(tmp_path / "run"), *_TINY, "--set", "later_epochs=1"]
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(command, "bars", interrupting)
        assert run(arguments) == 130
    said = capsys.readouterr().err
    assert "stopping after this step" in said
    assert "stopped after member 1, epoch 1, step 5" in said
    assert "the same command continues" in said
    assert signal.getsignal(signal.SIGINT) is before
    assert run(arguments) == 0
    assert "continuing after member 1, epoch 1, step 5" in capsys.readouterr().err


def test_images_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(30):
            pixels = rng.integers(0, 100, (9, 9), dtype=np.uint8) + np.uint8(120 * label)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    own = ["--data", str(tmp_path / "images"), "--set", "data.size=[8, 8]", "--set", "batch_size=10"]
    single = ["--set", "method=at", "--set", "members=1", "--set", "epochs=4", "--set", "model.width=8"]
    assert run(["train", RECIPE, "--out", str(tmp_path / "run"), *own, *single, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["validation"]["images"] == 6
    assert Run.open(tmp_path / "run").manifest["recipe"]["data"]["name"] == str(tmp_path / "images")
    assert run(["evaluate", str(tmp_path / "run"), "--attack", "fgsm"]) == 2
    assert "data holds 54 of 60 inputs that" in capsys.readouterr().err
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "unseen" / name).mkdir(parents=True)
        gray = Image.fromarray(np.full((9, 9), 100 + 60 * label, dtype=np.uint8))
        gray.save(tmp_path / "unseen" / name / "1.png")
    unseen = ["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "unseen"), "--attack", "fgsm"]
    assert run(unseen) == 0
    (tmp_path / "run" / "trained_on.json").write_text("5")
    assert run(unseen) == 2
    assert "trained_on.json is damaged" in capsys.readouterr().err
    assert run(["train", RECIPE, "--data", str(tmp_path / "none")]) == 2
    assert "--data is" in capsys.readouterr().err
