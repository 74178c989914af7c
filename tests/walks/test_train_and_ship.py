"""Walk 4: train by a recipe's name, evaluate, ask what to deploy, export, serve, and get an answer over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.commands import Shell

import randens

pytest.importorskip("onnx", reason="the extra `deploy` is not installed")
SMALL = (
    *("--set", "epochs=1", "--set", "later_epochs=1", "--set", "members=2", "--set", "model.width=8"),
    *("--set", "validation.size=20", "--set", "validation.steps=2", "--set", "sampling.every=1"),
)


@contextmanager
def served(bundle: Path) -> Iterator[str]:
    """The address that `randens serve` prints; leaving stops it as Ctrl-C in another terminal would."""
    source = str(Path(randens.__file__).parents[1])
    paths = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-m", "randens", "serve", str(bundle), "--port", "0", "--max-draws", "20"],
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


def _shipped(shell: Shell, desk: Path) -> Path:
    for words, said in (
        (("train", "digits-mlp-barre", *SMALL, "--out", "mine"), "mine"),
        (("evaluate", "mine", "--attack", "arc-r:steps=2", "--limit", "10"), "robust"),
        (("advise", "mine", "--limit", "10", "--attack", "saddle:restarts=1"), "compute"),
        (("report", "mine"), "report.html"),
        (("export", "mine"), "bundle"),
    ):
        code, out, err = shell(*words)
        assert code == 0, (words, err)
        assert said in out, (words, out)
    return desk / "mine" / "bundle"


def _ask(address: str, draws: int) -> list[str]:
    image = randens.data.load("digits", "test").x[:1]
    request = urllib.request.Request(
        f"{address}v1/predict?draws={draws}",
        data=json.dumps({"inputs": image.tolist()}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [prediction["name"] for prediction in json.load(answer)["predictions"]]


def test_from_a_recipe_to_an_answer(shell: Shell, desk: Path) -> None:
    bundle = _shipped(shell, desk)
    with served(bundle) as address:
        names = _ask(address, draws=20)
        assert len(names) == 20
        assert set(names) <= {str(digit) for digit in range(10)}
