"""Robust accuracy against the radius.

A perturbation found at a small radius is legal at every larger one. So radii are attacked in increasing order
with one pool of witnesses: no curve can rise, and known witnesses are not searched again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from randens.attacks import Attack
from randens.attacks.base import AttackLike
from randens.core.progress import within
from randens.evaluation.evaluate import Witnesses
from randens.evaluation.inputs import Part, prepare
from randens.evaluation.tables import Result, Table, new_axes, percent
from randens.risk.intervals import Estimate, estimate
from randens.threat import Threat, grid
from randens.witness import WitnessPool

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class CurvePoint:
    """Robust accuracies at one radius (0: the natural ones): sampled, of each member, of the average of all logits."""

    eps: float
    ensemble: Estimate
    members: tuple[Estimate, ...]
    average: Estimate | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Curve(Result):
    """Robust accuracy against ε, by increasing radius; pool: every witness found, at the largest one."""

    kind: ClassVar[str] = "curve"
    in_memory: ClassVar[str] = "now pool"

    points: tuple[CurvePoint, ...]
    pool: WitnessPool

    @property
    def lines(self) -> dict[str, list[Estimate]]:
        """The accuracies at all radii, by classifier."""
        sampled = [point.ensemble for point in self.points]
        members = list(zip(*(point.members for point in self.points), strict=True))
        if len(members) == 1:
            return {"model": sampled}
        found = {"sampled": sampled, **{f"member {i}": list(own) for i, own in enumerate(members)}}
        average = [point.average for point in self.points if point.average is not None]
        return found | ({"average": average} if average else {})

    def table(self) -> Table:
        lines, records = [], []
        for i, point in enumerate(self.points):
            row = {name: values[i] for name, values in self.lines.items()}
            lines.append((f"{point.eps:.5g}", *map(percent, row.values())))
            for name, v in row.items():
                own = {"robust": float(v), "low": v.low, "high": v.high}
                records.append({"eps": point.eps, "classifier": name, **own})
        return Table((f"ε ({self.about.threat['norm']})", *self.lines), lines, records)

    def figure(self) -> Any:
        figure, axes = new_axes(f"ε in {self.about.threat['norm']}", "robust accuracy")
        radii = [point.eps for point in self.points]
        for name, values in self.lines.items():
            limits = [[v - v.low for v in values], [v.high - v for v in values]]
            shown = limits if name in ("sampled", "model") else None
            axes.errorbar(radii, values, shown, marker="o", capsize=3, label=name)
        axes.set_ylim(0, 1)
        axes.legend(frameon=False)
        return figure


def curve(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    eps: Any = "0:16/255:9",
    threat: Threat | None = None,
    **settings: Unpack[Part],
) -> Curve:
    """Robust accuracy against ε for the ensemble, its members and the average of their logits.

    Parameters
    ----------
    model, data, attack
        As for `randens.evaluate`; an attack's own radius does not matter.
    eps : str or sequence
        ``"first:last:count"``, e.g. ``"0:16/255:9"``, or a list of radii.
    threat : Threat, optional
        Sets norm and bounds; its radius does not matter.
    **settings
        norm, device, preprocessing, probs, split, limit, seed, folder, progress as for `randens.evaluate`.

    Returns
    -------
    Curve
        Never rising in ε, by construction.

    Examples
    --------
    >>> import randens
    >>> nets = [randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    >>> len(randens.curve(nets, "digits", "pgd", eps=[0, "8/255"], limit=8).points)
    2
    """
    radii = grid("eps", eps)
    several = attack if isinstance(attack, (list, tuple)) else [attack]
    own = threat is not None or any(isinstance(one, Attack) for one in several)
    largest = None if own else max(radii) or 1e-9
    points: list[CurvePoint] = []
    runs: list[Witnesses] = []
    pool: WitnessPool | None = None
    mean_pool: WitnessPool | None = None
    with prepare(model, data, attack, eps=largest, threat=threat, **settings) as case:
        case.need_members("curves are drawn")
        for radius in radii:
            ball = case.threat.with_radius(radius)
            attacks = tuple(replace(one, threat=ball) for one in case.attacks)
            here = replace(case, attacks=attacks, progress=within(case.progress, f"ε = {radius:.4g}"))
            known = Witnesses(here, pool)
            known.attack_all([case.rec.probs.cpu().numpy()])
            mean = known.attack_average(mean_pool) if len(case.rec) > 1 else None
            pool, mean_pool = known.pool, None if mean is None else mean.pool
            members = tuple(estimate(~column) for column in pool.foolable.T)
            average = None if mean is None else estimate(~mean.pool.foolable[:, 0])
            points.append(CurvePoint(radius, estimate(1 - pool.best(case.rec.probs)[0]), members, average))
            runs.append(known)
        return Curve(
            **runs[-1].head(*runs[:-1]) | {"about": case.about}, points=tuple(points), pool=runs[-1].pool
        )
