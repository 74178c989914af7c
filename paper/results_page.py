"""The results page: the zoo's entries next to the paper's numbers, made from their run folders alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.reproduce.tables import paper
from paper.zoo_maintenance import (
    ZOO,
    Entry,
    attacks_of,
    entry,
    given_names,
    names,
    training_sentence,
    trials,
)
from randens.evaluation import Evaluation, difference
from randens.evaluation.tables import Accuracy, count, percent
from randens.training.methods import METHOD_NAMES

__all__ = ["best_ensembles", "results"]

_MAIN = "evaluation"
# The paper's budget: PGD-10 for a hundred epochs on 50,000 images, members 1 to m attacked while m is trained.
_PAPER_IMAGES, _PAPER_EPOCHS, _PAPER_STEPS = 50_000, 100, 10
_MARGIN, _ROBUST, _NATURAL = 0.03, 0.36, 0.65  # goals set for this budget

_ALIKE = 0.05  # training budgets that differ by less count as the same


@dataclass(frozen=True)
class _Row:
    """An evaluated entry as the page shows it; `spent`: member passes to train all its members."""

    item: Entry
    title: str
    spent: int

    @property
    def main(self) -> Evaluation:
        return self.item.evaluations[_MAIN]

    @property
    def recipe(self) -> Mapping[str, Any]:
        return self.item.recipe


def results(zoo: Path = ZOO) -> str:
    """Markdown: the table, comparisons image by image, goals, and what differs from the paper's setting."""
    found = [entry(name, zoo) for name in names(zoo)]
    shown = _rows(found)
    text = [
        "# Results",
        "",
        "This page answers: how robust are the shipped ensembles, and what did drawing add?",
        "",
        "Made by `python -m paper.zoo_maintenance results docs/results.md` from the run folders in `zoo/`, "
        "which hold every number.",
        "Their cards (`randens zoo card NAME`) hold more numbers, the recipes and the limits.",
        "",
    ]
    if not shown:
        return "\n".join([*text, "No entry has been evaluated.", ""])
    text += _table(shown) + _settings(shown) + _best(found)
    text += _comparisons(shown) + _budgets(shown) + _members(shown) + _seeds(shown) + _goals(shown)
    text += _tried(trials(zoo)) + _differences(shown)
    return "\n".join(text) + "\n"


def best_ensembles(found: Sequence[Entry]) -> list[str]:
    """Which shipped entry is the best randomized ensemble and which the best k of M, a sentence each."""
    said = []
    drawn = [e for e in found if e.ships and _MAIN in e.evaluations and e.evaluations[_MAIN].members > 1]
    if drawn:
        best = max(drawn, key=lambda e: e.evaluations[_MAIN].robust)
        main = best.evaluations[_MAIN]
        member = max(a.robust.value for a in main.member_accuracies)
        said.append(
            f"The best randomized ensemble is `{best.name}`: {_interval(main.accuracy)} robust at the compute of one "
            f"member, its best member {percent(member)} ({main.n:,} {main.about.split} images)."
            + (f" {_one_hot(main)}." if main.probs.max() == 1 else "")
        )
    averaged = [
        (option.row.accuracy.robust.value, e, option.row)
        for e in found
        if e.ships and e.advice is not None
        for option in e.advice.options
        if option.row.kind == "subset"
    ]
    if averaged:
        _, best, row = max(averaged, key=lambda one: one[0])
        assert best.advice is not None
        others = [
            f"{other.name}: {percent(other.accuracy.robust.value)} at {count(other.flops)}"
            for other in (option.row for option in best.advice.options)
            if other.kind != "subset"
        ]
        said.append(
            f"The best k of M is in `{best.name}`: {row.name}, {_interval(row.accuracy)} robust at {count(row.flops)} "
            f"FLOPs ({best.advice.n:,} {best.advice.split} images; {'; '.join(others)})."
        )
    return said


def _best(found: Sequence[Entry]) -> list[str]:
    said = [f"- {sentence}" for sentence in best_ensembles(found)]
    return ["## The best ensembles", "", *said, ""] if said else []


def _one_hot(main: Evaluation) -> str:
    return f"α puts all weight on member {main.probs.argmax()}; nothing is drawn"


def _rows(found: Sequence[Entry]) -> list[_Row]:
    """The evaluated entries in the paper's order of methods, cheaper ones first, no two with the same title."""
    shown = [e for e in found if _MAIN in e.evaluations]
    spent = [_spent(e, found) for e in shown]
    titles = [_title(e, found) for e in shown]
    longer = [f"{title}, {count(passes)} passes" for title, passes in zip(titles, spent, strict=True)]
    titles = _unless_shared(
        _unless_shared(titles, longer), [f"{t} (`{e.name}`)" for t, e in zip(titles, shown, strict=True)]
    )
    rows = [_Row(*row) for row in zip(shown, titles, spent, strict=True)]
    return sorted(rows, key=lambda row: (_place(row.recipe["method"]), row.spent, row.item.name))


def _unless_shared(titles: Sequence[str], others: Sequence[str]) -> list[str]:
    """Each title if it is the only one of its kind, or else the other name."""
    return [a if titles.count(a) == 1 else b for a, b in zip(titles, others, strict=True)]


def _place(method: str) -> int:
    methods = list(METHOD_NAMES)
    return methods.index(method) if method in methods else len(methods)


def _table(shown: Sequence[_Row]) -> list[str]:
    # Evaluations on fewer images are there to be checked again, not to be compared.
    others = sorted(
        {
            name
            for row in shown
            for name, evaluation in row.item.evaluations.items()
            if name != _MAIN and evaluation.n >= row.main.n
        }
    )
    heads = ["", "M", "FLOPs", "natural", f"robust (`{_MAIN}`)", *(f"robust (`{name}`)" for name in others)]
    heads += ["member passes to train", "paper: natural / robust"]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for row in shown:
        main = row.main
        found = [row.item.evaluations.get(name) for name in (_MAIN, *others)]
        start = [row.title, str(main.members), count(main.expected_flops), percent(main.natural)]
        lines.append(_line([*start, *(_robust(e) for e in found), count(row.spent), _paper(row.recipe)]))
        whole = next((e.deterministic for e in found if e is not None and e.deterministic is not None), None)
        if main.members > 1 and whole is not None:
            start = [f"{row.title}, mean of all logits", str(main.members), count(sum(main.flops))]
            cells = [*start, percent(whole.natural.value), *(_deterministic(e) for e in found)]
            lines.append(_line([*cells, "the same", ""]))
    return [*lines, ""]


def _settings(shown: Sequence[_Row]) -> list[str]:
    lines = ["Robust accuracies with 95 % intervals over the images, under:", ""]
    seen: dict[str, str] = {}
    for row in shown:
        for name, evaluation in row.item.evaluations.items():
            where = f"the first {evaluation.n:,} images of {evaluation.about.data} {evaluation.about.split}"
            seen.setdefault(f"- `{name}`: {attacks_of(evaluation)} on {where}", "")
    return [*lines, *sorted(seen), ""]


def _comparisons(shown: Sequence[_Row]) -> list[str]:
    """Every randomized ensemble against every single member on the same images."""
    singles = [row for row in shown if row.main.members == 1]
    ensembles = [row for row in shown if row.main.members > 1]
    lines = []
    for name in sorted({name for row in shown for name in row.item.evaluations}):
        pairs = [
            (title, [_gain(mine, risks, flops, two.item.evaluations.get(name)) for two in singles])
            for one in ensembles
            if (mine := one.item.evaluations.get(name)) is not None
            for title, risks, flops in _ways(one.title, mine)
        ]
        pairs = [(title, gains) for title, gains in pairs if any(gains)]
        if not pairs:
            continue
        lines += [f"Points of robust accuracy over single networks (`{name}`), with 95 % intervals:", ""]
        lines += [_line(["", *(f"over {two.title}" for two in singles)])]
        lines += [_line(["---", *["---:"] * len(singles)])]
        lines += [_line([title, *gains]) for title, gains in pairs] + [""]
    for one in ensembles:
        main = one.main
        if main.probs.max() == 1:
            lines.append(f"- {one.title}: {_one_hot(main)}")
            continue
        best = max(a.robust.value for a in main.member_accuracies)
        lines.append(
            f"- {one.title}: its best member alone has {percent(best)} on the same witnesses, the ensemble "
            f"{percent(main.robust)}; drawing at random is worth {100 * (main.robust - best):+.1f} points"
        )
    return ["## Against single members, image by image", "", *lines, ""] if lines else []


def _ways(title: str, mine: Evaluation) -> list[tuple[str, NDArray[np.float64], float]]:
    """How an ensemble can be used, as far as it was attacked: name, risk of every image, FLOPs."""
    ways = [(title, mine.risk, mine.expected_flops)]
    if mine.average is not None:
        averaged = mine.average[1].astype(np.float64)
        ways.append((f"{title}, mean of all logits", averaged, float(sum(mine.flops))))
    return ways


def _gain(mine: Evaluation, risks: NDArray[np.float64], flops: float, theirs: Evaluation | None) -> str:
    """How much more robust a use of an ensemble is than a network; empty if the attacks or the images differ."""
    if theirs is None or _inputs(mine) != _inputs(theirs):
        return ""
    gain = difference(theirs.risk, risks)
    times = flops / theirs.expected_flops
    cost = "" if abs(times - 1) < 0.005 else f", {times:.2f} times the FLOPs"
    return f"{_points(gain.value)} ({_points(gain.low)} to {_points(gain.high)}){cost}"


def _members(shown: Sequence[_Row]) -> list[str]:
    """Each ensemble's members alone, and how accuracies change from the first to the last."""
    lines = []
    for row in shown:
        main = row.main
        if main.members == 1:
            continue
        lines += [f"## The members of {row.title}", "", _line(["member", "α", "natural", "robust"])]
        lines.append(_line(["---:"] * 4))
        for i, accuracy in enumerate(main.member_accuracies):
            cells = [str(i), f"{main.probs[i]:.3g}", percent(accuracy.natural.value), _interval(accuracy)]
            lines.append(_line(cells))
        first, last = main.member_accuracies[0], main.member_accuracies[-1]
        natural = difference(main.clean[:, 0], main.clean[:, -1])
        robust = difference(main.foolable[:, 0], main.foolable[:, -1])
        if not np.allclose(main.probs, 1 / main.members):
            uniform = main.at(None)
            lines += [
                "",
                f"Drawn evenly they have at most {percent(uniform.robust.value)} robust accuracy (on the "
                f"perturbations found; no attack had equal probabilities), {percent(uniform.natural.value)} natural.",
            ]
        lines += [
            "",
            f"From the first member to the last, natural accuracy changes by {_points(natural.value)} points "
            f"({_points(natural.low)} to {_points(natural.high)}) and robust accuracy by {_points(robust.value)} "
            f"({_points(robust.low)} to {_points(robust.high)})"
            + (
                ": later members moved along the trade-off between the two, towards natural accuracy, instead of "
                "becoming more robust."
                if last.natural.value > first.natural.value and robust.value < 0
                else "."
            ),
            "",
            f"Randomisation gain Σ α_i η_i − η(α): {100 * main.gain:.1f} points; the floor of Theorem 3 allows a "
            f"robust accuracy of up to {percent(1 - main.bounds.floor)} with members as robust as these."
            + _papers_gain(row.recipe),
            "",
        ]
    return lines


def _papers_gain(recipe: Mapping[str, Any]) -> str:
    """What drawing was worth in the paper, over the mean of its members; empty where the paper does not say."""
    found = _papers_members(recipe)
    if found is None:
        return ""
    alone, drawn = found
    return (
        f" In the paper the members have {alone:.1f} % on average and the ensemble {drawn:.1f} %, "
        f"{drawn - alone:.1f} points more."
    )


def _papers_members(recipe: Mapping[str, Any]) -> tuple[float, float] | None:
    """The paper's robust accuracies in per cent: its members' mean, its ensemble's."""
    method, data, network = recipe["method"], recipe["data"]["name"], recipe["model"]["name"]
    members = paper()["individual"].get(data, {}).get(network, {}).get(method)
    known = _paper_entry(method)
    if members is None or network != "resnet20" or data not in known:
        return None
    return fmean(robust for _, robust in members), known[data][1]


def _budgets(shown: Sequence[_Row]) -> list[str]:
    """The entries whose training took about as many passes as each BARRE."""
    lines = []
    for row in shown:
        alike = [r for r in shown if abs(r.spent - row.spent) <= _ALIKE * row.spent]
        if row.recipe["method"] == "barre" and len(alike) > 1:
            bought = "; ".join(
                f"{r.title} {percent(r.main.natural)} natural, {percent(r.main.robust)} robust" for r in alike
            )
            lines.append(f"- {count(row.spent)} passes, within {percent(_ALIKE)}: {bought}")
    return ["## What the same number of training passes buys", "", *lines, ""] if lines else []


def _seeds(shown: Sequence[_Row]) -> list[str]:
    """Single networks that differ in the seed only: the members of independent adversarial training."""
    lines = []
    for row in shown:
        if row.recipe["method"] != "iat" or row.recipe["start"] == "previous" or row.main.members == 1:
            continue
        accuracies = row.main.member_accuracies
        for what, values in (
            ("natural", [a.natural.value for a in accuracies]),
            ("robust", [a.robust.value for a in accuracies]),
        ):
            shares = ", ".join(percent(value) for value in values)
            lines.append(
                f"- {what}: {shares}; mean {percent(fmean(values))}, standard deviation "
                f"{100 * stdev(values):.1f} points ({row.title}, `{_MAIN}`)"
            )
    return ["## One network, several seeds", "", *lines, ""] if lines else []


def _goals(shown: Sequence[_Row]) -> list[str]:
    """The goals set beforehand for this budget, met or missed by how much."""
    lines = ["## Goals set beforehand", ""]
    singles = [row for row in shown if row.recipe["method"] == "at"]
    for row in singles:
        # The goals were set for the budget of the cheapest; one that took more says so.
        times = row.spent / singles[0].spent
        title = row.title if times <= 1 + _ALIKE else f"{row.title} ({times:.1f} times the passes)"
        lines.append(_goal(f"{title}, robust accuracy", row.main.robust, _ROBUST))
        lines.append(_goal(f"{title}, natural accuracy", row.main.natural, _NATURAL))
    for row in shown:
        first = next((one for one in singles if one.item.name in given_names(row.recipe)[:1]), None)
        if row.recipe["method"] == "barre" and first is not None:
            what = f"{row.title} above its first member, {first.title}, robust accuracy"
            gain = row.main.robust - first.main.robust
            lines.append(_goal(what, gain, _MARGIN))
            if gain < _MARGIN:
                lines += _why(row, first, max(singles, key=lambda one: one.spent))
    return [*lines, ""]


def _why(row: _Row, first: _Row, longest: _Row) -> list[str]:
    """Where the points of an ensemble come from: from drawing, or from training its later members longer."""
    main, found = row.main, _papers_members(row.recipe)
    theirs = "" if found is None else f" (in the paper {found[1] - found[0]:+.1f})"
    mean = sum(p * a.robust.value for p, a in zip(main.probs.tolist(), main.member_accuracies, strict=True))
    lines = [
        f"    - drawing is worth {_points(main.gain)} points{theirs}; the members that are drawn have "
        f"{_points(mean - first.main.robust)} over {first.title} on average, from the training they had after it"
    ]
    if longest.spent > first.spent:
        gain = longest.main.robust - first.main.robust
        lines.append(
            f"    - one network gains by longer training, too: {longest.title} {_points(gain)} points"
        )
    return lines


def _goal(what: str, value: float, goal: float) -> str:
    verdict = "met" if value >= goal else f"missed by {100 * (goal - value):.1f} points"
    return f"- {what}: {100 * value:.1f}, wanted at least {100 * goal:.0f}: {verdict}"


def _tried(tried: Sequence[Entry]) -> list[str]:
    """The member trained last in every run that compared settings, beside the one it started from."""
    if not tried:
        return []
    lines = ["## Settings compared on validation data", ""]
    lines.append(_line(["trial", "method", "training", "α in training", "natural", "robust", "under"]))
    lines.append(_line(["---", "---", "---", "---:", "---:", "---:", "---"]))
    for item in tried:
        for name, found in item.evaluations.items():
            at_first, last = found.member_accuracies[0], found.member_accuracies[-1]
            under = f"{attacks_of(found)}, {found.n:,} images"
            if item is tried[0]:
                start = [percent(at_first.natural.value), _interval(at_first)]
                lines.append(_line(["its start, the first member", "", "", "", *start, under]))
            how = training_sentence(item.recipe)
            share = item.recipe["sampling"]["floor"] / item.recipe["members"]
            least = f"≥ {min(1.0, share):.2g}" if item.recipe["method"] == "barre" else ""
            method = METHOD_NAMES.get(item.recipe["method"], item.recipe["method"])
            method += ", continued" if item.recipe["start"] == "previous" else ""
            title = item.name if len(item.evaluations) == 1 else f"{item.name} (`{name}`)"
            cells = [title, method, how, least, percent(last.natural.value), _interval(last), under]
            lines.append(_line(cells))
    return [*lines, ""]


def _differences(shown: Sequence[_Row]) -> list[str]:
    lines = ["## What differs from the paper's setting", ""]
    for row in shown:
        method = row.recipe["method"]
        theirs = _paper_passes(method, _paper_members(method))
        lines.append(
            f"- {row.title} (`{row.item.name}`): {training_sentence(row.recipe)} {count(row.spent)} member passes "
            f"against the paper's {count(theirs)} ({theirs / row.spent:.0f} times as many: PGD-10, 100 epochs, "
            f"M = {_paper_members(method)})."
        )
    lines += [
        "- The paper reports the checkpoint that does best on test data, and trains on all 50,000 images; here "
        f"checkpoints and α are chosen on {_validated(shown)} of 5,000 validation images that are not trained on.",
        "- The paper's robust accuracies are under ARC-R alone; a portfolio can only find more.",
    ]
    return [*lines, ""]


def _validated(shown: Sequence[_Row]) -> str:
    sizes = sorted({row.recipe["validation"].get("size") or 5000 for row in shown})
    return " or ".join(f"{size:,}" for size in sizes)


def _spent(item: Entry, found: Sequence[Entry]) -> int:
    """Member passes of all its members. Those given by other runs were paid for there, and once each."""
    return sum(int(e.training["cost"]["forwards"]) for e in _lineage(item, found).values())


def _lineage(item: Entry, found: Sequence[Entry]) -> dict[str, Entry]:
    """The entry and all that it builds on, by name."""
    line = {item.name: item}
    for before in found:
        if before.name in given_names(item.recipe):
            line |= _lineage(before, found)
    return line


def _paper_passes(method: str, members: int) -> int:
    attacked = [m if method in ("mrboost", "barre") else 1 for m in range(1, members + 1)]
    return sum(_PAPER_IMAGES * _PAPER_EPOCHS * (_PAPER_STEPS * m + 1) for m in attacked)


def _paper_entry(method: str) -> Mapping[str, Any]:
    known: Mapping[str, Any] = paper()["best"]["resnet20"]
    found: Mapping[str, Any] = known.get("mrboost-r" if method == "mrboost" else method, {})
    return found


def _paper_members(method: str) -> int:
    return int(_paper_entry(method).get("members", 1))


def _paper(recipe: Mapping[str, Any]) -> str:
    known = _paper_entry(recipe["method"])
    if recipe["model"]["name"] != "resnet20" or recipe["data"]["name"] not in known:
        return ""
    natural, robust = known[recipe["data"]["name"]]
    return f"{natural:.2f} / {robust:.2f} (M = {known['members']})"


def _title(item: Entry, found: Sequence[Entry]) -> str:
    recipe, seed = item.recipe, item.run.manifest.get("seed")
    title = (
        "MRBoost-R" if recipe["method"] == "mrboost" else METHOD_NAMES.get(recipe["method"], recipe["method"])
    )
    if recipe["method"] == "at" and given_names(recipe):
        title += f", {sum(e.recipe['epochs'] for e in _lineage(item, found).values())} epochs"
    return f"{title}, seed {seed}" if seed else title


def _inputs(evaluation: Evaluation) -> tuple[Any, ...]:
    return evaluation.n, evaluation.about.split, evaluation.about.attacks


def _robust(evaluation: Evaluation | None) -> str:
    return "" if evaluation is None else _interval(evaluation.accuracy)


def _deterministic(evaluation: Evaluation | None) -> str:
    return (
        "" if evaluation is None or evaluation.deterministic is None else _interval(evaluation.deterministic)
    )


def _interval(accuracy: Accuracy) -> str:
    robust = accuracy.robust
    return f"{percent(robust.value)} ({100 * robust.low:.1f} – {100 * robust.high:.1f})"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
