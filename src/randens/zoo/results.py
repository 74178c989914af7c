"""The results page: the zoo's entries next to the paper's numbers, made from their run folders alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from randens.evaluation import Evaluation, difference
from randens.evaluation.reproduce import METHOD_NAMES, paper
from randens.evaluation.results import Accuracy
from randens.evaluation.tables import count, percent
from randens.zoo.cards import attacks_of, schooling
from randens.zoo.entries import Entry, entry, names, trials

__all__ = ["results"]

_MAIN = "evaluation"
# The paper's budget: PGD-10 for a hundred epochs on 50,000 images, members 1 to m attacked while m is trained.
_PAPER_IMAGES, _PAPER_EPOCHS, _PAPER_STEPS = 50_000, 100, 10
_MARGIN, _ROBUST, _NATURAL = 0.03, 0.36, 0.65  # what this budget was hoped to reach


def results(zoo: Path | None = None) -> str:
    """Markdown: the table, comparisons image by image, goals, and what differs from the paper's setting."""
    found = [entry(name, zoo) for name in names(zoo)]
    shown = sorted((e for e in found if _MAIN in e.evaluations), key=_order)
    text = [
        "# Results",
        "",
        "Made by `randens zoo results --output docs/results.md` from the run folders in `zoo/`; nothing here is typed.",
        "Their cards (`randens zoo card NAME`) hold more numbers, the recipes and the limits.",
        "",
    ]
    if not shown:
        return "\n".join([*text, "No entry has been evaluated.", ""])
    text += _table(shown) + _settings(shown)
    text += _comparisons(shown) + _members(shown) + _goals(shown)
    text += _tried(trials(zoo)) + _differences(shown)
    return "\n".join(text) + "\n"


def _order(item: Entry) -> tuple[int, int, str]:
    methods = list(METHOD_NAMES)
    method = item.recipe["method"]
    place = methods.index(method) if method in methods else len(methods)
    return place, int(item.run.manifest.get("seed") or 0), item.name


def _table(shown: Sequence[Entry]) -> list[str]:
    others = sorted({name for e in shown for name in e.evaluations if name != _MAIN})
    heads = ["", "M", "FLOPs", "natural", f"robust (`{_MAIN}`)", *(f"robust (`{name}`)" for name in others)]
    heads += ["member passes to train", "paper: natural / robust"]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for item in shown:
        main = item.evaluations[_MAIN]
        spent = count(_spent(item, shown))
        members = str(main.members)
        robust = [_robust(item.evaluations.get(name)) for name in (_MAIN, *others)]
        natural = percent(main.natural)
        lines.append(
            _line([_title(item), members, count(main.expected_flops), natural, *robust, spent, _paper(item)])
        )
        if main.members > 1 and main.deterministic is not None:
            whole = [_deterministic(item.evaluations.get(name)) for name in (_MAIN, *others)]
            name = f"{_title(item)}, mean of all logits"
            natural = percent(main.deterministic.natural.value)
            lines.append(_line([name, members, count(sum(main.flops)), natural, *whole, "the same", ""]))
    return [*lines, ""]


def _settings(shown: Sequence[Entry]) -> list[str]:
    lines = ["Robust accuracies with 95 % intervals over the images, under:", ""]
    seen: dict[str, str] = {}
    for item in shown:
        for name, evaluation in item.evaluations.items():
            where = f"the first {evaluation.n:,} images of {evaluation.data} {evaluation.split}"
            seen.setdefault(f"- `{name}`: {attacks_of(evaluation)} on {where}", "")
    return [*lines, *sorted(seen), ""]


def _comparisons(shown: Sequence[Entry]) -> list[str]:
    """Every randomized ensemble against every single member on the same images."""
    lines = ["## Against single members, image by image", ""]
    singles = [e for e in shown if e.evaluations[_MAIN].members == 1]
    ensembles = [e for e in shown if e.evaluations[_MAIN].members > 1]
    for item in ensembles:
        for single in singles:
            for name in item.evaluations.keys() & single.evaluations.keys():
                one, two = item.evaluations[name], single.evaluations[name]
                if one.n != two.n or one.split != two.split or one.attacks != two.attacks:
                    continue
                gain = difference(two.risk, one.risk)
                lines.append(
                    f"- {_title(item)} minus {_title(single)} (`{name}`): {_points(gain.value)} points of "
                    f"robust accuracy ({_points(gain.low)} to {_points(gain.high)}), at "
                    f"{one.expected_flops / two.expected_flops:.2f} times the FLOPs per inference"
                )
        main = item.evaluations[_MAIN]
        best = max(a.robust.value for a in main.member_accuracies)
        lines.append(
            f"- {_title(item)}: its best member alone has {percent(best)} on the same witnesses, the ensemble "
            f"{percent(main.robust)}; drawing at random is worth {100 * (main.robust - best):+.1f} points"
        )
    return [*lines, ""] if len(lines) > 2 else []


def _members(shown: Sequence[Entry]) -> list[str]:
    """Each ensemble's members alone, and which way training went from the first to the last."""
    lines = []
    for item in shown:
        main = item.evaluations[_MAIN]
        if main.members == 1:
            continue
        lines += [f"## The members of {_title(item)}", "", _line(["member", "α", "natural", "robust"])]
        lines.append(_line(["---:"] * 4))
        for i, accuracy in enumerate(main.member_accuracies):
            cells = [str(i), f"{main.probs[i]:.3g}", percent(accuracy.natural.value), _interval(accuracy)]
            lines.append(_line(cells))
        first, last = main.member_accuracies[0], main.member_accuracies[-1]
        natural = difference(main.points.clean[:, 0], main.points.clean[:, -1])
        robust = difference(main.points.foolable[:, 0], main.points.foolable[:, -1])
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
            f"robust accuracy of up to {percent(1 - main.bounds.floor)} with members as robust as these.",
            "",
        ]
    return lines


def _goals(shown: Sequence[Entry]) -> list[str]:
    """The goals set beforehand for this budget, met or missed by how much."""
    lines = ["## Goals set beforehand", ""]
    at = next((e.evaluations[_MAIN] for e in shown if e.recipe["method"] == "at"), None)
    barre = next((e.evaluations[_MAIN] for e in shown if e.recipe["method"] == "barre"), None)
    if at is not None:
        lines.append(_goal("AT, robust accuracy", at.robust, _ROBUST))
        lines.append(_goal("AT, natural accuracy", at.natural, _NATURAL))
    if at is not None and barre is not None:
        lines.append(_goal("BARRE above AT, robust accuracy", barre.robust - at.robust, _MARGIN))
    return [*lines, ""]


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
            how = schooling(item.recipe)
            share = item.recipe["sampling"]["floor"] / item.recipe["members"]
            least = f"≥ {min(1.0, share):.2g}" if item.recipe["method"] == "barre" else ""
            method = METHOD_NAMES.get(item.recipe["method"], item.recipe["method"])
            method += ", continued" if item.recipe["start"] == "previous" else ""
            title = item.name if len(item.evaluations) == 1 else f"{item.name} (`{name}`)"
            cells = [title, method, how, least, percent(last.natural.value), _interval(last), under]
            lines.append(_line(cells))
    return [*lines, ""]


def _differences(shown: Sequence[Entry]) -> list[str]:
    lines = ["## What differs from the paper's setting", ""]
    for item in shown:
        recipe = item.recipe
        spent = _spent(item, shown)
        theirs = _paper_passes(recipe["method"], _paper_members(recipe["method"]))
        lines.append(
            f"- {_title(item)}: {schooling(recipe)} {count(spent)} member passes against the paper's "
            f"{count(theirs)} ({theirs / spent:.0f} times as many: PGD-10, 100 epochs, "
            f"M = {_paper_members(recipe['method'])})."
        )
    lines += [
        "- The paper reports the checkpoint that does best on test data, and trains on all 50,000 images; here "
        f"checkpoints and α are chosen on {_validated(shown)} of 5,000 validation images that are not trained on.",
        "- The paper's robust accuracies are under ARC-R alone; a portfolio can only find more.",
    ]
    return [*lines, ""]


def _validated(shown: Sequence[Entry]) -> str:
    sizes = sorted({item.recipe["validation"].get("size") or 5000 for item in shown})
    return " or ".join(f"{size:,}" for size in sizes)


def _spent(item: Entry, shown: Sequence[Entry]) -> int:
    """Member passes of all its members: those given by other runs were paid for there."""
    first = item.recipe.get("first") or []
    given = [first] if isinstance(first, str) else first
    shared = sum(_spent(e, shown) for e in shown if e.name in given)
    return int(item.training["cost"]["forwards"]) + shared


def _paper_passes(method: str, members: int) -> int:
    attacked = [m if method in ("mrboost", "barre") else 1 for m in range(1, members + 1)]
    return sum(_PAPER_IMAGES * _PAPER_EPOCHS * (_PAPER_STEPS * m + 1) for m in attacked)


def _paper_entry(method: str) -> Mapping[str, Any]:
    known: Mapping[str, Any] = paper()["best"]["resnet20"]
    found: Mapping[str, Any] = known.get("mrboost-r" if method == "mrboost" else method, {})
    return found


def _paper_members(method: str) -> int:
    return int(_paper_entry(method).get("members", 1))


def _paper(item: Entry) -> str:
    known = _paper_entry(item.recipe["method"])
    if item.recipe["model"]["name"] != "resnet20" or item.recipe["data"]["name"] not in known:
        return ""
    natural, robust = known[item.recipe["data"]["name"]]
    return f"{natural:.2f} / {robust:.2f} (M = {known['members']})"


def _title(item: Entry) -> str:
    method = METHOD_NAMES.get(item.recipe["method"], item.recipe["method"])
    seed = item.run.manifest.get("seed")
    return f"{method}, seed {seed}" if seed else method


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
