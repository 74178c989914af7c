"""Robust accuracy against the radius, and against the attack's cost.

A perturbation found at a small radius is legal at every larger one. So radii are attacked in increasing order
with one pool of witnesses: no curve can rise, and known witnesses are not searched again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from randens.attacks import Attack, Cost
from randens.core.files import Plain, Saved, picked
from randens.core.progress import Progress, silent, within
from randens.data import called
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble
from randens.evaluation.intervals import Estimate, estimate
from randens.evaluation.preparation import AttackLike, Prepared, prepare
from randens.evaluation.result_tables import data_frame, html_table, percent
from randens.evaluation.worst_case import evaluate_ensemble
from randens.models import on_device
from randens.threat import grid
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore, as_store

__all__ = [
    "Curve",
    "CurvePoint",
    "curve",
    "curve_of",
    "sweep",
]

_STEPS = (1, 2, 5, 10, 20, 50)
_BUDGETS = ("steps", "queries", "orders", "restarts")


@dataclass(frozen=True)
class CurvePoint(Plain):
    """Robust accuracies at one radius.

    Parameters
    ----------
    eps : float
        The radius; 0: the natural accuracies.
    ensemble : Estimate
        Of the randomized ensemble.
    members : tuple of Estimate
        Of each member alone.
    deterministic : Estimate or None
        Of the mean of all logits.
    """

    eps: float
    ensemble: Estimate
    members: tuple[Estimate, ...]
    deterministic: Estimate | None


@dataclass(frozen=True, eq=False, repr=False)
class Curve(Saved):
    """Robust accuracy against ε, from one pool of witnesses; shown as a table.

    Parameters
    ----------
    points : tuple of CurvePoint
        By increasing radius.
    norm, data, split : str
        What was attacked, and how.
    n : int
        Number of inputs.
    attacks : tuple of str
        Names.
    cost : Cost
        Member passes in all.
    confidence : float
        Of the intervals.
    pool : WitnessPool
        Every witness found, at the largest radius.
    """

    points: tuple[CurvePoint, ...]
    norm: str
    data: str
    split: str
    n: int
    attacks: tuple[str, ...]
    cost: Cost
    confidence: float
    pool: WitnessPool

    def __repr__(self) -> str:
        lines = ["  ".join(f"{cell:>14}" for cell in cells) for cells in self._cells]
        passes = (self.cost.forwards + self.cost.backwards) / max(1, self.n)
        lines.append(
            f"{self.n} inputs of {called(self.data, self.split)}; {' + '.join(self.attacks)}; {self.confidence:.0%} "
            f"intervals; {passes:.0f} member passes per input"
        )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        heads, *lines = self._cells
        return html_table(heads, lines)

    @property
    def _cells(self) -> list[list[str]]:
        """The table: headings, then a line for each radius."""
        radii = [f"{p.eps:.5g}" for p in self.points]
        columns = ([name, *map(_shown, values)] for name, values in self._lines.items())
        return [list(row) for row in zip([f"ε ({self.norm})", *radii], *columns, strict=True)]

    @property
    def _lines(self) -> dict[str, list[Estimate | None]]:
        """The accuracies at all radii, by classifier."""
        members = range(len(self.points[0].members))
        return {
            "ensemble": [p.ensemble for p in self.points],
            **{f"member {i}": [p.members[i] for p in self.points] for i in members},
            "deterministic": [p.deterministic for p in self.points],
        }

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        names = "norm data split n attacks confidence cost points"
        return {"format": "randens-curve-1", **picked(self, names)}

    def to_frame(self) -> Any:
        """A pandas data frame, one row per radius and classifier."""
        rows = [
            {"eps": p.eps, "classifier": who, "robust": float(v), "low": v.low, "high": v.high}
            for number, p in enumerate(self.points)
            for who, values in self._lines.items()
            if (v := values[number]) is not None
        ]
        return data_frame(rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the curves with their intervals; with `path`, into that file.

        Returns the matplotlib figure.
        """
        figure, axes = _axes(f"ε in {self.norm}", "robust accuracy")
        radii = [p.eps for p in self.points]
        for name, known in self._lines.items():
            values, strong = [v for v in known if v is not None], name == "ensemble"
            if len(values) < len(radii) or not (strong or len(self.points[0].members) > 1):
                continue
            label, width = ("randomized", 2) if strong else (name, 1)
            (drawn,) = axes.plot(radii, [float(v) for v in values], marker="o", lw=width, label=label)
            if strong:
                lows, highs = [v.low for v in values], [v.high for v in values]
                axes.fill_between(radii, lows, highs, alpha=0.2, color=drawn.get_color(), lw=0)
        return _finish(figure, axes, path)


def curve(
    model: Any,
    data: Any = None,
    eps: Any = "0:16/255:9",
    attack: AttackLike = None,
    *,
    norm: str | float | None = None,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    device: str | torch.device | None = None,
    preprocessing: Any = None,
    probs: ArrayLike | Tensor | None = None,
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
    deterministic: bool = True,
    confidence: float = 0.95,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Curve:
    """Robust accuracy against ε for the ensemble, its members and the deterministic ensemble.

    Parameters
    ----------
    model, data, norm, bounds, device, preprocessing, probs, split, limit, seed, deterministic
        As `randens.evaluate` takes them.
    confidence, folder, progress
        As for `randens.evaluate`, too.
    attack : str or sequence of str
        Names, as each radius makes its own.
    eps : str or sequence
        ``"first:last:count"``, e.g. ``"0:16/255:9"``, or a list of radii.

    Returns
    -------
    Curve
        Never rising in ε, by construction.

    Examples
    --------
    >>> import randens
    >>> nets = [randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    >>> len(randens.curve(nets, "digits", eps=[0, "8/255"], attack="pgd", limit=8).points)
    2
    """
    radii = grid("eps", eps)
    largest = max(radii) or 1e-9
    case = prepare(
        model,
        data,
        attack,
        eps=largest,
        norm=norm,
        bounds=bounds,
        preprocessing=preprocessing,
        probs=probs,
        split=split,
        limit=limit,
        seed=seed,
    )
    return curve_of(
        case,
        radii,
        device=device,
        deterministic=deterministic,
        confidence=confidence,
        folder=folder,
        progress=progress,
    )


def curve_of(
    case: Prepared,
    eps: Any,
    *,
    device: str | torch.device | None = None,
    deterministic: bool = True,
    confidence: float = 0.95,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Curve:
    """`curve` for a prepared model, data and attacks."""
    store = as_store(folder)
    points, cost = [], Cost()
    with on_device(case.rec, device):
        for point, known, spent in sweep(
            case,
            grid("eps", eps),
            deterministic=deterministic,
            confidence=confidence,
            store=store,
            progress=progress or silent,
        ):
            points.append(point)
            pool, cost = known, cost + spent
    return Curve(
        tuple(points),
        case.threat.norm,
        case.inputs.name,
        case.inputs.split,
        len(case.inputs),
        tuple(a.name for a in case.attacks),
        cost,
        confidence,
        pool,
    )


def sweep(
    case: Prepared,
    radii: Sequence[float],
    *,
    deterministic: bool,
    confidence: float,
    store: WitnessStore | None,
    progress: Progress,
    known: WitnessPool | None = None,
) -> Iterator[tuple[CurvePoint, WitnessPool, Cost]]:
    """Attack at increasing radii with one pool of witnesses: each result, all witnesses so far, and the cost.

    known: witnesses within the radius of the case's own threat; they count from there on.
    """
    several = deterministic and len(case.rec) > 1
    probs = case.rec.probs.cpu().numpy()
    pool: WitnessPool | None = None
    mean_fooled: NDArray[np.bool_] = np.zeros(len(case.inputs), dtype=bool)
    worst = np.zeros(len(case.inputs))
    for radius in radii:
        if known is not None and radius >= case.threat.eps:
            pool, known = known if pool is None else pool.merge(known), None
        if radius == 0:
            pool, mean, cost = _clean(case, several)
        else:
            found = evaluate_ensemble(
                case.rec,
                case.inputs,
                _at(case.attacks, radius),
                deterministic=several,
                pool=pool,
                folder=store,
                progress=within(progress, f"ε = {radius:.4g}"),
            )
            assert found.pool is not None
            pool, mean, cost = found.pool, found.points.deterministic_worst, found.cost
        # What fooled at a smaller radius fools here: the pool carries it for members and ensemble, these lines
        # for the mean of all logits and for verdicts that rounding changed.
        worst = np.maximum(worst, pool.best(probs)[0])
        if mean is not None:
            mean_fooled = mean_fooled | mean
        point = CurvePoint(
            radius,
            estimate(1 - worst, confidence),
            tuple(estimate(~column, confidence) for column in pool.foolable.T),
            estimate(~mean_fooled, confidence) if several else None,
        )
        yield point, pool, cost


def _clean(case: Prepared, deterministic: bool) -> tuple[WitnessPool, NDArray[np.bool_] | None, Cost]:
    """Return the result at radius 0: the members' errors on the unperturbed inputs."""
    x, y, members = case.inputs.x, case.inputs.y, list(case.rec.members)
    errors = case.rec.errors(x, y).cpu().numpy()
    pool = WitnessPool(len(y), len(members), np.arange(len(y)), errors, x_adv=x.numpy(), sources="clean")
    cost = Cost(forwards=len(y) * len(members) * (2 if deterministic else 1))
    if not deterministic:
        return pool, None, cost
    whole = RandomizedEnsemble([DeterministicEnsemble(members)])
    return pool, whole.errors(x, y)[:, 0].cpu().numpy(), cost


def _at(attacks: Sequence[Attack], radius: float) -> tuple[Attack, ...]:
    """The same attacks with another radius."""
    threat = attacks[0].threat.with_radius(radius)
    return tuple(dataclasses.replace(a, threat=threat) for a in attacks)


def _shown(value: Estimate | None) -> str:
    return "" if value is None else percent(value)


def _axes(x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    return figure, axes


def _finish(figure: Any, axes: Any, path: str | os.PathLike[str] | None) -> Any:
    axes.legend(frameon=False)
    if path is not None:
        figure.savefig(os.fspath(path))
    return figure
