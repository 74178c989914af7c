"""How cost grows with inputs, members, steps and input size, and memory with inputs and members.

ARC-R with nothing dropped, so that the work does not depend on what it finds, on small untrained networks. Exponents
b of cost ≈ a·x^b are fitted by least squares on logarithms; those of member passes do not depend on the machine.
Peak memory is that of a child process that attacks narrow ResNet-20s by adaptive PGD on a data set that is generated
as it goes, beyond what it has in memory after loading.

    python -m benchmarks.growth
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import Goal, Row, Settings, Side, interleaved, left_out, slope
from randens import RandomizedEnsemble, Threat, attacks, models
from randens.attacks import Found

STEPS, BATCH, SIZE = 5, 64, 16
LARGE = 128  # the batch whose memory is measured
LINEAR = Goal(at_most=1.1)
QUADRATIC = Goal(at_most=2.1)
FLAT = Goal(at_most=0.1)


def ensemble(network: str, members: int, size: int, width: int) -> RandomizedEnsemble:
    networks = [
        models.create(network, classes=10, input_shape=(3, size, size), width=width, seed=seed)
        for seed in range(members)
    ]
    return RandomizedEnsemble(networks).eval()


def batch(n: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, size, size, generator=generator), torch.arange(n) % 10


def attack(name: str, steps: int, batch_size: int) -> attacks.Attack:
    options = {"steps": steps, "batch_size": batch_size, "precision": "float32", "drop_finished": False}
    return attacks.create(name, Threat("linf", 4 / 255), **options)


def case(n: int = BATCH, members: int = 3, steps: int = STEPS, size: int = SIZE) -> Callable[[], Found]:
    """One attack of a certain size."""
    rec, (x, y) = ensemble("convnet", members, size, width=16), batch(n, size)
    return partial(attack("arc-r", steps, BATCH), rec, x, y)


def grown(axis: str, values: Sequence[int], cases: Sequence[Callable[[], Found]], repeats: int) -> Row:
    """The fitted exponent of seconds along one axis."""
    measured = interleaved(
        {str(v): c for v, c in zip(values, cases, strict=True)}, repeats, warm_up=1, seconds=30
    )
    seconds = [measured[str(v)].timing.best for v in values]
    costs = [measured[str(v)].value.cost for v in values]
    passes = [float(cost.forwards + cost.backwards) for cost in costs]
    x = [float(v) ** 2 if axis == "pixels" else float(v) for v in values]
    # Verdicts of all members after a step towards each of them: up to quadratic in M, linear in all else.
    goal = QUADRATIC if axis == "members" else LINEAR
    worst = max((m.timing for m in measured.values()), key=lambda timing: timing.spread)
    return Row(
        f"ARC-R: seconds against {axis}",
        Side(f"{values[0]} to {values[-1]}", worst),
        Side("a straight line" if goal is LINEAR else "a square"),
        slope(x, seconds),
        "slope",
        goal=goal,
        note=f"slope of passes {slope(x, passes):.2f}",
        facts={"axis": axis, "x": x, "seconds": seconds, "passes": passes},
    )


def swollen(axis: str, values: Sequence[int], working: Sequence[float]) -> Row:
    """The fitted exponent of peak memory beyond what is there after loading, in MB."""
    x = [float(v) for v in values]
    return Row(
        f"adaptive PGD: peak memory against {axis}",
        Side(f"{values[0]} to {values[-1]}"),
        Side("a level line" if axis == "inputs" else "a straight line"),
        slope(x, working),
        "slope",
        goal=FLAT if axis == "inputs" else LINEAR,
        note=f"{working[0]:.0f} to {working[-1]:.0f} MB beyond what loading takes",
        facts={"axis": f"memory against {axis}", "x": x, "megabytes": list(working)},
    )


def peak(n: int, members: int) -> float:
    """Peak memory in MB that a child process takes to attack n inputs, beyond what it has after loading."""
    command = [sys.executable, "-m", "benchmarks.growth", "child", str(n), str(members)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    if done.returncode:
        raise RuntimeError(
            f"memory for n = {n}, M = {members}: exit code {done.returncode}: {done.stderr[-300:]}"
        )
    return float(done.stdout)


def child(n: int, members: int) -> None:
    """Attack n inputs that exist one batch at a time, and say how much memory that took at most."""
    torch.set_num_threads(1)
    rec = ensemble("resnet20", members, 32, width=8)
    data = (batch(LARGE, 32, seed) for seed in range(n // LARGE))
    # Importing has a peak of its own, which must not hide this one (Linux: 5 resets the high-water mark).
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    attack("adaptive-pgd-s", 2, LARGE).survey(rec, data)
    print(_memory("VmHWM") - before)


def _memory(kind: str) -> float:
    """MB of this process: VmRSS now, VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def rows(settings: Settings) -> Iterator[Row]:
    torch.set_num_threads(1)
    quick = settings.quick
    repeats = 2 if quick else 3
    counts = [64, 128, 256] if quick else [64, 128, 256, 512, 1024]
    yield grown("inputs", counts, [case(n=n, steps=2) for n in counts], repeats)
    sizes = [1, 2, 4] if quick else [1, 2, 4, 8]
    yield grown("members", sizes, [case(members=m) for m in sizes], repeats)
    steps = [4, 8, 16] if quick else [5, 10, 20, 40, 80]
    yield grown("steps", steps, [case(members=2, steps=k) for k in steps], repeats)
    edges = [16, 32] if quick else [16, 32, 64, 96]
    yield grown("pixels", edges, [case(n=16, members=2, size=edge) for edge in edges], repeats)
    if not Path("/proc/self/clear_refs").exists():
        for axis in ("inputs", "members"):
            yield left_out(f"adaptive PGD: peak memory against {axis}", "", "this system does not tell it")
        return
    counts = [256, 768] if quick else [128, 512, 2048]
    yield swollen("inputs", counts, [peak(n, 2) for n in counts])
    sizes = [1, 4] if quick else [1, 2, 4, 8, 16]
    yield swollen("members", sizes, [peak(LARGE, m) for m in sizes])


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]), int(sys.argv[3]))
    else:
        raise SystemExit(harness.main(rows, __doc__))
