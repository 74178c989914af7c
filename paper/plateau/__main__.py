"""The paper's central comparison with networks trained to their plateau: one ResNet-20 against several, sampled.

    python -m paper.plateau                        the table, from the evaluations in this folder; seconds
    python -m paper.plateau measure --limit 1000   attack the networks of this folder; the first 1,000 test images
    python -m paper.plateau zoo --commit ca617c2   the zoo's entries of these networks, with these evaluations

IAT: the networks at50-s*, trained independently, as many as are finished. BARRE: barre25, whose first member is at50-s0
(barre25-m3 continues it). Images are attacked in blocks; after each the evaluations in --out hold all images so
far, so the table can be printed meanwhile, and the same command continues after any stop. Everything found is kept in a
witness store (--store), so a further member, or a larger limit, repeats no attack.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.reproduce.tables import paper
from paper.zoo_maintenance import ZOO, add
from randens import DeterministicEnsemble, RandomizedEnsemble, data, evaluate, load, optimize_sampling
from randens.core.files import read_json, write_json
from randens.core.progress import bars
from randens.evaluation import Evaluation
from randens.risk.intervals import Estimate, difference, estimate, two_way
from randens.training import load_recipe, train
from randens.witness import WitnessPool
from randens.witness.fingerprints import fingerprint

FOLDER = Path(__file__).parent
JUDGES = {"arc-r": "ARC-R", "standard": "the suite"}
RETRIES = (2, 10)
PAYS = 0.02  # uniform sampling of five must be so far above the best of them under the suite for "it pays"
IMAGES = 10_000
VALIDATION = 1000  # images on which α is chosen
BLOCK = 500  # images that are attacked by everything before the next ones are

Weights = NDArray[np.float64]


def members(method: str) -> list[Path]:
    """The folders of finished runs that hold a method's members; of BARRE's, which continue each other, the last."""
    finished = FOLDER.glob(f"{'at50-s*' if method == 'iat' else 'barre25*'}/training.json")
    runs = sorted(path.parent for path in finished)
    return runs if method == "iat" else runs[-1:]


def first(m: int, size: int) -> Weights:
    """Uniform over the first m of all members."""
    return np.where(np.arange(size) < m, 1 / m, 0.0)


def measure(
    rec: RandomizedEnsemble, name: str, judge: str, limit: int | None, out: Path, store: Path
) -> None:
    """Attack the first m members for every m, sampled and averaged; α is also chosen, on validation images."""
    size, test = len(rec), data.load("cifar10", "test")
    with bars() as progress:
        # A store for each judge, because what the suite finds must not count for ARC-R.
        options: dict[str, Any] = {"folder": store / "arc-r", "progress": progress}
        probs = chosen(rec, [out / f"{name}-{each}.json" for each in JUDGES], options)
        options.update(folder=store / judge, threat=rec.threat)
        also = {f"first {m}": first(m, size) for m in range(1, size)} | {"chosen": probs}
        models: dict[str, Any] = {f"{name}-{judge}": rec}
        for m in range(2, size):
            mean = DeterministicEnsemble(list(rec.members)[:m])
            models[f"{name}-average{m}-{judge}"] = RandomizedEnsemble([mean], threat=rec.threat)
        whole = min(limit or len(test), len(test))
        for title, model in models.items():  # averages last: they cost the most passes and decide the least
            path, wanted = out / f"{title}.json", also if model is rec else {}
            for end in (*range(BLOCK, whole, BLOCK), whole):
                earlier = measured(path, model, wanted)
                done = 0 if earlier is None else earlier.n
                if done < end:
                    found = evaluate(model, test.subset(slice(done, end)), judge, also=wanted, **options)
                    assert isinstance(found, Evaluation)
                    (found if earlier is None else joined(earlier, found)).save(path)


def chosen(rec: RandomizedEnsemble, known: list[Path], options: dict[str, Any]) -> Weights:
    """α of the evaluations so far, else by ARC-R on validation images: on another machine it would differ a little."""
    for found in (of_members(path, rec) for path in known):
        if found is not None and "chosen" in found.also:
            return found.also["chosen"]
    options = {"confidence": 0.95, "limit": VALIDATION, "max_sweeps": 4, **options}
    return optimize_sampling(rec, data.load("cifar10", "validation"), "arc-r", **options).probs


def of_members(path: Path, rec: RandomizedEnsemble) -> Evaluation | None:
    """What a file holds of these members, if it does."""
    found = Evaluation.load(path) if path.is_file() else None
    return found if found is not None and found.about.ensemble == fingerprint(rec) else None


def measured(path: Path, rec: RandomizedEnsemble, also: dict[str, Weights]) -> Evaluation | None:
    """What a file holds of these members at these probabilities, if it does."""
    found = of_members(path, rec)
    if found is None or set(found.also) != set(also):
        return None
    return found if all(np.allclose(found.also[name], probs) for name, probs in also.items()) else None


def joined(one: Evaluation, two: Evaluation) -> Evaluation:
    """Evaluations of consecutive images as one."""
    assert one.average is not None
    assert two.average is not None
    clean, attacked = map(np.concatenate, zip(one.average, two.average, strict=True))
    return dataclasses.replace(
        two,
        about=dataclasses.replace(two.about, n=one.n + two.n),
        clean=np.concatenate([one.clean, two.clean]),
        pool=WitnessPool.concat([each.pool.without_inputs() for each in (one, two)]),
        average=(clean, attacked),
        cost=one.cost + two.cost,
        conflict=None,
        flags={},
        x=None,
    )


def robust(found: Evaluation, probs: Weights, attempts: float = 1) -> Weights:
    """Robust accuracy of every image at these probabilities after so many attempts, each with a fresh draw."""
    return (1 - found.pool.best(probs)[0]) ** attempts


def lines(out: Path = FOLDER) -> Iterator[str]:
    """The page: members, the table for every method and judge that was measured, and the sentence that follows."""
    yield "# One network against several, sampled\n"
    yield "Made by `python -m paper.plateau` from the files beside this page; no number is typed by hand.\n"
    for method in ("iat", "barre"):
        runs = members(method)
        known = ((judge, out / f"{method}-{judge}.json") for judge in JUDGES)
        found = {judge: Evaluation.load(path) for judge, path in known if path.is_file()}
        for judge, evaluation in found.items():
            yield from _table(method, judge, evaluation, out)
        if found:
            yield _verdict(method, found) + "\n"
        elif runs:
            yield f"{method.upper()} is not measured: `python -m paper.plateau measure --method {method}`\n"
        yield from (*map(_trained, runs), *[""] * bool(runs))


def _trained(run: Path) -> str:
    """What the members of a run took."""
    made, recipe = read_json(run / "training.json"), read_json(run / "manifest.json")["recipe"]
    cost, held = made["cost"], made["validation"]
    return (
        f"- {run.name}: {made['members']} × {recipe['model']['name']}, seed {recipe['seed']}, "
        f"{(cost['forwards'] + cost['backwards']) / 1e6:.1f} million passes, {cost['seconds'] / 3600:.1f} h; on "
        f"{held['images']} validation images {100 * held['natural_accuracy']:.1f} natural, "
        f"{100 * held['robust_accuracy']:.1f} robust ({held['attack']})"
    )


def _table(method: str, judge: str, found: Evaluation, out: Path) -> Iterator[str]:
    """By the number of members, as the paper's Table 2, with its numbers of both methods at the end."""
    size = found.members
    yield f"## {method.upper()} under {JUDGES[judge]}, {_images(found)}\n"
    heads = ["M", "natural", "robust", "best member", "robust − best", "robust − a member*", "average"]
    heads += [f"{q} attempts" for q in RETRIES] + [f"paper, {each.upper()}" for each in ("iat", "barre")]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---:|" * len(heads)
    chosen = found.also["chosen"]
    rows = [(str(m), m, first(m, size)) for m in range(1, size + 1)]
    rows.append((f"α = ({', '.join(f'{p:.2f}' for p in chosen)})", size, chosen))
    for name, m, alpha in rows:
        sampled, fooled, uniform = robust(found, alpha), found.foolable[:, :m], name.isdigit()
        best = ~fooled[:, int(fooled.mean(axis=0).argmin())]
        cells = [name, _percent(found.at(alpha).natural), _percent(estimate(sampled))]
        cells.append(f"{100 * best.mean():.1f}")
        average = _average(method, judge, found, m, out) if m > 1 and uniform else None
        cells.append("" if m == 1 else _points(difference(sampled, best)))
        cells.append("" if m == 1 or method != "iat" else _points(two_way(sampled - ~fooled.T)))
        cells.append("" if average is None else _percent(average))
        cells += [_percent(estimate(robust(found, alpha, q))) for q in RETRIES]
        cells += [_papers(each, m) if uniform else "" for each in ("iat", "barre")]
        yield f"| {' | '.join(cells)} |"
    yield (
        "\nRobust accuracy in percent of M members sampled uniformly, and in the last row with α chosen on validation "
        "images under ARC-R, with 95 % intervals; the best member of each row is found on the same images. Natural / "
        "under ARC-R in the paper. *: M sampled against one independent training, interval over seeds and images. "
        f"Cost: {found.cost.forwards + found.cost.backwards:,} passes.\n"
    )


def _average(method: str, judge: str, found: Evaluation, m: int, out: Path) -> Estimate | None:
    """Robust accuracy of the average of the first m members' logits."""
    path = out / f"{method}-average{m}-{judge}.json"
    if m == found.members:
        return None if found.deterministic is None else found.deterministic.robust
    mean = Evaluation.load(path) if path.is_file() else None
    return None if mean is None or mean.n != found.n else mean.robust


def _verdict(method: str, found: dict[str, Evaluation]) -> str:
    """Uniform sampling of all members against the best of them on these images, after 1 and 2 attempts."""
    said, both = [], min(one.n for one in found.values())
    for judge, one in found.items():
        gain, common, retried = (_gain(one, n, q) for n, q in ((one.n, 1), (both, 1), (one.n, 2)))
        also = f" ({_points(common)} on the first {both:,})" if both < one.n else ""
        under = f"points under {JUDGES[judge]} on {_images(one)}{also}"
        said.append(f"{_points(gain)} {under}, {_points(retried)} after one retry")
    judge, last = list(found.items())[-1]
    best = paper()["best"]["resnet20"]
    theirs = best[method]["cifar10"][1] - best["at"]["cifar10"][1]
    verdict = "it is open whether sampling pays"
    if gain.high < PAYS:
        verdict = "sampling does not pay"
    elif gain.value >= PAYS and gain.low > 0:
        verdict = "sampling pays"
    return (
        f"{last.members} {method.upper()} members sampled uniformly, minus the best of them: {'; '.join(said)} "
        f"(the paper, five members, ARC-R: {theirs:+.1f} over AT). By the rule set beforehand (at least "
        f"{100 * PAYS:.0f} points, interval above 0, under the suite), {verdict}"
        f"{'' if judge == 'standard' else ' as far as ARC-R tells'}."
    )


def _gain(found: Evaluation, n: int, attempts: int) -> Estimate:
    """Uniform sampling of all members against the best of them, on the first n images."""
    fooled, uniform = found.foolable[:n], first(found.members, found.members)
    return difference(robust(found, uniform, attempts)[:n], ~fooled[:, int(fooled.mean(axis=0).argmin())])


def _images(found: Evaluation) -> str:
    return f"{'all' if found.n == IMAGES else f'the first {found.n:,} of'} {IMAGES:,} test images"


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


def entry(method: str, out: Path, place: Path, commit: str | None) -> Path:
    """Put a method's members into a zoo as one run, with their evaluations; the folder of the entry."""
    runs = members(method)
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / method
        if method == "iat":
            _independent(runs, run)
        else:
            shutil.copytree(runs[0], run)
        for judge, name in (("standard", "evaluation"), ("arc-r", "evaluation-arc-r")):
            shutil.copyfile(out / f"{method}-{judge}.json", run / f"{name}.json")
        return add(run, f"cifar10-resnet20-{method}-m{len(load(run / 'ensemble'))}", place, commit=commit)


def _independent(runs: Sequence[Path], folder: Path) -> None:
    """IAT from finished networks: nothing is trained, α is uniform, and the cost is that of the networks."""
    recipe = load_recipe(FOLDER / "at50.toml", ["sampling.method=uniform"])
    given = {"method": "iat", "members": len(runs), "first": tuple(map(str, runs))}
    train(recipe.model_copy(update=given), folder)
    costs = [read_json(run / "training.json")["cost"] for run in runs]
    total = {key: sum(cost[key] for cost in costs) for key in ("forwards", "backwards", "seconds")}
    write_json(folder / "training.json", {**read_json(folder / "training.json"), "cost": total})


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, measure, or make the zoo's entries."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="table", choices=["table", "measure", "zoo"])
    parser.add_argument("--judge", action="append", choices=JUDGES, help="both by default")
    parser.add_argument("--method", default="iat", choices=["iat", "barre"], help="what is measured")
    parser.add_argument("--limit", type=int, help="use only this many of the first test images")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the evaluations are")
    parser.add_argument("--store", type=Path, default=Path("runs/plateau"), help="the witness store")
    parser.add_argument("--zoo", type=Path, default=ZOO, help="where the entries go")
    parser.add_argument("--commit", help="the sources that trained the networks, for the cards")
    asked = parser.parse_args(arguments)
    if asked.command == "zoo":
        for method in ("iat", "barre"):
            if members(method):
                print(entry(method, asked.out, asked.zoo, asked.commit))
        return
    if asked.command == "measure":
        runs = [load(run / "ensemble") for run in members(asked.method)]
        networks = [member for rec in runs for member in rec.members]
        rec = RandomizedEnsemble(networks, threat=runs[0].threat)
        for judge in asked.judge or JUDGES:
            measure(rec, asked.method, judge, asked.limit, asked.out, asked.store)
    print("\n".join(lines(asked.out)))


if __name__ == "__main__":
    main()
