"""Bundles of linear members whose every logit is known, made without torch, and servers to put them behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from randens.deploy import Bundle, Predictor, layout
from randens.deploy.limits import Limits
from randens.deploy.server import Settings, create_app, listen, make_server

BOX = {"norm": "linf", "eps": 0.1, "bounds": [0.0, 1.0]}


def linear_model(
    weight: NDArray[np.float32], bias: NDArray[np.float32], shape: Sequence[int]
) -> onnx.ModelProto:
    """logits = flatten(inputs) · weight + bias."""
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["inputs"], ["flat"], axis=1),
            helper.make_node("Gemm", ["flat", "weight", "bias"], ["logits"]),
        ],
        "linear",
        [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(bias)])],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def linear_bundle(
    path: Path,
    weights: NDArray[np.float32],
    biases: NDArray[np.float32],
    probs: Sequence[float],
    shape: Sequence[int],
    threat: dict[str, Any] | None = BOX,
) -> Bundle:
    """weights [M, d, C], biases [M, C]."""
    models = [linear_model(w, b, shape) for w, b in zip(weights, biases, strict=True)]
    return layout.store(
        path,
        models,
        probs=probs,
        classes=[f"class {i}" for i in range(biases.shape[1])],
        input_shape=shape,
        threat=threat,
        precision="float32",
        ensemble="0" * 64,
        sign_off={"parity": {"max_difference": 0.0}},
    )


def random_bundle(
    path: Path, probs: Sequence[float] = (0.5, 0.3, 0.2), shape: Sequence[int] = (1, 4, 4), seed: int = 0
) -> Bundle:
    """Members with random weights; 5 classes."""
    generator = np.random.default_rng(seed)
    d = int(np.prod(shape))
    weights = generator.normal(size=(len(probs), d, 5)).astype(np.float32)
    biases = generator.normal(size=(len(probs), 5)).astype(np.float32)
    return linear_bundle(path, weights, biases, probs, shape)


def telling_bundle(path: Path, probs: Sequence[float], shape: Sequence[int] = (1, 2, 2)) -> Bundle:
    """Member i always answers class i: labels tell the draws."""
    members, d = len(probs), int(np.prod(shape))
    weights = np.zeros((members, d, members), dtype=np.float32)
    return linear_bundle(path, weights, 5 * np.eye(members, dtype=np.float32), probs, shape)


def chi_squared(counts: Sequence[int], probs: Sequence[float]) -> float:
    """p-value of the counts if draws follow `probs`."""
    import scipy.stats

    n = sum(counts)
    return float(scipy.stats.chisquare(counts, [n * p for p in probs]).pvalue)


@dataclass(frozen=True)
class Running:
    """A server on loopback."""

    url: str
    port: int
    client: httpx.Client
    app: Any


@contextlib.contextmanager
def running(
    bundle: Bundle, settings: Settings | None = None, predictor: Predictor | None = None
) -> Iterator[Running]:
    """Serve a bundle from a thread of this process.

    Unless the settings limit the time of an answer, it has the client's time: a loaded machine may take long.
    """
    chosen = settings or Settings()
    if chosen.limits.answer_seconds == Limits().answer_seconds:
        patient = dataclasses.replace(chosen.limits, answer_seconds=300.0)
        chosen = dataclasses.replace(chosen, limits=patient)
    app = create_app(predictor or Predictor(bundle), chosen)
    bound = listen("127.0.0.1", 0)
    server = make_server(app, chosen.limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    port = bound.getsockname()[1]
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=300) as client:
            yield Running(url, port, client, app)
    finally:
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive()


def resident(pid: int | None = None) -> dict[str, int]:
    """Memory of a process in bytes, by kind (Linux)."""
    lines = Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {key: int(found[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon", "RssFile")}
