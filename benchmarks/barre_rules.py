"""BARRE's rule for α, as printed and as released: both trained from the same first member and measured alike.

    python -m benchmarks.barre_rules train --data digits --folder runs/rules   # continues where it was stopped
    python -m benchmarks.barre_rules collect --folder runs/rules               # writes benchmarks/barre_rules.json
    python -m benchmarks.barre_rules page                                      # puts the table into docs/paper.md

"printed" is Algorithm 2 with the candidate search for m ≤ 3 and no floor; "released" keeps α uniform for m ≤ 3 and
runs OSP in the second half of training beyond; "floor" is the printed rule with the floor of ½ that this library has
by default. Everything else is that of recipes/paper, shortened.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import randens
from randens import attacks
from randens.core.files import write_json
from randens.core.runs import Run
from randens.data import Data
from randens.training import Recipe, train

__all__ = ["RULES", "main", "page", "table"]

RESULTS = Path(__file__).with_name("barre_rules.json")
PAGE = Path(__file__).parents[1] / "docs" / "paper.md"
_MARKS = ("<!-- barre rules -->", "<!-- end -->")
RULES: dict[str, dict[str, Any]] = {
    "printed": {"rule": "printed", "floor": 0.0},
    "floor": {"rule": "printed", "floor": 0.5},
    "released": {"rule": "released", "floor": 0.0},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "epochs": 40,
        "batch_size": 128,
        "model": {"name": "mlp", "width": 64, "depth": 2},
        "data": {"name": "digits"},
        "threat": {"norm": "linf", "eps": 0.15},
        "warmup": 0,
        "seeds": {2: (0, 1, 2), 4: (0, 1, 2)},
        "rules": ("printed", "floor", "released"),
        "images": None,
        "held": None,
        "test": None,
    },
    "cifar10": {
        "epochs": 20,
        "batch_size": 128,
        "model": {"name": "resnet8", "width": 8, "stride": 2},
        "data": {"name": "cifar10", "crop_padding": 4, "flip": True},
        "threat": {"norm": "linf", "eps": "4/255"},
        "warmup": 4,
        "seeds": {2: (0,)},
        "rules": ("printed", "released"),
        "images": 4000,
        "held": 500,
        "test": 1000,
    },
}


def recipe(data: str, method: str, members: int, seed: int, rule: str, first: Path | None) -> Recipe:
    """The recipe of the paper, shortened: E_o is a tenth of the epochs, as there."""
    settings = SETTINGS[data]
    epochs = settings["epochs"]
    return Recipe.model_validate(
        {
            "method": method,
            "members": members,
            "epochs": epochs,
            "batch_size": settings["batch_size"],
            "seed": seed,
            "first": None if first is None else str(first),
            "model": settings["model"],
            "data": settings["data"],
            "threat": settings["threat"],
            "adversary": {
                "name": "pgd",
                "steps": 10,
                "loss": "mce",
                "start": 0.5,
                "warmup": settings["warmup"],
            },
            "optimizer": {"lr": 0.1},
            "schedule": {"name": "steps", "milestones": [epochs // 2, 3 * epochs // 4], "factor": 0.1},
            "sampling": {"method": "osp", "every": epochs // 10, "attack": "arc-r", **RULES[rule]},
            "validation": {"attack": "arc-r", "steps": 10, "every": epochs // 20, "size": settings["held"]},
        }
    )


def run(data: str, folder: Path, sizes: Sequence[int], seeds: Sequence[int], rules: Sequence[str]) -> None:
    """Train and measure whatever is missing, of the ensembles with `sizes` members by `seeds` and `rules`."""
    settings = SETTINGS[data]
    whole, held = (randens.data.load(data, split) for split in ("train", "validation"))
    if settings["images"] is not None:
        whole = _first(whole, settings["images"])
    planned = [(members, seed) for members, known in settings["seeds"].items() for seed in known]
    wanted = [(members, seed) for members, seed in planned if members in sizes and seed in seeds]
    for members, seed in wanted:
        first = folder / f"{data}-at-{seed}"
        train(recipe(data, "at", 1, seed, "printed", None), first, data=(whole, held))
        for rule in (rule for rule in settings["rules"] if rule in rules):
            place = folder / f"{data}-{rule}-{members}-{seed}"
            train(recipe(data, "barre", members, seed, rule, first), place, data=(whole, held))
            if not (place / "rule.json").exists():
                measured = {"data": data, "rule": rule, "members": members, "seed": seed}
                Run.open(place).write("rule", {**measured, **_measure(place, data)})


def _first(data: Data, count: int) -> Data:
    return data.subset(slice(0, count))


def _measure(place: Path, data: str) -> dict[str, Any]:
    """Accuracies on test data under ARC-R with the paper's settings; every member is attacked alone as well."""
    rec = randens.load(Run.open(place).ensemble)
    assert isinstance(rec, randens.RandomizedEnsemble)
    test = randens.data.load(data, "test")
    limit = SETTINGS[data]["test"]
    attack = attacks.create("arc-r", rec.threat or randens.Threat("linf", 8 / 255))
    found = randens.evaluate(rec, test if limit is None else _first(test, limit), attack)
    alphas = [
        line["probs"]
        for line in Run.open(place).metrics()
        if line["event"] == "epoch" and line["member"] == len(rec.members)
    ]
    even = found.at(None)
    return {
        "n": found.n,
        "alpha": rec.probs.tolist(),
        "alone": [a.robust.value for a in found.member_accuracies],
        "even": [even.natural.value, even.robust.value],
        "chosen": [found.accuracy.natural.value, found.accuracy.robust.value],
        "without_last": float(np.mean([alpha[-1] == 0 for alpha in alphas])),
    }


def collect(folders: Sequence[Path]) -> None:
    """Write down every measurement found in the folders, in place of an earlier one of the same run."""
    paths = [path for folder in folders for path in sorted(folder.glob("*/rule.json"))]
    known = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"] if RESULTS.exists() else []
    found = {
        (r["data"], r["members"], r["rule"], r["seed"]): r
        for r in [*known, *(json.loads(path.read_text(encoding="utf-8")) for path in paths)]
    }
    write_json(RESULTS, {"format": "randens-barre-rules-1", "runs": [found[key] for key in sorted(found)]})


def table() -> str:
    """Means over seeds (and their range), in per cent, as Markdown."""
    content = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    lines = [
        "| data | M | rule | f₁ alone | f_M alone | drawn evenly | at the α chosen | epochs with α_M = 0 | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for data in SETTINGS:
        for members in SETTINGS[data]["seeds"]:
            for rule in RULES:
                runs = [r for r in content if (r["data"], r["members"], r["rule"]) == (data, members, rule)]
                if not runs:
                    continue
                cells = (
                    _spread([r["alone"][0] for r in runs]),
                    _spread([r["alone"][-1] for r in runs]),
                    _spread([r["even"][1] for r in runs]),
                    _spread([r["chosen"][1] for r in runs]),
                    f"{100 * np.mean([r['without_last'] for r in runs]):.0f} %",
                )
                lines.append(f"| {data} | {members} | {rule} | {' | '.join(cells)} | {len(runs)} |")
    return "\n".join(lines)


def comparison() -> str:
    """Released minus printed, drawn evenly, for every data set and size with both, over the seeds of both."""
    content = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    said = []
    for data in SETTINGS:
        for members in SETTINGS[data]["seeds"]:
            even = {
                (r["rule"], r["seed"]): r["even"][1]
                for r in content
                if (r["data"], r["members"]) == (data, members)
            }
            gaps = [
                value - even["printed", seed]
                for (rule, seed), value in even.items()
                if rule == "released" and ("printed", seed) in even
            ]
            if gaps:
                said.append(f"{data}, M = {members}: {100 * np.mean(gaps):+.1f}")
    return f"Released minus printed, drawn evenly, in points: {'; '.join(said)}."


def page(text: str) -> str:
    """The text of docs/paper.md with the table and the comparison between its two marks."""
    before, rest = text.split(_MARKS[0])
    made = f"{table()}\n\n{comparison()}"
    return f"{before}{_MARKS[0]}\n{made}\n{_MARKS[1]}{rest.split(_MARKS[1])[1]}"


def _spread(values: list[float]) -> str:
    mean = f"{100 * np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ({100 * min(values):.1f}–{100 * max(values):.1f})"


def main() -> None:
    """Train, collect, or write the table into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("train", "collect", "page"))
    parser.add_argument("--data", choices=sorted(SETTINGS), default="digits")
    parser.add_argument("--folder", type=Path, nargs="+", default=[Path("runs/barre-rules")])
    parser.add_argument("--members", type=int, nargs="+", default=[2, 4], help="sizes to train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds to train")
    parser.add_argument(
        "--rules", choices=sorted(RULES), nargs="+", default=sorted(RULES), help="rules to train"
    )
    given = parser.parse_args()
    if given.what == "train":
        run(given.data, given.folder[0], given.members, given.seeds, given.rules)
    elif given.what == "collect":
        collect(given.folder)
    else:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
