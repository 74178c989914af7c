"""Certified upper bounds on the risk, so that witness lower bound ≤ true risk ≤ certified upper bound.

Bound propagation gives every member linear functions below its margins z_y − z_c on the whole perturbation set
(`linear_bounds`, `interval_bounds`). Where they stay above 0 the member is certified: no perturbation fools it there,
and η(α) ≤ mean Σ_i α_i 1[member i not certified]. This bound assumes that one δ fools all uncertified
members. Often no single δ can: if some λ in the simplex over members T has Σ λ_i (lower bound of margin_i)(δ)
> 0 for all δ, then one member of T is correct for every δ. The maximal sets that are not refuted form a
`RiskProfile`: its risk at α is the certified bound, its optimum the smallest certified risk.

For linear members the bounds are the margins themselves, so upper and lower bound are equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from randens.attacks import exact
from randens.certificates.interval_bounds import propagate
from randens.certificates.linear_bounds import crown
from randens.core.errors import InputError, ModelError, expect, shown
from randens.data import as_data
from randens.ensemble import evaluating
from randens.evaluation.evaluate import Witnesses
from randens.evaluation.inputs import prepare
from randens.evaluation.tables import Result, Table, bars, percent
from randens.region import Region
from randens.risk import RiskProfile, Sampling, optimal_sampling
from randens.risk.ceiling import Ceiling, ceiling_from_conflicts, close_pairs
from randens.risk.intervals import Estimate
from randens.threat import FiniteThreat, Threat
from randens.witness import WitnessPool

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from randens.evaluation.inputs import Part

_CHUNK = 32
_REFINED = 4096  # ReLU layers up to this size get bounds backward from each unit; larger ones keep intervals
_MOST_MEMBERS = 10  # 2^10 subsets; with more members, only single members are certified
# Verdicts are computed in float32, where logits have errors of about 1e-7 of the largest one; a margin counts
# as certified only if it is clear of a hundred times that, or of twenty times what is measured.
_FLOAT32 = 1e-5
_MEASURED = 20.0

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Certification(Result):
    """Certified bounds for an ensemble on n inputs.

    certified, clean: bool [n, M], members that no perturbation fools, and errors on the inputs themselves. profile: for
    every input the maximal sets of members that are not proven safe from being fooled together. refuted: how many sets
    a λ refuted. witnesses: the risk profile of the known witnesses, the lower bound.
    """

    kind: ClassVar[str] = "certification"
    derived: ClassVar[str] = "member_upper best"

    certified: NDArray[np.bool_]
    clean: NDArray[np.bool_]
    profile: RiskProfile
    refuted: int
    witnesses: RiskProfile

    def upper(self, probs: ArrayLike | None = None) -> float:
        """No attack reaches a risk above this at `probs` (None: the ensemble's own) on these inputs."""
        return self.profile.risk(self.about.probs if probs is None else probs)

    def separate(self) -> float:
        """The bound that certifies members one by one: mean Σ_i α_i 1[member i not certified]."""
        return float(self.member_upper @ np.array(self.about.probs))

    def lower(self, probs: ArrayLike | None = None) -> float:
        """The risk that known witnesses reach; without any, the risk on the unperturbed inputs."""
        return self.witnesses.risk(self.about.probs if probs is None else probs)

    @property
    def member_upper(self) -> Array:
        """Certified upper bound on η_i [M]."""
        return np.asarray((~self.certified).mean(axis=0), dtype=np.float64)

    @cached_property
    def best(self) -> Sampling:
        """The probabilities with the smallest certified risk, with proof that none are better on this profile."""
        return optimal_sampling(self.profile, clean_risks=self.clean.mean(axis=0))

    def rows(self) -> list[tuple[str, float, float]]:
        """Name, certified accuracy and accuracy under the known witnesses of members and ensemble."""
        alone = zip(self.member_upper.tolist(), self.witnesses.member_risks.tolist(), strict=True)
        found = [(f"member {i}", 1 - upper, 1 - lower) for i, (upper, lower) in enumerate(alone)]
        return found if len(found) == 1 else [*found, ("sampled", 1 - self.upper(), 1 - self.lower())]

    def table(self) -> Table:
        lines = [(name, percent(low), percent(high)) for name, low, high in self.rows()]
        records = [{"classifier": n, "certified": low, "attacked": high} for n, low, high in self.rows()]
        return Table(("", "certified", "under known attacks"), lines, records)

    def figure(self) -> Any:
        return bars([(n, Estimate(low, low, high)) for n, low, high in self.rows()], "robust accuracy")

    def sentences(self) -> list[str]:
        if self.upper() >= 1 - 1e-12:
            return ["Nothing is certified at this radius: the bounds are too loose for these networks."]
        least, alone = percent(1 - self.upper()), percent(1 - self.separate())
        together = f"Members one by one would give {alone}; {self.refuted} sets cannot be fooled together."
        said = f"Robust accuracy is at least {least} against every attack on these inputs."
        return [said, together] if len(self.about.probs) > 1 else [said]

    def content(self) -> dict[str, Any]:
        bounds = {"upper": self.upper(), "upper_members_separately": self.separate(), "lower": self.lower()}
        return {**super().content(), **bounds}


def certify(
    model: Any,
    data: Any = None,
    threat: Threat | None = None,
    *,
    eps: float | str | None = None,
    pool: WitnessPool | None = None,
    **settings: Unpack[Part],
) -> Certification:
    """Certify a classifier or ensemble: bounds on the risk that hold against every attack on these inputs.

    Parameters
    ----------
    model, data
        As for `randens.evaluate`; networks of affine operations and ReLU.
    threat, eps : Threat, float, optional
        The perturbation set; None: the ensemble's own.
    pool : WitnessPool, optional
        Known witnesses of these members and inputs, for the lower bound; sets that they fool cannot be refuted.
    **settings
        norm, preprocessing, probs, split, limit, folder, progress as for `randens.evaluate`. Witnesses stored in the
        folder are the lower bound; nothing is attacked.

    Returns
    -------
    Certification
        ``1 - found.upper()`` is the certified accuracy.

    Examples
    --------
    >>> import randens
    >>> net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    >>> found = randens.certify(net, "digits", eps=0.01, limit=8)
    >>> found.lower() <= found.upper()
    True
    """
    expect("pool", pool, WitnessPool | None)
    if isinstance(threat, FiniteThreat):
        raise InputError("threat is a finite set, for which evaluate is exact; certificates are for balls")
    with prepare(model, data, "fgsm", threat=threat, eps=eps, **settings) as case:
        case.need_members("certificates are")
        return _certified(Witnesses(case, pool))


def _certified(known: Witnesses) -> Certification:
    """Bounds of all members on chunk after chunk, and for every input the sets that they do not exclude."""
    case, rec, (n, members) = known.case, known.rec, known.clean.shape
    known.threat.check(known.x)
    networks = nn.ModuleList(exact.double(member) for member in rec.members).requires_grad_(False)
    for index, (network, member) in enumerate(zip(networks, rec.members, strict=True)):
        _check(network, member, known.x[:4], index)
    certified = np.zeros((n, members), dtype=np.bool_)
    points: list[int] = []
    sets: list[NDArray[np.bool_]] = []
    refuted = 0
    for first in range(0, n, _CHUNK):
        x, y = known.x[first : first + _CHUNK].double(), known.y[first : first + _CHUNK]
        region = Region.around(x, known.threat)
        pairs = zip(networks, rec.members, strict=True)
        parts = [_margins(network, member, x, y, region) for network, member in pairs]
        for j in range(len(x)):
            fooled = known.pool.fooled[known.pool.points == first + j]
            problem = exact.LinearProblem(
                np.stack([value[j].numpy() for value, _, _ in parts]),
                np.stack([slopes[j].numpy() for _, slopes, _ in parts]),
                region[j : j + 1],
                -np.array([float(slack[j]) for _, _, slack in parts]),
            )
            left = exact.possible(problem, fooled.tolist(), joint=members <= _MOST_MEMBERS)
            certified[first + j] = [not targets for targets in left.options]
            if (fooled & certified[first + j]).any():
                raise ModelError(f"a witness fools certified members of input {first + j}; is it of others?")
            refuted += left.refuted
            points += [first + j] * len(left.sets)
            sets.append(left.sets)
        case.progress("certifying", first + len(x), n)
    return Certification(
        about=dataclasses.replace(case.about, attacks=()),
        certified=certified,
        clean=known.clean,
        profile=RiskProfile.from_witnesses(np.array(points, dtype=np.int64), np.concatenate(sets), n),
        refuted=refuted,
        witnesses=known.pool.profile(),
        now=known.now,
        notes=case.notes,
    )


def _check(network: nn.Module, member: nn.Module, x: Tensor, index: int) -> None:
    """Check that bounds around a point equal its logits: operations have rules, and rounding alone does not spread."""
    wide = x.double()
    with torch.no_grad():
        try:
            true = network(wide)
            found, bounds = propagate(network, wide, wide)
        except (InputError, RuntimeError) as error:
            raise InputError(f"member {index}: {error}") from error
    here = crown(network, wide, torch.arange(len(x)), lambda rows: torch.ones_like(true[rows]), bounds).value
    size = float(true.abs().max()) + 1e-30
    gaps = (found.center - true).abs().max(), (here - true.sum(dim=1)).abs().max()
    if not all(float(gap) <= 1e-8 * size * true.shape[1] for gap in gaps):
        spread = bool((found.radius > 1e-6 * size).any())
        why = "it has too many layers, in which bounds spread without end" if spread else "it works in place"
        raise InputError(f"member {index}, a {type(member).__name__}, cannot be certified: {why}")


def _margins(
    network: nn.Module, member: nn.Module, x: Tensor, y: Tensor, region: Region
) -> tuple[Tensor, Tensor, Tensor]:
    """Lower bounds value + slope·δ of z_y − z_c: value [n, C] (inf: c cannot be reached), slopes [n, C, d], and what
    they must be clear of [n].
    """
    n = len(x)
    flat = x.flatten(1)
    low, high = (flat + region.low).reshape(x.shape), (flat + region.high).reshape(x.shape)
    finished: list[tuple[Tensor, Tensor]] = []

    def tighten(layer: int, below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
        if below[0].numel() <= _REFINED and (layer > 0 or region.radius is not None):
            below, above = _refined(network, x, region, finished, below, above, layer)
        finished.append((below, above))
        return below, above

    with torch.no_grad():
        box, bounds = propagate(network, low, high, tighten)
        true = network(x)
        with evaluating(member):
            like = next(member.parameters(), torch.zeros(0))
            single = member(x.to(like)).cpu().double()
    classes = true.shape[1]
    widest = max([b.shape[1:].numel() for b, _ in bounds], default=1)
    rows, targets = torch.arange(n).repeat_interleave(classes), torch.arange(classes).repeat(n)

    def directions(positions: Tensor) -> Tensor:
        a = torch.zeros(len(positions), classes, dtype=torch.float64)
        lines = torch.arange(len(positions))
        a[lines, y[rows[positions]]] += 1
        a[lines, targets[positions]] -= 1
        return a

    lower = crown(network, x, rows, directions, bounds, widest=widest)
    least = lower.value + region[rows].minimum(lower.slopes)
    reach = (
        (lower.slopes.abs() * torch.maximum(-region.low, region.high)[rows]).sum(dim=1).reshape(n, classes)
    )
    size = true.abs().amax(dim=1) + reach.amax(dim=1)
    measured = float((single - true).abs().max() / true.abs().max().clamp_min(1e-30))
    slack = max(_FLOAT32, _MEASURED * measured) * size
    apart = box.low.gather(1, y.unsqueeze(1)) - box.high
    safe = torch.maximum(least.reshape(n, classes), apart) > slack.unsqueeze(1)
    safe.scatter_(1, y.unsqueeze(1), True)
    value = torch.where(safe, torch.inf, lower.value.reshape(n, classes))
    return value, lower.slopes.reshape(n, classes, -1), slack


def _refined(
    network: nn.Module,
    x: Tensor,
    region: Region,
    finished: Sequence[tuple[Tensor, Tensor]],
    below: Tensor,
    above: Tensor,
    layer: int,
) -> tuple[Tensor, Tensor]:
    """Bounds of the units that intervals leave undecided, by going backward from each of them."""
    shape = below.shape
    below, above = below.flatten(1).clone(), above.flatten(1).clone()
    rows, units = ((below < 0) & (above > 0)).nonzero(as_tuple=True)
    if not len(rows):
        return below.reshape(shape), above.reshape(shape)
    widest = max([shape[1:].numel(), *(b.shape[1:].numel() for b, _ in finished)])
    for sign in (1.0, -1.0):

        def directions(positions: Tensor, sign: float = sign) -> Tensor:
            a = torch.zeros(len(positions), below.shape[1], dtype=torch.float64)
            a[torch.arange(len(positions)), units[positions]] = sign
            return a.reshape(-1, *shape[1:])

        lower = crown(network, x, rows, directions, finished, at=layer, widest=widest)
        least = lower.value + region[rows].minimum(lower.slopes)
        # Widened by far more than the float64 rounding error.
        least = least - 1e-9 * (1 + least.abs())
        if sign > 0:
            below[rows, units] = torch.maximum(below[rows, units], least)
        else:
            above[rows, units] = torch.minimum(above[rows, units], -least)
    return below.reshape(shape), above.reshape(shape)


def ceiling(data: Any, threat: Threat) -> Ceiling:
    """The largest robust accuracy of any classifier on these data, deterministic and random.

    Parameters
    ----------
    data : (x, y), Data, loader or name
        Inputs and labels, as for `evaluate`.
    threat : Threat
        In linf both numbers are exact; in l2 and l1 that of random classifiers is an upper bound.

    Returns
    -------
    Ceiling
        `.deterministic`, `.randomized`, `.gain`, the number of `.inputs` in conflict, and a `.message`.

    Examples
    --------
    >>> import torch, randens
    >>> x = torch.tensor([[0.1], [0.5], [0.9]])
    >>> randens.ceiling((x, torch.tensor([0, 1, 2])), randens.Threat("linf", 0.1)).inputs
    0
    """
    if not isinstance(threat, Threat) or threat.norm not in ("linf", "l2", "l1"):
        raise InputError(
            f"threat is {shown(threat)}; give a Threat in linf, l2 or l1, e.g. Threat('linf', 8/255)"
        )
    x, y = as_data(data)[:]
    threat.check(x)
    pairs = close_pairs(x.flatten(1).numpy(), y.numpy(), threat.norm, 2 * threat.eps)
    return ceiling_from_conflicts(len(y), pairs, common_points=threat.norm == "linf")
