"""Write one self-contained HTML file: no network, no foreign script; the templates escape all data."""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from randens._version import __version__
from randens.core.errors import InputError
from randens.core.files import write_atomic
from randens.evaluation.result import THREAT_MODEL
from randens.evaluation.tables import count
from randens.report import figures, tables
from randens.report.landscape import MOST_SOLVED, landscape_data, read_landscape, solve
from randens.report.load import AttackTable, LoadedRun, StochasticNote, load_runs
from randens.report.tables import Line
from randens.report.verdicts import drawing, headline, labels, verdicts

__all__ = ["MOST_BYTES", "fill", "render", "write_page", "write_report"]

MOST_BYTES = 6_000_000


def write_report(
    runs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None
) -> Path:
    """Write the report on these run folders; the first is the subject, and the others are compared with it.

    Parameters
    ----------
    runs : sequence of path
        Run folders.
    output : path, optional
        The HTML file; by default report.html in the first folder.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import torch, randens
    >>> nets, x, y = [torch.nn.Linear(4, 3) for _ in range(2)], torch.rand(6, 4), torch.arange(6) % 3
    >>> run = randens.Run.create("mine")
    >>> _ = randens.evaluate(nets, (x, y), "pgd", eps=0.1).save(run.path / "evaluation.json")
    >>> write_report(["mine"]).name
    'report.html'
    """
    return write_page(load_runs(runs), output)


def write_page(runs: Sequence[LoadedRun], output: str | os.PathLike[str] | None = None) -> Path:
    """`write_report` for runs that were read already."""
    target = runs[0].run.path / "report.html" if output is None else Path(output)
    content = render(runs).encode("utf-8", "replace")
    if len(content) > MOST_BYTES:
        raise InputError(
            f"the report on {len(runs)} runs has {len(content) / 1e6:.1f} MB; at most {MOST_BYTES / 1e6:g} MB open "
            "quickly, so give fewer runs"
        )
    write_atomic(target, content)
    return target


def render(runs: Sequence[LoadedRun]) -> str:
    """The page as text."""
    data: dict[str, Any] = {}
    for number, one in enumerate(runs):
        if one.evaluation is not None:
            result = one.evaluation
            data[f"data-{number}"] = landscape_data(
                result.profile,
                marks=[("evaluated α", result.probs), *result.also.items()],
                start=result.probs,
                optimum=solve(result.profile, result.clean.mean(axis=0)),
            )
    return fill(
        "report.html",
        title=f"randens report: {', '.join(one.name for one in runs)}",
        data=data,
        scripts=["landscape.js", "page.js"],
        runs=[_run(one, number) for number, one in enumerate(runs)],
        names=labels(runs),
        verdicts=_header(runs),
        about=_about(runs),
        results=tables.results(runs),
        comparison=tables.comparison(runs) if len(runs) > 1 else None,
        efficiency=_efficiency(runs),
        threat_model=THREAT_MODEL if runs[0].evaluation is not None else "",
    )


def fill(template: str, *, scripts: Sequence[str], data: Mapping[str, Any], **values: Any) -> str:
    """Fill a page's template; style and scripts are inline, and the policy allows only these, by hash."""
    style, *code = (Markup(_source(name)) for name in ("page.css", *scripts))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(_hash(c) for c in code)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        _templates()
        .get_template(template)
        .render(policy=policy, version=__version__, style=style, code=code, data=data, **values)
    )


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("randens.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The filter `tojson` escapes what could end a block of data.
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    made.filters |= {
        "percent": tables.percent,
        "interval": tables.interval,
        "probs": tables.probs,
        "fooled": tables.fooled,
        "count": count,
        "threat": tables.threat,
    }
    for name in ("command", "stale", "where"):
        made.globals[name] = getattr(tables, name)
    return made


def _source(name: str) -> str:
    """Return the text of a file among the templates."""
    loader = _templates().loader
    assert loader is not None
    return loader.get_source(_templates(), name)[0]


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _header(runs: Sequence[LoadedRun]) -> list[str]:
    """The sentences at the top: whether drawing pays first, then the headline number, then the comparisons."""
    first = runs[0]
    own = [headline(first)] if first.evaluation is None else [drawing(first.evaluation), headline(first)]
    return own + verdicts(runs)[1:]


def _about(runs: Sequence[LoadedRun]) -> str:
    """What the numbers of all runs are about; run by run where they differ."""
    found = {
        name: tables.evaluated(one)
        for name, one in zip(labels(runs), runs, strict=True)
        if one.evaluation is not None
    }
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return "; ".join(f"{name}: {said}" for name, said in found.items())


def _run(one: LoadedRun, number: int) -> dict[str, Any]:
    """What the sections about one run show."""
    result = one.evaluation
    shown: dict[str, Any] = {
        "one": one,
        "number": number,
        "title": one.name,
        "result": result,
        "about": "",
        "random": None if one.stochastic is None else _random(one.stochastic, f"f{number}"),
        "deploy": _front(one, f"f{number}"),
        "radii": _radii(one, f"f{number}"),
        "attacks": _attacks(one, f"f{number}"),
        "training": _training(one, f"f{number}"),
        "recipe": _recipe(one),
        "most_solved": MOST_SOLVED,
    }
    if one.method and one.method.lower() not in one.name.lower():
        shown["title"] = f"{one.name} ({one.method})"
    if result is not None:
        shown |= {
            "about": tables.evaluated(one),
            "reading": read_landscape(result.profile, result.probs),
            "together": _together(one, f"f{number}") if result.members > 1 else None,
            "found_by": _found_by(one, f"f{number}"),
            "warnings": result.sentences()[:1] if result.without_gradients else [],
            "flops": (result.expected_flops, float(sum(result.flops))),
        }
    return shown


def _efficiency(runs: Sequence[LoadedRun]) -> Markup | None:
    found = tables.inferences(runs)
    if not found:
        return None
    words = "; ".join(
        f"{point.name} {point.accuracy.robust.value:.1%} at {count(point.flops)} FLOPs"
        for point in found
        if point.kind != "member"
    )
    return figures.inline("flops", f"Robust accuracy against FLOPs: {words}", figures.scatter, found)


def _front(one: LoadedRun, key: str) -> Markup | None:
    """Robustness against compute of k of M averaged."""
    options = [] if one.advice is None else one.advice.options
    front = [o for o in options if o.kind in ("subset", "deterministic") or o.name == "sampled uniformly"]
    if len(front) < 2:
        return None
    words = "; ".join(f"k = {o.k} {o.robust.value:.1%} at {count(o.flops)} FLOPs" for o in front)
    points = [(o.flops, o.robust.value) for o in front]
    line = Line("k of M averaged", points, [(o.robust.low, o.robust.high) for o in front])
    label, titles = (
        f"Robust accuracy against FLOPs of k of M: {words}",
        ("FLOPs per inference", "robust accuracy"),
    )
    return figures.inline(f"{key}-front", label, figures.lines, [line], *titles)


def _together(one: LoadedRun, key: str) -> dict[str, Any]:
    """Which members are fooled together: sets, and matrices for every two members."""
    result = one.evaluation
    assert result is not None
    listed, rest = tables.fooled_sets(result)
    often = sorted({m for fooled, _ in listed for m in fooled})
    members = often if result.members > 24 else list(range(result.members))
    names = ", ".join(f"{tables.fooled(fooled)} {count}" for fooled, count in listed[:5])
    sets = f"Fooled sets and their frequencies; the most frequent: {names}"
    joint = "Co-fooling matrix: per cent of inputs at which one perturbation fools both members"
    conflict = "Conflict matrix: per cent of inputs at which each can be fooled but never both"
    found: dict[str, Any] = {
        "sets": figures.inline(f"{key}-sets", sets, figures.upset, listed, members or [0]),
        "listed": [(tables.fooled(s), count, tables.percent(count / result.n)) for s, count in listed],
        "rest": rest,
        "joint": figures.inline(f"{key}-joint", joint, figures.matrix, tables.cofooling(result)),
        "conflict": figures.inline(f"{key}-conflict", conflict, figures.matrix, tables.conflicts(result), 1),
        "apart": tables.apart(result),
        "reach": None,
    }
    if result.conflict is not None and not np.isnan(result.conflict.pairs).any():
        label = "Joint reach of every two members, per cent of ε"
        found["reach"] = figures.inline(f"{key}-reach", label, figures.matrix, result.conflict.pairs, 1)
    return found


def _radii(one: LoadedRun, key: str) -> dict[str, Any] | None:
    radii, result = one.radii, one.evaluation
    if radii is None:
        return None
    found = tables.over_radius(radii)
    own = result.threat.eps if result is not None and result.threat.norm == radii.norm else None
    words = "; ".join(
        f"{line.name} from {line.points[0][1]:.1%} to {line.points[-1][1]:.1%}" for line in found
    )
    label, titles = (
        f"Robust accuracy over the radius ε: {words}",
        (f"{radii.norm} radius ε", "robust accuracy"),
    )
    rule = None if own is None else (own, "evaluated ε")
    picture = figures.inline(f"{key}-radii", label, figures.lines, found, *titles, rule=rule)
    rows = [
        (f"{x:.4g}", *(tables.percent(line.points[row][1]) for line in found))
        for row, (x, _) in enumerate(found[0].points)
    ]
    return {"picture": picture, "heads": ["ε", *(line.name for line in found)], "rows": rows}


def _attacks(one: LoadedRun, key: str) -> dict[str, Any] | None:
    compared, result = one.attacks, one.evaluation
    if compared is None:
        return None
    ordered = tables.compared(compared)
    words = "; ".join(f"{a.label} {a.robust.value:.1%}" for a in ordered)
    label = f"Robust accuracy left by each attack: {words}"
    picture = figures.inline(f"{key}-attacks", label, figures.FIGURES["attacks"], one)
    stronger = (
        result is not None
        and compared.together is not None
        and _same_case(one, compared)
        and compared.together.value < result.robust - 1e-9
    )
    return {"picture": picture, "ordered": ordered, "stronger": stronger}


def _same_case(one: LoadedRun, compared: AttackTable) -> bool:
    result = one.evaluation
    assert result is not None
    case = (compared.data, compared.split, compared.n, compared.norm)
    mine = (result.about.data, result.about.split, result.n, result.threat.norm)
    close = abs(compared.eps - result.threat.eps) <= 1e-9 * result.threat.eps
    return case == mine and close and not tables.stale(one, compared)


def _found_by(one: LoadedRun, key: str) -> Markup:
    result = one.evaluation
    assert result is not None
    names = {"": "no member is fooled", "clean": "wrong unperturbed"}
    rows = [
        (names.get(name, name), float(count), None)
        for name, count in sorted(result.found_by.items(), key=lambda i: -i[1])
    ]
    words = "; ".join(f"{name} {value:.0f}" for name, value, _ in rows)
    label = f"Which attack found the worst cases: {words}"
    return figures.inline(f"{key}-found", label, figures.bars, rows, x_title="inputs", digits=0)


def _training(one: LoadedRun, key: str) -> list[dict[str, Any]]:
    notes = dict(one.trainings)
    shown = []
    for place, curve in enumerate(one.curves):
        accuracies, losses, begins = tables.training_lines(curve)
        note = notes.get(curve.name)
        pictures: dict[str, Markup] = {}
        for name, found, percent in (("accuracy", accuracies, True), ("training loss", losses, False)):
            if not found:
                continue
            ends = "; ".join(
                f"{line.name} ends at {line.points[-1][1]:{'.1%' if percent else '.3g'}}" for line in found
            )
            label = f"{name.capitalize()} over epochs of {curve.name}: {ends}"
            named, titles = f"{key}-train{place}-{name.split()[-1]}", ("epoch, all members in a row", name)
            pictures[name] = figures.inline(
                named, label, figures.lines, found, *titles, percent=percent, breaks=begins
            )
        images, attack = (None, "") if note is None else (note.validation.images, note.validation.attack)
        about = tables.where("", "validation data", images, [attack] if attack else [])
        shown.append({"name": curve.name, "pictures": pictures, "about": about})
    return shown


def _random(note: StochasticNote, key: str) -> dict[str, Any]:
    """Accuracy on the attacked and on fresh draws, and what a single draw would have reported."""
    rows = [
        ("on the attacked draws", 100 * note.in_sample, None),
        ("of the same on fresh draws", 100 * note.fresh, None),
        ("one draw taken as the answer", 100 * note.single_draw, None),
    ]
    label = "; ".join(f"{name} {value:.1f} %" for name, value, _ in rows)
    return {
        "draws": figures.inline(f"{key}-draws", label, figures.bars, rows, x_title="accuracy, %", digits=1)
    }


def _recipe(one: LoadedRun) -> dict[str, Any]:
    """How the run was made."""
    manifest, result = one.run.manifest, one.evaluation
    command, versions, recipe = (manifest.get(key) for key in ("command", "versions", "recipe"))
    words = [str(word) for word in command] if isinstance(command, list) else []
    facts = {
        "seed": manifest.get("seed", "not recorded"),
        "made": manifest.get("created", "not recorded"),
        "git commit": manifest.get("git_commit") or "none",
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items())
        if isinstance(versions, Mapping)
        else "not recorded",
        "folder": one.run.path,
    }
    if result is not None:
        facts["attacks"] = "; ".join(_options(a) for a in result.about.attacks)
        facts["members' fingerprint"] = result.about.ensemble
        facts["chosen on"] = ", ".join(f"{k}: {v}" for k, v in result.chosen_on.items()) or "not recorded"
    return {
        "command": "randens " + shlex.join(words) if words else "(not recorded: made from Python)",
        "facts": facts,
        "settings": "\n".join(tables.flat(recipe)) if isinstance(recipe, Mapping) else "",
    }


def _options(attack: Mapping[str, Any]) -> str:
    rest = ", ".join(f"{k}={v}" for k, v in attack.items() if k != "name" and v is not None)
    return f"{attack.get('name', '?')} ({rest})" if rest else str(attack.get("name", "?"))
