"""The walk of one image from the data set to the report: python docs/tools/walk.py.

Prints every module of the package in the order of its first call, with the function called first. The number of
lines is the number of hops on docs/architecture.md.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import randens
from randens import data as datasets
from randens.report import write_report
from randens.runs import Run

PACKAGE = str(Path(randens.__file__).parent)


def walk(folder: Path) -> list[tuple[str, str]]:
    """(module, first function) from the data set to the report of a run with two small members and one image."""
    torch.set_num_threads(1)
    image = datasets.load("digits", "test").subset(slice(0, 1))
    net = randens.models.create("mlp", classes=10, input_shape=image.shape, width=8, depth=1, seed=0).eval()
    members = [net, copy.deepcopy(net)]
    # Its label is what the members say: an input that is wrong already would not be attacked.
    label = net(image.x).argmax(dim=1)
    rec = randens.RandomizedEnsemble(members, threat=randens.Threat("linf", 0.1))
    run = Run.create(folder / "run", recipe={"data": {"name": "digits"}}, seed=0)
    rec.save(run.ensemble)
    visited: dict[str, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            name = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            visited.setdefault(name, code.co_name)

    sys.setprofile(note)
    try:
        data = datasets.load("digits", "test").subset(slice(0, 1))
        data = datasets.from_arrays(data.stored, label, split="test", classes=data.classes, name="digits")
        attack = randens.attacks.create("arc-r", randens.Threat("linf", 0.1), steps=2)
        randens.evaluate(randens.load(run.ensemble), data, attack).save(run.path / "evaluation.json")
        write_report([run.path])
    finally:
        sys.setprofile(None)
    return list(visited.items())


def main() -> None:
    """Print the walk."""
    with tempfile.TemporaryDirectory() as folder:
        hops = walk(Path(folder))
    for number, (module, function) in enumerate(hops, 1):
        sys.stdout.write(f"{number:3}  {module}  {function}\n")


if __name__ == "__main__":
    main()
