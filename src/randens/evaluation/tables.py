"""Results as tables: for the terminal, notebooks, data frames, Markdown, LaTeX; and their common base."""

from __future__ import annotations

import html
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as RichTable

from randens._version import __version__
from randens.attacks import Cost
from randens.core.errors import InputError
from randens.core.files import plain, write_json
from randens.data import called
from randens.evaluation.intervals import Estimate


@dataclass(frozen=True)
class About:
    """What a result is about: the first entry of every document.

    ensemble: fingerprint of the members. probs: α. threat: as `Threat.to_dict` gives it. attacks: name and options of
    each. preprocessing: how the call normalized the members' inputs. version: of randens.
    """

    ensemble: str
    probs: tuple[float, ...]
    data: str
    split: str
    n: int
    threat: Mapping[str, Any]
    attacks: tuple[Mapping[str, Any], ...] = ()
    seed: int = 0
    preprocessing: str | None = None
    version: str = __version__

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> About:
        """Inverse of `dataclasses.asdict`."""
        lists = {key: tuple(value[key]) for key in ("probs", "attacks")}
        return About(**{**value, **lists})

    @property
    def lines(self) -> list[tuple[str, str]]:
        """α, ε, attack and inputs, for people."""
        found = [
            ("α", probs_text(self.probs)),
            ("ε" if "eps" in self.threat else "set", radius_text(self.threat)),
        ]
        if self.attacks:
            found.append(("attack", " + ".join(attack_name(a) for a in self.attacks)))
        found.append(("n", f"{self.n} inputs of {called(self.data, self.split)}"))
        return found + ([("input", self.preprocessing)] if self.preprocessing else [])


@dataclass(frozen=True)
class Accuracy:
    """Expected accuracy of one classifier on unperturbed inputs, and on the worst perturbations found."""

    natural: Estimate
    robust: Estimate


@dataclass(frozen=True)
class Table:
    """Headings and lines of text, and the same lines as records; numbers: whether the cells are numbers."""

    headings: Sequence[str]
    lines: list[Any]
    records: list[Any] = field(default_factory=list)
    numbers: bool = True

    def rich(self, title: str = "") -> RichTable:
        """For a terminal."""
        style: Any = {"title_justify": "left", "title_style": "bold", "box": None, "pad_edge": False}
        table = RichTable(self.headings[0], title=title, **style)
        for heading in self.headings[1:]:
            table.add_column(heading, justify="right" if self.numbers else "left", no_wrap=self.numbers)
        for line in self.lines:
            table.add_row(*line)
        return table

    def text(self) -> str:
        """As lines of text."""
        file = io.StringIO()
        Console(file=file, width=120, color_system=None, highlight=False, emoji=False).print(self.rich())
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines() if line.strip())

    def html(self) -> str:
        """For a notebook; the first cell of each line is its heading."""
        rows = [[html.escape(cell) for cell in row] for row in (self.headings, *self.lines)]
        first, *body = [f"<tr><th>{row[0]}</th><td>{'</td><td>'.join(row[1:])}</td></tr>" for row in rows]
        return f"<table><thead>{first}</thead><tbody>{''.join(body)}</tbody></table>"

    def markdown(self) -> str:
        """As Markdown."""
        rule = "|---" + "|---:" * (len(self.headings) - 1) + "|"
        first, *body = [f"| {' | '.join(line)} |" for line in (self.headings, *self.lines)]
        return "\n".join([first, rule, *body])

    def latex(self) -> str:
        """As rows of a LaTeX tabular."""
        marks = {"α": "$\\alpha$", "ε": "$\\varepsilon$", "–": "--"} | {mark: f"\\{mark}" for mark in "%_&#"}
        cells = [[cell.translate(str.maketrans(marks)) for cell in line] for line in self.lines]
        return "\n".join(f"{' & '.join(line)} \\\\" for line in cells)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result(ABC):
    """Base of every result: a table that prints, sentences, a document, a figure.

    kind: names the document, "evaluation" is evaluation.json. entries: the attributes that it holds, separated by
    blanks. notes: what was noticed about models and data. cost, now: member passes behind the result, and those of
    this call.
    """

    kind: ClassVar[str]
    entries: ClassVar[str] = ""

    about: About
    notes: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)
    now: Cost = field(default_factory=Cost)

    @abstractmethod
    def table(self) -> Table:
        """The numbers as a table."""

    @abstractmethod
    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw a matplotlib figure; with `path`, into that file, too."""

    def sentences(self) -> list[str]:
        """What the table means, in words."""
        return []

    def content(self) -> dict[str, Any]:
        """The entries of the document beside `about`, `notes` and `sentences`."""
        return {name: getattr(self, name) for name in self.entries.split()}

    def __repr__(self) -> str:
        return "\n".join([self.table().text(), *self._lines()])

    def _repr_html_(self) -> str:
        return f"{self.table().html()}<p>{'<br>'.join(html.escape(line) for line in self._lines())}</p>"

    def _lines(self) -> list[str]:
        about = [f"{key:<7}{value}" for key, value in self.about.lines]
        return [*about, *self.sentences(), *(f"Note: {note}." for note in self.notes)]

    def to_frame(self) -> Any:
        """The table as a pandas data frame, with numbers instead of text."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_frame needs pandas: pip install pandas, or use to_json") from None
        return pandas.DataFrame(self.table().records)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON: format, about, notes, the result's own entries, sentences."""
        head = {"format": f"randens-{self.kind}-2", "about": asdict(self.about), "notes": self.notes}
        return dict(plain({**head, **self.content(), "sentences": self.sentences()}))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON, atomically."""
        write_json(path, self.to_json())
        return Path(path)


@dataclass(frozen=True)
class Row:
    """One classifier in a table: its accuracies and the FLOPs of one inference.

    kind: "single", "member", "also" (at other probabilities), "randomized" or "deterministic".
    """

    name: str
    accuracy: Accuracy
    flops: float
    kind: str


def table_of(rows: Sequence[Row], confidence: float, more: Mapping[str, Estimate] | None = None) -> Table:
    """Classifiers: natural and robust accuracy, the interval of the latter, FLOPs; then `more` robust accuracies."""
    found = Table(("", "natural", "robust", f"{confidence:.0%} interval", "FLOPs"), [])
    for row in rows:
        natural, robust = row.accuracy.natural, row.accuracy.robust
        found.lines.append((row.name, percent(natural), percent(robust), between(robust), count(row.flops)))
        found.records.append(
            {
                "classifier": row.name,
                "natural": float(natural),
                **_record("robust", robust),
                "flops": row.flops,
            }
        )
    for name, robust in (more or {}).items():
        found.lines.append((name, "", percent(robust), between(robust), ""))
        found.records.append({"classifier": name, **_record("robust", robust)})
    return found


def _record(name: str, value: Estimate) -> dict[str, float]:
    return {name: float(value), f"{name}_low": value.low, f"{name}_high": value.high}


def bars(rows: Sequence[tuple[str, Estimate]], label: str, path: str | os.PathLike[str] | None = None) -> Any:
    """A matplotlib figure with one horizontal bar and its interval per row."""
    figure, axes = new_axes(label, "", height=1.2 + 0.4 * len(rows))
    names, values = [name for name, _ in rows], [value for _, value in rows]
    errors = [[v - v.low for v in values], [v.high - v for v in values]]
    axes.barh(names, [float(v) for v in values], xerr=errors, color="tab:blue", alpha=0.7, capsize=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    return saved(figure, path)


def new_axes(x: str, y: str, height: float = 4.0) -> tuple[Any, Any]:
    """A matplotlib figure with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def saved(figure: Any, path: str | os.PathLike[str] | None) -> Any:
    """The figure, written to `path` if there is one."""
    if path is not None:
        figure.savefig(os.fspath(path))
    return figure


def attack_name(options: Mapping[str, Any]) -> str:
    """An attack's name, with its preset."""
    name, preset = str(options["name"]), options.get("preset")
    return f"{name} {preset}" if preset and preset != name else name


def radius_text(threat: Mapping[str, Any]) -> str:
    """ε and norm as people write them: 8/255 where it is a whole number of gray levels."""
    if "eps" not in threat:
        return f"{len(threat['transforms'])} perturbations, enumerated"
    eps = float(threat["eps"])
    levels = eps * 255
    whole = eps > 0 and abs(levels - round(levels)) < 1e-9 and round(levels) > 0
    return f"{f'{round(levels)}/255' if whole else f'{eps:.4g}'} in {threat['norm']}"


def percent(share: float) -> str:
    """A share in percent with one digit."""
    return f"{100 * share:.1f} %"


def between(value: Estimate) -> str:
    """The interval of a share in percent."""
    return f"{percent(value.low)} – {percent(value.high)}"


def count(number: float) -> str:
    """A large number in k, M or G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def probs_text(probs: Sequence[float] | NDArray[np.float64]) -> str:
    """α in brackets."""
    return "(" + ", ".join(f"{p:.3g}" for p in probs) + ")"
