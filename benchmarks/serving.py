"""The server at its saturation load, on loopback, for a bounded time: throughput, latencies, errors, memory.

Clients send one image after the other, each over its own connection, as fast as answers come back. Their number is
the smallest that nearly reaches the best throughput; that load is then held: for 30 seconds with ResNet-20s on arrays
of 32×32 pixels, for 15 with the networks of the quickstart (digits, MLPs) on JSON. Goals: no errors, memory that does
not grow by more than 8 MiB, p99 at most 3 times p50, and 1,500 answers a second with the digits. Server and clients
share the machine.

    python -m benchmarks.serving
"""

from __future__ import annotations

import asyncio
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import Goal, Row, Settings, Side
from benchmarks.inference import resnet_bundle
from randens import RandomizedEnsemble, Threat, data, models
from randens.deploy import export

PROGRAM = "from randens.cli.main import main; main()"
SPREAD = Goal(at_most=3)
THROUGHPUT = Goal(at_least=1500)
NO_ERRORS = Goal(at_most=0)
GROWTH = Goal(at_most=8)


@dataclass(frozen=True)
class Load:
    """What one load gave. Latencies in milliseconds."""

    clients: int
    seconds: float
    answers: int
    errors: int
    p50: float
    p99: float
    slowest: float

    @property
    def throughput(self) -> float:
        return self.answers / self.seconds


def request(port: int, kind: str, body: bytes) -> bytes:
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def image() -> tuple[str, bytes]:
    """A picture of CIFAR-10's size as an array."""
    file = io.BytesIO()
    np.save(file, np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32))
    return "application/x-npy", file.getvalue()


def digit() -> tuple[str, bytes]:
    """A picture of the digits' size, 64 sixteenths, as JSON."""
    pixels = np.random.default_rng(0).integers(0, 17, (1, 1, 8, 8)) / 16
    return "application/json", json.dumps({"inputs": pixels.tolist()}).encode()


def digits_bundle(folder: Path, members: int) -> Path:
    """Networks of the size that the quickstart trains; untrained ones take as long as trained ones."""
    networks = [
        models.create("mlp", classes=10, input_shape=(1, 8, 8), width=128, depth=2, seed=i)
        for i in range(members)
    ]
    rec = RandomizedEnsemble(networks, threat=Threat("linf", 0.1)).eval()
    export(rec, data.load("digits", "validation"), folder / "digits")
    return folder / "digits"


class Client(asyncio.Protocol):
    """Sends a request, waits for its answer, sends the next, until the time is up."""

    def __init__(self, content: bytes, until: float, latencies: list[float]) -> None:
        self._content, self._until, self._latencies = content, until, latencies
        self._received = b""
        self._start = 0.0
        self.errors = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._start = time.perf_counter()
        if self._start < self._until:
            self._transport.write(self._content)
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            self._latencies.append(time.perf_counter() - self._start)
            self.errors += not head.startswith(b"HTTP/1.1 200 ")
            self._received = b""
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self.errors += exc is not None or time.perf_counter() < self._until
        self.over.set_result(None)


async def hold(port: int, content: bytes, clients: int, seconds: float) -> Load:
    latencies: list[float] = []
    start = time.perf_counter()
    until = start + seconds
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: Client(content, until, latencies), "127.0.0.1", port))[1]
        for _ in range(clients)
    ]
    await asyncio.gather(*(client.over for client in made))
    took = time.perf_counter() - start
    if not latencies:
        raise RuntimeError("no request was answered")
    milliseconds = [1000 * t for t in latencies]
    cuts = statistics.quantiles(milliseconds, n=100)
    errors = sum(client.errors for client in made)
    return Load(clients, took, len(latencies), errors, cuts[49], cuts[98], max(milliseconds))


def saturation(port: int, content: bytes, counts: tuple[int, ...], seconds: float) -> int:
    """The smallest number of clients that reaches nine tenths of the best throughput."""
    tried = [asyncio.run(hold(port, content, count, seconds)) for count in counts]
    best = max(load.throughput for load in tried)
    return next(load.clients for load in tried if load.throughput >= 0.9 * best)


def resident(pid: int) -> int:
    """Bytes of memory of a process (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def measure(bundle: Path, kind: str, body: bytes, seconds: float, quick: bool) -> tuple[Load, float]:
    """The load held, and by how many MiB the server grew meanwhile."""
    counts, trial = ((1, 4), 0.5) if quick else ((1, 2, 4, 8, 16, 32), 1.5)
    command = [sys.executable, "-c", PROGRAM, "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split("http://127.0.0.1:")[1].split("/")[0])
            content = request(port, kind, body)
            clients = saturation(port, content, counts, trial)
            asyncio.run(hold(port, content, clients, seconds / 10))
            before = resident(server.pid)
            load = asyncio.run(hold(port, content, clients, seconds))
            after = resident(server.pid)
        finally:
            server.terminate()
            server.wait(30)
    return load, (after - before) / 2**20


def rows(settings: Settings) -> Iterator[Row]:
    members = 2 if settings.quick else 5
    with tempfile.TemporaryDirectory() as folder:
        _, bundle = resnet_bundle(Path(folder), members)
        held = 2.0 if settings.quick else 30.0
        yield from _rows(
            f"server, ResNet-20, M = {members}", *measure(bundle.path, *image(), held, settings.quick)
        )
        digits = digits_bundle(Path(folder), members)
        load, grown = measure(digits, *digit(), held / 2, settings.quick)
        what = f"server, digits, M = {members}"
        yield Row(
            f"{what}, {load.clients} clients: throughput",
            Side(f"{load.answers} answers"),
            Side(f"{load.seconds:.0f} s"),
            load.throughput,
            "answers/s",
            goal=THROUGHPUT,
            facts={"clients": float(load.clients)},
        )
        yield from _rows(what, load, grown)


def _rows(server: str, load: Load, grown: float) -> Iterator[Row]:
    what = f"{server}, {load.clients} clients, {load.seconds:.0f} s"
    note = f"{load.throughput:.0f} answers/s, slowest {load.slowest:.0f} ms"
    facts: dict[str, harness.Fact] = {
        "throughput": load.throughput,
        "p50_ms": load.p50,
        "p99_ms": load.p99,
        "slowest_ms": load.slowest,
        "clients": float(load.clients),
    }
    slow, usual = Side(f"p99 {load.p99:.1f} ms"), Side(f"p50 {load.p50:.1f} ms")
    yield Row(f"{what}: p99", slow, usual, load.p99 / load.p50, "× p50", goal=SPREAD, note=note, facts=facts)
    answers = Side(f"{load.answers} answers")
    yield Row(f"{what}: errors", answers, answers, float(load.errors), "errors", goal=NO_ERRORS)
    memory = Side("memory before")
    yield Row(f"{what}: growth", memory, memory, grown, "MiB", goal=GROWTH)


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
