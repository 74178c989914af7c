"""Every attack on images that no setting was chosen on: CIFAR-10 test images 2000 to 2511.

Robust accuracy and passes of each attack on the benchmark's ensemble, and the textbook ARC-R beside them. Settings were
chosen on validation images and planted cases. The saddle climber and the textbook are timed in turns, batch by batch.
The other attacks keep their finished batches in folders of their own under `runs/fresh`, so an interrupted run
continues, and no attack starts from what another one found.

    python -m benchmarks.fresh                   # 128 of the images
    python -m benchmarks.fresh --images 512      # all of them
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import randens
from benchmarks import harness, members, runner
from benchmarks.attacks import FASTER_SADDLE, SADDLES, STEPS, channels_first, clock, textbook_arc_r
from benchmarks.harness import Row, Settings, Side, Timing, as_fast
from randens import RandomizedEnsemble, Threat
from randens.attacks import Found
from randens.attacks.found import Cost
from randens.core.errors import InputError

FIRST, COUNT = 2000, 512
BATCH = 128
KEPT = runner.ROOT / "runs" / "fresh"
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
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
    images = 8 if settings.quick else settings.images or BATCH
    if images > COUNT:
        raise InputError(f"images is {images}; there are {COUNT} fresh ones")
    rec, which = members.locate(settings.ensemble)
    x, y = randens.data.load("cifar10", "test")[torch.arange(FIRST, FIRST + images)]
    threat = rec.threat or Threat("linf", 8 / 255)
    note = f"{which}; {images} test images from {FIRST}"
    textbook, saddles = _in_turns(rec, x, y, threat)
    assert textbook.accuracy is not None
    yield from _speed(textbook, saddles, note)
    sides = [*saddles, *(_survey(rec, x, y, threat, *case) for case in CASES if not settings.quick)]
    for ours in sides:
        assert ours.accuracy is not None
        difference = 100 * (ours.accuracy - textbook.accuracy)
        against = Side(textbook.name, None, textbook.accuracy)
        yield Row(f"{ours.name}, fresh images", ours, against, difference, "points against it", note=note)


def _in_turns(rec: RandomizedEnsemble, x: Tensor, y: Tensor, threat: Threat) -> tuple[Side, list[Side]]:
    """The textbook and the saddle climber's settings on one batch after the other, each once per batch."""
    plain = [channels_first(member) for member in rec.members]
    attacks = {
        name: randens.attacks.create("saddle", threat, precision="float32", batch_size=BATCH, **options)
        for name, options in SADDLES.items()
    }
    for attack in attacks.values():
        attack(rec, x[:8], y[:8])
    names = ["textbook ARC-R", *attacks]
    seconds, risk = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    spent = {name: Cost() for name in names}
    tick = clock()
    for number, begin in enumerate(range(0, len(x), BATCH)):
        part, labels = x[begin : begin + BATCH], y[begin : begin + BATCH]
        cases: dict[str, Callable[[], Tensor | Found]] = {
            "textbook ARC-R": partial(
                textbook_arc_r, plain, part.contiguous(), labels, threat.eps, STEPS, 2, number
            )
        }
        cases |= {name: partial(attack, rec, part, labels) for name, attack in attacks.items()}
        for name, call in cases.items():
            start = tick()
            found = call()
            seconds[name] += tick() - start
            if isinstance(found, Found):
                risk[name] += float(found.risk.sum())
                spent[name].forwards += found.cost.forwards
                spent[name].backwards += found.cost.backwards
            else:
                risk[name] += float(rec.risk(found, labels).sum())
    sides = [
        Side(
            name,
            Timing(seconds[name], seconds[name], 1),
            1 - risk[name] / len(x),
            _passes(spent[name], len(x)) if name in attacks else "",
        )
        for name in names
    ]
    return sides[0], sides[1:]


def _speed(textbook: Side, saddles: list[Side], note: str) -> Iterator[Row]:
    """How many times as fast; the goal is for the quickest setting that reaches the textbook's accuracy."""
    reaching = [side for side in saddles if (side.accuracy or 0.0) <= (textbook.accuracy or 0.0) + 1e-9]
    quickest = reaching[0] if reaching else saddles[-1]
    for side in saddles:
        goal = FASTER_SADDLE if side is quickest else None
        yield as_fast(f"{side.name}, fresh images", side, textbook, goal, note=note)


def _survey(
    rec: RandomizedEnsemble, x: Tensor, y: Tensor, threat: Threat, name: str, options: dict[str, Any]
) -> Side:
    label = " ".join([name, *(f"{k}={v}" for k, v in options.items())])
    attack = randens.attacks.create(name, threat, precision="float32", batch_size=BATCH, **options)
    start = time.perf_counter()
    found = attack.survey(rec, (x, y), folder=KEPT / label.replace(" ", "-"))
    seconds = time.perf_counter() - start
    return Side(label, Timing(seconds, seconds, 1), found.robust_accuracy, _passes(found.cost, len(x)))


def _passes(cost: Cost, images: int) -> str:
    return f"{cost.forwards / images:.1f} f {cost.backwards / images:.1f} b"


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
