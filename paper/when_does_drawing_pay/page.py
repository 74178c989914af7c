"""The page, from the saved results alone: no number in it is typed by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.when_does_drawing_pay.final import compared, finals
from paper.when_does_drawing_pay.moved import COPIES
from paper.when_does_drawing_pay.plan import (
    AVERAGES,
    BASE,
    BOOSTED,
    CELLS,
    CIFAR,
    COUNTS,
    FINAL,
    FINAL_SEEDS,
    FINALS,
    FURTHER,
    IDEAS,
    LENGTHS,
    MANY,
    MEMBERS,
    MOST,
    MOST_LENGTHS,
    MOVED,
    MOVED_LENGTHS,
    MOVED_LONG,
    NARROW,
    NARROW_BOUNDED,
    NARROW_LENGTHS,
    NORMS,
    RADII,
    SEEDS,
    SMALL_FINALS,
    STRIDED,
    TRIED,
    WIDTHS,
    ZOO,
    Cell,
    Member,
    Shipped,
    singles,
)
from paper.when_does_drawing_pay.work import result_of

__all__ = [
    "WORDS",
    "Group",
    "axes_of_the_map",
    "doublings",
    "group",
    "methods",
    "standard_error",
    "versus_best",
    "write_page",
]

TARGET = 0.03
SMALL_TARGET = 0.02  # on CIFAR-10
PLATEAU = 0.005
WORDS = {
    "iat": "AT, as it is (IAT)",
    "continued": "AT, trained on",
    "shared-0.25": "¼ of the examples common",
    "shared-0.5": "½ of the examples common",
    "bounded-0.5": "½ common, bounded risk",
    "bounded-0.75": "¾ common, bounded risk",
    "bounded-0.5-scratch": "½ common, bounded risk, from random weights",
    "shared-1": "all examples common (joint training)",
    "columns": "column generation",
    "conflict": "value of the linearised game",
    "features": "features of other members",
    "distil": "distilled from the mean logits",
    "paths": "orthogonal paths, one trunk",
    "mixed": "AT, members of 16, 16, 32 and 52 units",
    "mrboost": "MRBoost, uniform α",
    "barre": "BARRE, uniform α",
}

Result = dict[str, Any]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """The results of one cell over its seeds, as far as they are there."""

    label: str
    results: tuple[Result, ...]

    def __bool__(self) -> bool:
        return bool(self.results)

    def mean(self, value: Callable[[Result], float]) -> float:
        """Over the seeds."""
        return float(np.mean([value(one) for one in self.results]))

    @property
    def members(self) -> float:
        """Members' mean robust accuracy by all pooled witnesses."""
        return self.mean(lambda one: float(np.mean(one["pooled"]["members"])))

    @property
    def best(self) -> float:
        """The best member's, chosen on the same images: a little flattered."""
        return self.mean(lambda one: max(one["pooled"]["members"]))

    @property
    def drawn(self) -> float:
        """Drawn evenly, by all pooled witnesses."""
        return self.mean(lambda one: float(one["pooled"]["drawn"]))

    @property
    def deterministic(self) -> float:
        """All logits averaged, by all pooled witnesses."""
        return self.mean(lambda one: float(one["pooled"]["deterministic"]))

    @property
    def reach(self) -> float:
        """Joint reach of all members."""
        return self.mean(lambda one: float(one["reach"]["all"]))

    @property
    def passes(self) -> float:
        """Member passes of training, millions."""
        return self.mean(lambda one: float(one["passes"])) / 1e6


def group(cells: Iterable[Cell | Shipped]) -> Group:
    """The cells that have results; they differ only in their seeds."""
    chosen = list(cells)
    found = [json.loads(result_of(c).read_text(encoding="utf-8")) for c in chosen if result_of(c).is_file()]
    return Group(chosen[0].label if chosen else "", tuple(found))


def _like(
    method: str = "iat", weight: float | None = None, attacked: bool = False, k: int = 1, **changes: Any
) -> Group:
    member = Member(**{k: v for k, v in changes.items() if k != "members"})
    members = changes.get("members", MEMBERS)
    return group(
        cell
        for cell in CELLS
        if (cell.method, cell.weight, cell.member, cell.members) == (method, weight, member, members)
        and bool(cell.attacks) == attacked
        and cell.k == k
    )


def methods(members: int = MEMBERS) -> list[Group]:
    """Every method at the base setting that has results, with so many members."""
    kinds = dict.fromkeys([("iat", None), ("continued", None), *IDEAS, *((name, None) for name in BOOSTED)])
    found = [_like(name, weight, members=members) for name, weight in kinds]
    return [one for one in found if one]


def axes_of_the_map() -> list[tuple[str, list[tuple[str, Group]]]]:
    """The axes with those of their values that have results."""
    axes = [
        ("epochs", [(str(e), _like(epochs=e)) for e in LENGTHS]),
        (
            f"epochs, width {NARROW}",
            [(str(e), _like(epochs=e, width=NARROW)) for e in NARROW_LENGTHS],
        ),
        ("epochs, moved copies", [(str(e), _like(data=MOVED, epochs=e)) for e in MOVED_LENGTHS]),
        (
            f"epochs, moved copies, M = {MANY}",
            [(str(e), _like(data=MOVED, epochs=e, members=MANY)) for e in MOVED_LONG],
        ),
        (
            f"epochs, {MOST} members by bounded",
            [(str(e), _like("bounded", 0.5, epochs=e, members=MOST)) for e in MOST_LENGTHS],
        ),
        ("width", [(str(w), _like(width=w)) for w in WIDTHS]),
        ("ε", [(f"{e:g}", _like(eps=e)) for e in RADII]),
        ("M", [(str(m), _like(members=m)) for m in COUNTS]),
        ("norm", [(f"{norm}, ε = {eps:g}", _like(norm=norm, eps=eps)) for norm, eps in NORMS]),
    ]
    return [(name, [(tick, one) for tick, one in pairs if one]) for name, pairs in axes]


def versus_best(one: Group, single: Group) -> tuple[float, float, float, int] | None:
    """Drawn minus the best single network of the same seed: mean, 95 % interval over images, seeds at the target.

    Both are judged by their own pooled witnesses. The best single network is the best of the members trained on by
    AT, chosen on these images. The interval is a bootstrap over images of the mean over seeds.
    """
    rows = []
    best = {r["seed"]: r for r in single.results}
    for result in one.results:
        if result["seed"] not in best:
            continue
        members = np.array([[bit == "0" for bit in row] for row in best[result["seed"]]["fooled_at_all"]])
        alone = members[members.mean(axis=1).argmax()]
        together = 1 - np.array(result["fooled_at_once"]) / result["members"]
        rows.append(together - alone)
    if not rows:
        return None
    table = np.array(rows)
    low, high = _bootstrap(table.mean(axis=0))
    return float(table.mean()), low, high, int((table.mean(axis=1) >= TARGET).sum())


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [
        f"| {' | '.join(head)} |",
        "|" + "|".join("---" if i == 0 else "---:" for i in range(len(head))) + "|",
    ]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _row(name: str, one: Group) -> list[str]:
    numbers = [one.members, one.best, one.drawn, one.deterministic]
    gain = _points(one.drawn - one.members)
    return [name, *(_percent(n) for n in numbers), gain, f"{one.reach:.2f}", str(len(one.results))]


_HEAD = ("members, mean", "best member", "drawn evenly", "deterministic", "drawn − mean", "reach", "seeds")


def _axis(title: str, said: str, first: str, groups: Iterable[tuple[str, Group]]) -> list[str]:
    rows = [_row(name, one) for name, one in groups]
    if len(rows) < 2:
        return []
    return [f"### {title}", "", said, "", *_table((first, *_HEAD), rows)]


def _methods(found: Sequence[Group], single: Group) -> list[str]:
    rows = []
    for one in found:
        against = versus_best(one, single) if single else None
        shown = "–"
        if against is not None:
            mean, low, high, _ = against
            shown = f"{_points(mean)} ({_points(low)} to {_points(high)})"
        name = WORDS.get(one.label, one.label)
        rows.append([f"{name} (`{one.label}`)", *_row("", one)[1:], shown, f"{one.passes:.1f} M"])
    head = ("method", *_HEAD, "drawn − best single network", "passes")
    return _table(head, rows)


@dataclass(frozen=True)
class Final:
    """The comparison on test data, seed by seed: what is drawn and the single network, per image."""

    results: tuple[Result, ...]

    @property
    def drawn(self) -> Numbers:
        """Robust accuracy of every seed."""
        return np.array([one["pooled"]["drawn"] for one in self.results])

    @property
    def single(self) -> Numbers:
        """The best single network's, chosen on validation data."""
        return np.array([one["single_robust"] for one in self.results])

    @property
    def seeds(self) -> int:
        """In how many seeds the difference reaches the target."""
        return int((self.drawn - self.single >= TARGET).sum())

    def interval(self) -> tuple[float, float]:
        """95 % of the mean difference over seeds, by a bootstrap over images."""
        rows = [
            1
            - np.array(one["fooled_at_once"]) / one["members"]
            - np.array([bit == "0" for bit in one["single_fooled"]])
            for one in self.results
        ]
        return _bootstrap(np.array(rows).mean(axis=0))


def final(cell: Cell = FINAL) -> Final:
    """Of the seeds that have a result."""
    return _final_of(finals(cell))


def _final_of(cells: Iterable[Cell]) -> Final:
    found = map(compared, cells)
    return Final(tuple(one for one in found if one is not None))


def _bootstrap(per_image: Numbers) -> tuple[float, float]:
    draws = np.random.default_rng(0).integers(len(per_image), size=(2000, len(per_image)))
    low, high = np.quantile(per_image[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _by_count() -> list[str]:
    """The methods' tables, one for each number of members that has results."""
    lines = []
    for members in (MANY, MEMBERS):
        found = methods(members)
        if found:
            single = _like("continued", members=members) or _like(members=members)
            lines += [f"{members} members:", "", *_methods(found, single)]
    return lines or ["Not computed yet."]


def _shown() -> Cell:
    """The ensemble that the verdict is about: the first that has every seed."""
    complete = [cell for cell in FINALS if len(final(cell).results) == len(FINAL_SEEDS)]
    return (complete or [FINAL])[0]


def _verdict() -> str:
    shown = _shown()
    found = final(shown)
    if not found.results:
        return "The comparison with the best single network on test data is not computed yet."
    one, count = found.results[0], len(found.results)
    low, high = found.interval()
    mean = float((found.drawn - found.single).mean())
    name = WORDS.get(one["method"], one["method"])
    said = (
        f"On digits, test data, under the portfolio, {count} seeds: {one['members']} members by `{one['method']}` "
        f"({name}), drawn evenly, reach {_percent(float(found.drawn.mean()))} %; the best single network of the same "
        f"FLOPs reaches {_percent(float(found.single.mean()))} %. The difference is {_points(mean)} points (95 % "
        f"interval over images {_points(low)} to {_points(high)}), with {found.seeds} of {count} seeds at "
        f"{100 * TARGET:.0f} points or more. "
    )
    if count < len(FINAL_SEEDS):
        return f"{said}Only {count} of {len(FINAL_SEEDS)} seeds are computed so far."
    goal = f"{100 * TARGET:.0f} points in {len(FINAL_SEEDS) - 1} of {len(FINAL_SEEDS)} seeds"
    met = found.seeds >= len(FINAL_SEEDS) - 1
    said += f"The target, {goal}, is {'met' if met else 'missed'}."
    data, total = shown.member.data, shown.total
    alone = max(one.epochs + one.more for one in singles(shown))
    if steps := _doublings_of(data):
        last = steps[-1]
        low, high = last.interval
        said += (
            f" The longest single networks of this comparison were trained for {alone} epochs, "
            f"the members for {total} in all. "
            f"Doubling the epochs of AT from {last.short} to {last.long} changes {last.networks} single networks by "
            f"{_points(last.change)} points on validation data (95 % interval over networks and images {_points(low)} "
            f"to {_points(high)}): {'their plateau' if abs(last.change) < PLATEAU else 'not their plateau'}."
        )
    partly, without = final(), next(cell for cell in FINALS if cell.member.data != MOVED)
    plain = final(without)
    if shown.member.data == MOVED and plain.results:
        said += (
            f" Without moved copies of the training images the best single networks reach "
            f"{_percent(float(plain.single.mean()))} %, and {without.members} members drawn evenly "
            f"{_percent(float(plain.drawn.mean()))} %."
        )
    if shown != FINAL and partly.results:
        low, high = partly.interval()
        said += (
            f" {FINAL.members} members of {FINAL.total} epochs on moved copies of the images, {len(partly.results)} of "
            f"{len(FINAL_SEEDS)} seeds so far: drawn evenly {_percent(float(partly.drawn.mean()))} %, "
            f"{_points(float((partly.drawn - partly.single).mean()))} points ({_points(low)} to {_points(high)}) "
            "against the best single network."
        )
    return said


def _copied() -> str:
    """On validation data: the ensembles that were tried with copies, and AT of their lengths."""
    tried = (*TRIED, FINAL)
    lengths = sorted({cell.member.epochs for cell in tried})
    counts = {e: MANY if e in MOVED_LONG else MEMBERS for e in lengths}
    shown = [
        (f"AT, {m} members, {e} epochs", _like(data=MOVED, epochs=e, members=m)) for e, m in counts.items()
    ]
    for cell in tried:
        start = "from random weights" if cell.scratch else f"from AT of {cell.member.epochs} epochs"
        name = f"{cell.members} members by `{cell.method}`, {start}, {cell.total} epochs in all"
        shown.append((name, group(replace(cell, seed=seed) for seed in SEEDS)))
    rows = [_row(name, one) for name, one in shown if one]
    if not rows:
        return "Not computed yet."
    return "\n".join([*_table(("moved copies, validation", *_HEAD), rows), *_from_at()])


def _from_at() -> list[str]:
    """The ensembles that go on from AT against the best network by AT that they started from."""
    cells = {
        cell.member.epochs: cell for cell in (FINAL, *TRIED) if cell.members == MANY and not cell.scratch
    }
    said = []
    for epochs, cell in sorted(cells.items()):
        one = group(replace(cell, seed=seed) for seed in SEEDS)
        found = versus_best(one, _like(data=MOVED, epochs=epochs, members=MANY))
        if found is not None:
            mean, low, high, _ = found
            said.append(f"{_points(mean)} points from {epochs} epochs ({_points(low)} to {_points(high)})")
    if not said:
        return []
    return [
        f"Drawn evenly, {MANY} members by `{FINAL.method}` differ from the best of the {MANY} networks by AT that they "
        f"start from by {', '.join(said)}; the networks are chosen on these images, and the intervals are over images.",
        "",
    ]


def _final(cell: Cell = FINAL) -> str:
    found = final(cell)
    if not found.results:
        return "Not computed yet: `python -m paper.when_does_drawing_pay final`."
    rows = [
        [
            str(one["seed"]),
            f"`{one['single']}`",
            _percent(one["single_robust"]),
            _percent(float(np.mean(one["pooled"]["members"]))),
            _percent(one["pooled"]["drawn"]),
            _points(one["pooled"]["drawn"] - one["single_robust"]),
            _percent(one["pooled"]["deterministic"]),
            f"{one['reach']['all']:.2f}",
        ]
        for one in found.results
    ]
    head = (
        "seed",
        "best single network",
        "its test",
        *_HEAD[:1],
        "drawn evenly",
        "difference",
        "deterministic",
        "reach",
    )
    mean = float((found.drawn - found.single).mean())
    low, high = found.interval()
    said = (
        f"Mean difference {_points(mean)} points (95 % interval over images {_points(low)} to {_points(high)}); "
        f"{found.seeds} of {len(found.results)} seeds at {100 * TARGET:.0f} points or more."
    )
    return "\n".join([*_table(head, rows), said])


def _earlier(cell: Cell) -> str:
    """A comparison with other ensembles, by the same rule for the single networks."""
    said = (
        f"{cell.members} members of {cell.member.epochs} epochs, trained together up to epoch {cell.total}:"
    )
    return f"{said}\n\n{_final(cell)}"


@dataclass(frozen=True)
class Change:
    """What more epochs change of the same networks, paired by seed and image: mean and standard error."""

    short: int
    long: int
    networks: int
    change: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, over networks and images."""
        return self.change - 1.96 * self.error, self.change + 1.96 * self.error


def standard_error(table: Numbers) -> float:
    """Of the mean of [networks, images], both drawn at random.

    The variances of the rows' means and of the columns' means, each over their number, both count what belongs to
    neither; it is taken off once.
    """
    rows, columns = table.shape
    if min(rows, columns) < 2:
        return float("nan")
    by_row, by_column = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_row[:, None] - by_column + table.mean()
    own = (rest**2).sum() / ((rows - 1) * (columns - 1)) / table.size
    both = by_row.var(ddof=1) / rows + by_column.var(ddof=1) / columns
    # Never less than one of them alone, which the difference could be by chance.
    return float(np.sqrt(max(both - own, by_row.var(ddof=1) / rows)))


def over(short: int, long: int, **changes: Any) -> Change | None:
    """Of AT, between two lengths that have results of the same seeds; None where none has."""
    before, after = ({r["seed"]: r for r in _like(epochs=e, **changes).results} for e in (short, long))
    seeds = sorted(before.keys() & after.keys())
    if not seeds:
        return None
    table = np.concatenate([_right(after[seed]) - _right(before[seed]) for seed in seeds])
    return Change(short, long, len(table), float(table.mean()), standard_error(table))


def doublings(lengths: Sequence[int], **changes: Any) -> list[Change]:
    """Of AT, as far as there are results."""
    found = [over(short, long, **changes) for short, long in pairwise(lengths) if long == 2 * short]
    return [one for one in found if one is not None]


def _right(result: Result) -> Numbers:
    """[members, images]: 1 where no witness fools the member."""
    return np.array([[bit == "0" for bit in row] for row in result["fooled_at_all"]], dtype=np.float64)


def _doublings_of(data: str) -> list[Change]:
    """By which the plateau of these data is judged: of as many networks as there are."""
    if data != MOVED:
        return doublings(LENGTHS)
    return doublings(MOVED_LONG, data=MOVED, members=MANY) or doublings(MOVED_LENGTHS, data=MOVED)


def plateau(lengths: Sequence[int] = LENGTHS, **changes: Any) -> int | None:
    """From which length on every doubling changes the members by less than half a point; None where none does."""
    start = None
    for one in reversed(doublings(lengths, **changes)):
        if abs(one.change) >= PLATEAU or start not in (None, one.long):
            break
        start = one.short
    return start


def _flat() -> str:
    """Where the plateau with moved copies is, with what the networks and images leave open."""
    steps = doublings(MOVED_LONG, data=MOVED, members=MANY)
    if not steps:
        return "Not computed yet."
    rows = [
        [
            f"{one.short} → {one.long}",
            _points(one.change),
            f"{100 * one.error:.1f}",
            f"{_points(one.interval[0])} to {_points(one.interval[1])}",
            str(one.networks),
        ]
        for one in steps
    ]
    head = ("epochs", "change of AT, points", "standard error", "95 % interval", "networks")
    half = f"{100 * PLATEAU:g} points"
    small = [one for one in steps if abs(one.change) < PLATEAU]
    if not small:
        said = f"Every doubling changes AT by {half} or more: no plateau up to {steps[-1].long} epochs."
    else:
        one = small[0]
        low, high = one.interval
        sure = max(abs(low), abs(high)) < PLATEAU
        later = [other for other in steps if other.short > one.short and abs(other.change) >= PLATEAU]
        said = (
            f"The shortest training whose doubling changes AT by less than {half} has {one.short} epochs "
            f"({_points(one.change)} points, 95 % interval {_points(low)} to {_points(high)}"
            f"{'' if sure else ', which holds larger changes as well'}). "
        )
        listed = ", ".join(
            f"from {other.short} to {other.long} epochs {_points(other.change)}" for other in later
        )
        if later:
            said += f"It is no plateau, as later doublings change more: {listed} points."
        elif one is steps[-1]:
            said += "It is the last doubling: the plateau begins there at the earliest."
        else:
            said += (
                f"No later doubling up to {steps[-1].long} epochs changes it by {half} or more: the plateau."
            )
    if (whole := over(steps[0].short, steps[-1].long, data=MOVED, members=MANY)) is not None and steps[1:]:
        low, high = whole.interval
        said += (
            f" From {whole.short} to {whole.long} epochs AT changes by {_points(whole.change)} points in all "
            f"({_points(low)} to {_points(high)})."
        )
    return "\n".join([said, "", *_table(head, rows)])


def _plateau(lengths: Sequence[int] = LENGTHS, **changes: Any) -> str:
    there = [one for epochs in lengths if (one := _like(epochs=epochs, **changes))]
    steps = [_points(after.members - before.members) for before, after in pairwise(there)][-3:]
    listed = f" The last lengths differ by {', '.join(steps)} points." if len(steps) > 1 else ""
    start = plateau(lengths, **changes)
    if start is None:
        said = "The last doubling of the epochs still changes the members by half a point or more: no plateau yet."
    else:
        said = f"From {start} epochs on, doubling them changes the members by less than half a point: the plateau."
    return said + listed


def _narrow() -> str:
    """What `bounded` makes of the smaller networks at the longest training."""
    one = group(replace(NARROW_BOUNDED, seed=seed) for seed in SEEDS)
    if not one:
        return ""
    said = "" if one.drawn > one.best else "not "
    return (
        f"{MANY} members by `{one.label}`, from those of {NARROW_LENGTHS[-1]} epochs, {len(one.results)} seeds: "
        f"members {_percent(one.members)} % in the mean and {_percent(one.best)} % at best, drawn evenly "
        f"{_percent(one.drawn)} %, deterministic {_percent(one.deterministic)} %. Drawing is {said}better than the "
        "best member here: the smaller the networks and the longer their training, the more unequal they are, and an "
        "even draw has to use the weak ones as well."
    )


def _subsets() -> str:
    """Drawing one, averaging a random two, averaging all: what there is of it."""
    rows = []
    for name, weight in (("iat", None), ("bounded", 0.5)):
        one, two = _like(name, weight), _like(name, weight, k=2)
        if not (one and two):
            continue
        # The same seeds in every column.
        seeds = {result["seed"] for result in two.results}
        one = Group(one.label, tuple(result for result in one.results if result["seed"] in seeds))
        numbers = (one.drawn, two.drawn, one.deterministic)
        rows.append([WORDS[one.label], *(_percent(n) for n in numbers), str(len(two.results))])
    if not rows:
        return "Not computed yet."
    return "\n".join(_table(("method", "1 of 4", "2 of 4", "4 of 4", "seeds"), rows))


def _attacks() -> list[str]:
    one = _like(attacked=True)
    if not one:
        return []
    rows = []
    for name in one.results[0]["attacks"]:
        found = [result["attacks"][name] for result in one.results]
        members = float(np.mean([r["members"] for r in found]))
        drawn = float(np.mean([r["drawn"] for r in found]))
        dec = float(np.mean([r["deterministic"] for r in found]))
        rows.append(
            [f"`{name}`", _percent(members), _percent(drawn), _percent(dec), _points(drawn - members)]
        )
    pooled = ["all witnesses pooled", _percent(one.members), _percent(one.drawn), _percent(one.deterministic)]
    rows.append([*pooled, _points(one.drawn - one.members)])
    said = "Members, ensemble and averaged logits by the same attack each; the last row by what all of them found."
    head = ("attack", "members, mean", "drawn evenly", "deterministic", "drawn − mean")
    return ["### The attack", "", said, "", *_table(head, rows)]


def write_page(target: Path, figures: Mapping[str, str]) -> None:
    """Fill in `page.md` and write it; `figures` are paths relative to the page by what they show."""
    said = (
        ("Training length", _plateau()),
        (
            f"Training length, {NARROW} units",
            f"{_plateau(NARROW_LENGTHS, width=NARROW)} {_narrow()}",
        ),
        (
            "Training length, moved copies",
            f"An epoch is over {COPIES} moved copies of every image: {COPIES} times as many steps as above. "
            f"{_plateau(MOVED_LENGTHS, data=MOVED)}",
        ),
        (
            f"Training length, moved copies, {MANY} members of each seed",
            f"More networks, for the plateau. {_flat()}",
        ),
        (
            f"Training length, {MOST} members by `bounded`",
            "Epochs of AT before `bounded`, which adds half as many.",
        ),
        ("Width", "Units of each hidden layer."),
        ("Radius", "Members are trained and attacked at ε."),
        (
            "Members",
            "The first M of the same members. Each also meets what was found on the others: more for larger M.",
        ),
        ("Norm", "Members are trained and attacked in the norm."),
    )
    axes = [
        line
        for (name, pairs), words in zip(axes_of_the_map(), said, strict=True)
        for line in _axis(*words, name, pairs)
    ]
    images = max((one.results[0]["inputs"] for one in methods()), default=180)
    page = Template((Path(__file__).parent / "page.md").read_text(encoding="utf-8")).substitute(
        verdict=_verdict(),
        final=_final(),
        earlier="\n\n".join(map(_earlier, FINALS[1:])),
        many=FINAL.members,
        members=MEMBERS,
        base=BASE,
        further=FURTHER,
        copies=COPIES,
        epochs=FINAL.member.epochs,
        total=FINAL.total,
        copied=_copied(),
        small_width=SMALL_FINALS[0].member.width,
        small_epochs=SMALL_FINALS[0].member.epochs,
        small_further=SMALL_FINALS[0].member.further,
        candidates=len(singles(FINAL)),
        images=images,
        image=f"{100 / images:.1f}",
        done=sum(result_of(cell).is_file() for cell in CELLS),
        cells=len(CELLS),
        methods="\n".join(_by_count()),
        axes="\n".join(axes) or "No axis has two values yet.",
        attacks="\n".join(_attacks()),
        cifar=_cifar(),
        zoo=_zoo(),
        zoo_images=ZOO[0].images,
        subsets=_subsets(),
        figure_methods=_figure(
            figures, "methods", "Robust accuracy of members, drawn and deterministic ensembles"
        ),
        figure_map=_figure(
            figures, "map", "What drawing and averaging add to the members' mean, along the axes of the map"
        ),
    )
    while "\n\n\n" in page:
        page = page.replace("\n\n\n", "\n\n")
    target.write_text(page.rstrip() + "\n", encoding="utf-8")


def _figure(figures: Mapping[str, str], name: str, words: str) -> str:
    return f"![{words}]({figures[name]})" if name in figures else ""


def _zoo() -> str:
    """What drawing, averaging two and averaging all make of members of the zoo."""
    rows = []
    for cell in ZOO:
        one = group([cell]) if cell.k == 1 else Group("", ())
        if not one:
            continue
        twice = group([c for c in ZOO if c.label == cell.label and c.k == 2] or [cell])
        two = _percent(twice.drawn) if twice and twice.results[0]["k"] == 2 else "–"
        numbers = (one.members, one.best, one.drawn)
        rows.append(
            [
                ", ".join(f"`{name}`" for name in cell.entries),
                *(_percent(n) for n in numbers),
                two,
                _percent(one.deterministic),
                _points(one.drawn - one.best),
                f"{one.reach:.2f}",
            ]
        )
    if not rows:
        return "Not computed yet: `python -m paper.when_does_drawing_pay zoo`."
    head = ("entries", *_HEAD[:3], "2 of M", "deterministic", "drawn − best", "reach")
    return "\n".join(_table(head, rows))


def _cifar() -> str:
    """The tables of CIFAR-10, or that there are none yet."""
    alike_but_seed: dict[Cell, list[Cell]] = defaultdict(list)
    for cell in CIFAR:
        if cell.member.data == AVERAGES:
            alike_but_seed[replace(cell, seed=0)].append(cell)
    small = [(cell, group(seeds)) for cell, seeds in alike_but_seed.items()]
    rows = [_row(_small_name(cell), one) for cell, one in small if one]
    said = ["Not computed yet: `python -m paper.when_does_drawing_pay cifar10`."]
    if rows:
        said = _table(("method", *_HEAD), rows)
    alike = [(cell, one) for cell, one in small if cell.method == "iat" and cell.members == MEMBERS]
    lengths = [(cell.member.epochs, one) for cell, one in alike if one]
    if len(lengths) > 1:
        (short, before), (long, after) = lengths[-2:]
        change = after.members - before.members
        said.append(
            f"Training by AT for {long} instead of {short} epochs changes the members by {_points(change)} points: "
            f"{'the plateau' if abs(change) < PLATEAU else 'no plateau yet'}."
        )
    return "\n".join([*said, "", _small()])


def _small_name(cell: Cell) -> str:
    """A row of the table: epochs in all, members and radius."""
    said = f"{WORDS[cell.label]}, {cell.total} epochs, M = {cell.members}, ε = {cell.member.eps:g}"
    return said + (f", {cell.k} of {cell.members} averaged" if cell.k > 1 else "")


def _network(one: Result) -> str:
    kind = "the network on averages" if AVERAGES in one["cell"] else "the strided network"
    return f"{kind} ({one['flops'] / 1e6:.1f} MFLOPs)"


def _small() -> str:
    """CIFAR-10 on test data: a sentence for every ensemble that has results, over its seeds."""
    kept = [final for final in map(_final_of, (SMALL_FINALS, (STRIDED,))) if final.results]
    if not kept:
        return "The comparison on test data is not computed yet."
    said = []
    for found in kept:
        one, seeds = found.results[0], len(found.results)
        low, high = found.interval()
        differences = found.drawn - found.single
        gained = float(differences.mean())
        met = gained >= SMALL_TARGET and low > 0
        averaged, reach = (
            np.mean([result[part][name] for result in found.results])
            for part, name in (("pooled", "deterministic"), ("reach", "all"))
        )
        by_seed = f"; by seed {', '.join(_points(d) for d in differences)}" if seeds > 1 else ""
        chosen = ", ".join(f"`{result['single']}`" for result in found.results)
        said.append(
            f"- {one['members']} members by `{one['method']}`, {_network(one)}, the first "
            f"{one['inputs']:,} test images, under the portfolio, {seeds} {'seeds' if seeds > 1 else 'seed'}: drawn "
            f"evenly {_percent(found.drawn.mean())} %, the best single network of the same FLOPs ({chosen}, chosen on "
            f"validation images of {len(one['singles'])}) {_percent(found.single.mean())} %, difference "
            f"{_points(gained)} points (95 % interval {_points(low)} to {_points(high)}{by_seed}); the logits averaged "
            f"{_percent(averaged)} % at {one['members']} times the compute; reach {reach:.2f}. The target of "
            f"{100 * SMALL_TARGET:.0f} points with the interval above 0 is {'met' if met else 'missed'}."
        )
    return "\n".join(said)
