"""One self-contained HTML file: no network, no script but our own, everything from data escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from randens._version import __version__
from randens.core.errors import InputError
from randens.core.files import write_atomic
from randens.evaluation.results import THREAT_MODEL
from randens.report import pieces, sections, story
from randens.report.comparing import verdicts
from randens.report.documents import StochasticNote
from randens.report.landscape import landscape_data, read_landscape, solve
from randens.report.markup import Markup, Node, element, embedded_json, join
from randens.report.material import Material, gather_all
from randens.report.random_models import how_random

__all__ = ["MOST_BYTES", "asset", "assemble", "render", "write_report"]

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
    material = gather_all(runs)
    target = material[0].run.path / "report.html" if output is None else Path(output)
    content = render(material).encode()
    if len(content) > MOST_BYTES:
        raise InputError(
            f"the report on {len(material)} runs has {len(content) / 1e6:.1f} MB; at most {MOST_BYTES / 1e6:g} MB open "
            "quickly, so give fewer runs"
        )
    write_atomic(target, content)
    return target


def render(runs: tuple[Material, ...]) -> str:
    """The page as text."""
    first, several = runs[0], len(runs) > 1
    if not several and first.stochastic is not None and first.evaluation is None:
        return _random_page(first, first.stochastic)
    title = f"randens report: {', '.join(one.name for one in runs)}"
    shared: list[tuple[str, str, Markup]] = [("results", "Results", sections.table(runs))]
    if several:
        shared.append(("runs", "Runs side by side", sections.comparison(runs)))
    shared.append(("efficiency", "Robustness against compute", sections.efficiency(runs)))
    blocks: list[Markup] = []
    content: list[Node] = [_section(*part, level="h2") for part in shared]
    links = [(anchor, name) for anchor, name, _ in shared]
    for number, one in enumerate(runs):
        reading = None
        if one.evaluation is not None:
            result = one.evaluation
            marks = [("evaluated α", result.probs), *result.also.items()]
            optimum = solve(result.profile, result.points.clean.mean(axis=0))
            data = landscape_data(result.profile, marks=marks, start=result.probs, optimum=optimum)
            blocks.append(embedded_json(f"data-{number}", data))
            reading = read_landscape(result.profile, result.probs)
        parts = story.per_run(one, number, reading)
        if several:
            anchor = f"run-{number}"
            links.append((anchor, one.name))
            content.append(
                element(
                    "section",
                    element("h2", one.name, id=anchor),
                    [_section(*part, level="h3") for part in parts],
                )
            )
        else:
            links += [(anchor, name) for anchor, name, _ in parts]
            content += [_section(*part, level="h2") for part in parts]
    body = join(
        [
            element("a", "Skip to the content", href="#content", class_="skip"),
            element(
                "header",
                element("h1", ", ".join(_title(one) for one in runs)),
                element("p", _subtitle(first), class_="lead"),
                [element("p", line, class_="verdict") for line in verdicts(runs)],
                class_="top",
            ),
            _navigation(links),
            element("main", content, id="content"),
            element(
                "footer",
                element("p", f"Written by randens {__version__}. ", _threat_model(first)),
            ),
        ]
    )
    return assemble(title, body, blocks, ["landscape.js"])


def _random_page(one: Material, note: StochasticNote) -> str:
    """The page about a random model: it has draws instead of members, so the other sections do not apply."""
    lead = (
        f"A classifier whose answers are random, on {note.data} {note.split}, {note.n} inputs. Robust accuracy "
        f"{pieces.percent(note.robust.value)} ({note.confidence:.0%} interval {pieces.interval(note.robust)}), scored "
        "on draws that no attack has seen."
    )
    body = join(
        [
            element("a", "Skip to the content", href="#content", class_="skip"),
            element("header", element("h1", one.name), element("p", lead, class_="lead"), class_="top"),
            _navigation([("random", "How random is it")]),
            element(
                "main",
                _section("random", "How random is it", how_random(note), level="h2"),
                id="content",
            ),
            element("footer", element("p", f"Written by randens {__version__}.")),
        ]
    )
    return assemble(f"randens report: {one.name}", body, [], ["landscape.js"])


def assemble(title: str, body: Markup, blocks: Sequence[Markup], scripts: Sequence[str]) -> str:
    """The page around a body: style and scripts inline, allowed by their hashes and nothing else allowed."""
    style = asset("page.css")
    code = [asset(name) for name in scripts]
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(_hash(c) for c in code)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return Template(asset("page.html")).substitute(
        policy=html.escape(policy),
        version=__version__,
        title=html.escape(title),
        style=style,
        body=body,
        data="\n".join(blocks),
        scripts="\n".join(f"<script>{c}</script>" for c in code),
    )


def asset(name: str) -> str:
    """A file of the package."""
    return resources.files("randens.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _section(anchor: str, title: str, content: Markup, *, level: str) -> Markup:
    return element("section", element(level, title, id=anchor), content, aria_labelledby=anchor)


def _navigation(links: Sequence[tuple[str, str]]) -> Markup:
    items = [element("li", element("a", name, href=f"#{anchor}")) for anchor, name in links]
    return element("nav", element("ul", items), class_="contents", aria_label="Contents")


def _title(one: Material) -> str:
    return (
        f"{one.name} ({one.method})"
        if one.method and one.method.lower() not in one.name.lower()
        else one.name
    )


def _subtitle(one: Material) -> str:
    result = one.evaluation
    if result is None:
        return "A randomized ensemble draws one of its members for every prediction. This run has no evaluation yet."
    members = f"{result.members} member{'s' if result.members > 1 else ''}"
    return (
        f"A randomized ensemble of {members}, {result.classes} classes: one member is drawn for every prediction, with "
        f"α = {pieces.probs(result.probs)}. Evaluated on {result.data} {result.split}, {result.n} inputs, "
        f"{result.threat.norm} ε = {result.threat.eps:.4g}."
    )


def _threat_model(one: Material) -> str:
    return THREAT_MODEL if one.evaluation is not None else ""
