"""Small members attacked together against one after the other: fully connected networks of the size that digits need.

Both sides are the same attack on the same members; on the other side each member is wrapped, so that it is not
recognised as a chain of layers and is run by itself. One thread, processor time.

    python -m benchmarks.small_networks
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import randens
from benchmarks import harness
from benchmarks.harness import Goal, Row, Settings, Side, Timed, as_fast, interleaved
from randens import RandomizedEnsemble, Threat
from randens.attacks.members import GradientMembers
from randens.training.recipe import recipe_from

TOGETHER = Goal(at_least=1.5)
ATTACKS = ("adaptive-pgd-l", "arc-r", "lattice", "saddle", "suite")


class Apart(nn.Module):
    """One network, run by itself."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits


def trained(count: int, epochs: int) -> RandomizedEnsemble:
    """`count` networks by adversarial training on digits, each by itself."""
    content = randens.training.load_recipe("digits-mlp-at").to_json()
    content |= {"method": "iat", "members": count, "epochs": epochs}
    with tempfile.TemporaryDirectory() as folder:
        randens.training.train(recipe_from(content), Path(folder) / "run")
        return randens.load(Path(folder) / "run" / "ensemble").with_probs(None)


def passes(prepared: GradientMembers, x: Tensor, y: Tensor) -> None:
    """One forward and backward pass of every member over the batch."""
    count = len(prepared.parts)
    if prepared.stack is None:
        for index in range(count):
            inputs = x.detach().requires_grad_(True)
            torch.autograd.grad(nn.functional.cross_entropy(prepared(index, inputs), y), inputs)
        return
    run = prepared.stack.at_each(x, range(count))
    z = run.z.requires_grad_(True)
    (slopes,) = torch.autograd.grad(nn.functional.cross_entropy(z, y.repeat(count)), z)
    run.gradient(slopes)


def rows(settings: Settings) -> Iterator[Row]:
    torch.set_num_threads(1)
    count, epochs, repeats = (4, 2, 2) if settings.quick else (4, 40, 3)
    rec = trained(count, epochs)
    apart = RandomizedEnsemble([Apart(member).eval() for member in rec.members])
    x, y = randens.data.load("digits", "validation")[: 60 if settings.quick else 180]
    threat = rec.threat or Threat("linf", 0.1)
    for batch in (16, 64, 180)[: 1 if settings.quick else 3]:
        sides: dict[str, Callable[[], Any]] = {}
        for name, ensemble in (("together", rec), ("apart", apart)):
            prepared = GradientMembers(list(ensemble.members))
            prepared.verify(x[:batch])
            sides[name] = partial(passes, prepared, x[:batch], y[:batch])
        measured = interleaved(sides, 50, warm_up=5, clock=time.process_time)
        yield _row(f"passes of {count} members, batch {batch}", measured, [None, None])
    for name in ATTACKS[: 2 if settings.quick else len(ATTACKS)]:
        attack = randens.attacks.create(name, threat)
        both = {"together": partial(attack, rec, x, y), "apart": partial(attack, apart, x, y)}
        measured = interleaved(both, repeats, clock=time.process_time)
        found = [measured[side].value for side in both]
        other = int((found[0].errors != found[1].errors).any(dim=1).sum())
        note = f"{len(x)} inputs, {other} with another verdict"
        yield _row(f"{name}, {count} members", measured, [each.robust_accuracy for each in found], note)


def _row(
    what: str, measured: Mapping[str, Timed[Any]], accuracies: list[float | None], note: str = ""
) -> Row:
    ours = Side(what, measured["together"].timing, accuracies[0])
    theirs = Side("one after the other", measured["apart"].timing, accuracies[1])
    remark = "; ".join(filter(None, [note, "one thread, processor time"]))
    return as_fast(what, ours, theirs, TOGETHER, note=remark)


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
