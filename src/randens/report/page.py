"""Write one self-contained HTML file: no network, no foreign script; the templates escape all data."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from randens._version import __version__
from randens.core.errors import InputError
from randens.core.files import write_atomic
from randens.evaluation.result import THREAT_MODEL
from randens.evaluation.tables import probs_text
from randens.report.landscape import landscape_data, solve
from randens.report.load import LoadedRun, load_runs
from randens.report.sections import cards, missing, results, sections, tried
from randens.report.verdicts import about_text, labels, verdicts

__all__ = ["fill", "render", "write_page", "write_report"]

MOST_BYTES = 6_000_000


def write_report(
    runs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None
) -> Path:
    """Write the report on run folders; the first is the subject, and the others are compared with it.

    It goes to `output`, by default report.html in the first folder.

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
            f"the report has {len(content) / 1e6:.1f} MB; at most {MOST_BYTES / 1e6:g} MB open quickly, so evaluate "
            "fewer inputs or members"
        )
    write_atomic(target, content)
    return target


def render(runs: Sequence[LoadedRun]) -> str:
    """The page as text."""
    first, data = runs[0], {}
    result = first.evaluation
    if result is not None and result.members > 1:
        data["landscape-data"] = landscape_data(
            result.profile,
            marks=[("evaluated α", result.probs), *result.also.items()],
            start=result.probs,
            optimum=solve(result.profile, result.clean.mean(axis=0)),
        )
    top = tried(first, "stochastic", lambda: cards(first)) or []
    shown = [section for section in (results(runs), *sections(first)) if section is not None]
    return fill(
        "report.html",
        title=f"randens report: {', '.join(one.name for one in runs)}",
        data=data,
        scripts=["landscape.js", "page.js"] if data else [],
        heading=_heading(runs),
        lead=_lead(first),
        cards=top,
        findings=verdicts(runs)[2:],
        problems=[problem for one in runs for problem in one.problems.values()],
        sections=shown,
        missing=missing(first),
        threat_model=THREAT_MODEL,
    )


def _heading(runs: Sequence[LoadedRun]) -> str:
    first, others = runs[0], ", ".join(labels(runs)[1:])
    title = first.name if first.method.lower() in first.name.lower() else f"{first.name}: {first.method}"
    return f"{title}, compared with {others}" if others else title


def _lead(one: LoadedRun) -> str:
    result = one.evaluation
    if result is None:
        return "A random classifier." if one.documents else "This run has not been evaluated yet."
    about = about_text(result.about)
    if result.members == 1:
        return f"One network, {result.classes} classes; {about}."
    said = f"One of {result.members} members is sampled for every answer, α = {probs_text(result.probs)}; {about}."
    if one.rec is not None and one.rec.probs.tolist() != result.probs.tolist():
        said += f" The ensemble has α = {probs_text(one.rec.probs.tolist())} since then: evaluate it again."
    return said


def fill(template: str, *, scripts: Sequence[str], data: Mapping[str, Any], **values: Any) -> str:
    """Fill a page's template; style and scripts are inline, and the policy allows only these, by hash."""
    style, *code = (Markup(_source(name)) for name in ("page.css", *scripts))
    allowed = " ".join(map(_hash, code)) or "'none'"
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {allowed}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    made = _templates().get_template(template)
    return made.render(policy=policy, version=__version__, style=style, code=code, data=data, **values)


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
    return made


def _source(name: str) -> str:
    loader = _templates().loader
    assert loader is not None
    return loader.get_source(_templates(), name)[0]


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
