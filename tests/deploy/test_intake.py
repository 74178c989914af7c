"""Many slow, silent and sending clients: good requests are answered, and memory stays within its limits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.assault.server import PREDICT, bodies
from benchmarks.assault.stopping import REFUSED, outcome
from tests.deploy.planted import Running, random_bundle, running
from tests.deploy.test_server import HEAD, X, exchange, labels

from randens.core.errors import InputError
from randens.deploy import Bundle, Prediction, Predictor
from randens.deploy.connections import HEAD_BYTES, PIPELINE
from randens.deploy.decoding import Decoder, Refused
from randens.deploy.intake import Intake
from randens.deploy.limits import Limits
from randens.deploy.server import Settings

MANY = 40
BATCH = 32
BODIES = bodies(1 << 19, BATCH)


class Sender:
    """What `Intake` sees of a request: its headers, and its parts as they are sent."""

    def __init__(self, **headers: str) -> None:
        self.headers = headers
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()

    def send(self, part: bytes) -> None:
        self._parts.put_nowait(part)

    async def stream(self) -> AsyncIterator[bytes]:
        while part := await self._parts.get():
            yield part


async def collect(intake: Intake, sender: Sender, release: asyncio.Event | None = None) -> bytes | Refused:
    try:
        async with intake.receive(sender) as body:  # type: ignore[arg-type]
            if release is not None:
                await release.wait()
            return bytes(body)
    except Refused as error:
        return error


def test_the_oldest_unfinished_body_makes_room() -> None:
    async def scene() -> None:
        intake = Intake(Limits(body=100, flight=250))
        slow = [Sender() for _ in range(3)]
        waiting = []
        for sender in slow:
            waiting.append(asyncio.create_task(collect(intake, sender)))
            sender.send(b"x" * 80)
            await asyncio.sleep(0.01)
        assert intake.held == 240
        quick = Sender()
        quick.send(b"y" * 50)
        quick.send(b"")
        assert await collect(intake, quick) == b"y" * 50
        refused = await waiting[0]
        assert isinstance(refused, Refused)
        assert refused.status == 503
        assert intake.held == 160
        for sender in slow[1:]:
            sender.send(b"z" * 5)
            sender.send(b"")
        assert await asyncio.gather(*waiting[1:]) == [b"x" * 80 + b"z" * 5] * 2
        assert intake.held == 0

    asyncio.run(scene())


def test_complete_bodies_are_never_given_up() -> None:
    async def scene() -> None:
        intake, release = Intake(Limits(body=100, flight=200)), asyncio.Event()
        held = []
        for _ in range(2):
            sender = Sender()
            sender.send(b"x" * 90)
            sender.send(b"")
            held.append(asyncio.create_task(collect(intake, sender, release)))
            await asyncio.sleep(0.01)
        late = Sender()
        late.send(b"y" * 30)
        refused = await collect(intake, late)
        assert isinstance(refused, Refused)
        assert refused.status in (429, 503)
        assert intake.held == 180
        release.set()
        assert await asyncio.gather(*held) == [b"x" * 90] * 2
        assert intake.held == 0

    asyncio.run(scene())


@pytest.mark.parametrize(("headers", "parts"), [({"content-length": "101"}, []), ({}, [b"x" * 60] * 2)])
def test_a_large_body_is_refused_and_forgotten(headers: dict[str, str], parts: list[bytes]) -> None:
    async def scene() -> None:
        intake, sender = Intake(Limits(body=100, flight=200)), Sender(**headers)
        for part in parts:
            sender.send(part)
        refused = await collect(intake, sender)
        assert isinstance(refused, Refused)
        assert refused.status == 413
        assert intake.held == 0

    asyncio.run(scene())


def test_the_sum_of_bodies_holds_one() -> None:
    with pytest.raises(InputError, match="flight is 10; it must be at least body, which is 100"):
        Limits(body=100, flight=10)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    bundle = random_bundle(tmp_path_factory.mktemp("i") / "b", shape=(3, 32, 32))
    return Decoder.of(bundle, BATCH, Limits().pixels)


@pytest.mark.parametrize("name", sorted(BODIES))
def test_bad_bodies_cost_little_memory(decoder: Decoder, name: str) -> None:
    body = BODIES[name]
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as caught:
            decoder.decode("application/json", body, False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.status in (413, 422)
    # The heaviest is good to its last number: eight bytes for each of its two-byte numbers.
    assert peak < 6 * len(body)
    if name != "last number wrong":
        assert peak < len(body)


def test_bad_bodies_are_refused_before_an_object_is_built(decoder: Decoder) -> None:
    built: list[object] = []

    class Watched:
        def decode(self, text: Any) -> Any:
            built.append(text)
            raise AssertionError

    watched = dataclasses.replace(decoder)
    vars(watched)["one"] = Watched()
    for name, body in BODIES.items():
        if name != "last number wrong":
            with pytest.raises(Refused):
                watched.decode("application/json", body, False)
    assert built == []


def test_larger_bodies_are_not_decoded_where_requests_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[str] = []
    usual = Decoder.decode

    def decode(self: Decoder, media_type: str, body: bytes, resize: bool) -> Any:
        where.append(threading.current_thread().name)
        return usual(self, media_type, body, resize)

    monkeypatch.setattr(Decoder, "decode", decode)
    x = np.zeros((100, 1, 4, 4))
    with running(random_bundle(tmp_path / "b")) as server:
        assert len(labels(server.client.post("/v1/predict", json={"inputs": x.tolist()}))) == 100
        server.client.post("/v1/predict", content=b" " * 9000, headers={"content-type": "application/json"})
    assert len(where) == 2
    assert all(name.startswith("randens-decode") for name in where)


@contextlib.contextmanager
def connections(port: int, count: int, content: bytes) -> Any:
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300)))
            opened[-1].sendall(content)
        yield opened


def answered(server: Running, count: int = 10) -> int:
    body = {"inputs": X.tolist()}
    return sum(server.client.post("/v1/predict", json=body).status_code == 200 for _ in range(count))


@pytest.mark.parametrize(
    "content", [HEAD % 9000 + b'{"inputs": [', b"POST /v1/pre", b"", HEAD % 9000 + b" " * 8999]
)
def test_slow_clients_take_no_slots(tmp_path: Path, content: bytes) -> None:
    limits = Limits(active=2, body=10_000, flight=100_000, connections=30)
    with (
        running(random_bundle(tmp_path / "b"), Settings(limits)) as server,
        connections(server.port, MANY, content),
    ):
        assert answered(server) == 10


class Held(Predictor):
    """Says when it is called, and answers when it may."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.called, self.may_answer = threading.Event(), threading.Event()

    def predict(self, x: Any) -> Prediction:
        self.called.set()
        assert self.may_answer.wait(300)
        return super().predict(x)


def test_a_connection_at_work_is_not_closed_for_another(tmp_path: Path) -> None:
    """With every connection at work, the one too many is told so."""
    bundle = random_bundle(tmp_path / "b")
    body = json.dumps({"inputs": X.tolist()}).encode()
    predictor = Held(bundle)
    with (
        running(bundle, Settings(Limits(connections=1)), predictor) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=300) as first,
    ):
        first.sendall(HEAD % len(body) + body)
        assert predictor.called.wait(300)
        late = exchange(server.port)
        predictor.may_answer.set()
        assert late.startswith(b"HTTP/1.1 503")
        assert b"too many connections" in late
        assert first.recv(100).startswith(b"HTTP/1.1 200")


def forever(act: Callable[[], None]) -> None:
    while True:
        act()


def test_clients_that_do_not_read_are_dropped(tmp_path: Path) -> None:
    with running(random_bundle(tmp_path / "b"), Settings(Limits(write_seconds=0.2))) as server:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", server.port))
            lazy.settimeout(300)
            asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
            with pytest.raises(ConnectionError):
                forever(lambda: lazy.sendall(asked * 100))
        assert answered(server) == 10


def test_a_body_in_crumbs_is_refused(tmp_path: Path) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    body = json.dumps({"inputs": X[:1].astype(float).round(2).tolist()}).encode()
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    pieces = b"".join(b"1\r\n%c\r\n" % code for code in body) + b"0\r\n\r\n"
    close = chunked.replace(b"Host", b"Connection: close\r\nHost")
    with running(random_bundle(tmp_path / "b")) as server:
        assert exchange(server.port, close + whole).startswith(b"HTTP/1.1 200")
        assert 64 < len(body) < 256
        assert exchange(server.port, close + pieces).startswith(b"HTTP/1.1 200")
        crumbs = exchange(server.port, chunked + b"1\r\n \r\n" * 3000)
        assert crumbs.startswith(b"HTTP/1.1 400") or not crumbs
        assert answered(server) == 10


def test_a_head_without_end_and_many_requests_ahead_are_refused(tmp_path: Path) -> None:
    get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    close = b"Connection: close\r\n\r\n"
    with running(random_bundle(tmp_path / "b")) as server:
        for head in (b"X: " + b"a" * HEAD_BYTES, b"X: a\r\n" * HEAD_BYTES, b"X" * HEAD_BYTES):
            assert exchange(server.port, get + head).startswith(b"HTTP/1.1 400")
            assert exchange(server.port, get + head + b"\r\n" + close).startswith(b"HTTP/1.1 400")
        longest = b"X: " + b"a" * (HEAD_BYTES - 200) + b"\r\n"
        assert exchange(server.port, get + longest + close).startswith(b"HTTP/1.1 200")
        whole = get + b"\r\n"
        assert exchange(server.port, whole * PIPELINE + get + close).count(b"HTTP/1.1 200") == PIPELINE + 1
        assert exchange(server.port, whole * (PIPELINE + 40)).count(b"HTTP/1.1 200") <= 1
        assert answered(server) == 10


def test_a_young_connection_may_finish_its_request_when_the_server_stops(tmp_path: Path) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as stack:
        with running(random_bundle(tmp_path / "b")) as server:
            young = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=300))
            # Connections are accepted in order: once a later one is answered, this one is known to the server.
            assert outcome(server.port, request) == 200
            stopping = threading.Timer(0.5, lambda: young.sendall(request))
            stopping.start()
        # The server was told to stop before the request came.
        assert young.recv(100).startswith(b"HTTP/1.1 200")
        stopping.join()


def test_under_load_every_request_is_answered_or_refused(tmp_path: Path) -> None:
    body = json.dumps({"inputs": X.tolist()}).encode()
    request = PREDICT + b"Content-Length: %d\r\n\r\n" % len(body) + body
    seen: list[int] = []

    def client(port: int) -> None:
        while not seen or seen[-1] != REFUSED:
            seen.append(outcome(port, request))

    with running(random_bundle(tmp_path / "b")) as server:
        threads = [threading.Thread(target=client, args=(server.port,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        while seen.count(200) < 20:
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert set(seen) == {200, REFUSED}
