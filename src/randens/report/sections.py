"""The sections of the page: sentences, tables and pictures about one run, from its results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from randens.audits import Audit
from randens.certificates import Certification
from randens.evaluation import Advice, AttackedSampling, Curve, Evaluation, RandomEvaluation
from randens.evaluation.tables import Row, Table, between, count, percent, probs_text, table_of
from randens.report import figures
from randens.report.figures import MOST_SOLVED, Point
from randens.report.pictures import Example, gallery
from randens.report.runs import LoadedRun, gain, labels, tried, worth

_COMMANDS = {
    "advice": ("what to deploy", "randens advise {}"),
    "curve": ("robust accuracy against ε", "randens evaluate {} --eps 0:16/255:9"),
    "audit": ("whether the numbers can be trusted", "randens audit {}"),
    "certification": ("certified bounds", "randens certify {}"),
}
_DEPLOY = "What should I deploy?"
_MOST_PAIRS = 12


@dataclass(frozen=True)
class Card:
    """A question, its answer in a few words, and the sentences behind it."""

    question: str
    answer: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """An image by its data URI, its content in words, and its caption."""

    source: str
    words: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the page. tables: with their captions. examples: of the gallery. text: folded away."""

    anchor: str
    title: str
    lines: Sequence[str] = ()
    tables: Sequence[tuple[str, Table]] = ()
    pictures: Sequence[Picture] = ()
    examples: Sequence[Example] = ()
    text: str = ""


def cards(one: LoadedRun) -> list[Card]:
    """How robust, whether sampling pays, what to deploy."""
    result = one.evaluation
    if result is None:
        return _random_cards(one.results["stochastic"]) if "stochastic" in one.results else []
    robust = result.robust
    said = [
        f"{result.confidence:.0%} interval {between(robust)}. Without attack {percent(result.natural)}.",
        "Against the perturbations found: a stronger attack can only lower it.",
    ]
    pays = worth(result)
    answer, _, reason = pays.partition(": ")
    if np.count_nonzero(result.probs) > 1:
        later, best = result.after(10), result.member_accuracies[int(np.argmin(result.member_risks))].robust
        reason += f" After 10 attempts it has {percent(later)}, and the best member still {percent(best)}."
        answer += f": {100 * gain(result):+.1f} points"
    return [
        Card("How robust is it?", f"{percent(robust)} robust accuracy", said),
        Card("Is sampling worth it?", _capital(answer.removeprefix("Sampling ")), [_capital(reason)]),
        _deploy_card(one),
    ]


def _deploy_card(one: LoadedRun) -> Card:
    advice: Advice | None = one.results.get("advice")
    if advice is None:
        return Card(_DEPLOY, "Not decided yet", [f"randens advise {_path(one)} compares on validation data."])
    if not advice.choices:
        return Card(_DEPLOY, "Not decided", ["Nothing is chosen on test data: advise on validation data."])
    first, *others = advice.choices
    further = [f"At {choice.compute}× compute: {choice.option}." for choice in others]
    return Card(_DEPLOY, _capital(first.option), [first.reason, *further])


def _random_cards(result: RandomEvaluation) -> list[Card]:
    robust = result.robust
    scored = f"{result.confidence:.0%} interval {between(robust)}, scored on draws that no attack has used."
    apart = f"{percent(result.in_sample)} on the attacked draws, {percent(result.fresh)} on fresh ones."
    lucky = "The luck of the draw that was attacked, not the model's robustness."
    return [
        Card("How robust is it?", f"{percent(robust)} robust accuracy", [scored]),
        Card("What would one draw have said?", percent(result.single_draw), [lucky]),
        Card("Were enough draws attacked?", "Yes" if result.converged else "No: attack more", [apart]),
    ]


def results(runs: Sequence[LoadedRun]) -> Section | None:
    """Every classifier evaluated, what one answer costs, and the runs against the first."""
    names, first = labels(runs), runs[0].evaluation
    rows: list[Row] = []
    left: list[Sequence[str]] = []
    points: list[Point] = []
    for place, (one, name) in enumerate(zip(runs, names, strict=True)):
        title = name if place else ""
        if one.evaluation is not None:
            rows += one.evaluation.rows(title)
            points += figures.points(one.evaluation, title)
        elif place:
            left.append((f"{name}, not evaluated", "", "", "", ""))
    if first is None:
        return None
    said = "Lines are confidence intervals. A sampled answer costs one member; hollow: after 10 attempts."
    caption = f"{first.about.text}. Exact over the sampling, on the worst perturbations found."
    table = table_of(rows, first.confidence)
    table.lines.extend(left)
    return Section("results", "Results", [], [(caption, table)], [_compute(points, said)])


def _compute(points: Sequence[Point], caption: str) -> Picture:
    """Robust accuracy against what one answer costs."""
    words = "; ".join(
        f"{p.name} {percent(p.robust)} at {count(p.flops)} FLOPs" for p in points if p.kind != "member"
    )
    return Picture(
        figures.data_uri(figures.compute, points), f"Robust accuracy against FLOPs: {words}", caption
    )


def missing(one: LoadedRun) -> list[tuple[str, str]]:
    """What the page lacks, and the commands that make it."""
    if one.evaluation is None:
        return [] if "stochastic" in one.results else [("results", f"randens evaluate {_path(one)}")]
    return [
        (what, made.format(_path(one))) for kind, (what, made) in _COMMANDS.items() if kind not in one.results
    ]


def sections(one: LoadedRun) -> list[Section]:
    """All sections about a run, in their order; a damaged file becomes a problem."""
    result, others = one.evaluation, one.results
    makers: list[tuple[str, Callable[[Any], Section | None], Any]] = [
        ("stochastic", _random, others.get("stochastic")),
        ("advice", _deploy, others.get("advice")),
        ("evaluation", _attempts, result),
        ("sampling", partial(_landscape, one), result),
        ("evaluation", _together, result),
        ("curve", partial(_radius, result), others.get("curve")),
        ("audit", partial(_audit, result), others.get("audit")),
        ("certification", _certified, others.get("certification")),
        ("evaluation", partial(_gallery, one), result),
        ("training", _training, one),
        ("manifest", _recipe, one),
    ]
    found = [tried(one.problems, kind, make, given) for kind, make, given in makers if given is not None]
    return [section for section in found if section is not None]


def _random(result: RandomEvaluation) -> Section:
    rows = [
        (one.name, str(one.draws or "–"), percent(one.accuracy), str(one.chosen))
        for one in result.adversaries
    ]
    heads = ("adversary", "draws seen", "accuracy on fresh draws", "chosen for inputs")
    about = f"Perturbations of each adversary, on draws that it did not attack: {result.about.text}."
    return Section("random", "How random is it", result.sentences(), [(about, Table(heads, rows))])


def _deploy(advice: Advice) -> Section:
    about = f"{advice.about.text}, attempts: {advice.attempts:g}; every option meets all perturbations found."
    kinds = {"member": "best"}
    points = [Point(o.name, o.flops, o.accuracy.robust, kinds.get(o.kind, o.kind)) for o in advice.options]
    picture = _compute(points, "The options of the table.")
    return Section("deploy", "What to deploy", advice.sentences(), [(about, advice.table())], [picture])


def _attempts(result: Evaluation) -> Section | None:
    if np.count_nonzero(result.probs) < 2:
        return None
    rows = []
    for tries in (1, 2, 5, 10, 100, float("inf")):
        found = [result.after(tries, draw) for draw in ("query", "client")]
        name = f"{tries:g}" if tries < float("inf") else "no limit"
        rows.append((name, *(f"{percent(value)} ({between(value)})" for value in found)))
    said = (
        "An attacker who may try again meets a new member with every query, unless each client keeps its member. A "
        "single member or an average answers every attempt alike."
    )
    words = (
        f"Robust accuracy from {percent(result.robust)} at one attempt to {percent(result.after(100))} at 100"
    )
    picture = Picture(figures.data_uri(figures.attempts, result), words, "Bands are confidence intervals.")
    table = Table(("attempts", "sampled per query", "sampled per client"), rows)
    about = f"{result.about.text}. Of the perturbations found, the best for so many attempts."
    return Section("attempts", "Robust accuracy against attempts", [said], [(about, table)], [picture])


def _landscape(one: LoadedRun, result: Evaluation) -> Section | None:
    if result.members == 1:
        return None
    also = "".join(f", at {name}" for name in result.also)
    said = [
        "The risk η(α) for any α: drag the point, use the arrow keys on it, move a slider or type. Attacks were made "
        f"at α = {probs_text(result.probs)}{also}, and on each member alone. Elsewhere the risk shown is a lower "
        "bound: an attack made there may find more."
    ]
    chosen: AttackedSampling | None = one.results.get("sampling")
    if chosen is not None:
        said += [
            f"Chosen: α = {probs_text(chosen.probs)}, on {chosen.about.text}.",
            *chosen.sentences(),
        ]
    elif result.members <= MOST_SOLVED:
        said.append(
            f"The optimum is of these inputs; choose α on validation data by randens sample {_path(one)}."
        )
    return Section("landscape", "Risk landscape", said)


def _together(result: Evaluation) -> Section | None:
    if result.members == 1:
        return None
    listed, members = figures.fooled_sets(result)
    rest = result.n - sum(number for _, number in listed)
    words = "; ".join(f"{', '.join(map(str, fooled)) or 'none'}: {number}" for fooled, number in listed[:5])
    rarer = f"; {rest} inputs have rarer sets" if rest else ""
    caption = f"Members that the worst perturbation of each input fools{rarer}."
    picture = Picture(figures.data_uri(figures.sets, listed, members), f"Fooled sets: {words}", caption)
    reach = np.full((result.members,) * 2, np.nan) if result.conflict is None else result.conflict.pairs
    rows = []
    for pair in sorted(result.pairs, key=lambda p: p.difference - p.conflict)[:_MOST_PAIRS]:
        gains = {"helps": "yes"}.get(pair.test.verdict, "may be chance") if pair.helps else "no"
        known = (percent(pair.conflict), percent(pair.difference), gains) if pair.together else ("–",) * 3
        kept = reach[pair.i, pair.j]
        both = percent(result.profile.jointly(pair.i, pair.j))
        rows.append((f"{pair.i} and {pair.j}", both, *known, "–" if np.isnan(kept) else percent(kept)))
    heads = ("members", "both at once", "never both", "risks differ by", "better than both", "ε left")
    said = (
        "Sampling two members beats both alone if and only if the inputs at which each can be fooled, but never both "
        "by one perturbation, outnumber the difference of their risks (Theorem 1). The last column is the share of ε "
        "left to a perturbation that must fool both (joint reach). –: unknown, as no attack sampled both."
    )
    about = f"{result.about.text}; {len(rows)} of {len(result.pairs)} pairs."
    return Section(
        "together", "Which members are fooled together", [said], [(about, Table(heads, rows))], [picture]
    )


def _radius(result: Evaluation | None, curve: Curve) -> Section:
    threat = {} if result is None else result.about.threat
    same = threat.get("norm") == curve.about.threat["norm"] and "eps" in threat
    rules = [(float(threat["eps"]), "evaluated ε")] if same else []
    words = f"Robust accuracy at {len(curve.points)} radii"
    source = figures.data_uri(figures.curve, curve, rules)
    table = (f"{curve.about.text}.", curve.table())
    picture = Picture(source, words, "Bands are confidence intervals.")
    return Section("radius", "Robust accuracy against ε", [], [table], [picture])


def _audit(result: Evaluation | None, audit: Audit) -> Section:
    said = audit.sentences()
    if result is not None and audit.about.probs != result.about.probs:
        said.append("The audit looked at other probabilities than the evaluation: run it again.")
    return Section("audit", "Can the numbers be trusted?", said, [(f"{audit.about.text}.", audit.table())])


def _certified(found: Certification) -> Section:
    about = f"{found.about.text}."
    return Section("certified", "Certified bounds", found.sentences(), [(about, found.table())])


def _gallery(one: LoadedRun, result: Evaluation) -> Section:
    found = gallery(one, result)
    if isinstance(found, str):
        return Section("gallery", "Gallery", [f"No pictures: {found}."])
    said = f"Worst perturbations found at α = {probs_text(result.probs)}, where all members are right without them."
    return Section("gallery", "Gallery", [said], examples=found)


def _training(one: LoadedRun) -> Section | None:
    pictures = []
    for name, epochs in one.epochs.items():
        for loss in (False, True):
            if any(epoch.get("loss" if loss else "natural") is not None for epoch in epochs):
                what = (
                    "mean training loss"
                    if loss
                    else "accuracy; on validation data that of the ensemble so far"
                )
                source = figures.data_uri(figures.training, epochs, loss)
                pictures.append(Picture(source, f"{name}: {len(epochs)} epochs", f"{name}: {what}."))
    costs = {name: (f"{cost['seconds']:,.0f}", cost) for name, cost in one.trainings.items()}
    if one.evaluation is not None:
        costs["evaluation"] = ("", vars(one.evaluation.cost))
    if not costs and not pictures:
        return None
    rows = [
        (name, f"{c['forwards']:,.0f}", f"{c['backwards']:,.0f}", time) for name, (time, c) in costs.items()
    ]
    table = Table(("", "forward passes", "backward passes", "seconds"), rows)
    caption = "Passes of one member for one input; they do not depend on the machine."
    return Section("training", "Training and cost", [], [(caption, table)] if rows else [], pictures)


def _recipe(one: LoadedRun) -> Section:
    manifest, result = one.run.manifest, one.evaluation
    words, versions = manifest.get("command"), manifest.get("versions") or {}
    facts = {
        "command": f"randens {shlex.join(words)}" if words else "not recorded: made from Python",
        "seed": manifest.get("seed", "not recorded"),
        "made": manifest.get("created", "not recorded"),
        "git commit": manifest.get("git_commit") or "none",
        "versions": ", ".join(f"{package} {number}" for package, number in versions.items()),
        "folder": one.run.path,
    }
    if result is not None:
        facts["attacks"] = "; ".join(json.dumps(attack) for attack in result.about.attacks)
        facts["members' fingerprint"] = result.about.ensemble
        facts["chosen on"] = ", ".join(f"{k}: {v}" for k, v in result.chosen_on.items()) or "not recorded"
    table = Table(("", ""), [(name, str(fact)) for name, fact in facts.items()], numbers=False)
    text = json.dumps(one.recipe, indent=1, ensure_ascii=False) if one.recipe else ""
    return Section("recipe", "How to reproduce", [], [("", table)], text=text)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:] if words[:1] != "α" else words  # no capital alpha


def _path(one: LoadedRun) -> str:
    return shlex.quote(str(one.run.path))
