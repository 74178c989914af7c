"""Conflict between members: what sampling can gain from.

Linearize the margin of member i at x: m_i + w_i·δ. One perturbation fools every member of a set T iff
Σ_i λ_i m_i ≤ ε ‖Σ_i λ_i w_i‖_q for all λ in the simplex over T. With rows normalized to ‖w_i‖_q = 1 the right side
is ε·reach(λ), and reach(λ) = ‖Σ_i λ_i w_i/‖w_i‖_q‖_q ≤ 1 is the share of ε left to one perturbation that must
fool all members: 1 without conflict (as for disjoint supports in linf), about 1/√M for independent dense gradients.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randens.attacks import Cost
from randens.attacks.losses import margin_gradient
from randens.core.errors import InputError, RandensError
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.inputs import Case, Part, prepare
from randens.evaluation.tables import Result, Table, new_axes
from randens.threat import Threat

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from randens.evaluation.evaluate import Witnesses

_CHUNK = 256  # inputs per pass: M gradients of each are in memory at once


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Conflict(Result):
    """How far the members' gradients disagree, at λ uniform, without the box of valid inputs.

    reach: the mean over inputs of ‖Σ_i w_i/‖w_i‖_q‖_q / M, in [0, 1]; 1 means that one perturbation moves all
    margins as much as each alone. pairs: the same for every two members, [M, M], with ones on the diagonal. unusable:
    [M], the share of inputs at which a member's gradient is zero or not finite; these are left out of every mean in
    which the member takes part. A mean over no input is NaN. points: [n], the reach at each input, NaN if left out.
    """

    kind: ClassVar[str] = "conflict"
    in_memory: ClassVar[str] = "now points"

    reach: float
    pairs: NDArray[np.float64]
    unusable: NDArray[np.float64]
    points: NDArray[np.float64]

    def sentences(self) -> list[str]:
        members = len(self.unusable)
        if members == 1:
            return ["One member: there is no other member to conflict with (reach 1)."]
        if np.isnan(self.reach):
            return ["The members' reach is unknown: at no input are all gradients usable."]
        table = self.pairs[np.triu_indices(members, 1)]
        pairs = f"; pairs {np.nanmin(table):.3f} to {np.nanmax(table):.3f}" if members > 2 else ""
        return [
            f"One perturbation that must fool all {members} members keeps {self.reach:.1%} of ε (joint reach{pairs}; "
            f"1 is no conflict, {members**-0.5:.3f} independent gradients)."
        ]

    def table(self) -> Table:
        members = range(len(self.unusable))
        lines = [[f"member {i}", *(f"{self.pairs[i, j]:.3f}" for j in members)] for i in members]
        records = [{"i": i, "j": j, "reach": self.pairs[i, j]} for i in members for j in members]
        return Table(["reach", *(f"member {j}" for j in members)], lines, records)

    def figure(self) -> Any:
        figure, axes = new_axes("member", "member")
        figure.colorbar(axes.imshow(self.pairs, vmin=0, vmax=1), label="reach")
        return figure


def conflict(
    model: Any, data: Any = None, threat: Threat | None = None, *, eps: Any = None, **settings: Unpack[Part]
) -> Conflict:
    """Measure the joint reach of the members' margin gradients: the share of ε left to one perturbation.

    Parameters
    ----------
    model, data
        As for `randens.evaluate`; the probabilities do not matter.
    threat, eps : Threat, float, optional
        Set the norm; the radius does not matter. None: the ensemble's own.
    **settings
        norm, device, preprocessing, split, limit as for `randens.evaluate`.

    Returns
    -------
    Conflict
        `.reach`, `.pairs` [M, M], `.unusable` [M]. One forward and one backward pass per member and input.

    Examples
    --------
    >>> from randens import RandomizedEnsemble, Threat, conflict, models
    >>> rec = RandomizedEnsemble([models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)] * 2)
    >>> round(conflict(rec, "digits", Threat("linf", 0.1), limit=20).reach, 6)
    1.0
    """
    with prepare(model, data, "fgsm", threat=threat, eps=eps, **settings) as case:
        case.need_members("the reach is defined")
        if (found := _measured(case)) is None:
            raise InputError(
                f"threat is {case.threat.norm}, or a member gives no gradients; the reach needs gradients, and a ball "
                "in linf, l2 or l1"
            )
        return found


def known_conflict(known: Witnesses) -> Conflict | None:
    """The joint reach of several members, measured once for a store; None where there is none."""
    if len(known.rec) == 1:
        return None
    if (noted := known.note(Conflict.from_json, "conflict")) is not None:
        return noted
    if (found := _measured(known.case)) is not None:
        known.now += found.cost
        known.add_note(found.to_json(), "conflict")
    return found


def _measured(case: Case) -> Conflict | None:
    """The joint reach; None where a member refuses gradients or the threat has no dual norm."""
    rec, data, threat = case.rec, case.data, case.threat
    if threat.norm not in ("linf", "l2", "l1"):  # a finite set has no dual norm
        return None
    parts = []
    for x, y in data.batches(_CHUNK):
        try:
            gradients = _gradients(rec, x.to(rec.device), y.to(rec.device))
        except RandensError:  # an ONNX file gives no gradients, and says so
            return None
        unit = gradients / torch.linalg.vector_norm(gradients, threat.q, dim=2, keepdim=True)
        both = [torch.linalg.vector_norm((unit + one) / 2, threat.q, dim=2) for one in unit]
        joint = torch.linalg.vector_norm(unit.mean(dim=0), threat.q, dim=1)
        parts.append((joint, torch.stack(both), gradients.isnan().any(dim=2)))
    points, pairs, unusable = (torch.cat(part, dim=-1) for part in zip(*parts, strict=True))
    spent = Cost(len(data) * len(rec.networks), len(data) * len(rec.networks))
    return Conflict(
        about=dataclasses.replace(case.about, attacks=()),
        notes=case.notes,
        reach=float(points.nanmean()),
        pairs=pairs.nanmean(dim=2).numpy(),
        unusable=unusable.double().mean(dim=1).numpy(),
        points=points.numpy(),
        cost=spent,
        now=spent,
    )


def _gradients(rec: RandomizedEnsemble, x: Tensor, y: Tensor) -> Tensor:
    """Margin gradients in float64 [M, n, d], NaN where they are zero or not finite."""
    rows = [margin_gradient(rec, index, x, y).flatten(1).cpu() for index in range(len(rec))]
    flat = torch.stack(rows).double()
    usable = torch.isfinite(flat).all(dim=2) & (flat != 0).any(dim=2)
    return torch.where(usable.unsqueeze(2), flat, torch.nan)
