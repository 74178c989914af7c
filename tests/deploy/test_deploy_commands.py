"""`randens export` and `randens serve`, from a run folder to an answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.deploy.conftest import Exported
from tests.deploy.planted import random_bundle

from randens import data
from randens.cli.main import run
from randens.core.runs import Run
from randens.deploy import Bundle, Predictor

PROGRAM = "from randens.cli.main import main; main()"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(exported: Exported, tmp_path: Path) -> Path:
    made = Run.create(tmp_path / "run", recipe={"data": {"name": "digits"}})
    exported.rec.save(made.ensemble)
    return made.path


def test_export_with_int8(folder: Path, capsys: pytest.CaptureFixture[str], exported: Exported) -> None:
    assert run(["export", str(folder), "--int8", "--attack", "fgsm", "--limit", "20"]) == 0
    said = capsys.readouterr().out
    whole, coarse = Bundle.open(folder / "bundle"), Bundle.open(folder / "bundle-int8")
    assert whole.checksum in said
    assert coarse.checksum in said
    assert f"{whole.sign_off['parity']['max_difference']:.2g} on 180 inputs of digits validation" in said
    for precision in ("float32", "int8"):
        robust = coarse.sign_off["accuracy"][precision]["robust"]["value"]
        assert f"robust {100 * robust:.1f} %" in said
    assert whole.ensemble == coarse.ensemble == exported.bundle.ensemble
    assert run(["export", str(folder)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_export_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    made = Run.create(tmp_path / "run", recipe={"data": {"name": "digits"}})
    assert run(["export", str(made.path)]) == 2
    assert "holds no ensemble" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["{tmp}/nothing"], "is not a folder"),
        (["{bundle}", "--expect", "0" * 64], "expected is"),
        (["{bundle}", "--token-file", "{tmp}/nothing"], "cannot read the token"),
        (["{bundle}", "--token-file", "{tmp}/short"], "at least 16"),
        (["{bundle}", "--max-batch", "0"], "batch is 0"),
        (["{bundle}", "--threads", "0"], "threads is 0"),
        (["{bundle}", "--port", "99999"], "port is 99999"),
    ],
)
def test_serve_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    bundle = random_bundle(tmp_path / "b")
    (tmp_path / "short").write_text("abc\n")
    assert run(["serve", *(a.format(tmp=tmp_path, bundle=bundle.path) for a in arguments)]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_serve_until_terminated(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a token of some length\n")
    command = [sys.executable, "-c", PROGRAM, "serve", str(exported.bundle.path), "--port", "0", "--lean"]
    command += ["--token-file", str(tmp_path / "token"), "--expect", exported.bundle.checksum]
    x = data.load("digits", "test").x[:5].numpy()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert "http://127.0.0.1:" in line
        url = line.split(" at ")[1].split("/ ")[0]
        headers = {"authorization": "Bearer a token of some length"}
        body = {"inputs": x.tolist()}
        answers: list[httpx.Response] = []
        failures: list[Exception] = []
        enough = threading.Event()

        def client() -> None:
            # A connection per request, as a connection that idles when the stop comes is closed.
            try:
                while True:
                    with httpx.Client(base_url=url, timeout=300) as own:
                        try:
                            answers.append(own.post("/v1/predict", json=body, headers=headers))
                        except httpx.ConnectError:
                            return
                    if len(answers) >= 20:
                        enough.set()
            except Exception as error:
                failures.append(error)
                enough.set()

        assert httpx.post(f"{url}/v1/predict", json=body).status_code == 401
        threads = [threading.Thread(target=client) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert enough.wait(300)
        child.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(300)
        assert child.wait(300) == 143
        assert child.stderr is not None
        (last,) = [line for line in child.stderr.read().splitlines() if "terminated" in line]
        assert "every request that was accepted has been answered" in last
    # Connections the system had queued but the server had not yet taken may be reset; nothing else may fail.
    assert all(
        isinstance(error, httpx.ReadError | httpx.RemoteProtocolError | httpx.WriteError)
        for error in failures
    )
    assert len(failures) <= 3
    assert {a.status_code for a in answers} == {200}
    possible = Predictor(exported.bundle).logits(x).argmax(axis=2)
    for answer in answers:
        for row, prediction in enumerate(answer.json()["predictions"]):
            assert prediction["label"] in possible[:, row]


@pytest.mark.slow
def test_an_environment_without_torch(tmp_path: Path, exported: Exported) -> None:
    """A real environment with `randens[runtime]` and nothing else."""
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = str(place / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"{ROOT}[runtime]"], check=True)
    x = data.load("digits", "test").x[:50].numpy()
    np.save(tmp_path / "x.npy", x)
    program = """
import importlib.util, json, sys
import numpy, randens.deploy
assert importlib.util.find_spec("torch") is None
predictor = randens.deploy.Predictor(sys.argv[1], expect=sys.argv[3])
print(json.dumps(predictor.logits(numpy.load(sys.argv[2])).argmax(axis=2).tolist()))
"""
    arguments = [str(exported.bundle.path), str(tmp_path / "x.npy"), exported.bundle.checksum]
    output = subprocess.run(
        [python, "-c", program, *arguments], check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout
    assert json.loads(output) == exported.rec.verdicts(data.load("digits", "test").x[:50]).T.tolist()
    refused = subprocess.run(
        [place / "bin" / "randens", "quickstart"], capture_output=True, text=True, cwd=tmp_path
    )
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "pip install 'randens[torch]'" in refused.stderr
