"""The HTTP service: the application alone, and `randens serve` on loopback under abuse."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.deploy.planted import chi_squared, connect, linear_bundle, random_bundle, served, telling_bundle
from tests.deploy.test_decoding import npy, picture

from randens.cli.main import run
from randens.core.errors import InputError
from randens.deploy import Bundle, Predictor, server
from randens.deploy.server import Settings, create_app

PROBS = (0.55, 0.25, 0.2)
PLAIN = {"inputs": [[[[0.0, 0.0], [0.0, 0.0]]]]}
TOKENS = ("the-first-token-of-all", "the-second-token-of-all")


def asking(bundle: Bundle, **settings: Any) -> TestClient:
    return TestClient(create_app(Predictor(bundle), Settings(**settings)), "http://localhost")


def post(client: Any, query: str = "", **headers: str) -> Any:
    """The answer to one black image."""
    return client.post(f"/v1/predict{query}", json=PLAIN, headers=headers)


def labels(response: Any) -> list[int]:
    assert response.status_code == 200, response.text
    return [prediction["label"] for prediction in response.json()["predictions"]]


def follows(found: Any) -> bool:
    """Whether these may be draws from PROBS."""
    return chi_squared(np.bincount(found, minlength=3).tolist(), PROBS) > 1e-7


@pytest.fixture
def telling(tmp_path: Path) -> Bundle:
    return telling_bundle(tmp_path / "telling", PROBS)


def test_json_arrays_and_pictures_get_the_members_answers(tmp_path: Path) -> None:
    client = asking(bundle := random_bundle(tmp_path / "b", (1.0, 0.0, 0.0)), max_draws=2)
    gray = np.random.default_rng(5).integers(0, 256, (20, 4, 4)).astype(np.uint8)
    x = (gray / 255).astype(np.float32)[:, None]
    right = Predictor(bundle).logits(x)[0].argmax(axis=1).tolist()
    assert len(set(right)) > 1
    answer = client.post("/v1/predict", json={"inputs": x.tolist()})
    assert labels(answer) == right
    assert [p["name"] for p in answer.json()["predictions"]] == [f"class {i}" for i in right]
    array = client.post("/v1/predict?draws=2", content=npy(x), headers={"content-type": "application/x-npy"})
    assert labels(array) == np.repeat(right, 2).tolist()
    kind = {"content-type": "image/png; charset=binary"}
    assert labels(client.post("/v1/predict", content=picture(gray[0]), headers=kind)) == right[:1]
    large = picture(np.repeat(gray[0], 8, axis=0))
    assert labels(client.post("/v1/predict?resize=true", content=large, headers=kind))


def test_nothing_tells_the_member_but_debug(telling: Bundle) -> None:
    client = asking(telling, max_draws=50)
    answer = post(client, "?draws=50")
    assert set(answer.json()) == {"predictions"}
    assert all(set(prediction) == {"label", "name"} for prediction in answer.json()["predictions"])
    own = {"cache-control", "content-length", "content-type", "x-content-type-options"}
    assert set(answer.headers) == own
    text = client.get("/metrics").text
    assert 'randens_requests_total{path="/v1/predict",status="200"} 1.0' in text
    assert "randens_predictions_total 50.0" in text
    assert "member" not in text
    for prediction in post(asking(telling, debug=True)).json()["predictions"]:
        assert prediction["member"] == prediction["label"] == int(np.argmax(prediction["logits"]))


def test_served_draws_follow_the_probabilities(telling: Bundle) -> None:
    client = asking(telling, max_draws=256)
    many = [labels(post(client, "?draws=256&seed=1&member=1")) for _ in range(10)]
    assert follows(np.concatenate(many))
    assert follows([labels(post(client, seed="1"))[0] for _ in range(200)])
    assert all(first != second for first, second in itertools.combinations(many, 2))


def test_one_draw_unless_more_are_allowed(telling: Bundle) -> None:
    assert post(asking(telling), "?draws=2").status_code == 422
    assert len(labels(post(asking(telling, max_draws=3), "?draws=3"))) == 3
    two = asking(telling, max_draws=3, max_batch=4).post(
        "/v1/predict?draws=3", json={"inputs": 2 * PLAIN["inputs"]}
    )
    assert two.status_code == 413
    for wrong in ("0", "-1", "x", "9" * 5000):
        assert post(asking(telling), f"?draws={wrong}").status_code == 422


def test_tokens(telling: Bundle) -> None:
    client = asking(telling, tokens=TOKENS)
    for path in ("/v1/model", "/metrics"):
        assert client.get(path).status_code == 401
    for wrong in ("", "Bearer", f"Basic {TOKENS[0]}", f"Bearer {TOKENS[0]}x", f"Bearer {TOKENS[0][:-1]}"):
        answer = post(client, authorization=wrong)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    for token in TOKENS:
        assert labels(post(client, authorization=f"bearer {token}"))
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    assert TOKENS[0] not in repr(Settings(tokens=TOKENS))


def test_a_pinned_client_keeps_its_member(telling: Bundle) -> None:
    """The cookie, or the token, decides; new clients are drawn from α."""
    app = create_app(Predictor(telling), Settings(pin=True))
    drawn = []
    for _ in range(200):
        client = TestClient(app, "http://localhost")
        answers = [labels(post(client))[0] for _ in range(3)]
        assert len(set(answers)) == 1
        drawn.append(answers[0])
    assert follows(drawn)
    name, _, signature = client.cookies["randens-client"].partition(".")
    for forged in (f"{name}x.{signature}", name, "", f"{name}.{signature[:-1]}"):
        again = post(TestClient(app, "http://localhost"), cookie=f"randens-client={forged}")
        assert again.headers["set-cookie"].partition("=")[2].partition(".")[0] not in (name, f"{name}x")
    for _ in range(30):
        client = asking(telling, pin=True, tokens=TOKENS)
        for token in TOKENS:
            answers = [labels(post(client, authorization=f"Bearer {token}"))[0] for _ in range(3)]
            assert len(set(answers)) == 1
            drawn.append(answers[0])
    assert follows(drawn[200:])
    with pytest.raises(InputError, match="with pin"):
        Settings(pin=True, max_draws=2)


def test_other_requests_are_refused_in_one_sentence(telling: Bundle) -> None:
    kind = {"content-type": "application/json"}
    for headers, status in (
        ({"content-type": "image/tiff"}, 415),
        ({**kind, "content-encoding": "gzip"}, 415),
        ({**kind, "host": "evil.example.org"}, 400),
        (kind, 422),
    ):
        answer = asking(telling).post("/v1/predict", content=b"something", headers=headers)
        assert answer.status_code == status
        assert len(answer.text) < 400


def test_a_model_that_fails_is_not_the_clients_fault(tmp_path: Path) -> None:
    weights = np.full((1, 4, 2), 1e38, dtype=np.float32)
    bundle = linear_bundle(tmp_path / "b", weights, np.zeros((1, 2), np.float32), (1.0,), (4,))
    answer = asking(bundle).post("/v1/predict", json={"inputs": [[1.0, 1.0, 1.0, 1.0]]})
    assert answer.status_code == 500
    assert "logits" in answer.json()["detail"]


def test_large_bodies_share_a_limit_and_small_ones_do_not(
    telling: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ALL_BODIES", 10)
    client = asking(telling)
    assert labels(post(client))
    large = client.post("/v1/predict", content=bytes(70_000), headers={"content-type": "application/json"})
    assert (large.status_code, large.headers["retry-after"]) == (503, "1")


def test_serve_says_what_is_wrong(
    telling: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short").write_text("abc\n")
    for option, value, reason in (
        ("--token-file", str(tmp_path / "nothing"), "cannot read"),
        ("--token-file", str(tmp_path / "short"), "16 to 512"),
        ("--port", "99999", "--port is 99999"),
        ("--host", "192.0.2.1", "cannot listen"),
        ("--host", "x" * 300, "cannot listen"),
    ):
        assert run(["serve", str(telling.path), option, value]) == 2
        said = capsys.readouterr().err
        assert reason in said
        assert said.count("\n") == 1


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Process and port of a server of its own."""
    bundle = telling_bundle(tmp_path_factory.mktemp("w") / "b", PROBS)
    with served(bundle.path, "--max-body", "200000") as (process, port):
        yield process.pid, port


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


JSON = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a:b\r\n"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"a:b\r\n"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n", b"b"),
    ],
    ids=["trailers", "headers", "body"],
)
def test_heads_trailers_and_unasked_bodies_are_bounded(
    running: tuple[int, int], head: bytes, piece: bytes
) -> None:
    pid, port = running
    before, sent, block = resident(pid), 0, piece * (100_000 // len(piece))
    with connect(port) as client:
        client.sendall(head)
        with pytest.raises(OSError):  # noqa: PT012 - the connection is closed at some moment
            while sent < 60_000_000:
                client.sendall(block)
                sent += len(block)
    assert resident(pid) - before < 20 << 20
    assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def test_a_body_that_is_too_large_is_answered(running: tuple[int, int]) -> None:
    pid, port = running
    before = resident(pid)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        kind = {"content-type": "application/json"}
        for content in (bytes(5_000_000), iter([bytes(100_000)] * 100)):
            answer = client.post("/v1/predict", content=content, headers=kind)
            assert answer.status_code == 413
            assert "at most 200000" in answer.json()["detail"]
        assert labels(client.post("/v1/predict", json=PLAIN))
    assert resident(pid) - before < 20 << 20


def test_slow_connections_stop_nobody_and_are_ended(running: tuple[int, int]) -> None:
    _, port = running
    length = JSON + b"Content-Length: 99\r\n\r\n{"
    slow = [connect(port) for _ in range(500)]
    for number, client in enumerate(slow):
        client.sendall((b"", b"GET /healthz HTTP/1.1\r\nHo", length)[number % 3])
    assert labels(httpx.post(f"http://127.0.0.1:{port}/v1/predict", json=PLAIN, timeout=60))
    answers = [client.recv(100) for client in slow]  # ends of connections, and answers
    assert answers[0] == answers[1] == b""
    assert b"408" in answers[2]
    for client in slow:
        client.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopping_answers_what_was_begun(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "tokens").write_text("\n".join(TOKENS) + "\n")
    bundle = telling_bundle(tmp_path / "b", PROBS)
    body = json.dumps({"inputs": 200 * PLAIN["inputs"]}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS[1]}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with served(bundle.path, "--token-file", str(tmp_path / "tokens")) as (process, port):
        clients = [connect(port) for _ in range(20)]
        for client in clients:
            client.sendall(head.encode() + body[:-1])
        time.sleep(0.2)
        process.send_signal(number)
        time.sleep(0.3)
        for client in clients:
            client.sendall(body[-1:])
        for client in clients:
            with client.makefile("rb") as answer:
                content = answer.read()
            assert content.startswith(b"HTTP/1.1 200 ")
            assert len(json.loads(content.partition(b"\r\n\r\n")[2])["predictions"]) == 200
        assert process.wait(120) == code
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
