"""An evaluation as a table: for the terminal, for Markdown and for LaTeX."""

from __future__ import annotations

import html as markup
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from randens.core.errors import InputError
from randens.data import called

if TYPE_CHECKING:
    from randens.evaluation.results import Accuracy, Evaluation

__all__ = ["Row", "frame", "html", "latex", "markdown", "percent", "plain", "rows", "statements", "terminal"]

_FOUND = {"": "(no member fooled)", "clean": "no attack needed"}


@dataclass(frozen=True)
class Row:
    """One classifier: its accuracies and the FLOPs of one inference.

    kind: "single", "member", "also" (at other probabilities), "randomized" or "deterministic".
    """

    name: str
    accuracy: Accuracy
    flops: float
    kind: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Name, natural and robust accuracy, the interval of the latter, FLOPs."""
        natural, robust = self.accuracy.natural, self.accuracy.robust
        between = f"{percent(robust.low)} – {percent(robust.high)}"
        return self.name, percent(natural), percent(robust), between, count(self.flops)


def rows(evaluation: Evaluation, name: str = "", probs_are: str = "α =") -> list[Row]:
    """Members, the randomized ensemble at each of its probabilities, the deterministic ensemble.

    probs_are: a name for the ensemble's own probabilities.
    """
    flops = np.array(evaluation.flops, dtype=np.float64)
    title = f"{name} " if name else ""
    if evaluation.members == 1:
        return [Row(name or "member 0", evaluation.accuracy, float(flops[0]), "single")]
    found = [
        Row(f"{title}member {i}", accuracy, float(flops[i]), "member")
        for i, accuracy in enumerate(evaluation.member_accuracies)
    ]
    for label, probs in evaluation.also.items():
        found.append(Row(f"{title}randomized, {label}", evaluation.at(probs), float(probs @ flops), "also"))
    own = f"{title}randomized, {probs_are} {_probs(evaluation.probs)}"
    found.append(Row(own, evaluation.accuracy, evaluation.expected_flops, "randomized"))
    if evaluation.deterministic is not None:
        whole = f"{title}deterministic, all {evaluation.members}"
        found.append(Row(whole, evaluation.deterministic, float(flops.sum()), "deterministic"))
    return found


def terminal(lines: Sequence[Row], title: str, confidence: float = 0.95) -> Table:
    """A rich table."""
    table = Table("", title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in ("natural", "robust", f"{confidence:.0%} interval", "FLOPs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in lines:
        table.add_row(*row.cells)
    return table


def markdown(lines: Sequence[Row]) -> str:
    """A Markdown table."""
    head = ["| | natural | robust | interval | FLOPs |", "|---|---:|---:|---:|---:|"]
    return "\n".join([*head, *(f"| {' | '.join(row.cells)} |" for row in lines)])


def latex(lines: Sequence[Row]) -> str:
    """Rows of a LaTeX tabular with four columns: name, natural and robust accuracy in per cent, MFLOPs."""
    return "\n".join(
        f"{_escaped(row.name)} & {100 * row.accuracy.natural.value:.2f} & {100 * row.accuracy.robust.value:.2f} & "
        f"{row.flops / 1e6:.2f} \\\\"
        for row in lines
    )


def about(evaluation: Evaluation) -> list[tuple[str, str]]:
    """What a table is about: α, ε, attack, n, gain, and notes."""
    names = " + ".join(_attack(a) for a in evaluation.attacks)
    found = [
        ("α", _probs(evaluation.probs)),
        ("ε", f"{_radius(evaluation.threat.eps)} in {evaluation.threat.norm}"),
        ("attack", names),
        ("n", f"{evaluation.n} inputs of {called(evaluation.data, evaluation.split)}"),
        ("gain", f"{evaluation.gain:.4f}"),
    ]
    return found + [("note", note) for note in (*evaluation.notes, *_warnings(evaluation))]


def plain(evaluation: Evaluation) -> str:
    """The table and what it is about, as text."""
    screen = Console(file=io.StringIO(), width=110, color_system=None, highlight=False)
    screen.print(terminal(rows(evaluation), "", evaluation.confidence), markup=False)
    assert isinstance(screen.file, io.StringIO)
    lines = [line.rstrip() for line in screen.file.getvalue().splitlines() if line.strip()]
    return "\n".join([*lines, *(f"{name:<7}{text}" for name, text in about(evaluation))])


def html(evaluation: Evaluation) -> str:
    """The table and what it is about, for a notebook."""
    heads = ("", "natural", "robust", f"{evaluation.confidence:.0%} interval", "FLOPs")
    said = "<br>".join(f"{name}: {markup.escape(text)}" for name, text in about(evaluation))
    return f"{html_table(heads, [row.cells for row in rows(evaluation)])}<p>{said}</p>"


def html_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table for a notebook; the first cell of each line is its heading."""
    head = "".join(f"<th>{markup.escape(h)}</th>" for h in heads)
    body = "".join(
        f"<tr><th style='text-align:left'>{markup.escape(name)}</th>"
        + "".join(f"<td>{markup.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def frame(evaluation: Evaluation) -> Any:
    """The table as a pandas data frame, with numbers instead of per cents."""
    return data_frame(
        [
            {
                "classifier": row.name,
                "natural": float(row.accuracy.natural),
                "robust": float(row.accuracy.robust),
                "robust_low": row.accuracy.robust.low,
                "robust_high": row.accuracy.robust.high,
                "flops": row.flops,
                "n": evaluation.n,
                "norm": evaluation.threat.norm,
                "eps": evaluation.threat.eps,
                "attack": " + ".join(_attack(a) for a in evaluation.attacks),
            }
            for row in rows(evaluation)
        ]
    )


def data_frame(table: Sequence[Mapping[str, Any]]) -> Any:
    """The rows as a pandas data frame; pandas need not be installed."""
    try:
        import pandas
    except ImportError:
        raise InputError(
            "to_frame needs pandas, which is not installed; use to_json, or pip install pandas"
        ) from None
    return pandas.DataFrame(table)


def _attack(options: Any) -> str:
    preset = options.get("preset")
    return f"{options['name']} {preset}" if preset else str(options["name"])


def _radius(eps: float) -> str:
    """ε as people write it: 8/255 where it is a whole number of grey levels."""
    levels = eps * 255
    return (
        f"{round(levels)}/255"
        if eps and abs(levels - round(levels)) < 1e-9 and round(levels)
        else f"{eps:.4g}"
    )


def statements(evaluation: Evaluation) -> list[str]:
    """Sentences about the result: limits, gain, Theorem 1, attacks, cost, and the split of every choice."""
    limits, cost, said = evaluation.bounds, evaluation.cost, []
    if evaluation.members > 1:
        said += [
            f"Risk at any probabilities: floor {limits.floor:.4f}, ceiling {limits.ceiling:.4f} (Theorem 3); "
            f"here {1 - evaluation.robust:.4f}.",
            f"Randomisation gain Σ α_i η_i − η(α): {evaluation.gain:.4f}.",
            *([] if evaluation.conflict is None else [evaluation.conflict.sentence]),
            _pairs(evaluation),
            f"A further member should have a risk of at most {evaluation.next_member.high:.4f} (rule of thumb).",
        ]
        if evaluation.classes == 2:
            said.append(
                "With two classes some deterministic threshold vote is at least as robust: the advantage of "
                "drawing is compute alone."
            )
    found = ", ".join(f"{_FOUND.get(name, name)} {count}" for name, count in evaluation.found_by.items())
    about = [f"{called(evaluation.data, evaluation.split)}, {evaluation.n} inputs"]
    about += [f"{what} chosen on {split}" for what, split in evaluation.chosen_on.items()]
    return [
        *said,
        f"Worst cases found by: {found}.",
        f"Cost: {cost.forwards:,} forward and {cost.backwards:,} backward member passes, {evaluation.seconds:.1f} s.",
        f"Evaluated on {'; '.join(about)}.",
        *(f"Note: {note}." for note in evaluation.notes),
        *_warnings(evaluation),
    ]


def _pairs(evaluation: Evaluation) -> str:
    """Theorem 1 for the pairs that an attack drew together; about the others nothing is known."""
    known = [p for p in evaluation.pairs if p.together]
    apart = [f"{p.i}+{p.j}" for p in evaluation.pairs if not p.together]
    helpful = [
        f"{p.i}+{p.j} (by {p.test.value:.3f}, {evaluation.confidence:.0%} interval {p.test.low:.3f} to "
        f"{p.test.high:.3f}{'' if p.test.verdict == 'helps' else ', may be chance'})"
        for p in known
        if p.helps
    ]
    said = (
        f"Pairs that beat both of their members (Theorem 1): {', '.join(helpful) or 'none'} of {len(known)}"
    )
    return said + (f"; not attacked together: {', '.join(apart)}." if apart else ".")


def _warnings(evaluation: Evaluation) -> list[str]:
    said = []
    if evaluation.flags.get("unstable"):
        said.append(
            f"Warning: at {evaluation.flags['unstable']:.1%} of the inputs verdicts changed when computed again; "
            "some member is not deterministic, or its logits are tied there."
        )
    for attack, flags in evaluation.flags.get("gradients", {}).items():
        for kind, shares in flags.items():
            hit = [f"member {i} {share:.1%}" for i, share in enumerate(shares) if share > 0]
            if hit:
                said.append(
                    f"Warning: {attack} found {kind.replace('_', ' ')}s: {', '.join(hit)} of the inputs."
                )
    return said


def percent(share: float) -> str:
    """A share as per cent with one digit."""
    return f"{100 * share:.1f} %"


def count(number: float) -> str:
    """A large number in k, M or G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def _probs(probs: np.typing.NDArray[np.float64]) -> str:
    return "(" + ", ".join(f"{p:.3g}" for p in probs.tolist()) + ")"


def _escaped(text: str) -> str:
    return text.replace("α", "$\\alpha$").replace("%", "\\%").replace("_", "\\_").replace("&", "\\&")
