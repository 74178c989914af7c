"""The paper's central comparison with networks trained to their plateau: one ResNet-20 against several, sampled.

    python -m paper.plateau                        the table, from the evaluations in this folder; seconds
    python -m paper.plateau measure --limit 1000   attack the networks of this folder; the first 1,000 test images

IAT: the networks at50-s*, trained independently, as many as are finished. BARRE: barre25, whose first member is
at50-s0. Everything found is kept in a witness store (--store): the same command continues, and a larger limit attacks
the further images only.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.reproduce.tables import paper
from randens import DeterministicEnsemble, RandomizedEnsemble, data, evaluate, load, optimize_sampling
from randens.core.files import read_json
from randens.core.progress import bars
from randens.evaluation import Estimate, Evaluation, difference, estimate
from randens.evaluation.intervals import two_way

FOLDER = Path(__file__).parent
JUDGES = {"arc-r": "ARC-R", "standard": "the suite"}
RETRIES = (2, 10)
PAYS = 0.02
"""Uniform sampling of five networks must be so far above the best of them under the suite for "it pays"."""
VALIDATION = 1000
"""α is chosen on this many validation images."""

Weights = NDArray[np.float64]


def members(method: str, folder: Path = FOLDER) -> list[Path]:
    """The folders of finished runs that hold a method's members."""
    runs = sorted(folder.glob("at50-s*" if method == "iat" else "barre25"))
    return [run for run in runs if (run / "ensemble" / "ensemble.json").is_file()]


def first(m: int, size: int) -> Weights:
    """Uniform over the first m of all members."""
    return np.where(np.arange(size) < m, 1 / m, 0.0)


def measure(
    rec: RandomizedEnsemble, name: str, judge: str, limit: int | None, out: Path, store: Path
) -> None:
    """Attack the first m members for every m, sampled and averaged; α is also chosen, on validation images."""
    size, held = len(rec), data.load("cifar10", "validation")
    with bars() as progress:
        few = min(limit or VALIDATION, VALIDATION)
        # A store for each judge, because what the suite finds must not count for ARC-R.
        options: dict[str, Any] = {"folder": store / "arc-r", "progress": progress}
        chosen = optimize_sampling(rec, held, "arc-r", confidence=0.95, limit=few, max_sweeps=4, **options)
        options["folder"] = store / judge
        also = {f"first {m}": first(m, size) for m in range(1, size)} | {"chosen": chosen.probs}
        test = data.load("cifar10", "test")
        evaluate(rec, test, judge, limit=limit, also=also, **options).save(out / f"{name}-{judge}.json")
        for m in range(2, size):
            mean = DeterministicEnsemble(list(rec.members)[:m])
            averaged = evaluate(mean, test, judge, threat=rec.threat, limit=limit, **options)
            averaged.save(out / f"{name}-average{m}-{judge}.json")


def robust(found: Evaluation, probs: Weights, attempts: float = 1) -> Weights:
    """Robust accuracy of every image at these probabilities after so many attempts, each with a fresh draw."""
    return (1 - found.pool.best(probs)[0]) ** attempts


def lines(out: Path = FOLDER) -> Iterator[str]:
    """Members, the table for every method and judge that was measured, and the sentence that follows."""
    for method in ("iat", "barre"):
        yield from _trained(method)
        known = {judge: out / f"{method}-{judge}.json" for judge in JUDGES}
        found = {judge: Evaluation.load(path) for judge, path in known.items() if path.is_file()}
        for judge, evaluation in found.items():
            yield from _table(method, judge, evaluation, out)
        if found:
            yield from (_verdict(method, found), "")
        elif members(method):
            yield from (
                f"{method.upper()} is not measured: python -m paper.plateau measure --method {method}",
                "",
            )


def _trained(method: str) -> Iterator[str]:
    """What each member took."""
    for run in members(method):
        made, recipe = read_json(run / "training.json"), read_json(run / "manifest.json")["recipe"]
        cost, held = made["cost"], made["validation"]
        yield (
            f"{run.name}: {made['members']} × {recipe['model']['name']}, seed {recipe['seed']}, "
            f"{(cost['forwards'] + cost['backwards']) / 1e6:.1f} million passes, {cost['seconds'] / 3600:.1f} h; on "
            f"{held['images']} validation images {100 * held['natural_accuracy']:.1f} natural, "
            f"{100 * held['robust_accuracy']:.1f} robust ({held['attack']})"
        )
    yield ""


def _table(method: str, judge: str, found: Evaluation, out: Path) -> Iterator[str]:
    yield f"## {method.upper()} under {JUDGES[judge]}, {found.n:,} test images"
    yield ""
    heads = ["M", "natural", "best member", "uniform", "uniform − best", "average"]
    heads += [f"{q} attempts" for q in RETRIES] + ["paper, natural / ARC-R"]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---:|" * len(heads)
    rows = [(str(m), first(m, found.members)) for m in range(1, found.members + 1)]
    if (chosen := found.also.get("chosen")) is not None:
        rows.append((f"α = ({', '.join(f'{p:.2f}' for p in chosen)})", chosen))
    for name, alpha in rows:
        m = int(name) if name.isdigit() else found.members
        averaged = out / f"{method}-average{m}-{judge}.json"
        mean = found.deterministic if m == found.members > 1 else None
        average = mean.robust if mean else Evaluation.load(averaged).robust if averaged.is_file() else None
        sampled = robust(found, alpha)
        cells = [name, f"{100 * float(found.at(alpha).natural):.1f}"]
        cells += [f"{100 * (1 - _best(found, m).mean()):.1f}", _percent(estimate(sampled))]
        cells.append(_points(difference(sampled, ~_best(found, m))) if m > 1 else "")
        cells.append(_percent(average) if average is not None and name.isdigit() else "")
        cells += [_percent(estimate(robust(found, alpha, q))) for q in RETRIES]
        yield "| " + " | ".join([*cells, _papers(method, m) if name.isdigit() else ""]) + " |"
    yield ""


def _best(found: Evaluation, m: int) -> NDArray[np.bool_]:
    """At which images the best of the first m members can be fooled."""
    fooled = found.foolable[:, :m]
    return fooled[:, int(fooled.mean(axis=0).argmin())]


def _verdict(method: str, found: dict[str, Evaluation]) -> str:
    """Uniform sampling of all members against the best of them on these images, after 1 and 2 attempts."""
    said = []
    for judge, one in found.items():
        uniform, alone = first(one.members, one.members), ~_best(one, one.members)
        gain, retried = (difference(robust(one, uniform, q), alone) for q in (1, 2))
        said.append(f"{_points(gain)} points under {JUDGES[judge]}, {_points(retried)} after one retry")
        if method == "iat" and one.members > 1:
            each = two_way(robust(one, uniform) - ~one.foolable.T)
            said[-1] += (
                f" (over one training, whichever seed: {_points(each)}, interval over seeds and images)"
            )
    judge, last = list(found)[-1], list(found.values())[-1]
    best = paper()["best"]["resnet20"]
    theirs = best[method]["cifar10"][1] - best["at"]["cifar10"][1]
    pays, fails = gain.value >= PAYS and gain.low > 0, gain.high < PAYS
    verdict = (
        "sampling pays" if pays else "sampling does not pay" if fails else "it is open whether sampling pays"
    )
    return (
        f"{last.members} {method.upper()} members sampled uniformly, minus the best of them on the same images: "
        f"{'; '.join(said)} (the paper, five members, ARC-R: {theirs:+.1f} over AT). By the rule set beforehand (at "
        f"least {100 * PAYS:.0f} points, interval above 0, under the suite), {verdict}"
        f"{'' if judge == 'standard' else ' as far as ARC-R tells'}."
    )


def _papers(method: str, m: int) -> str:
    best, sizes = paper()["best"]["resnet20"], paper()["sizes"]["cifar10"]["resnet20"]["barre"]
    pair = best["at"]["cifar10"] if m == 1 else None
    if m == best[method]["members"]:
        pair = best[method]["cifar10"]
    elif method == "barre" and 1 < m <= len(sizes):
        pair = sizes[m - 1]
    return "" if pair is None else f"{pair[0]:.2f} / {pair[1]:.2f}"


def _percent(value: Estimate) -> str:
    return f"{100 * value.value:.1f} ({100 * value.low:.1f} – {100 * value.high:.1f})"


def _points(value: Estimate) -> str:
    return f"{100 * value.value:+.1f} ({100 * value.low:+.1f} to {100 * value.high:+.1f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or measure first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", default="table", choices=["table", "measure"])
    parser.add_argument("--judge", action="append", choices=JUDGES, help="both by default")
    parser.add_argument("--method", default="iat", choices=["iat", "barre"])
    parser.add_argument("--limit", type=int, help="use only this many of the first test images")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the evaluations are")
    parser.add_argument("--store", type=Path, default=Path("runs/plateau"), help="the witness store")
    asked = parser.parse_args(arguments)
    if asked.command == "measure":
        runs = [load(run / "ensemble") for run in members(asked.method)]
        networks = [member for rec in runs for member in rec.members]
        rec = RandomizedEnsemble(networks, threat=runs[0].threat)
        for judge in asked.judge or JUDGES:
            measure(rec, asked.method, judge, asked.limit, asked.out, asked.store)
    print("\n".join(lines(asked.out)))


if __name__ == "__main__":
    main()
