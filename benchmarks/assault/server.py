"""Bodies that are meant to freeze the server, senders that are meant to fill it, clients that do not read."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.deploy.planted import random_bundle

from benchmarks.assault.finding import Finding
from randens.deploy.server import Limits

PROGRAM = "from randens.cli.main import main; main()"
# The same application under uvicorn's own protocol, with the limits that uvicorn has.
PLAIN = """
import sys, uvicorn
from randens.deploy import Predictor
from randens.deploy.server import Limits, create_app, listen
bound = listen("127.0.0.1", 0)
print(f"http://127.0.0.1:{bound.getsockname()[1]}/", flush=True)
config = uvicorn.Config(
    create_app(Predictor(sys.argv[2])),
    log_level="critical",
    limit_concurrency=Limits().connections,
    timeout_keep_alive=5,
)
uvicorn.Server(config).run(sockets=[bound])
"""
SHAPE = (3, 32, 32)
LIMITS = Limits()
PREDICT = (
    b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
)


@dataclass(frozen=True)
class Server:
    """A server in a process of its own."""

    port: int
    process: subprocess.Popen[str]

    @property
    def peak(self) -> int:
        """Most bytes of memory it ever had (Linux)."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@contextlib.contextmanager
def served(folder: Path, program: str = PROGRAM) -> Iterator[Server]:
    """Serve a bundle of three linear members on loopback."""
    bundle = folder / "bundle"
    if not bundle.exists():
        random_bundle(bundle, shape=SHAPE)
    command = [sys.executable, "-c", program, "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield Server(int(process.stdout.readline().split("127.0.0.1:")[1].split("/")[0]), process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()


def filled(head: bytes, piece: Callable[[int], bytes], tail: bytes, size: int) -> bytes:
    """head, as many pieces as fit into `size` bytes, tail."""
    parts, length, index = [head], len(head) + len(tail), 0
    while length + len(part := piece(index)) <= size:
        parts.append(part)
        length += len(part)
        index += 1
    return b"".join(parts) + tail


def bodies(size: int, batch: int = LIMITS.batch) -> dict[str, bytes]:
    """Bodies of at most `size` bytes, each bad in another way; the last ones are good to their last number."""
    one = json.dumps(np.zeros(SHAPE).tolist(), separators=(",", ":")).encode()
    count = min(batch, size // (len(one) + 1) - 1)
    good = b",".join([one] * count)
    return {
        "unknown keys": filled(b'{"k":0', lambda i: b',"%d":0' % i, b"}", size),
        "empty lists": filled(b'{"inputs":[[]', lambda _: b",[]", b"]}", size),
        "flat numbers": filled(b'{"inputs":[0', lambda _: b",0", b"]}", size),
        "nesting": b'{"inputs":' + b"[" * (size // 2 - 10) + b"]" * (size // 2 - 10) + b"}",
        "one long number": b'{"inputs":[[[[' + b"1" * (size - 30) + b"]]]]}",
        "one long text": b'{"inputs":"' + b"a" * (size - 30) + b'"}',
        "blanks": b'{"inputs":' + b" " * (size - 30) + b"[]}",
        "last number wrong": b'{"inputs":[' + good[: -2 * len(SHAPE)] + b"7" + b"]" * len(SHAPE) + b"]}",
        "inputs beyond the limit": b'{"inputs":[' + b",".join([one] * (size // (len(one) + 1) - 1)) + b"]}",
    }


def post(port: int, body: bytes, timeout: float = 60.0) -> int:
    """Send a body as fast as it is taken; the status, or 0 if the connection ended without one."""
    return raw(port, PREDICT + b"Content-Length: %d\r\n\r\n" % len(body) + body, timeout)


def raw(port: int, content: bytes, timeout: float = 60.0) -> int:
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        # The server may answer and close before it has everything.
        with contextlib.suppress(ConnectionError):
            connection.sendall(content)
        with contextlib.suppress(ConnectionError):
            while len(answer) < 12 and (part := connection.recv(4096)):
                answer += part
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


class Probe:
    """Asks /healthz again and again in a thread while something else goes on; `seconds` are the answers' times."""

    def __init__(self, port: int, pause: float = 0.02) -> None:
        self._port, self._pause = port, pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.seconds: list[float] = []
        self.failures = 0

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        while not self._stop.is_set():
            began = time.perf_counter()
            try:
                self.failures += raw(self._port, request) != 200
            except OSError:
                self.failures += 1
            self.seconds.append(time.perf_counter() - began)
            time.sleep(self._pause)


def at_once(port: int, contents: Sequence[bytes]) -> tuple[Counter[int], Probe]:
    """Everything at the same time, each on its own connection, while /healthz is asked."""
    with Probe(port) as probe, ThreadPoolExecutor(len(contents)) as threads:
        seen = Counter(threads.map(lambda content: raw(port, content), contents))
    return seen, probe


def freezing(folder: Path, senders: int, size: int) -> Iterator[Finding]:
    """Point 1: bodies that cost the server much and the client little."""
    contents = {
        name: PREDICT + b"Content-Length: %d\r\n\r\n" % len(body) + body
        for name, body in bodies(size).items()
    }
    contents["body in crumbs"] = PREDICT + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n0\r\n" * (size // 6)
    with served(folder) as server:
        # The delay of an idle server on this machine.
        with Probe(server.port) as quiet:
            time.sleep(3)
        for name, content in contents.items():
            seen, probe = at_once(server.port, [content] * senders)
            worst, usual, idle = (
                1000 * value
                for value in (max(probe.seconds), statistics.median(probe.seconds), max(quiet.seconds))
            )
            note = f"{senders} bodies of {len(content) / 2**20:.3g} MiB: {statuses(seen)}; median {usual:.0f} ms, "
            note += f"slowest without them {idle:.0f} ms"
            yield Finding("server", f"{name}: slowest /healthz", worst, "ms", 100, note=note)
            wrong = seen[200] + sum(n for status, n in seen.items() if status >= 500) + probe.failures
            yield Finding("server", f"{name}: accepted, 5xx or failed", wrong, "requests", 0)
        bound = 4 * LIMITS.body * LIMITS.active / 2**20
        yield Finding("server", "all of these: peak memory", server.peak / 2**20, "MiB", bound)


def statuses(seen: Counter[int]) -> str:
    return ", ".join(f"{n} × {status or 'closed'}" for status, n in sorted(seen.items()))


def occupying(folder: Path, senders: int, good: int) -> Iterator[Finding]:
    """Point 2: many connections that send slowly, not at all, or do not read."""
    one = json.dumps({"inputs": [np.zeros(SHAPE).tolist()]}).encode()
    head = PREDICT + b"Content-Length: %d\r\n\r\n" % LIMITS.body
    kinds: dict[str, Callable[[socket.socket], None]] = {
        "slow bodies": lambda c: c.sendall(head + b'{"inp'),
        "large unfinished bodies": lambda c: c.sendall(head + b" " * (4 << 20)),
        "slow heads": lambda c: c.sendall(b"POST /v1/pred"),
        "idle connections": lambda _: None,
        "clients that do not read": lambda c: c.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500),
    }
    with served(folder) as server:
        for name, begin in kinds.items():
            with contextlib.ExitStack() as stack:
                for _ in range(senders):
                    stack.enter_context(_held(server.port, begin))
                seen = Counter(_tried(server.port, one) for _ in range(good))
            note = f"{senders} of them, {good} good requests: {statuses(seen)}"
            yield Finding("server", f"{name}: good requests answered", seen[200], "", 0.99 * good, True, note)
        yield Finding("server", "all of these: peak memory", server.peak / 2**20, "MiB", 2048)


def crowding(folder: Path, senders: int, good: int) -> Iterator[Finding]:
    """Point 2: more idle and unfinished connections than are allowed, and what uvicorn's own limits do then."""
    one = json.dumps({"inputs": [np.zeros(SHAPE).tolist()]}).encode()
    kinds: dict[str, Callable[[socket.socket], None]] = {
        "idle connections": lambda _: None,
        "unfinished heads": lambda c: c.sendall(b"POST /v1/pred"),
    }
    for who, program, least in (("this server", PROGRAM, 0.99), ("uvicorn's own limits", PLAIN, 0.0)):
        with served(folder, program) as server:
            for name, begin in kinds.items():
                with contextlib.ExitStack() as stack:
                    for _ in range(senders):
                        stack.enter_context(_held(server.port, begin))
                    seen = Counter(_tried(server.port, one) for _ in range(good))
                note = (
                    f"{senders} of them, {LIMITS.connections} allowed, {good} good requests: {statuses(seen)}"
                )
                yield Finding("crowd", f"{name}, {who}: answered", seen[200], "", least * good, True, note)


def _tried(port: int, body: bytes) -> int:
    try:
        return post(port, body, 10.0)
    except OSError:
        return 0


@contextlib.contextmanager
def _held(port: int, begin: Callable[[socket.socket], None]) -> Iterator[None]:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # What is not taken in time is as unfinished as wanted.
        connection.settimeout(0.1)
        with contextlib.suppress(OSError):
            begin(connection)
        yield
