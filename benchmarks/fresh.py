"""Every attack on images that no setting was chosen on: CIFAR-10 test images 2000 to 2511.

Robust accuracy and passes of each attack on the benchmark's ensemble, and the textbook ARC-R beside them. Settings were
chosen on validation images and planted cases. Each attack keeps its finished batches in a folder of its own under
`runs/fresh`, so an interrupted run continues, and no attack starts from what another one found.

    python -m benchmarks.fresh                   # 64 of the images
    python -m benchmarks.fresh --images 512      # all of them
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import randens
from benchmarks import harness, members, runner
from benchmarks.attacks import STEPS, channels_first, textbook_arc_r
from benchmarks.harness import Row, Settings, Side, Timing
from randens import RandomizedEnsemble, Threat
from randens.core.errors import InputError
from randens.core.files import read_json, write_json
from randens.evaluation.argument_checks import fingerprint

FIRST, COUNT = 2000, 512
BATCH = 32
KEPT = runner.ROOT / "runs" / "fresh"
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("saddle", {"orders": 1, "restarts": 1}),
    ("saddle", {"orders": 1, "restarts": 2}),
    ("saddle", {}),
    ("arc-r", {}),
    ("arc", {}),
    ("pgd", {}),
    ("adaptive-pgd-s", {}),
    ("adaptive-pgd-l", {}),
    ("apgd", {}),
    ("lattice", {"orders": 1}),
    ("suite", {"preset": "fast"}),
    ("suite", {"preset": "standard"}),
)


def rows(settings: Settings) -> Iterator[Row]:
    images = 8 if settings.quick else settings.images or 64
    if images > COUNT:
        raise InputError(f"images is {images}; there are {COUNT} fresh ones")
    rec, which = members.locate(settings.ensemble)
    x, y = randens.data.load("cifar10", "test")[torch.arange(FIRST, FIRST + images)]
    threat = rec.threat or Threat("linf", 8 / 255)
    textbook = _textbook(rec, x, y, threat)
    note = f"{which}; {images} test images from {FIRST}"
    for name, options in CASES[:1] if settings.quick else CASES:
        label = " ".join([name, *(f"{k}={v}" for k, v in options.items())])
        attack = randens.attacks.create(name, threat, precision="float32", batch_size=BATCH, **options)
        start = time.perf_counter()
        found = attack.survey(rec, (x, y), folder=KEPT / label.replace(" ", "-"))
        spent = time.perf_counter() - start
        passes = f"{found.cost.forwards / images:.1f} f {found.cost.backwards / images:.1f} b"
        ours = Side(label, Timing(spent, spent, 1), found.robust_accuracy, passes)
        assert textbook.accuracy is not None
        difference = 100 * (found.robust_accuracy - textbook.accuracy)
        yield Row(f"{label}, fresh images", ours, textbook, difference, "points against it", note=note)


def _textbook(rec: RandomizedEnsemble, x: Tensor, y: Tensor, threat: Threat) -> Side:
    """The textbook's robust accuracy, batch by batch; finished batches are read."""
    plain = [channels_first(member) for member in rec.members]
    kept = KEPT / f"textbook-{fingerprint(rec)[:12]}-{threat.eps:.4g}"
    risk = 0.0
    for number, begin in enumerate(range(0, len(x), BATCH)):
        part, labels = x[begin : begin + BATCH].contiguous(), y[begin : begin + BATCH]
        file = kept / f"{number}-{len(part)}.json"
        if not file.exists():
            points = textbook_arc_r(plain, part, labels, threat.eps, STEPS, 2, number)
            value = float(rec.risk(points, labels).sum())
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"risk": value})
        risk += float(read_json(file)["risk"])
    return Side("textbook ARC-R", None, 1 - risk / len(x))


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
