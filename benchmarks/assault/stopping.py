"""SIGTERM to a server under load, and malformed requests made from its own OpenAPI document."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
from tests.deploy.planted import random_bundle, running
from tests.deploy.test_fuzzing import fuzz_bodies, fuzz_interface

from benchmarks.assault.finding import Finding
from benchmarks.assault.server import PREDICT, SHAPE, served, statuses

REFUSED, CUT = -1, 0


def stops(folder: Path, clients: int, seconds: float = 1.5) -> Iterator[Finding]:
    """Point 6: clients send without a pause when SIGTERM comes; every request is answered or never taken."""
    body = json.dumps({"inputs": [np.zeros(SHAPE).tolist()]}).encode()
    content = PREDICT + b"Content-Length: %d\r\n\r\n" % len(body) + body
    seen: Counter[int] = Counter()
    over = threading.Event()

    def client(port: int) -> None:
        while not over.is_set():
            found = outcome(port, content)
            seen[found] += 1
            if found == REFUSED:
                return

    with served(folder) as server:
        threads = [threading.Thread(target=client, args=(server.port,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(60)
        over.set()
        for thread in threads:
            thread.join()
    refused = seen.pop(REFUSED, 0)
    note = f"{clients} clients: {statuses(seen)}; then {refused} connections refused"
    yield Finding("stop", "requests that were taken and not answered", seen[CUT], "", 0, note=note)
    yield Finding("stop", "exit code of the server, minus 143", code - 143, "", 0)


def outcome(port: int, content: bytes) -> int:
    """The status of an answer; `REFUSED` if there was no connection, `CUT` if there was one and no answer."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    except ConnectionRefusedError:
        return REFUSED
    except OSError:
        return CUT
    with connection:
        try:
            connection.sendall(content)
            answer = b""
            while len(answer) < 12 and (part := connection.recv(4096)):
                answer += part
        except OSError:
            return CUT
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else CUT


def interface(folder: Path, examples: int) -> Iterator[Finding]:
    """Point 7: requests generated from the OpenAPI document, and valid bodies with changed bytes."""
    with running(random_bundle(folder / "b", (1.0, 0.0, 0.0))) as server:
        seen = fuzz_interface(server.url, examples)
        with httpx.Client(base_url=server.url, timeout=30) as client:
            seen += fuzz_bodies(client, 2 * examples)
    errors = sum(n for status, n in seen.items() if status >= 500)
    yield Finding("interface", "malformed requests answered by 5xx", errors, "", 0, note=statuses(seen))
