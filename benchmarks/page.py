"""docs/benchmarks.md and its plots, from results that were measured: ``make bench-docs`` or

python -m benchmarks.page [RESULTS.json]
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks import table
from benchmarks.runner import BENCHMARKS, ROOT
from randens.core.errors import RandensError
from randens.core.files import read_json, write_atomic

__all__ = ["PAGE", "RESULTS", "main", "page", "plots"]

RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = ROOT / "docs" / "benchmarks"

Rows = Sequence[Mapping[str, Any]]

_FRAME = """# Benchmarks

<!-- Made by `make bench-docs` from benchmarks/results.json: change benchmarks/page.py, not this file. -->

This page answers: how fast and how strong is randens, against other libraries and against the bare cost of the passes?

`make bench` measures randens against peers and against limits, in an environment of its own, in about half an hour, and
writes `benchmarks/results.json`; `make bench-docs` makes this page from it. `make bench ARGS=--quick` takes under 3
minutes; `python -m benchmarks NAME` measures one of them, `python -m benchmarks.NAME` does so without collecting.

**How to read it.** *× as fast* is the other side's time over ours, *× the cost* is ours over the limit's. Both sides
are timed in turns within one run, on the same inputs; a ratio is that of the best times; that of the medians is beside
it. Pairs are ours / theirs. Passes are per input: f forward, b backward. A median more than 15 % above the best
time is marked NOISY: such a row says little. Times are of this machine; ratios and, more so, passes carry over to
others.
"""

_TEXTS = {
    "witness_store": "Three ResNet-20s of the zoo on CIFAR-10 validation images, saddle. Passes that the second of "
    "two equal questions makes, passes of a chain of commands, the seconds that a store adds, "
    "bytes per image. Certificates are of two small networks on digits.",
    "attacks": "ResNet-20, CIFAR-10, linf ε = 8/255. The textbook ARC-R is its algorithm box written down in "
    "`benchmarks/attacks.py`: channels first, float32, every member evaluated anew after every step, nothing "
    "dropped. *Its passes, bare* is what the forward and backward passes that an attack has counted cost by "
    "themselves, at the full batch: nothing that makes those passes can be faster. Those of ARC-R, saddle and the "
    "suites are compiled passes; PGD's gradients are taken by torch, and so are the passes it is compared with.",
    "peers": "One ResNet-20, and three drawn at random, on CIFAR-10 validation images. The others see the ensemble as "
    "a model that draws a member for every input, and average 20 gradients per step.",
    "fresh": "CIFAR-10 test images from 2000 on, which no setting was chosen on; three ResNet-20s. First the saddle "
    "climber and the textbook ARC-R timed in turns, once per batch of 128. Then every attack's robust accuracy minus "
    "the textbook's, in points: below zero is stronger; there, seconds are of a run that may have been continued.",
    "strength": "Linear members in conflict, whose optimum is known: M = 5, d = 20; *unequal α* are ensembles whose "
    "probabilities come from a Dirichlet distribution and whose members can all be fooled alone. Seconds of one run.",
    "small_networks": "Four fully connected networks with two hidden layers of 128 units, digits. Members of one shape "
    "are run together, by one batched product per layer; on the other side each is run by itself. The attacks' own "
    "work between the passes is the same on both sides.",
    "sampling": "Planted witnesses, M = 2 to 16, n = 100 to 100,000. A sweep is one look at all inputs. The exact "
    "method ends with a certificate, which is verified here; the subgradient method is Algorithm 1 with the "
    "step that is best for Theorem 4.",
    "cutting_planes": "The same question with real attacks: three small networks on digits, every sweep attacks all "
    "inputs with the saddle climber. All answers are scored on the pool of all perturbations found.",
    "training": "ResNet-20; three crafting gradients per step, unless a row says N-FGSM (one) or PGD-2.",
    "augmentation": "Against the cheapest training step there is, a natural one.",
    "inference": "ResNet-20, one thread. *Lean* keeps only drawn members in memory. One session called again and again "
    "finds its weights in the processor's cache; M sessions in turn do not. So a prediction is also compared with *all "
    "members' ONNX sessions, one drawn*: called directly, without any check, in an order drawn beforehand.",
    "serving": "One image per request over loopback, as fast as answers come back.",
    "startup": "Whole processes from the shell, files read before; four networks, ARC-R on 100 digits.",
    "growth": "ARC-R on small untrained networks with nothing dropped, so that the work does not depend on what is "
    "found; memory of child processes, beyond what loading takes.",
}


def page(document: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    parts = [_FRAME, _machine(document), _verdicts(document)]
    drawn = {name: file for name, file, _ in _DRAWN}
    for benchmark in BENCHMARKS:
        entry = document["benchmarks"].get(benchmark.name)
        if entry is None:
            continue
        parts.append(f"## {benchmark.name.replace('_', ' ').capitalize()}\n\n{_TEXTS[benchmark.name]}")
        remarks = [f"**{entry['status'].capitalize()}:** {entry['error']}."] if entry["error"] else []
        remarks += [f"**Warning:** {warning}." for warning in entry["warnings"]]
        parts += ["\n".join(remarks)] if remarks else []
        if benchmark.name in drawn and _drawable(benchmark.name, entry["rows"]):
            parts.append(f"![{benchmark.title}](benchmarks/{drawn[benchmark.name]})")
        parts.append(table.markdown(entry["rows"]) if entry["rows"] else "Nothing was measured.")
    missing = [benchmark.name for benchmark in BENCHMARKS if benchmark.name not in document["benchmarks"]]
    if missing:
        parts.append(f"Not measured in this run: {', '.join(f'`{name}`' for name in missing)}.")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def plots(document: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """File names and contents of the plots for which there are rows."""
    for name, file, draw in _DRAWN:
        rows = document["benchmarks"].get(name, {}).get("rows", [])
        if not _drawable(name, rows):
            continue
        # Without a date and with fixed identifiers the same results give the same file.
        with matplotlib.rc_context({"svg.hashsalt": "randens", "font.size": 9, "svg.fonttype": "path"}):
            figure = draw(rows)
            content = io.BytesIO()
            figure.savefig(content, format="svg", metadata={"Date": None}, bbox_inches="tight")
        yield file, content.getvalue()


def _machine(document: Mapping[str, Any]) -> str:
    facts = document["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version)
    entries = list(document["benchmarks"].values())
    commits = sorted({entry["commit"] for entry in entries})
    threads = sorted({entry["threads"] for entry in entries})
    minutes = sum(entry["seconds"] for entry in entries) / 60
    lines = [
        "## Machine",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}; "
        f"Python {facts['python']}, {packages}. "
        f"Up to {' or '.join(map(str, threads))} threads. Commit {', '.join(commits) or 'unknown'}, "
        f"{min((e['started'] for e in entries), default='')}, {minutes:.0f} minutes"
        + (", a **quick** run: small sizes, few repeats." if document["quick"] else "."),
        "",
        "| benchmark | minutes | load before | load after | used by others | outcome |",
        "|---|---|---|---|---|---|",
    ]
    for benchmark in BENCHMARKS:
        if (entry := document["benchmarks"].get(benchmark.name)) is not None:
            others = "unknown" if entry["others"] is None else f"{entry['others']:.0%}"
            lines.append(
                f"| {benchmark.name} | {entry['seconds'] / 60:.1f} | {entry['load_before']} | {entry['load_after']} "
                f"| {others} | {entry['status']} |"
            )
    return "\n".join(lines)


def _verdicts(document: Mapping[str, Any]) -> str:
    """The rows with goals, first: the goal and the measured figure."""
    rows = [
        row
        for benchmark in BENCHMARKS
        for row in document["benchmarks"].get(benchmark.name, {}).get("rows", [])
        if row["goal"] is not None
    ]
    return "## Goals\n\n" + (table.markdown(rows) if rows else "None was measured.")


def _drawable(name: str, rows: Rows) -> bool:
    keys = {
        "attacks": None,
        "sampling": "inputs",
        "inference": "members",
        "growth": "axis",
        "strength": "attack",
    }
    key = keys[name]
    return any(row["figure"] is not None and (key is None or key in row["facts"]) for row in rows)


def _attacks(rows: Rows) -> Figure:
    """How many times as fast, as bars on a logarithmic axis, and the cost over bare passes."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, unit, title in zip(
        figure.subplots(1, 2),
        ("× as fast", "× the cost"),
        ("times as fast as the peer; red: goal", "cost over bare passes; red: goal"),
        strict=True,
    ):
        shown = [row for row in rows if row["unit"] == unit and row["figure"] is not None][::-1]
        peer = unit == "× as fast"
        labels = [f"{r['what']}\nagainst {r['theirs']['name']}" if peer else r["what"] for r in shown]
        bars = axes.barh(labels, [row["figure"] for row in shown], color="#4477aa")
        axes.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
        for place, row in enumerate(shown):
            if row["goal"] is not None:
                axes.plot(
                    [row["goal"]["bound"]] * 2, [place - 0.45, place + 0.45], color="#ee6677", linewidth=2
                )
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.tick_params(axis="y", labelsize=6)
        axes.set_title(title)
        if peer:
            axes.set_xscale("log")
            _plain(axes.xaxis)
        axes.margins(x=0.15)
    return figure


def _strength(rows: Rows) -> Figure:
    """The share of inputs solved, by attack and norm."""
    figure = Figure(figsize=(6.5, 3), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(row["facts"]["attack"] for row in rows))
    for shift, (norm, color) in zip((-0.2, 0.2), (("l2", "#4477aa"), ("linf", "#ee6677")), strict=True):
        shares = {r["facts"]["attack"]: 100 * r["figure"] for r in rows if r["facts"]["norm"] == norm}
        places = [index + shift for index, name in enumerate(names) if name in shares]
        axes.bar(places, [shares[n] for n in names if n in shares], 0.4, label=norm, color=color)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=7)
    axes.set_ylabel("solved exactly, %")
    axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _sampling(rows: Rows) -> Figure:
    """Seconds against inputs, and how far above the optimum Algorithm 1 ends."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = sorted({row["facts"]["members"] for row in rows})
    for index, members in enumerate(sizes):
        series = [row for row in rows if row["facts"]["members"] == members]
        n = [row["facts"]["inputs"] for row in series]
        color = matplotlib.colormaps["viridis"](index / max(1, len(sizes)))
        left.loglog(
            n,
            [row["ours"]["timing"]["best"] for row in series],
            "o-",
            color=color,
            label=f"M = {members:.0f}",
        )
        left.loglog(n, [row["theirs"]["timing"]["best"] for row in series], "x:", color=color)
        right.loglog(n, [row["facts"]["excess_10"] for row in series], "x:", color=color)
        right.loglog(n, [row["facts"]["excess_100"] for row in series], "x-", color=color)
    left.set(
        xlabel="inputs", ylabel="seconds", title="exact (o, line), subgradient with 100 sweeps (x, dotted)"
    )
    right.set(
        xlabel="inputs", ylabel="risk above the optimum", title="subgradient: 10 (dotted), 100 sweeps (line)"
    )
    for axes in (left, right):
        axes.title.set_fontsize(8)
        _plain(axes.yaxis)
    left.legend(frameon=False, fontsize=7)
    return figure


def _inference(rows: Rows) -> Figure:
    """Cost of a prediction against the number of members, in units of one member's session."""
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.subplots()
    styles = {
        "drawn": ("randomized", "o", "#4477aa"),
        "lean": ("randomized, lean", "s", "#ccbb44"),
        "all": ("deterministic", "^", "#ee6677"),
    }
    for case, (label, marker, color) in styles.items():
        for batch, line in ((1.0, "-"), (64.0, ":")):
            series = [r for r in rows if r["facts"].get("case") == case and r["facts"]["batch"] == batch]
            if series:
                x = [row["facts"]["members"] for row in series]
                y = [row["figure"] for row in series]
                axes.plot(x, y, line, marker=marker, color=color, label=f"{label}, batch {batch:.0f}")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="members", ylabel="× one member's session")
    members = sorted({row["facts"]["members"] for row in rows if "members" in row["facts"]})
    axes.set_xticks(members, [f"{m:.0f}" for m in members])
    axes.set_xticks([], minor=True)
    _plain(axes.yaxis)
    axes.legend(frameon=False, fontsize=7)
    return figure


def _growth(rows: Rows) -> Figure:
    """Each axis on its own logarithmic panel, with the fitted line."""
    shown = [row for row in rows if row["figure"] is not None]
    figure = Figure(figsize=(9, 5), layout="constrained")
    grid = figure.subplots(2, 3).flatten()
    for axes, row in zip(grid, shown, strict=False):
        facts, slope = row["facts"], row["figure"]
        x = facts["x"]
        seconds = "seconds" in facts
        y = facts["seconds" if seconds else "megabytes"]
        axes.loglog(x, y, "o", color="#4477aa")
        # The least-squares line goes through the mean of the logarithms.
        middle = [statistics.geometric_mean(values) for values in (x, y)]
        axes.loglog(x, [middle[1] * (v / middle[0]) ** slope for v in x], color="#ee6677", linewidth=1)
        axes.set_title(f"{row['what'].split(': ')[0]}: slope {slope:.2f}", fontsize=8)
        axes.set_xlabel(facts["axis"].removeprefix("memory against "))
        axes.set_ylabel("seconds" if seconds else "MB beyond loading")
        axes.set_xticks(x, [f"{v:.0f}" for v in x], fontsize=7)
        axes.set_xticks([], minor=True)
        _plain(axes.yaxis)
        # A level line should look level, and one that rises as steep as it is.
        axes.set_ylim(min(y) / 2, max(y) * 2)
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    return figure


def _plain(axis: Any) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


_DRAWN: tuple[tuple[str, str, Callable[[Rows], Figure]], ...] = (
    ("attacks", "attacks.svg", _attacks),
    ("strength", "strength.svg", _strength),
    ("sampling", "sampling.svg", _sampling),
    ("inference", "inference.svg", _inference),
    ("growth", "growth.svg", _growth),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--figures", type=Path, default=FIGURES)
    asked = parser.parse_args(arguments)
    try:
        document = read_json(asked.results)
        write_atomic(asked.page, page(document).encode())
        drawn = dict(plots(document))
        for file, content in drawn.items():
            write_atomic(asked.figures / file, content)
        # Plots that these results have no rows for would show others'.
        for path in asked.figures.glob("*.svg"):
            if path.name not in drawn:
                path.unlink()
    except RandensError as error:
        print(f"randens: {error}", file=sys.stderr)
        return 2
    print(f"written to {asked.page} and {asked.figures}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
