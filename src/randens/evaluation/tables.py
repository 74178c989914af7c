"""What every result is: a table for terminal, notebook, data frame, Markdown and LaTeX, a figure, a document."""

from __future__ import annotations

import html
import io
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as RichTable

from randens import __version__
from randens.attacks import Cost
from randens.core.errors import FileError, InputError, PathLike, printable, typed
from randens.core.files import plain, read_json, write_json
from randens.data import called
from randens.risk.intervals import Estimate
from randens.risk.sets import from_words, to_words

if TYPE_CHECKING:
    from typing_extensions import Self

_LONGEST_LABEL = 300  # of a figure, in characters


@dataclass(frozen=True)
class About:
    """What a result is about: ensemble is the members' fingerprint, threat and attacks are as `to_dict` gives them."""

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

    @property
    def text(self) -> str:
        """Data, number of inputs, threat and attacks behind a number."""
        attacks = " + ".join(map(attack_name, self.attacks))
        parts = [called(self.data, self.split), f"{self.n} inputs", radius_text(self.threat)]
        return ", ".join(parts + ([f"attacked with {attacks}"] if attacks else []))


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
        headings, *lines = self._cells()
        table = RichTable(headings[0], title=title, **style)
        for heading in headings[1:]:
            table.add_column(heading, justify="right" if self.numbers else "left", no_wrap=self.numbers)
        for line in lines:
            table.add_row(*line)
        return table

    def text(self) -> str:
        """As lines of text."""
        file = io.StringIO()
        style: Any = {"color_system": None, "highlight": False, "emoji": False, "markup": False}
        Console(file=file, width=120, **style).print(self.rich())
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines() if line.strip())

    def html(self) -> str:
        """For a notebook; the first cell of each line is its heading."""
        rows = [[html.escape(cell) for cell in row] for row in (self.headings, *self.lines)]
        first, *body = [f"<tr><th>{row[0]}</th><td>{'</td><td>'.join(row[1:])}</td></tr>" for row in rows]
        return f"<table><thead>{first}</thead><tbody>{''.join(body)}</tbody></table>"

    def markdown(self) -> str:
        """As Markdown."""
        rule = "|---" + "|---:" * (len(self.headings) - 1) + "|"
        marks = str.maketrans({"<": "&lt;", "|": "\\|"})
        first, *body = [f"| {' | '.join(cell.translate(marks) for cell in line)} |" for line in self._cells()]
        return "\n".join([first, rule, *body])

    def latex(self) -> str:
        """As rows of a LaTeX tabular."""
        marks = {"α": "$\\alpha$", "ε": "$\\varepsilon$", "–": "--"}
        marks |= {mark: f"\\{mark}" for mark in "%_&#${}"} | {m: f"\\char{ord(m)}{{}}" for m in "\\~^"}
        table = str.maketrans(dict(marks))
        cells = [[cell.translate(table) for cell in line] for line in self._cells()[1:]]
        return "\n".join(f"{' & '.join(line)} \\\\" for line in cells)

    def _cells(self) -> list[list[str]]:
        """Headings and lines; names in them may come from a file."""
        return [[printable(cell) for cell in line] for line in (self.headings, *self.lines)]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result(ABC):
    """Base of every result: a table that prints, sentences, a figure, and a document that holds its fields.

    kind: names the document. in_memory: the fields that it does not hold; derived: properties that it does. notes:
    what was noticed about models and data. cost, now: member passes behind the result, and those of this call.
    """

    kind: ClassVar[str]
    in_memory: ClassVar[str] = "now"
    derived: ClassVar[str] = ""

    about: About
    notes: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)
    now: Cost = field(default_factory=Cost)

    @abstractmethod
    def table(self) -> Table:
        """The numbers as a table."""

    @abstractmethod
    def figure(self) -> Any:
        """The numbers as a matplotlib figure."""

    @typed(path=PathLike | None)
    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The figure; with `path`, also written into that file."""
        from matplotlib import rc_context

        with rc_context({"text.parse_math": False}):  # a name may hold "$"
            drawn = labeled(self.figure())
            if path is not None:
                drawn.savefig(os.fspath(path))
        return drawn

    def sentences(self) -> list[str]:
        """What the table means, in words."""
        return []

    def __repr__(self) -> str:
        return "\n".join([self.table().text(), *map(printable, self._lines())])

    def _repr_html_(self) -> str:
        return f"{self.table().html()}<p>{'<br>'.join(html.escape(line) for line in self._lines())}</p>"

    def _lines(self) -> list[str]:
        about, probs = self.about, getattr(self, "probs", self.about.probs)  # those chosen, of a choice
        alpha = f", α = {probs_text(probs)}" if len(probs) > 1 else ""
        given = f"; members are given {about.preprocessing}" if about.preprocessing else ""
        return [f"{about.text}{alpha}{given}.", *(f"Note: {note}." for note in self.notes), *self.sentences()]

    def to_frame(self) -> Any:
        """The table as a pandas data frame, with numbers instead of text."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_frame needs pandas: pip install pandas, or use to_json") from None
        return pandas.DataFrame(self.table().records)

    def content(self) -> dict[str, Any]:
        """The entries of the document."""
        return _stored(self) | {name: getattr(self, name) for name in self.derived.split()}

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON; `from_json` reads it."""
        return {"format": f"randens-{self.kind}-2", **_written(self.content()), "sentences": self.sentences()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`, without what is in memory only."""
        wanted = f"randens-{cls.kind}-2"
        if not isinstance(document, Mapping) or document.get("format") != wanted:
            raise InputError(f"it is no document of format {wanted}; make it again")
        try:
            found = read_as(cls, cls.parts(document), document["about"])
            repr(found)  # what cannot be shown is damaged, too
            return found
        except Exception as error:  # altered entries make nearly anything fail
            raise InputError(f"the {cls.kind} is damaged ({type(error).__name__}: {error})") from error

    @classmethod
    def parts(cls, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields in a document, as JSON has them or as they are."""
        return document

    @typed(path=PathLike)
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON, atomically."""
        write_json(path, self.to_json())
        return Path(path)

    @classmethod
    @typed(path=PathLike)
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        try:
            return cls.from_json(read_json(path))
        except InputError as error:
            raise FileError(f"{Path(path)}: {error}") from error

    def __getattr__(self, name: str) -> Any:
        where = "in memory only and not in a file: compute it again"
        raise AttributeError(f"{name} is {where if name in self.in_memory.split() else 'no attribute'}")


def _stored(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, without those in memory only."""
    missing = getattr(value, "in_memory", "").split()
    return {one.name: getattr(value, one.name) for one in fields(value) if one.name not in missing}


def _written(value: Any) -> Any:
    """A value as JSON has it: sets of members as words, NaN as null, infinite numbers as strings."""
    if isinstance(value, Result):  # within another one, which is about the same
        value = {k: v for k, v in value.content().items() if k not in ("about", "notes", "cost")}
    elif is_dataclass(value) and not hasattr(value, "to_json"):
        value = _stored(value)
    if isinstance(value, Mapping):
        return {key: _written(part) for key, part in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == np.bool_:
        words = to_words(np.atleast_2d(value))
        return words if value.ndim == 2 else words[0]
    found = value if isinstance(value, tuple) else plain(value)
    if isinstance(found, (tuple, list)):
        return [_written(part) for part in found]
    if isinstance(found, float) and not math.isfinite(found):
        return None if math.isnan(found) else str(found)
    return found


def read_as(kind: Any, value: Any, about: Any = None) -> Any:
    """What JSON has, as the type that an annotation names. about: of the document, for results within it."""
    parts, origin = get_args(kind), get_origin(kind)
    if origin in (Union, UnionType):
        if value is None or type(value) in parts:  # of int | float a whole number stays one
            return value
        return read_as([p for p in parts if p is not NoneType][-1], value, about)
    if kind is float:
        return math.nan if value is None else float(value)
    if origin in (tuple, list):
        kinds = parts if origin is tuple and parts[-1] is not Ellipsis else parts[:1] * len(value)
        return origin(read_as(part, one, about) for part, one in zip(kinds, value, strict=True))
    if origin is np.ndarray:
        dtype = get_args(parts[1])[0]
        if dtype is not np.bool_:
            return np.array(value, dtype)
        words = [value] if isinstance(value, str) else value
        sets = from_words("it", words, len(words[0]))
        return sets[0] if isinstance(value, str) else sets
    if origin is not None:
        return {key: read_as(parts[1], part, about) for key, part in value.items()}
    if kind is Any or isinstance(value, kind):
        return value
    if hasattr(kind, "from_json") and not issubclass(kind, Result):
        return kind.from_json(value)
    return _made(kind, value, about) if is_dataclass(kind) else kind(**value)


def _made(kind: Any, value: Mapping[str, Any], about: Any) -> Any:
    """A dataclass of the fields in `value`, and of defaults."""
    hints, made = get_type_hints(kind), object.__new__(kind)
    for one in fields(kind):
        if one.name in value or (one.name == "about" and about is not None):
            vars(made)[one.name] = read_as(hints[one.name], value.get(one.name, about), about)
        elif one.default_factory is not MISSING:
            vars(made)[one.name] = one.default_factory()
        elif one.default is MISSING and one.name not in getattr(kind, "in_memory", "").split():
            raise KeyError(one.name)
    return made


@dataclass(frozen=True)
class Row:
    """One classifier in a table: its accuracies, the FLOPs of one inference, and what kind of classifier it is."""

    name: str
    accuracy: Accuracy
    flops: float
    kind: str


def table_of(rows: Sequence[Row], confidence: float, more: Mapping[str, Estimate] | None = None) -> Table:
    """Classifiers: natural and robust accuracy, the interval of the latter, FLOPs; then `more` robust accuracies."""
    found = Table(("", "natural", "robust", f"{confidence:.0%} interval", "FLOPs"), [])
    entries = [(row.name, row.accuracy.robust, row) for row in rows]
    for name, robust, row in [*entries, *((name, robust, None) for name, robust in (more or {}).items())]:
        natural, flops = ("", "") if row is None else (percent(row.accuracy.natural), count(row.flops))
        found.lines.append((name, natural, percent(robust), between(robust), flops))
        own = {} if row is None else {"natural": float(row.accuracy.natural), "flops": row.flops}
        limits = {"robust": float(robust), "robust_low": robust.low, "robust_high": robust.high}
        found.records.append({"classifier": name, **limits, **own})
    return found


def bars(rows: Sequence[tuple[str, Estimate]], x: str) -> Any:
    """A matplotlib figure with one horizontal bar and its interval per row."""
    figure, axes = new_axes(x, "", height=1.2 + 0.4 * len(rows))
    names, values = [label(name) for name, _ in rows], [value for _, value in rows]
    errors = [[v - v.low for v in values], [v.high - v for v in values]]
    axes.barh(names, [float(v) for v in values], xerr=errors, color="tab:blue", alpha=0.7, capsize=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    return figure


def new_axes(x: str, y: str, height: float = 4.0) -> tuple[Any, Any]:
    """A matplotlib figure with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def labeled(figure: Any) -> Any:
    """The matplotlib figure with labels that any format can hold: names in them may come from a file."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text("\n".join(map(label, text.get_text().split("\n"))))
    return figure


def label(name: str) -> str:
    """A name in a figure: printable, of bounded length."""
    return printable(name[:_LONGEST_LABEL])


def attack_name(options: Mapping[str, Any]) -> str:
    """An attack's name, with its preset."""
    name, preset = str(options["name"]), options.get("preset")
    return f"{name} {preset}" if preset and preset != name else name


def radius_text(threat: Mapping[str, Any]) -> str:
    """ε and norm as people write them: 8/255 where it is a whole number of gray levels."""
    if "eps" not in threat:
        return f"{len(threat['transforms'])} perturbations, enumerated"
    eps = float(threat["eps"])
    levels = round(eps * 255)
    whole = levels > 0 and abs(eps * 255 - levels) < 1e-9
    return f"{f'{levels}/255' if whole else f'{eps:.4g}'} in {threat['norm']}"


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
