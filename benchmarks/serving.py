"""The server at its saturation load, on loopback, for a bounded time: throughput, latencies, errors, memory.

Clients send one image after the other, each over its own connection, as fast as answers come back. Their number is
the smallest that nearly reaches the best throughput; that load is then held. Targets: no errors, p99 at most 5 times
p50, flat memory.

    python -m benchmarks.serving
    python -m benchmarks.serving --seconds 30 --clients 16 --json serving.json
"""

from __future__ import annotations

import argparse
import asyncio
import io
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.inference import resnet_bundle

from randens.files import write_json

PROGRAM = "from randens.cli.main import main; main()"
SPREAD = 5.0
GROWTH = 8 << 20


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
        raise SystemExit(f"no request was answered: {results[0]!r}")
    errors = sum(1 if isinstance(r, BaseException) else r for r in results)
    milliseconds = [1000 * t for t in latencies]
    cuts = statistics.quantiles(milliseconds, n=100)
    return Load(clients, took, len(latencies), errors, cuts[49], cuts[98], max(milliseconds))


def saturation(port: int) -> int:
    """The smallest number of clients that reaches nine tenths of the best throughput."""
    tried = [asyncio.run(hold(port, count, 2.0)) for count in (1, 2, 4, 8, 16, 32)]
    for load in tried:
        print(f"  {load.clients:3d} clients {load.throughput:8.0f} answers/s")
    best = max(load.throughput for load in tried)
    return next(load.clients for load in tried if load.throughput >= 0.9 * best)


def resident(pid: int) -> int:
    """Bytes of memory of a process (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, help="instead of looking for saturation")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _, bundle = resnet_bundle(Path(folder), chosen.members)
        command = [sys.executable, "-c", PROGRAM, "serve", str(bundle.path), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline().split("http://127.0.0.1:")[1].split("/")[0])
                clients = chosen.clients or saturation(port)
                asyncio.run(hold(port, clients, 3.0))
                before = resident(server.pid)
                load = asyncio.run(hold(port, clients, chosen.seconds))
                after = resident(server.pid)
            finally:
                server.terminate()
                server.wait(30)
    print(
        f"{load.clients} clients for {load.seconds:.1f} s: {load.throughput:.0f} answers/s, {load.errors} errors"
    )
    print(
        f"p50 {load.p50:.2f} ms, p99 {load.p99:.2f} ms ({load.p99 / load.p50:.1f} ×), slowest {load.slowest:.1f} ms"
    )
    print(f"memory {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after")
    if chosen.json is not None:
        write_json(chosen.json, {**vars(load), "memory_before": before, "memory_after": after})
    return 0 if load.errors == 0 and load.p99 <= SPREAD * load.p50 and after - before <= GROWTH else 1


if __name__ == "__main__":
    raise SystemExit(main())
