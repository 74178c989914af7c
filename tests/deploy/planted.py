"""Bundles of linear members whose every logit is known, made without torch, and a server to put them behind."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.parser import parse_model

from randens.core.files import sha256
from randens.core.runs import ThreatDocument
from randens.deploy.predictor import Bundle, Member, NetworkFile

LINEAR = """<ir_version: 10, opset_import: ["" : 20]>
linear ({inputs}) => (float[batch, {classes}] logits) {{
    flat = Flatten<axis=1>(inputs)
    logits = Gemm(flat, weight, bias)
}}"""
BOX = {"norm": "linf", "eps": 0.1, "bounds": [0.0, 1.0]}


def linear_bundle(
    path: Path,
    weights: NDArray[np.float32],
    biases: NDArray[np.float32],
    probs: Sequence[float],
    shape: Sequence[int],
    threat: dict[str, Any] | None = BOX,
) -> Bundle:
    """logits = flatten(inputs) · weight + bias; weights [M, d, C], biases [M, C]."""
    path.mkdir()
    files = []
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        inputs = f"float[{', '.join(map(str, ('batch', *shape)))}] inputs"
        model = parse_model(LINEAR.format(inputs=inputs, classes=len(bias)))
        constants = (numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias"))
        model.graph.initializer.extend(constants)
        name, content = f"network-{index:02d}.onnx", model.SerializeToString()
        files.append(NetworkFile(name=name, sha256=sha256(content), size=len(content)))
        (path / name).write_bytes(content)
    bundle = Bundle(
        path=path,
        probs=tuple(probs),
        classes=tuple(f"class {i}" for i in range(biases.shape[1])),
        input_shape=tuple(shape),
        threat=None if threat is None else ThreatDocument.model_validate(threat),
        files=tuple(files),
        members=tuple(Member(files=(i,), weights=(1.0,)) for i in range(len(files))),
        ensemble="0" * 64,
        parity={"max_difference": 0.0},
        versions={},
    )
    bundle.write()
    return bundle


def random_bundle(
    path: Path, probs: Sequence[float] = (0.5, 0.3, 0.2), shape: Sequence[int] = (1, 4, 4), seed: int = 0
) -> Bundle:
    """Members with random weights; 5 classes."""
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(len(probs), int(np.prod(shape)), 5)).astype(np.float32)
    biases = generator.normal(size=(len(probs), 5)).astype(np.float32)
    return linear_bundle(path, weights, biases, probs, shape)


def telling_bundle(path: Path, probs: Sequence[float], shape: Sequence[int] = (1, 2, 2)) -> Bundle:
    """Member i always answers class i: labels tell the draws."""
    members = len(probs)
    weights = np.zeros((members, int(np.prod(shape)), members), dtype=np.float32)
    return linear_bundle(path, weights, 5 * np.eye(members, dtype=np.float32), probs, shape)


def chi_squared(counts: Sequence[int], probs: Sequence[float]) -> float:
    """p-value of the counts if draws follow `probs`; a right implementation is below 1e-7 once in ten million runs."""
    import scipy.stats

    n = sum(counts)
    return float(scipy.stats.chisquare(counts, [n * p for p in probs]).pvalue)


@contextlib.contextmanager
def served(bundle: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`randens serve` on a free port of loopback: its process and port."""
    program = "from randens.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", str(bundle), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("http://127.0.0.1:")[1].split("/")[0])
            yield process, port
        finally:
            process.terminate()
            process.wait(120)


def connect(port: int) -> socket.socket:
    """A connection that gives up after a minute."""
    return socket.create_connection(("127.0.0.1", port), timeout=60)
