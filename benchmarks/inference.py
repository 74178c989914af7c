"""What a prediction costs: a randomized ensemble against one member, against all members, and against torch.

ResNet-20, 32×32 images. All are timed in turns within one run, so that what else the machine does hits all alike;
ratios of medians are what counts. Target: one prediction at most 1.10 times one member's ONNX session.

    python benchmarks/inference.py
    python benchmarks/inference.py --members 5 --batch 1 64 --repeats 300 --json inference.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from randens import RandomizedEnsemble, Threat, models
from randens.deploy import Bundle, Predictor, export
from randens.files import write_json

TARGET = 1.10
WARM_UP = 5


def resnet_bundle(folder: Path, members: int) -> tuple[RandomizedEnsemble, Bundle]:
    """Untrained networks: they cost what trained ones cost."""
    networks = [
        models.create("resnet20", classes=10, input_shape=(3, 32, 32), seed=i) for i in range(members)
    ]
    rec = RandomizedEnsemble(networks, threat=Threat("linf", 8 / 255)).eval()
    pair = (
        torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
        torch.zeros(8, dtype=torch.int64),
    )
    return rec, export(rec, pair, folder / "bundle")


def in_turns(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each action, all of them executed once per round."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(repeats + WARM_UP):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(
    rec: RandomizedEnsemble, bundle: Bundle, batch: int, repeats: int, threads: int
) -> dict[str, float]:
    """Median milliseconds for one batch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(bundle.path / bundle.members[0].file), options)
    predictor, lean = Predictor(bundle, threads=threads), Predictor(bundle, threads=threads, lean=True)
    x = np.random.default_rng(0).random((batch, 3, 32, 32), dtype=np.float32)
    tensor = torch.from_numpy(x).contiguous(memory_format=torch.channels_last)

    def eager() -> object:
        with torch.inference_mode():
            return rec.members[0](tensor)

    seconds = in_turns(
        {
            "one member's session": lambda: session.run(None, {"inputs": x}),
            "randomized ensemble": lambda: predictor.predict(x),
            "randomized, lean": lambda: lean.predict(x),
            "deterministic ensemble": lambda: predictor.logits(x).mean(axis=0),
            "torch eager, one member": eager,
        },
        repeats,
    )
    return {name: 1000 * value for name, value in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--repeats", type=int, default=300, help="for batches of one; fewer for larger ones")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        rec, bundle = resnet_bundle(Path(folder), chosen.members)
        for batch in chosen.batch:
            found = measure(rec, bundle, batch, max(10, chosen.repeats // batch), chosen.threads)
            base = found["one member's session"]
            results.append({"batch": batch, "milliseconds": found})
            print(f"batch {batch}, {chosen.members} members, {chosen.threads} thread(s)")
            for name, value in found.items():
                print(f"  {name:<26}{value:9.3f} ms   {value / base:6.2f} ×")
    ratio = (
        results[0]["milliseconds"]["randomized ensemble"] / results[0]["milliseconds"]["one member's session"]
    )
    print(f"randomized / one member: {ratio:.3f} (target ≤ {TARGET})")
    if chosen.json is not None:
        write_json(chosen.json, {"members": chosen.members, "threads": chosen.threads, "results": results})
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
