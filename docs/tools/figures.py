"""The figures of README and docs: python docs/tools/figures.py [FOLDER].

Those of the theory are computed by `randens.risk`; those of measurements are drawn from runs of the zoo.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.tri import Triangulation
from numpy.typing import NDArray

from randens import zoo
from randens.core.files import write_atomic
from randens.evaluation import Evaluation
from randens.report import figures
from randens.risk import FIGURE_3, RiskProfile, bounds, candidates, optimal_sampling, two_classifiers

FOLDER = Path(__file__).parents[1] / "figures"
BLUE, ORANGE, GREEN, PURPLE = figures.COLORS[:4]
GRAY = "#9a9a9a"
# Five ResNet-20s, trained independently to their plateau, under the suite on the first test images of CIFAR-10.
MEASURED = "cifar10-resnet20-iat-m5", "evaluation.json"

# Three linear classifiers of the plane: f_i is right where w_i·δ < b_i, seen from an input at the origin.
WEIGHTS = np.array([[1.0, 0.15], [0.25, 1.0], [-0.7, 0.6]])
OFFSETS = np.array([0.55, 0.6, 0.5])
RADIUS = 1.0

# How often the five configurations of Figure 3 occur in the example with two members.
FREQUENCIES = {"either-not-both": 0.4, "both": 0.1, "first-only": 0.1, "second-only": 0.2, "neither": 0.2}

# Three members: which sets can be fooled, and how often.
TRIANGLE: tuple[tuple[list[tuple[int, int, int]], float], ...] = (
    ([(1, 0, 0), (0, 1, 1)], 0.25),
    ([(1, 0, 0), (0, 1, 0), (0, 0, 1)], 0.2),
    ([(0, 1, 0), (0, 0, 1)], 0.15),
    ([(1, 1, 1)], 0.1),
    ([(0, 0, 1)], 0.05),
    ([], 0.25),
)


def reachable() -> tuple[NDArray[np.float64], NDArray[np.bool_], list[tuple[int, ...]]]:
    """δ on a fine grid of the ball, the members each fools, and the maximal sets among them."""
    axis = np.linspace(-RADIUS, RADIUS, 401)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    inside = grid[np.linalg.norm(grid, axis=1) <= RADIUS]
    fooled = inside @ WEIGHTS.T > OFFSETS
    profile = RiskProfile.from_configurations([np.unique(fooled, axis=0)])
    ((*sets,),) = profile.configurations
    return inside, fooled, sorted((tuple(int(i) for i in u) for u in sets), reverse=True)


def two() -> RiskProfile:
    """The example with two members."""
    return RiskProfile.from_configurations(
        [FIGURE_3[name] for name in FREQUENCIES], list(FREQUENCIES.values())
    )


def three() -> RiskProfile:
    """The example with three members."""
    return RiskProfile.from_configurations([s for s, _ in TRIANGLE], [p for _, p in TRIANGLE], members=3)


def witness() -> Figure:
    """An input, the ball around it, and the set of members that each perturbation fools."""
    inside, fooled, sets = reachable()
    figure = Figure(figsize=(5.2, 4.6))
    axes = figure.add_subplot()
    code = fooled @ np.array([1, 2, 4])
    colors = ["#ffffff", "#c9dfee", "#f3d9c5", "#e4c9a8", "#c6e3da", "#a9cfe0", "#dcd2e8", "#b9a4cf"]
    axes.scatter(
        inside[:, 0], inside[:, 1], c=code, cmap=ListedColormap(colors), vmin=0, vmax=7, s=1.1, linewidths=0,
        rasterized=True,
    )  # fmt: skip
    axes.add_patch(Circle((0, 0), RADIUS, fill=False, color="black"))
    along = np.linspace(-1.35, 1.35, 2)
    for i, (w, b) in enumerate(zip(WEIGHTS, OFFSETS, strict=True)):
        normal, distance = w / np.linalg.norm(w), b / np.linalg.norm(w)
        line = normal * distance + np.outer(along, [-normal[1], normal[0]])
        axes.plot(*line.T, color=(BLUE, ORANGE, GREEN)[i], linewidth=1.6, label=f"boundary of f{'₁₂₃'[i]}")
    for value in np.unique(code):
        points = inside[code == value]
        u = tuple(int(value) >> i & 1 for i in range(3))
        center = points[np.argmin(np.linalg.norm(points - points.mean(axis=0), axis=1))]
        mark = "maximal" if u in sets else ""
        text = f"u = ({', '.join(map(str, u))})" + (f"\n{mark}" if mark else "")
        axes.annotate(text, (float(center[0]), float(center[1])), ha="center", va="center", fontsize=8)
    axes.plot(0, 0, "k+", markersize=9)
    axes.set(xlim=(-1.35, 1.35), ylim=(-1.2, 1.2), aspect="equal", xticks=[], yticks=[])
    axes.axis("off")
    axes.set_title("Perturbations δ of one input, by the members they fool")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=3)
    return figure


def profile() -> Figure:
    """The risk of two members over α₁, as the sum of what the configurations contribute."""
    shown = two()
    answer = two_classifiers(shown)
    first = np.linspace(0, 1, 101)
    probs = np.stack([first, 1 - first], axis=1)
    figure = Figure(figsize=(5.6, 3.6))
    axes = figure.add_subplot()
    base = np.zeros_like(first)
    tints = {"both": GRAY, "first-only": BLUE, "second-only": GREEN, "either-not-both": ORANGE}
    words = {
        "both": "both at once",
        "first-only": "the first only",
        "second-only": "the second only",
        "either-not-both": "either, never both",
    }
    for name, color in tints.items():
        risk = (np.array(FIGURE_3[name]) @ probs.T).max(axis=0)
        top = base + FREQUENCIES[name] * risk
        axes.fill_between(first, base, top, color=color, alpha=0.3, linewidth=0, label=words[name])
        base = top
    axes.plot(first, [shown.risk(p) for p in probs], color="black", linewidth=2, label="risk η(α)")
    axes.axhline(answer.limit, color=PURPLE, linestyle=":", label="no pair can be below (Corollary 1)")
    axes.plot(answer.probs[0], answer.risk, "o", color=ORANGE)
    axes.annotate(f"optimum {answer.risk:.2f}", (float(answer.probs[0]), answer.risk), (0.5, answer.risk + 0.1),
                  ha="center", arrowprops={"arrowstyle": "-", "color": GRAY})  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="α₁: how often member 1 is sampled", ylabel="risk")
    second, first_alone = answer.member_risks[1], answer.member_risks[0]
    axes.set_title(f"left: member 2 alone, {second:.2f}; right: member 1 alone, {first_alone:.2f}")
    axes.legend(fontsize=7.5, frameon=False, loc="upper center", ncols=2)
    return figure


def limits() -> Figure:
    """What member risks alone allow: floor and ceiling as further members get worse."""
    best = 0.4
    risks = np.linspace(best, 1, 61)
    figure = Figure(figsize=(5.6, 3.6))
    axes = figure.add_subplot()
    axes.axhline(best, color="black", linewidth=1, label=f"the best member alone: {best}")
    for members, color in ((2, BLUE), (3, ORANGE), (5, GREEN)):
        floors = [bounds([best] + [r] * (members - 1)).floor for r in risks]
        axes.plot(risks, floors, color=color, label=f"floor with M = {members}")
    axes.plot(risks, [bounds([best, r]).ceiling for r in risks], color=GRAY, linestyle="--", label="ceiling")
    axes.set(xlabel="risk of every other member", ylabel="risk of the ensemble", xlim=(best, 1), ylim=(0, 1))
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
    axes.set_title("No ensemble leaves the strip between floor and ceiling (Theorem 3)")
    return figure


def sampling() -> Figure:
    """η over the triangle of α for three members, the ten candidates, and where two methods end."""
    shown = three()
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    n = 60
    alphas = np.array([(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)]) / n
    flat = alphas @ corners
    figure = Figure(figsize=(5.6, 4.4))
    axes = figure.add_subplot()
    drawn = axes.tricontourf(Triangulation(*flat.T), [shown.risk(a) for a in alphas], levels=14, cmap="Blues")
    figure.colorbar(drawn, ax=axes, label="risk η(α)", shrink=0.8)
    ten = np.array(candidates(3), dtype=np.float64) @ corners
    axes.plot(
        *ten.T,
        "o",
        color="white",
        markeredgecolor="black",
        markersize=6,
        label="the ten candidates (Theorem 2)",
    )
    start = np.full(3, 1 / 3)
    path = [start]
    for t in range(1, 11):
        path.append(optimal_sampling(shown, "subgradient", iterations=t, step=1.0).probs)
    axes.plot(
        *(np.array(path) @ corners).T,
        "-",
        color=ORANGE,
        linewidth=1,
        marker=".",
        label="best so far, 10 steps of OSP",
    )
    exact = optimal_sampling(shown)
    axes.plot(
        *(exact.probs @ corners),
        "*",
        color=PURPLE,
        markersize=13,
        label=f"exact: {_decimals(exact.probs)}",
    )
    for name, corner, shift in zip("₁₂₃", corners, ((-0.06, -0.05), (0.06, -0.05), (0, 0.05)), strict=True):
        x, y = (corner + shift).tolist()
        axes.text(x, y, f"α{name} = 1", ha="center", va="center")
    axes.set(aspect="equal", xlim=(-0.15, 1.15), ylim=(-0.32, 0.98))
    axes.axis("off")
    axes.legend(fontsize=7.5, frameon=False, loc="lower center", ncols=2)
    return figure


def measured() -> Evaluation:
    """The evaluation behind the figures of measurements."""
    name, file = MEASURED
    return Evaluation.load(zoo.path(name) / file)


FIGURES: dict[str, Callable[[], Figure]] = {
    "witness": witness,
    "profile": profile,
    "bounds": limits,
    "sampling": sampling,
    "compute": lambda: figures.compute(figures.points(measured())),
    "attempts": lambda: figures.attempts(measured()),
}


def draw(name: str) -> bytes:
    """One figure as SVG: text stays text, and the same versions give the same bytes."""
    with figures.styled():
        return figures.drawn(FIGURES[name]())


def _decimals(probs: NDArray[np.float64]) -> str:
    return "(" + ", ".join(f"{p:.3g}" for p in probs) + ")"


def main() -> None:
    """Write every figure into the folder named, by default docs/figures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        write_atomic(folder / f"{name}.svg", draw(name))


if __name__ == "__main__":
    main()
