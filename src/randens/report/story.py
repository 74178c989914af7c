"""The story of one run, section by section. What is missing says which command produces it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from randens.evaluation import Evaluation, tables
from randens.report import charts, pieces, series
from randens.report.documents import AttackTable, Gallery, Radii
from randens.report.landscape import MOST_SOLVED, Reading
from randens.report.markup import Markup, Node, element
from randens.report.material import Material
from randens.report.random_models import how_random

__all__ = ["per_run"]


def per_run(one: Material, number: int, reading: Reading | None) -> list[tuple[str, str, Markup]]:
    """(anchor, title, content) of every section about one run. reading: of the landscape at the evaluated α."""
    parts = [
        (f"landscape-{number}", "Risk landscape", _landscape(one, number, reading)),
        (f"deploy-{number}", "What to deploy", _deploy(one)),
        (f"who-{number}", "Who falls together", _together(one)),
        (f"radius-{number}", "Robustness over ε", _radii(one)),
        (f"attacks-{number}", "Attacks compared", _attacks(one)),
        (f"audit-{number}", "Audit", _audit(one)),
        (f"gallery-{number}", "Gallery", _gallery(one)),
        (f"training-{number}", "Training", _training(one)),
        (f"cost-{number}", "Cost", _cost(one)),
        (f"reproduce-{number}", "How to reproduce", _reproduce(one)),
    ]
    if one.stochastic is not None:
        parts.insert(0, (f"random-{number}", "How random is it", how_random(one.stochastic)))
    return parts


def _landscape(one: Material, number: int, reading: Reading | None) -> Markup:
    result = one.evaluation
    if result is None or reading is None:
        return pieces.missing(one, "evaluate")
    if result.members == 1:
        intro = "One member: there is nothing to draw, and the risk of the ensemble is the member's own."
    else:
        kind = {
            2: "a curve over the probability of member 1",
            3: "a triangle whose corners are the members",
        }.get(result.members, "shown a face of three members at a time; the sliders reach every α")
        intro = (
            f"The risk η(α) for any probabilities α, {kind}. Drag the point, use the arrow keys on it, move a slider "
            "or type probabilities: everything is computed here from what the attacks found. No attack was run at "
            "other α than those named, so there the risk shown is a lower bound on the true one."
        )
    fallback = element(
        "p",
        f"At α = {pieces.probs(result.probs)}: risk {reading.risk:.4f}, floor {reading.lowest_floor:.4f}, "
        f"gain {reading.gain:.4f}. "
        "The landscape itself is drawn by a script of this page.",
        class_="note",
    )
    said = [element("p", intro)]
    if result.members > MOST_SOLVED:
        note = f"With more than {MOST_SOLVED} members the optimum is not looked for here; randens sample finds it."
        said.append(element("p", note, class_="note"))
    elif result.members > 1:
        source = result.chosen_on.get("probs")
        chosen = (
            f"the probabilities in use were chosen on {source} data."
            if source
            else "choose probabilities on validation data with randens sample."
        )
        note = f"The optimum marked here is the best on these very inputs, for orientation; {chosen}"
        said.append(element("p", note, class_="note"))
    return element(
        "div",
        said,
        element("div", fallback, class_="landscape", data_landscape=f"data-{number}"),
        _sampling(one),
    )


def _sampling(one: Material) -> Markup:
    note = one.sampling
    if note is None:
        if one.evaluation is not None and one.evaluation.members == 1:
            return Markup()
        return element(
            "div", element("h4", "Chosen probabilities"), pieces.missing(one, "sample", "sampling")
        )
    exact = note.exact_probs
    shown = f"({', '.join(exact)})" if exact else pieces.probs(note.probs)
    parts: list[Node] = [
        element("h4", "Chosen probabilities"),
        element(
            "p",
            f"α = {shown}, chosen on {note.split} data by {note.method}: risk {note.risk:.6f}, lower bound "
            f"{note.lower_bound:.6f}, gap {note.gap:.2g}" + (f"; {note.claim}." if note.claim else "."),
        ),
    ]
    methods = [m for m in note.methods if m.risk is not None]
    if methods:
        body = [
            element("tr", element("th", m.name, scope="row"), element("td", f"{m.risk:.6f}")) for m in methods
        ]
        parts.append(pieces.table(("method", "risk"), body, "Ways to choose α on the same witnesses."))
    advice = [c.advice for c in note.contributions if c.advice and c.prob == 0]
    if advice:
        parts.append(element("p", "Advice: " + "; ".join(advice) + "."))
    return element("div", parts)


def _deploy(one: Material) -> Markup:
    """The decision table, and the front of robustness against compute for k = 1 … M."""
    note = one.advice
    if note is None:
        return pieces.missing(one, "advise", "advice")
    body = [
        element(
            "tr",
            element("th", option.name, scope="row"),
            element("td", pieces.percent(option.natural.value)),
            element("td", pieces.percent(option.robust.value)),
            element("td", pieces.interval(option.robust)),
            element("td", tables.count(option.flops)),
        )
        for option in note.options
    ]
    heads = ("way to answer", "natural", "robust", f"{note.confidence:.0%} interval", "FLOPs per inference")
    where = f"{note.data} {note.split}, {note.n} inputs, attacked with {' and '.join(note.attacks)}"
    parts: list[Node] = [element("p", line) for line in note.sentences]
    if one.evaluation is not None and note.ensemble not in ("", one.evaluation.ensemble):
        parts.append(element("p", "The advice is about other members than the evaluation.", class_="warning"))
    parts.append(pieces.table(heads, body, f"{where}; every option is judged by all perturbations found."))
    front = [o for o in note.options if o.kind in ("subset", "deterministic") or o.name == "drawn evenly"]
    if len(front) > 1:
        points = [(option.flops, option.robust.value) for option in front]
        spans = [(option.robust.low, option.robust.high) for option in front]
        words = "; ".join(f"k = {o.k} {o.robust.value:.1%} at {tables.count(o.flops)} FLOPs" for o in front)
        picture = charts.lines(
            [charts.Series(f"k of {max(o.k for o in front)} averaged", points, spans)],
            label=f"Robust accuracy against FLOPs of k of M: {words}",
            x_title="FLOPs per inference",
            y_title="robust accuracy",
        )
        parts.append(
            pieces.figure(
                picture, f"k members drawn at random and averaged, k = 1 to M, as in Figure 1; {where}."
            )
        )
    return element("div", parts)


def _together(one: Material) -> Markup:
    result = one.evaluation
    if result is None:
        return pieces.missing(one, "evaluate")
    if result.members == 1:
        return element("p", "One member: there is no other member.")
    listed, rest = series.fooled_sets(result)
    often = (
        sorted({m for fooled, _ in listed for m in fooled})
        if result.members > 24
        else list(range(result.members))
    )
    caption = f"Which members fall at the worst perturbation of each of {result.n} inputs, at the evaluated α"
    caption += f"; {rest} inputs have rarer sets." if rest else "."
    body = [
        element(
            "tr",
            element("th", pieces.fooled(fooled), scope="row"),
            element("td", count),
            element("td", pieces.percent(count / result.n)),
        )
        for fooled, count in listed
    ]
    names = ", ".join(f"{pieces.fooled(fooled)} {count}" for fooled, count in listed[:5])
    sets = pieces.figure(
        charts.upset(
            listed, often, result.n, label=f"Fooled sets and their frequencies; the most frequent: {names}"
        ),
        caption,
        pieces.table(("members that fall", "inputs", "share"), body),
    )
    joint, conflict = series.cofooling(result), series.conflicts(result)
    pictures: list[Node] = [
        pieces.figure(
            charts.matrix(
                joint,
                label="Co-fooling matrix: per cent of inputs at which one perturbation fools both members",
            ),
            "Co-fooling, per cent of inputs: one perturbation fools both members; on the diagonal each "
            "member's own risk.",
        ),
        pieces.figure(
            charts.matrix(
                conflict,
                label="Conflict matrix: per cent of inputs at which each can be fooled but never both",
                other=True,
            ),
            "Conflict, P(R₁) of Theorem 1, per cent of inputs: each of the two can be fooled, but never both at once. "
            "Drawing between two members beats both iff this exceeds the difference of their risks.",
        ),
    ]
    reach = result.conflict
    if reach is not None and not np.isnan(reach.pairs).any():
        pictures.append(
            pieces.figure(
                charts.matrix(
                    reach.pairs,
                    label="Joint reach of every two members, per cent of ε",
                    other=True,
                ),
                f"Joint reach, per cent of ε that one perturbation keeps when it has to serve both. {reach.sentence}",
            )
        )
    return element("div", sets, element("div", pictures, class_="figures"))


def _radii(one: Material) -> Markup:
    radii = one.radii
    if radii is None:
        return pieces.missing(one, "measure", "radii")
    lines = series.over_radius(radii)
    own = (
        one.evaluation.threat.eps
        if one.evaluation is not None and one.evaluation.threat.norm == radii.norm
        else None
    )
    words = "; ".join(
        f"{line.name} from {line.points[0][1]:.1%} to {line.points[-1][1]:.1%}" for line in lines
    )
    picture = charts.lines(
        [charts.Series(line.name, line.points, line.intervals) for line in lines],
        label=f"Robust accuracy over the radius ε: {words}",
        x_title=f"{radii.norm} radius ε",
        y_title="robust accuracy",
        rule=None if own is None else (own, "evaluated ε"),
    )
    body = [
        element(
            "tr",
            element("th", f"{x:.4g}", scope="row"),
            [element("td", pieces.percent(line.points[row][1])) for line in lines],
        )
        for row, (x, _) in enumerate(lines[0].points)
    ]
    caption = (
        f"{radii.data} {radii.split}, {radii.n} inputs, attacked with {' and '.join(radii.attacks)}; "
        f"whiskers: {radii.confidence:.0%} intervals."
    )
    numbers = pieces.table(("ε", *(line.name for line in lines)), body)
    return element("div", _stale(one, radii), pieces.figure(picture, caption, numbers))


def _attacks(one: Material) -> Markup:
    parts: list[Node] = []
    result = one.evaluation
    compared = one.attacks
    if compared is None:
        parts.append(pieces.missing(one, "measure", "attacks"))
    else:
        parts.append(_stale(one, compared))
        ordered = sorted(compared.attacks, key=lambda a: a.robust.value)
        picture = charts.bars(
            [(a.name, a.robust.value, (a.robust.low, a.robust.high), "") for a in ordered],
            label="Robust accuracy left by each attack: "
            + "; ".join(f"{a.name} {a.robust.value:.1%}" for a in ordered),
        )
        body = [
            element(
                "tr",
                element("th", a.name, scope="row"),
                element("td", pieces.percent(a.robust.value)),
                element("td", pieces.interval(a.robust)),
                element("td", f"{a.forwards:,}"),
                element("td", f"{a.backwards:,}"),
                element("td", f"{a.seconds:.2f} s"),
            )
            for a in ordered
        ]
        body.append(
            element(
                "tr",
                element("th", "all together, per input the worst", scope="row"),
                element("td", pieces.percent(compared.together.value)),
                element("td", pieces.interval(compared.together)),
                [element("td", "")] * 3,
                class_="main",
            )
        )
        caption = (
            f"Robust accuracy that each attack alone leaves to the randomized ensemble; lower is a stronger attack. "
            f"{compared.data} {compared.split}, {compared.n} inputs, {compared.norm} ε = {compared.eps:.4g}."
        )
        parts.append(pieces.figure(picture, caption))
        parts.append(pieces.table(("attack", "robust", "interval", "forwards", "backwards", "time"), body))
        if (
            result is not None
            and _same_case(result, compared)
            and compared.together.value < result.robust - 1e-9
        ):
            parts.append(
                element(
                    "p",
                    f"Together these attacks leave {pieces.percent(compared.together.value)}, less than the "
                    f"{pieces.percent(result.robust)} of the "
                    "evaluation: its attacks were not the strongest. Evaluate again with more of them, e.g. ",
                    element("code", f"randens evaluate {shlex.quote(str(one.run.path))} --attack suite"),
                    ".",
                    class_="warning",
                )
            )
    if result is not None:
        names = {"": "no member is fooled", "clean": "wrong unperturbed"}
        rows = [
            (names.get(name, name), float(count), None, "inputs")
            for name, count in sorted(result.found_by.items(), key=lambda i: -i[1])
        ]
        parts.append(
            pieces.figure(
                charts.bars(
                    rows,
                    label="Who found the worst cases: " + "; ".join(f"{n} {v:.0f}" for n, v, _, _ in rows),
                    percent=False,
                ),
                "Which attack found the worst case of each input in the evaluation ("
                + ", ".join(str(a.get("name", "")) for a in result.attacks)
                + ").",
            )
        )
    return element("div", parts)


def _stale(one: Material, measured: Radii | AttackTable | Gallery) -> Markup | None:
    """A warning where a measurement belongs to other members or probabilities than the evaluation."""
    result = one.evaluation
    if result is None or (measured.ensemble == result.ensemble and _same(measured.probs, result.probs)):
        return None
    what = "members" if measured.ensemble != result.ensemble else "probabilities"
    command = element("code", f"randens report {shlex.quote(str(one.run.path))} --measure")
    return element(
        "p",
        f"Measured with other {what} than were evaluated; measure again with ",
        command,
        ".",
        class_="warning",
    )


def _same(first: ArrayLike, second: ArrayLike) -> bool:
    one, two = np.asarray(first), np.asarray(second)
    return one.shape == two.shape and np.allclose(one, two)


def _same_case(result: Evaluation, compared: AttackTable) -> bool:
    case = (compared.ensemble, compared.data, compared.split, compared.n, compared.norm)
    mine = (result.ensemble, result.data, result.split, result.n, result.threat.norm)
    return (
        case == mine and _same(compared.probs, result.probs) and math.isclose(compared.eps, result.threat.eps)
    )


def _audit(one: Material) -> Markup:
    parts: list[Node] = []
    if one.audit is None:
        parts.append(pieces.missing(one, "audit", "audit"))
    else:
        parts.append(
            element(
                "p", one.audit.verdict or ("All checks passed." if one.audit.passed else "A check failed.")
            )
        )
        if one.evaluation is not None and one.audit.ensemble not in ("", one.evaluation.ensemble):
            parts.append(
                element(
                    "p",
                    "The audit looked at other members than the evaluation: run it again.",
                    class_="warning",
                )
            )
        parts.append(
            element(
                "ul",
                [
                    element(
                        "li",
                        element(
                            "span",
                            "✓ passed " if c.passed else "✗ FAILED ",
                            class_="good" if c.passed else "bad",
                        ),
                        element("strong", c.name),
                        f": {c.finding}",
                        f" → {c.advice}" if c.advice else None,
                    )
                    for c in one.audit.checks
                ],
                class_="flags",
            )
        )
    if one.evaluation is not None:
        warnings = [line for line in tables.statements(one.evaluation) if line.startswith("Warning")]
        said = warnings or [
            "The evaluation met no unusable gradients, and no verdict changed when looked at again."
        ]
        parts += [element("p", line, class_="warning" if warnings else "note") for line in said]
    return element("div", parts)


def _gallery(one: Material) -> Markup:
    gallery = one.gallery
    if gallery is None:
        return pieces.missing(one, "measure", "gallery")
    if not gallery.examples:
        return element(
            "p", "No perturbation was found that fools anybody on inputs which all members get right."
        )

    def name(index: int) -> str:
        return gallery.classes[index] if 0 <= index < len(gallery.classes) else f"class {index}"

    items = []
    for example in gallery.examples:
        falls = [i for i, said in enumerate(example.after) if said != example.label]
        stands = [i for i, said in enumerate(example.after) if said == example.label]
        said = "; ".join(f"member {i} says {name(example.after[i])}" for i in falls[:4]) + (
            " …" if len(falls) > 4 else ""
        )
        pictures = [
            element("div", element("img", src=uri, alt=alt), element("span", words))
            for uri, words, alt in (
                (example.clean, "clean", f"input {example.index}, a {name(example.label)}, clean"),
                (example.perturbed, "perturbed", f"the same input perturbed; falls: {pieces.fooled(falls)}"),
                (
                    example.difference,
                    f"difference ×{gallery.amplified:.3g}",
                    "the difference, amplified around grey",
                ),
            )
        ]
        items.append(
            element(
                "li",
                element("div", pictures, class_="row"),
                element(
                    "p",
                    element("strong", f"{name(example.label)}"),
                    f", input {example.index}: falls {pieces.fooled(falls)}; stands {pieces.fooled(stands)}.",
                ),
                element(
                    "p",
                    f"{said}. " if said else None,
                    f"Risk here {example.risk:.3g}, found by {example.source}.",
                ),
            )
        )
    caption = (
        f"Worst perturbations found at α = {pieces.probs(gallery.probs)} on {gallery.data} {gallery.split}, "
        f"{gallery.norm} ε = {gallery.eps:.4g}, on inputs that every member gets right without them."
    )
    return element("div", _stale(one, gallery), element("p", caption), element("ul", items, class_="gallery"))


def _training(one: Material) -> Markup:
    if not one.curves:
        return pieces.missing(one, "train", "training")
    parts: list[Node] = []
    for curve in one.curves:
        accuracies, losses, begins = series.training_lines(curve)
        pictures: list[Node] = []
        if accuracies:
            words = "; ".join(f"{line.name} ends at {line.points[-1][1]:.1%}" for line in accuracies)
            pictures.append(
                pieces.figure(
                    charts.lines(
                        [charts.Series(line.name, line.points) for line in accuracies],
                        label=f"Accuracy over epochs of {curve.name}: {words}",
                        x_title="epoch, all members in a row",
                        y_title="accuracy",
                        breaks=begins,
                    ),
                    f"{curve.name}: accuracy. Validation accuracies are of the ensemble so far.",
                )
            )
        if losses:
            pictures.append(
                pieces.figure(
                    charts.lines(
                        [charts.Series(line.name, line.points) for line in losses],
                        label=f"Loss over epochs of {curve.name}, ending at {losses[0].points[-1][1]:.3g}",
                        x_title="epoch, all members in a row",
                        y_title="training loss",
                        percent=False,
                        breaks=begins,
                    ),
                    f"{curve.name}: mean training loss.",
                )
            )
        parts.append(element("div", pictures, class_="figures"))
    return element("div", parts)


def _cost(one: Material) -> Markup:
    rows: list[Node] = []

    def row(name: str, *cells: str) -> None:
        rows.append(element("tr", element("th", name, scope="row"), [element("td", c) for c in cells]))

    result = one.evaluation
    for name, note in one.trainings:
        passes = (f"{note.cost.get(key, 0):,.0f}" for key in ("forwards", "backwards"))
        row(f"training {name}", *passes, f"{note.cost.get('seconds', 0):,.0f} s")
    if result is not None:
        row(
            "evaluation",
            f"{result.cost.forwards:,}",
            f"{result.cost.backwards:,}",
            f"{result.seconds:,.1f} s",
        )
    parts: list[Node] = []
    if rows:
        parts.append(
            pieces.table(
                ("", "forward member passes", "backward member passes", "time"),
                rows,
                "Passes do not depend on the machine.",
            )
        )
    if result is not None:
        whole = float(sum(result.flops))
        drawn = tables.count(result.expected_flops)
        said = f"One prediction of the randomized ensemble takes {drawn} floating-point operations"
        if result.members > 1 and result.expected_flops > 0:
            times = whole / result.expected_flops
            said += (
                f"; the deterministic ensemble of all {result.members} members takes {tables.count(whole)}, "
            )
            said += f"{times:.1f} times as many"
        parts.append(element("p", said + ". All members have to be stored."))
    if not parts:
        return pieces.missing(one, "evaluate")
    return element("div", parts)


def _reproduce(one: Material) -> Markup:
    manifest = one.run.manifest
    command = manifest.get("command")
    words = [str(w) for w in command] if isinstance(command, list) else []
    parts: list[Node] = [
        element("p", "The command that made this run:"),
        element("pre", "randens " + shlex.join(words) if words else "(not recorded: made from Python)"),
    ]
    versions = manifest.get("versions")
    facts: list[tuple[str, str]] = [
        ("seed", str(manifest.get("seed", "not recorded"))),
        ("made", str(manifest.get("created", "not recorded"))),
        ("git commit", str(manifest.get("git_commit") or "none")),
        (
            "versions",
            ", ".join(f"{k} {v}" for k, v in versions.items())
            if isinstance(versions, Mapping)
            else "not recorded",
        ),
        ("folder", str(one.run.path)),
    ]
    if one.evaluation is not None:
        result = one.evaluation
        facts.append(("attacks", "; ".join(_options(a) for a in result.attacks)))
        facts.append(("members' fingerprint", result.ensemble))
        facts.append(
            ("chosen on", ", ".join(f"{k}: {v}" for k, v in result.chosen_on.items()) or "not recorded")
        )
    parts.append(
        pieces.table(
            ("", ""),
            [
                element("tr", element("th", k, scope="row"), element("td", v, class_="words"))
                for k, v in facts
            ],
        )
    )
    recipe = manifest.get("recipe")
    if isinstance(recipe, Mapping):
        lines = "\n".join(_flat(recipe))
        parts.append(element("details", element("summary", "the whole recipe"), element("pre", lines)))
    return element("div", parts)


def _options(attack: Mapping[str, Any]) -> str:
    rest = ", ".join(f"{k}={v}" for k, v in attack.items() if k != "name" and v is not None)
    return f"{attack.get('name', '?')} ({rest})" if rest else str(attack.get("name", "?"))


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key} = {value!r}")
    return found
