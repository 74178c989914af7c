"""Walk: train, audit, choose α, report, export, serve, and get answers over HTTP, with the quickstart's ensemble."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.cli.commands import Shell
from tests.once import quickstart_run

import randens

pytest.importorskip("onnx", reason="the extra `deploy` is not installed")


@contextmanager
def served(bundle: Path) -> Iterator[str]:
    """The address that `randens serve` prints; leaving stops it as Ctrl-C in another terminal would."""
    source = str(Path(randens.__file__).parents[1])
    paths = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-m", "randens", "serve", str(bundle), "--port", "0"],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert address, said + (server.communicate(timeout=60)[1] if server.poll() is not None else "")
        yield address[0]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=120)
    assert server.returncode == 143


def _ask(address: str, images: list[object]) -> list[int]:
    request = urllib.request.Request(
        f"{address}v1/predict",
        data=json.dumps({"inputs": images}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [int(prediction["name"]) for prediction in json.load(answer)["predictions"]]


def test_from_training_to_an_answer(
    shell: Shell, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path / "quickstart-1"
    shutil.copytree(quickstart_run(tmp_path_factory), run)
    # What ships must pass its own audit.
    audited = shell.json("audit", run, "--limit", "64")
    assert audited["passed"]
    few = ("--attack", "arc-r", "--attack", "saddle", "--limit", "100")
    sampled = shell.json("sample", run, *few, "--apply")
    evaluated = shell.json("evaluate", run, *few)
    assert evaluated["about"]["probs"] == sampled["probs"]
    summary = evaluated["summary"]
    assert summary["natural"]["value"] > 0.9
    assert 0.35 < summary["robust"]["value"] < 0.65
    assert shell("report", run)[0] == 0
    assert f"{100 * summary['robust']['value']:.1f}" in (run / "report.html").read_text(encoding="utf-8")
    assert shell("export", run)[0] == 0
    test = randens.data.load("digits", "test").subset(slice(0, 200))
    with served(run / "bundle") as address:
        answers = _ask(address, test.x.tolist())
    natural = np.mean(np.array(answers) == test.y.numpy())
    assert natural == pytest.approx(randens.load(run / "ensemble").accuracy(test.x, test.y), abs=0.05)
