"""The server on loopback, for a bounded time: throughput, latencies, errors, memory, large bodies, slow connections.

16 clients ask the server of five small networks (digits) for one image after the other, each over its own connection.
Then 20 clients send bodies of 8 MB, and 500 connections send nothing or very little, while others ask as usual. Server
and clients share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import Row, Settings
from randens import RandomizedEnsemble, Threat, data, models
from randens.deploy import export

ABOUT = (
    "`randens serve` of five small networks (digits) on loopback, one image per request, 16 clients for five minutes; "
    "then beside 20 clients that send bodies of 8 MB, and beside 500 connections that send nothing or very little."
)
PROGRAM = "from randens.cli.main import main; main()"
MEMBERS, CLIENTS, SENDERS, SLOW = 5, 16, 20, 500
LARGE = 8 << 20


def digits_bundle(folder: Path) -> Path:
    """Networks of the size that the quickstart trains; untrained ones take as long as trained ones."""
    networks = [
        models.create("mlp", classes=10, input_shape=(1, 8, 8), width=128, depth=2, seed=i)
        for i in range(MEMBERS)
    ]
    rec = RandomizedEnsemble(networks, threat=Threat("linf", 0.1)).eval()
    export(rec, data.load("digits", "validation"), folder / "digits")
    return folder / "digits"


@contextlib.contextmanager
def served(bundle: Path) -> Iterator[tuple[int, int]]:
    """Process and port of `randens serve`."""
    command = [sys.executable, "-c", PROGRAM, "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.pid, int(server.stdout.readline().split("http://127.0.0.1:")[1].split("/")[0])
        finally:
            server.terminate()
            server.wait(60)


def request(body: bytes) -> bytes:
    head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def digit() -> bytes:
    """A picture of the digits' size, 64 sixteenths, as JSON."""
    return json.dumps(
        {"inputs": (np.random.default_rng(0).integers(0, 17, (1, 1, 8, 8)) / 16).tolist()}
    ).encode()


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes
) -> tuple[bytes, float]:
    """The first line of the answer, and the milliseconds that it took."""
    start = time.perf_counter()
    writer.write(content)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
    return head.partition(b"\r\n")[0], 1000 * (time.perf_counter() - start)


async def client(port: int, content: bytes, until: float, latencies: list[float], expected: bytes) -> int:
    """Ask again and again over one connection; returns the number of errors."""
    errors = 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        line, took = await ask(reader, writer, content)
        errors += expected not in line
        latencies.append(took)
    writer.close()
    return errors


async def load(port: int, seconds: float) -> tuple[list[float], int]:
    """Latencies and errors of the usual clients."""
    latencies: list[float] = []
    until, content = time.perf_counter() + seconds, request(digit())
    errors = await asyncio.gather(
        *(client(port, content, until, latencies, b" 200 ") for _ in range(CLIENTS))
    )
    return latencies, sum(errors)


async def large_bodies(port: int, seconds: float) -> tuple[list[float], int]:
    """Latencies of /healthz while clients send bodies of 8 MB of numbers, and how many bodies were refused."""
    one = json.dumps(np.full((1, 8, 8), 0.12345678901234567).tolist()).encode()
    count = LARGE // (len(one) + 1) - 1
    content = request(b'{"inputs": [' + b",".join([one] * count) + b"]}")
    until, sent, healthy = time.perf_counter() + seconds, list[float](), list[float]()
    senders = [asyncio.create_task(client(port, content, until, sent, b" 413 ")) for _ in range(SENDERS)]
    await asyncio.sleep(min(1.0, seconds / 4))
    while time.perf_counter() < until:
        start = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await ask(reader, writer, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        healthy.append(1000 * (time.perf_counter() - start))
        writer.close()
        await asyncio.sleep(0.05)
    answered_otherwise = sum(await asyncio.gather(*senders))
    return healthy, len(sent) - answered_otherwise


async def slow_connections(port: int) -> float:
    """Milliseconds of one good request, connection included, beside connections that send nothing or a part."""
    parts = (b"", b"GET /healthz HTTP/1.1\r\nHo", request(bytes(1000))[:-999])
    slow = []
    for number in range(SLOW):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(parts[number % len(parts)])
        slow.append(writer)
    start = time.perf_counter()
    reader, good = await asyncio.open_connection("127.0.0.1", port)
    line, _ = await ask(reader, good, request(digit()))
    took = 1000 * (time.perf_counter() - start)
    if b" 200 " not in line:
        raise RuntimeError(f"the good request was answered with {line!r}")
    for writer in (*slow, good):
        writer.close()
    return took


def resident(pid: int) -> int:
    """Bytes of memory of a process (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def rows(settings: Settings) -> Iterator[Row]:
    held, beside = (2.0, 2.0) if settings.quick else (300.0, 20.0)
    with tempfile.TemporaryDirectory() as folder, served(digits_bundle(Path(folder))) as (pid, port):
        asyncio.run(load(port, held / 10))
        before = resident(pid)
        latencies, errors = asyncio.run(load(port, held))
        grown = (resident(pid) - before) / 2**20
        cuts = statistics.quantiles(latencies, n=100)
        p50, p99 = cuts[49], cuts[98]
        note = f"{len(latencies)} answers in {held:.0f} s, {errors} errors"
        yield Row("throughput", len(latencies) / held, unit="answers/s", note=note)
        yield Row("latency: p99, against p50", p99, p50, "ms", p99 / p50, "× p50")
        yield Row("memory gained meanwhile", grown, unit="MiB")
        healthy, bodies = asyncio.run(large_bodies(port, beside))
        note = f"slowest; median {statistics.median(healthy):.1f} ms; {bodies} bodies refused"
        yield Row("/healthz beside bodies of 8 MB", max(healthy), unit="ms", note=note)
        took = asyncio.run(slow_connections(port))
        yield Row(f"one request beside {SLOW} slow connections", took, unit="ms", note="answered")
