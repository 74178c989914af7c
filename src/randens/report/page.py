"""Write self-contained HTML files, the report and the teaching page: no network, no foreign script; the templates
escape all data.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from randens import __version__
from randens.core.errors import InputError, ModelError
from randens.core.files import write_atomic
from randens.evaluation.result import THREAT_MODEL
from randens.evaluation.tables import probs_text
from randens.report.figures import solve
from randens.report.runs import LoadedRun, labels, load_runs, verdicts
from randens.report.sections import cards, missing, results, sections
from randens.risk import RiskProfile, Sampling, candidates
from randens.risk.theorems import MOST_CANDIDATE_MEMBERS

__all__ = ["fill", "landscape_data", "render", "write_explorer", "write_page", "write_report"]

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
    shown = [section for section in (results(runs), *sections(first)) if section is not None]
    return fill(
        "report.html",
        title=f"randens report: {', '.join(one.name for one in runs)}",
        data=data,
        scripts=["landscape.js", "page.js"] if data else [],
        heading=_heading(runs),
        lead=_lead(first),
        cards=cards(first),
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
        return "A random classifier." if one.results else "This run has not been evaluated yet."
    about = result.about.text
    if result.members == 1:
        return f"One network, {result.classes} classes; {about}."
    said = f"One of {result.members} members is sampled for every answer, α = {probs_text(result.probs)}; {about}."
    if one.rec is not None and one.rec.probs.tolist() != result.probs.tolist():
        said += f" The ensemble has α = {probs_text(one.rec.probs.tolist())} since then: evaluate it again."
    return said


def landscape_data(
    profile: RiskProfile,
    *,
    marks: Sequence[tuple[str, ArrayLike]] = (),
    start: ArrayLike | None = None,
    optimum: Sampling | None = None,
) -> dict[str, Any]:
    """Plain values for the page: the profile, points to mark by name, where to start, the optimum with its proof."""
    edges = profile.starts.tolist()
    # Sets are hexadecimal masks (bit i is member i), configurations are separated by spaces.
    words = [f"{mask:x}" for mask in profile.masks.tolist()]
    return {
        "members": profile.members,
        "weights": profile.weights.tolist(),
        "sets": " ".join(",".join(words[a:b]) for a, b in pairwise(edges)),
        "candidates": [[str(p) for p in row] for row in candidates(profile.members)]
        if 2 <= profile.members <= MOST_CANDIDATE_MEMBERS
        else [],
        "marks": [{"name": name, "probs": np.asarray(probs).tolist()} for name, probs in marks],
        "start": None if start is None else np.asarray(start).tolist(),
        "optimum": None if optimum is None else _optimum(profile, optimum),
    }


def _optimum(profile: RiskProfile, optimum: Sampling) -> dict[str, Any]:
    """The optimum and its certificate: q for rows of the profile's sets, which the page checks by adding."""
    proof = optimum.certificate
    data: dict[str, Any] = {
        "probs": optimum.probs.tolist(),
        "risk": optimum.risk,
        "lower_bound": optimum.lower_bound,
        "rows": None,
        "mass": None,
    }
    if proof is not None:
        if not proof.verify(profile):
            raise ModelError("the certificate of the optimum does not verify; this is a fault of the solver")
        owner = np.repeat(np.arange(len(profile.weights)), np.diff(profile.starts))
        place = {key: row for row, key in enumerate(zip(owner.tolist(), profile.masks.tolist(), strict=True))}
        data["rows"] = [
            place[key] for key in zip(proof.configuration.tolist(), proof.masks.tolist(), strict=True)
        ]
        data["mass"] = proof.mass.tolist()
    return data


def write_explorer(output: str | os.PathLike[str]) -> Path:
    """Write the page; its numbers are changed in it.

    Examples
    --------
    >>> write_explorer("explorer.html").name
    'explorer.html'
    """
    start = {"candidates": {str(m): [[str(p) for p in row] for row in candidates(m)] for m in (2, 3)}}
    text = fill(
        "explore.html",
        title="Risk landscapes by hand",
        data={"start": start},
        scripts=["landscape.js", "explore.js"],
    )
    write_atomic(output, text.encode())
    return Path(output)


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
