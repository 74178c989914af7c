"""The HTTP service, over real sockets on loopback."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray
from tests.deploy.planted import Running, chi_squared, random_bundle, running, telling_bundle
from tests.deploy.test_decoding import npy, picture

from randens.core.errors import InputError
from randens.deploy import Bundle, Prediction, Predictor, server
from randens.deploy.server import Limits, Settings, create_app, is_loopback, listen, loopback_hosts

SURELY = 1e-7
PROBS = (0.55, 0.25, 0.2)
X = np.random.default_rng(0).random((3, 1, 4, 4)).astype(np.float32)
HEAD = (
    b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
PLAIN = {"inputs": [[[[0.0, 0.0], [0.0, 0.0]]]]}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    bundle = random_bundle(tmp_path_factory.mktemp("s") / "b", (1.0, 0.0, 0.0))
    with running(bundle, Settings(Limits(body=20_000, pixels=5000, batch=16))) as server:
        yield server


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(telling_bundle(tmp_path_factory.mktemp("s") / "b", PROBS)) as server:
        yield server


def expected_labels(path: Path, x: NDArray[np.float32], member: int = 0) -> list[int]:
    labels: list[int] = Predictor(path).logits(x)[member].argmax(axis=1).tolist()
    return labels


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Labels of X by the one member that `usual` ever draws."""
    bundle = random_bundle(tmp_path_factory.mktemp("s") / "b", (1.0, 0.0, 0.0))
    return expected_labels(bundle.path, X)


def labels(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return [p["label"] for p in response.json()["predictions"]]


# ---- answers -------------------------------------------------------------------------------------------------


def test_json_and_npy_get_the_members_answers(usual: Running, right: list[int]) -> None:
    assert len(set(right)) > 1
    response = usual.client.post("/v1/predict", json={"inputs": X.tolist()})
    assert labels(response) == right
    assert [p["name"] for p in response.json()["predictions"]] == [f"class {i}" for i in right]
    headers = {"content-type": "application/x-npy"}
    assert labels(usual.client.post("/v1/predict", content=npy(X), headers=headers)) == right
    assert labels(usual.client.post("/v1/predict?draws=2", content=npy(X), headers=headers)) == [
        label for label in right for _ in range(2)
    ]


def test_pictures_get_the_members_answers(usual: Running, tmp_path: Path) -> None:
    grey = np.random.default_rng(5).integers(0, 256, (4, 4)).astype(np.uint8)
    x = (grey / 255).astype(np.float32)[None, None]
    bundle = random_bundle(tmp_path / "b", (1.0, 0.0, 0.0))
    headers = {"content-type": "image/png; charset=binary"}
    found = usual.client.post("/v1/predict", content=picture(grey), headers=headers)
    assert labels(found) == expected_labels(bundle.path, x)
    large = np.repeat(np.repeat(grey, 8, axis=0), 8, axis=1)
    assert usual.client.post("/v1/predict", content=picture(large), headers=headers).status_code == 422
    resized = usual.client.post("/v1/predict?resize=true", content=picture(large), headers=headers)
    assert labels(resized)
    jpeg = usual.client.post(
        "/v1/predict", content=picture(grey, "JPEG", quality=100), headers={"content-type": "image/jpeg"}
    )
    assert labels(jpeg)


def test_answers_hold_a_label_and_nothing_that_tells_the_member(telling: Running) -> None:
    response = telling.client.post("/v1/predict?draws=50", json=PLAIN)
    for prediction in response.json()["predictions"]:
        assert set(prediction) == {"label", "name"}
    assert set(response.json()) == {"predictions"}
    assert response.headers["cache-control"] == "no-store"
    assert set(response.headers) == {
        "date",
        "content-length",
        "content-type",
        "cache-control",
        "x-content-type-options",
        "referrer-policy",
        "x-frame-options",
    }
    metrics = telling.client.get("/metrics").text
    assert "member" not in metrics
    assert "draws" not in metrics


def test_debug_tells_the_member_and_its_logits(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "b")
    known = Predictor(bundle).logits(X)
    with running(bundle, Settings(debug=True)) as server:
        response = server.client.post("/v1/predict?draws=20", json={"inputs": X.tolist()})
        members = set()
        for row, prediction in enumerate(response.json()["predictions"]):
            np.testing.assert_allclose(
                prediction["logits"], known[prediction["member"], row // 20], atol=1e-5
            )
            assert prediction["label"] == int(np.argmax(prediction["logits"]))
            members.add(prediction["member"])
        assert members == {0, 1, 2}
        assert server.client.get("/v1/model").json()["debug"] is True
        text = server.client.get("/metrics").text
        counted = re.findall(r'randens_draws_total\{member="\d"\} (\d+)\.0', text)
        assert sum(map(int, counted)) == 60


# ---- draws ---------------------------------------------------------------------------------------------------


def test_served_draws_follow_the_probabilities(telling: Running) -> None:
    found: list[int] = []
    for _ in range(20):
        found += labels(telling.client.post("/v1/predict?draws=256", json=PLAIN))
    assert chi_squared(np.bincount(found, minlength=3).tolist(), PROBS) > SURELY


def test_draws_of_single_requests_follow_the_probabilities_too(telling: Running) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(
            threads.map(lambda _: labels(telling.client.post("/v1/predict", json=PLAIN))[0], range(600))
        )
    assert chi_squared(np.bincount(found, minlength=3).tolist(), PROBS) > SURELY


def test_two_identical_requests_are_independent(telling: Running) -> None:
    x = np.zeros((256, 1, 2, 2), dtype=np.float32)
    table = np.zeros((3, 3))
    for _ in range(10):
        first, second = (
            labels(
                telling.client.post(
                    "/v1/predict", content=npy(x), headers={"content-type": "application/x-npy"}
                )
            )
            for _ in range(2)
        )
        assert first != second
        np.add.at(table, (first, second), 1)
    assert scipy.stats.chi2_contingency(table).pvalue > SURELY
    counts = table.sum(axis=0).astype(int).tolist()
    assert chi_squared(counts, PROBS) > SURELY


@pytest.mark.parametrize(
    "attempt",
    [
        {"params": {"member": "1"}},
        {"params": {"seed": "1"}},
        {"headers": {"x-member": "1", "x-seed": "1", "x-request-id": "1"}},
        {"cookies": {"member": "1"}},
    ],
)
def test_clients_cannot_choose_the_draw(telling: Running, attempt: dict[str, Any]) -> None:
    with httpx.Client(base_url=telling.url, cookies=attempt.get("cookies")) as client:
        params = {"draws": "200", **attempt.get("params", {})}
        runs = [
            labels(client.post("/v1/predict", json=PLAIN, params=params, headers=attempt.get("headers")))
            for _ in range(2)
        ]
    assert runs[0] != runs[1]
    assert set(runs[0]) == {0, 1, 2}


# ---- what else is there --------------------------------------------------------------------------------------


def test_model_health_and_interface(usual: Running) -> None:
    model = usual.client.get("/v1/model").json()
    assert model["input_shape"] == [1, 4, 4]
    assert model["probs"] == [1.0, 0.0, 0.0]
    assert model["classes"] == [f"class {i}" for i in range(5)]
    assert model["threat"] == {"norm": "linf", "eps": 0.1, "bounds": [0.0, 1.0]}
    assert model["content_types"] == ["application/json", "application/x-npy", "image/png", "image/jpeg"]
    assert model["limits"]["batch"] == 16
    assert len(model["checksum"]) == 64
    assert usual.client.get("/healthz").json() == {"status": "ok"}
    document = usual.client.get("/openapi.json").json()
    assert set(document["paths"]) == {"/v1/predict", "/v1/model", "/v1/samples", "/healthz", "/metrics"}
    body = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]
    assert list(body) == model["content_types"]
    assert body["application/json"]["schema"]["properties"]["inputs"]["maxItems"] == 16


def test_metrics_count(tmp_path: Path) -> None:
    with running(random_bundle(tmp_path / "b")) as server:
        for _ in range(3):
            server.client.post("/v1/predict?draws=5", json={"inputs": X.tolist()})
        server.client.post("/v1/predict", json={"inputs": 3})
        for name in ("a", "b", "c"):
            server.client.get(f"/nothing/{name}")
        response = server.client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        lines = response.text.splitlines()
        assert 'randens_requests_total{path="/v1/predict",status="200"} 3.0' in lines
        assert 'randens_requests_total{path="/v1/predict",status="422"} 1.0' in lines
        assert 'randens_requests_total{path="other",status="404"} 3.0' in lines
        assert "randens_call_inputs_sum 45.0" in lines
        assert "randens_active_requests 0.0" in lines


def test_the_page_needs_nothing_from_elsewhere(usual: Running) -> None:
    response = usual.client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    text = response.text
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!data:)", text)
    for foreign in ("http:", "https:", "url(", "@import", "import("):
        assert foreign not in text
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline'; img-src" in policy
    assert "script-src 'unsafe-inline'" not in policy


# ---- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"json": {"inputs": [1]}}, 422),
        ({"content": b""}, 415),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415),
        ({"json": PLAIN, "headers": {"content-encoding": "gzip"}}, 415),
        ({"json": {"inputs": X.tolist()}, "params": {"draws": "0"}}, 422),
        ({"json": {"inputs": X.tolist()}, "params": {"draws": "1e3"}}, 422),
        ({"json": {"inputs": X.tolist()}, "params": {"draws": "6"}}, 413),
        ({"json": {"inputs": X.tolist()}, "params": {"draws": "17"}}, 422),
        ({"json": {"inputs": X.tolist()}, "params": {"resize": "perhaps"}}, 422),
        ({"content": b"0" * 20_001, "headers": {"content-type": "application/json"}}, 413),
        ({"content": npy(X * np.float32(np.nan)), "headers": {"content-type": "application/x-npy"}}, 422),
        ({"content": picture(np.zeros((100, 100), np.uint8)), "headers": {"content-type": "image/png"}}, 413),
    ],
)
def test_bad_requests_are_told_why(
    usual: Running, request_: dict[str, Any], status: int, right: list[int]
) -> None:
    response = usual.client.post("/v1/predict", **request_)
    assert response.status_code == status
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    assert len(detail) > 10
    assert labels(usual.client.post("/v1/predict", json={"inputs": X.tolist()})) == right


def test_a_body_without_a_length_is_limited_too(usual: Running) -> None:
    response = usual.client.post(
        "/v1/predict", content=(b"0" * 1000 for _ in range(30)), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413


def test_other_paths_and_methods(usual: Running) -> None:
    assert usual.client.get("/v1/predict").status_code == 405
    assert usual.client.get("/docs").status_code == 404
    assert usual.client.delete("/v1/model").status_code == 405


def test_the_token_guards_what_it_should(tmp_path: Path) -> None:
    token = "correct horse battery staple"
    with running(random_bundle(tmp_path / "b"), Settings(token=token)) as server:
        client = server.client
        body = {"inputs": X.tolist()}
        wrong = ["", "Bearer", f"Bearer {token[:-1]}", f"Bearer {token}x", f"Basic {token}", "Bearer ünïcode"]
        for value in [None, *wrong]:
            headers = {} if value is None else {b"authorization": value.encode("latin1")}
            for response in (
                client.post("/v1/predict", json=body, headers=headers),
                client.get("/v1/model", headers=headers),
                client.get("/v1/samples", headers=headers),
                client.get("/metrics", headers=headers),
            ):
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert token not in response.text
        good = {"authorization": f"Bearer {token}"}
        assert client.post("/v1/predict", json=body, headers=good).status_code == 200
        assert client.get("/v1/model", headers=good).status_code == 200
        assert client.get("/metrics", headers=good).status_code == 200
        assert client.get("/healthz").status_code == 200
        assert client.get("/").status_code == 200
    assert token not in repr(Settings(token=token))


def test_only_names_of_this_machine_reach_a_loopback_server(tmp_path: Path) -> None:
    with running(random_bundle(tmp_path / "b"), Settings(hosts=loopback_hosts())) as server:
        assert server.client.get("/healthz").status_code == 200
        rebound = server.client.get("/healthz", headers={"host": f"evil.example:{server.port}"})
        assert rebound.status_code == 400
        for name in ("localhost", "127.0.0.1", "[::1]"):
            assert server.client.get("/healthz", headers={"host": f"{name}:{server.port}"}).status_code == 200


class Slow(Predictor):
    """Takes its time for every call."""

    seconds = 0.3

    def predict(self, x: Any) -> Prediction:
        time.sleep(self.seconds)
        return super().predict(x)


class Held(Slow):
    """Answers nobody before it is released, however late requests arrive."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.released = threading.Event()

    def predict(self, x: Any) -> Prediction:
        assert self.released.wait(300)
        return super().predict(x)


def test_too_many_at_once_are_told_to_come_back(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "b")
    held = Held(bundle)
    with (
        running(bundle, Settings(Limits(active=2)), held) as server,
        ThreadPoolExecutor(8) as threads,
    ):
        jobs = [
            threads.submit(server.client.post, "/v1/predict", json={"inputs": X.tolist()}) for _ in range(8)
        ]
        try:
            for _ in zip(range(6), as_completed(jobs, timeout=120), strict=False):
                pass  # six are refused while two are held
        finally:
            held.released.set()
        answers = [job.result() for job in jobs]
        codes = sorted(a.status_code for a in answers)
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 2
        busy = next(a for a in answers if a.status_code == 429)
        assert busy.headers["retry-after"] == "1"
        assert "being worked on" in busy.json()["detail"]
        assert server.client.post("/v1/predict", json={"inputs": X.tolist()}).status_code == 200


def test_no_answer_in_time_is_said(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "b")
    with running(bundle, Settings(Limits(answer_seconds=0.05)), Slow(bundle)) as server:
        response = server.client.post("/v1/predict", json={"inputs": X.tolist()})
        assert response.status_code == 503
        assert "0.05 seconds" in response.json()["detail"]
        assert server.client.get("/healthz").status_code == 200


def exchange(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send bytes as they are, then read until the server closes; that it never does is an error after a minute."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
        return received


def test_slow_bodies_and_slow_heads_are_given_up(tmp_path: Path) -> None:
    # Long enough for a complete request on a busy machine.
    limits = Limits(body_seconds=1.5, head_seconds=1.5)
    head = HEAD % 99
    with running(random_bundle(tmp_path / "b"), Settings(limits)) as server:
        answer = exchange(server.port, head + b'{"inp')
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 1.5 seconds" in answer
        assert b"connection: close" in answer.lower()
        assert exchange(server.port, b"GET /healthz HTTP/1.1\r\nHost:") == b""
        assert exchange(server.port) == b""
        # A second request on the same connection is watched too.
        complete = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        twice = exchange(server.port, complete, b"GET /heal", pause=0.1)
        assert twice.count(b"HTTP/1.1 200") == 1
        assert server.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET / FTP/1.0\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /%00%ff HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"POST /v1/predict HTTP/1.0\r\nHost: a\r\nContent-Type: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/predict?draws=%ff HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ],
)
def test_malformed_http(usual: Running, raw: bytes, right: list[int]) -> None:
    assert re.match(rb"HTTP/1\.1 4\d\d ", exchange(usual.port, raw))
    assert labels(usual.client.post("/v1/predict", json={"inputs": X.tolist()})) == right


def test_a_client_that_leaves_does_no_harm(usual: Running, right: list[int]) -> None:
    head = HEAD % 9999
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", usual.port), timeout=60) as connection:
            connection.sendall(head + b"{")
    # The server notices one after the other that they have left; on a busy machine that takes a while.
    for _ in range(3000):
        lines = usual.client.get("/metrics").text
        if "randens_active_requests 0.0" in lines:
            break
        time.sleep(0.02)
    assert "randens_active_requests 0.0" in lines
    assert 'path="/v1/predict",status="5' not in lines
    assert labels(usual.client.post("/v1/predict", json={"inputs": X.tolist()})) == right


# ---- load and stop -------------------------------------------------------------------------------------------


def test_concurrent_requests_share_calls_and_all_are_right(tmp_path: Path, right: list[int]) -> None:
    bundle = random_bundle(tmp_path / "b", (1.0, 0.0, 0.0))
    with running(bundle) as server:
        failures: list[object] = []

        def client(number: int) -> None:
            row = number % 3
            body = json.dumps({"inputs": X[row : row + 1].tolist()})
            with httpx.Client(base_url=server.url, timeout=300) as own:
                for _ in range(40):
                    found = own.post(
                        "/v1/predict", content=body, headers={"content-type": "application/json"}
                    )
                    if found.status_code != 200 or labels(found) != [right[row]]:
                        failures.append(found.text)

        threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        text = server.client.get("/metrics").text
        calls = float(re.findall(r"randens_call_inputs_count (\S+)", text)[0])
        assert float(re.findall(r"randens_call_inputs_sum (\S+)", text)[0]) == 320
        assert calls < 320


def test_stopping_finishes_what_was_accepted(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "b")
    held = Held(bundle)
    with ThreadPoolExecutor(12) as threads:
        with running(bundle, Settings(Limits(batch=3)), held) as server:
            jobs = [
                threads.submit(
                    httpx.post, f"{server.url}/v1/predict", json={"inputs": X.tolist()}, timeout=300
                )
                for _ in range(6)
            ]
            # Each call takes one request and 0.3 s: when the stop comes, most still wait.
            try:
                for _ in range(3000):
                    if "randens_active_requests 6.0" in server.client.get("/metrics").text:
                        break
                    time.sleep(0.02)
                else:
                    pytest.fail("six requests were not accepted")
            finally:
                held.released.set()
        answers = [job.result() for job in jobs]
    assert [a.status_code for a in answers] == [200] * 6
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz")


# ---- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
    ],
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="batch is 0"):
        Limits(batch=0)
    with pytest.raises(InputError, match="body_seconds is -1"):
        Limits(body_seconds=-1)
    with pytest.raises(InputError, match="at least 16"):
        Settings(token="short")
    with pytest.raises(InputError, match="port is 70000"):
        listen("127.0.0.1", 70_000)
    with pytest.raises(InputError, match=r"no\.such\.host\.invalid"):
        listen("no.such.host.invalid", 0)
    with listen("127.0.0.1", 0) as taken:
        assert taken.proto == socket.IPPROTO_TCP  # or every answer takes 40 ms longer
        socket.create_connection(taken.getsockname(), timeout=60).close()
        with pytest.raises(InputError, match="cannot listen"):
            listen("127.0.0.1", taken.getsockname()[1])
    assert create_app(Predictor(random_bundle(tmp_path / "b"))).docs_url is None


def test_garbage_collections_skip_what_lives_as_long_as_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []
    noting = SimpleNamespace(run=lambda **_: frozen.append(gc.get_freeze_count()))
    monkeypatch.setattr(server, "make_server", lambda *_: noting)
    with listen("127.0.0.1", 0) as bound:
        server.serve(create_app(Predictor(random_bundle(tmp_path / "b"))), bound)
    assert frozen[0] > 1000
    assert gc.get_freeze_count() == 0
