"""What a prediction costs: a randomized ensemble against one member, against all members, and against torch.

ResNet-20, 32×32 images, one thread; for M = 1, 2, 4, 8, 16 members. Untrained networks cost what trained ones cost. The
goal is a prediction at no more than 1.05 times one member's ONNX session at batch 1, as the median over five runs.
One session called again and again finds its weights in the cache. So a second limit is measured in the same run: the M
sessions called directly, unchecked, in an order drawn beforehand. What exceeds it is the predictor's own work.

    python -m benchmarks.inference
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import harness
from benchmarks.harness import Fact, Goal, Row, Settings, Side, Timed, as_fast, interleaved, left_out, of_cost
from randens import RandomizedEnsemble, Threat, models
from randens.deploy import Bundle, Predictor, export

ONE_MEMBER = Goal(at_most=1.05)
THREADS = 1
RUNS = 5
ONE = "one member's ONNX session"
ALL = "all members' ONNX sessions, one drawn"


def resnet_bundle(folder: Path, members: int) -> tuple[RandomizedEnsemble, Bundle]:
    """A randomized ensemble of ResNet-20s and its bundle in a new folder."""
    networks = [
        models.create("resnet20", classes=10, input_shape=(3, 32, 32), seed=i) for i in range(members)
    ]
    rec = RandomizedEnsemble(networks, threat=Threat("linf", 8 / 255)).eval()
    pair = (
        torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
        torch.zeros(8, dtype=torch.int64),
    )
    return rec, export(rec, pair, folder / "bundle")


def ensemble_rows(bundle: Bundle, batch: int, repeats: int, calls: int) -> Iterator[Row]:
    """One prediction of the ensemble, drawn and of all members, against one member's session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    sessions = [onnxruntime.InferenceSession(str(bundle.path / file.name), options) for file in bundle.files]
    session = sessions[0]
    predictor = Predictor(bundle, threads=THREADS)
    x = np.random.default_rng(0).random((batch, 3, 32, 32), dtype=np.float32)
    members = len(bundle.members)
    order = itertools.cycle(np.random.default_rng(0).integers(0, members, 4096).tolist())
    drawn: dict[str, Callable[[], object]] = {
        ONE: lambda: session.run(None, {"inputs": x}),
        "drawn": lambda: predictor.predict(x),
    }
    if batch == 1 and members > 1:
        # With more inputs a call runs several sessions, each on its part.
        drawn[ALL] = lambda: sessions[next(order)].run(None, {"inputs": x})
    yield from _drawn(drawn, members, batch, repeats, calls)
    measured = interleaved(
        {
            ONE: drawn[ONE],
            "all": lambda: predictor.logits(x).mean(axis=0),
        },
        max(2, repeats // 3),
        warm_up=3,
        calls=max(1, calls // 4),
    )
    limit = Side(ONE, measured[ONE].timing, passes="1 f")
    ours = Side("deterministic ensemble", measured["all"].timing, passes=f"{members} f")
    what = f"deterministic ensemble, M = {members}, batch {batch}"
    yield of_cost(what, ours, limit, facts=_facts(members, batch, "all"))


def _drawn(
    cases: Mapping[str, Callable[[], object]], members: int, batch: int, repeats: int, calls: int
) -> Iterator[Row]:
    """A prediction against each limit: the run with the median ratio of five."""
    runs = [interleaved(cases, repeats, warm_up=3, calls=calls) for _ in range(RUNS)]
    what = f"randomized ensemble, M = {members}, batch {batch}"
    for name in (limit for limit in (ONE, ALL) if limit in cases):
        goal = ONE_MEMBER if batch == 1 and name == ONE else None
        found = sorted(
            (
                of_cost(
                    what,
                    Side("randomized ensemble", run["drawn"].timing, passes="1 f"),
                    Side(name, run[name].timing, passes="1 f"),
                    goal,
                    facts=_facts(members, batch, "drawn") if name == ONE else {},
                )
                for run in runs
            ),
            key=lambda row: row.figure or 0.0,
        )
        note = f"median of {RUNS} runs, {found[0].figure:.3f} to {found[-1].figure:.3f}"
        yield replace(found[RUNS // 2], note=note)


def _facts(members: int, batch: int, case: str) -> dict[str, Fact]:
    return {"members": float(members), "batch": float(batch), "case": case}


def torch_rows(
    rec: RandomizedEnsemble, bundle: Bundle, batch: int, repeats: int, calls: int, compiling: bool
) -> Iterator[Row]:
    """One member: ONNX Runtime against eager torch and, with `compiling`, against compiled torch."""
    predictor = Predictor(bundle, threads=THREADS)
    x = np.random.default_rng(0).random((batch, 3, 32, 32), dtype=np.float32)
    tensor = torch.from_numpy(x).contiguous(memory_format=torch.channels_last)
    cases: dict[str, Callable[[], object]] = {
        "onnx": lambda: predictor.predict(x),
        "torch eager": _without_gradients(rec.members[0], tensor),
    }
    what = f"one member by ONNX Runtime, batch {batch}"
    if compiling:
        try:
            compiled = _without_gradients(torch.compile(rec.members[0]), tensor)
            compiled()
            cases["torch.compile"] = compiled
        except Exception as error:  # Compiling needs a C++ compiler and fails in many ways.
            why = f"torch.compile does not work here ({type(error).__name__})"
            yield left_out(what, "torch.compile", why)
    else:
        yield left_out(what, "torch.compile", "compiling takes long: left out of quick runs")
    measured: dict[str, Timed[object]] = interleaved(cases, repeats, warm_up=2, calls=calls)
    ours = Side("ONNX Runtime", measured["onnx"].timing, passes="1 f")
    for name in cases:
        if name != "onnx":
            facts: dict[str, Fact] = {"members": 1.0, "batch": float(batch), "case": name}
            yield as_fast(what, ours, Side(name, measured[name].timing, passes="1 f"), facts=facts)


def _without_gradients(member: Callable[[torch.Tensor], object], x: torch.Tensor) -> Callable[[], object]:
    def call() -> object:
        with torch.inference_mode():
            return member(x)

    return call


def rows(settings: Settings) -> Iterator[Row]:
    torch.set_num_threads(THREADS)
    # Means over enough calls that a measurement takes tens of milliseconds: shorter ones are mostly jitter.
    sizes = {1: 10} if settings.quick else {1: 40, 64: 1}
    repeats = 5 if settings.quick else 10
    with tempfile.TemporaryDirectory() as folder:
        for members in (1, 2) if settings.quick else (1, 2, 4, 8, 16):
            rec, bundle = resnet_bundle(Path(folder) / str(members), members)
            for batch, calls in sizes.items():
                yield from ensemble_rows(bundle, batch, repeats, calls)
                if members == 1:
                    yield from torch_rows(rec, bundle, batch, repeats, calls, not settings.quick)


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
