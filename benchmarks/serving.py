"""The server at its saturation load, on loopback, for a bounded time: throughput, latencies, errors, memory.

Clients send one image after the other, each over its own connection, as fast as answers come back. Their number is
the smallest that nearly reaches the best throughput; that load is then held for 30 seconds. Goals: no errors, p99 at
most 5 times p50, memory that does not grow by more than 8 MiB.

    python -m benchmarks.serving
"""

from __future__ import annotations

import asyncio
import io
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

PROGRAM = "from randens.cli.main import main; main()"
SPREAD = Goal(at_most=5)
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


def request(port: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32))
    body = file.getvalue()
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/x-npy\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def client(port: int, until: float, latencies: list[float]) -> int:
    """Requests until the time is up; returns how many were not answered by 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wanted, errors = request(port), 0
    try:
        while (start := time.perf_counter()) < until:
            writer.write(wanted)
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0].split(b":")[1]))
            latencies.append(time.perf_counter() - start)
            errors += not head.startswith(b"HTTP/1.1 200 ")
    finally:
        writer.close()
    return errors


async def hold(port: int, clients: int, seconds: float) -> Load:
    latencies: list[float] = []
    start = time.perf_counter()
    results = await asyncio.gather(
        *(client(port, start + seconds, latencies) for _ in range(clients)), return_exceptions=True
    )
    took = time.perf_counter() - start
    if not latencies:
        raise RuntimeError(f"no request was answered: {results[0]!r}")
    errors = sum(1 if isinstance(r, BaseException) else r for r in results)
    milliseconds = [1000 * t for t in latencies]
    cuts = statistics.quantiles(milliseconds, n=100)
    return Load(clients, took, len(latencies), errors, cuts[49], cuts[98], max(milliseconds))


def saturation(port: int, counts: tuple[int, ...], seconds: float) -> int:
    """The smallest number of clients that reaches nine tenths of the best throughput."""
    tried = [asyncio.run(hold(port, count, seconds)) for count in counts]
    best = max(load.throughput for load in tried)
    return next(load.clients for load in tried if load.throughput >= 0.9 * best)


def resident(pid: int) -> int:
    """Bytes of memory of a process (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def measure(settings: Settings) -> tuple[Load, float]:
    """The load held, and by how many MiB the server grew meanwhile."""
    counts, trial, held = ((1, 4), 0.5, 2.0) if settings.quick else ((1, 2, 4, 8, 16, 32), 1.5, 30.0)
    with tempfile.TemporaryDirectory() as folder:
        _, bundle = resnet_bundle(Path(folder), _members(settings))
        command = [sys.executable, "-c", PROGRAM, "serve", str(bundle.path), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline().split("http://127.0.0.1:")[1].split("/")[0])
                clients = saturation(port, counts, trial)
                asyncio.run(hold(port, clients, held / 10))
                before = resident(server.pid)
                load = asyncio.run(hold(port, clients, held))
                after = resident(server.pid)
            finally:
                server.terminate()
                server.wait(30)
    return load, (after - before) / 2**20


def _members(settings: Settings) -> int:
    return 2 if settings.quick else 5


def rows(settings: Settings) -> Iterator[Row]:
    load, grown = measure(settings)
    what = f"server, M = {_members(settings)}, {load.clients} clients, {load.seconds:.0f} s"
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
