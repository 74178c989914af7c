"""Hundreds of malformed requests: refused with a reason, without a server error, and later answers are right."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.deploy.planted import random_bundle, resident, running
from tests.deploy.test_decoding import VALID

from randens.deploy import Predictor

PATHS = (("/v1/predict", "POST"), ("/v1/model", "GET"), ("/healthz", "GET"), ("/metrics", "GET"))
PROBS = (1.0, 0.0, 0.0)
X = np.random.default_rng(2).random((4, 1, 4, 4)).astype(np.float32)


def settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=False,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def fuzz_interface(url: str, examples: int, seed: int = 0) -> Counter[int]:
    """Requests generated from the OpenAPI document, breaking it on purpose; how often each status came."""
    # Imported here: every worker of the tests collects this file, one runs it.
    import schemathesis
    from schemathesis import GenerationMode, checks
    from schemathesis.specs.openapi import checks as by_document

    always: list[Any] = [
        checks.not_a_server_error,
        by_document.status_code_conformance,
        by_document.content_type_conformance,
        by_document.response_schema_conformance,
    ]
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    seen: Counter[int] = Counter()

    def attempt(mode: Any, path: str, method: str, count: int) -> None:
        @hypothesis.seed(seed)
        @settings(count)
        @given(case=schema[path][method].as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            response = case.call(base_url=url)
            seen[response.status_code] += 1
            more = [by_document.negative_data_rejection] if mode is GenerationMode.NEGATIVE else []
            case.validate_response(response, checks=[*always, *more])

        one()

    attempt(GenerationMode.NEGATIVE, "/v1/predict", "POST", examples)
    attempt(GenerationMode.POSITIVE, "/v1/predict", "POST", examples // 4)
    for path, method in PATHS[1:]:
        attempt(GenerationMode.POSITIVE, path, method, 2)
    return seen


def fuzz_bodies(client: httpx.Client, examples: int, seed: int = 0) -> Counter[int]:
    """Valid bodies of every type with bytes changed, cut off, or sent as another type."""
    seen: Counter[int] = Counter()

    @hypothesis.seed(seed)
    @settings(examples)
    @given(
        st.sampled_from(sorted(VALID)),
        st.sampled_from(sorted(VALID)),
        st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
        st.floats(0, 1),
        st.text(max_size=8),
    )
    def one(kind: str, content: str, changes: list[tuple[float, int]], kept: float, draws: str) -> None:
        body = bytearray(VALID[content])
        for place, value in changes:
            body[int(place * len(body))] = value
        response = client.post(
            "/v1/predict",
            content=bytes(body[: round(kept * len(body))]),
            headers={"content-type": kind},
            params={"draws": draws} if len(changes) % 3 == 0 else {},
        )
        seen[response.status_code] += 1
        assert response.status_code < 500, response.text
        assert response.status_code == 200 or len(response.json()["detail"]) > 10

    one()
    return seen


def assert_right(client: httpx.Client, bundle: Path) -> None:
    response = client.post("/v1/predict", json={"inputs": X.tolist()})
    expected = Predictor(bundle).logits(X)[0].argmax(axis=1).tolist()
    assert [p["label"] for p in response.json()["predictions"]] == expected


def test_malformed_requests_are_refused_and_the_service_stays_right(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "b", PROBS)
    with running(bundle) as server:
        assert_right(server.client, bundle.path)
        seen = fuzz_interface(server.url, 150) + fuzz_bodies(server.client, 250)
        assert max(seen) < 500
        assert sum(n for status, n in seen.items() if status >= 400) > 200
        assert seen[200] > 0
        assert_right(server.client, bundle.path)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[str, int, Path]]:
    """A server in a process of its own, so that its memory can be watched."""
    bundle = random_bundle(tmp_path / "b", PROBS)
    program = "from randens.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", str(bundle.path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        try:
            yield line.split(" at ")[1].split("/ ")[0], child.pid, bundle.path
        finally:
            child.terminate()
            assert child.wait(300) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_ten_thousand_malformed_requests_leave_no_trace(process: tuple[str, int, Path]) -> None:
    url, pid, bundle = process
    with httpx.Client(base_url=url, timeout=300) as client:
        seen = fuzz_interface(url, 1000) + fuzz_bodies(client, 2000)
        time.sleep(1)
        before = resident(pid)["VmRSS"]
        # Three or four rounds do; the bound is for the day on which most of what is sent would be accepted.
        for seed in range(1, 8):
            if sum(n for status, n in seen.items() if status >= 400) >= 10_000:
                break
            seen += fuzz_interface(url, 1000, seed) + fuzz_bodies(client, 4000, seed)
        assert sum(n for status, n in seen.items() if status >= 400) >= 10_000
        assert max(seen) < 500
        assert resident(pid)["VmRSS"] - before < 16 << 20
        assert_right(client, bundle)
        assert 'status="5' not in client.get("/metrics").text
