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

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from randens._version import __version__
from randens.attacks import exact
from randens.certify.interval_bounds import propagate
from randens.certify.linear_bounds import crown
from randens.core.errors import InputError, ModelError, whole
from randens.core.files import picked
from randens.core.progress import Progress, silent
from randens.core.runs import Kept
from randens.ensemble import RandomizedEnsemble, evaluating
from randens.evaluation.argument_checks import DataLike, fingerprint, labelled, threat_of
from randens.risk import RiskProfile, Sampling, optimal_sampling
from randens.risk.sets import to_words
from randens.threat import Region, Threat
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore, as_store, input_keys, member_key

__all__ = ["Certification", "certify"]

_FORMAT = "randens-certification-1"
_CHUNK = 32
_MOST_MEMBERS = 10  # 2^10 subsets; with more members, only single members are certified
_MOST_TARGETS = 2000  # ways to fool a subset, class by class, that are tried before giving up
# Verdicts are computed in float32, where logits have errors of about 1e-7 of the largest one; a margin counts
# as certified only if it is clear of a hundred times that, or of twenty times what is measured.
_FLOAT32 = 1e-5
_MEASURED = 20.0

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Certification(Kept):
    """Certified bounds for an ensemble on n inputs.

    Attributes
    ----------
    probs : float64 [M]
        α.
    certified : bool [n, M]
        Members that no perturbation fools.
    clean : bool [n, M]
        Errors on the unperturbed inputs.
    profile : RiskProfile
        For every input the maximal sets of members that are not proven safe from being fooled together.
    threat : Threat
        The perturbation set.
    data, split : str
        The data and their split.
    ensemble : str
        The fingerprint of the members.
    refuted : int
        The number of sets that a λ refuted.
    seconds : float
        The time it took.
    witnesses : RiskProfile or None
        The risk profile of the given pool of witnesses.
    version : str
        Of randens.
    """

    kept_as: ClassVar[str] = "certification"
    asked: ClassVar[str] = "ensemble probs data split n threat lower_from"

    probs: Array
    certified: NDArray[np.bool_]
    clean: NDArray[np.bool_]
    profile: RiskProfile
    threat: Threat
    data: str
    split: str
    ensemble: str
    refuted: int
    seconds: float
    witnesses: RiskProfile | None = field(default=None, repr=False)
    version: str = __version__

    @property
    def n(self) -> int:
        """How many inputs."""
        return len(self.certified)

    def upper(self, probs: ArrayLike | None = None) -> float:
        """No attack reaches a risk above this at `probs` (None: the ensemble's own) on these inputs."""
        return self.profile.risk(self.probs if probs is None else probs)

    def separate(self, probs: ArrayLike | None = None) -> float:
        """The bound that certifies members one by one: mean Σ_i α_i 1[member i not certified]."""
        alpha = self.probs if probs is None else np.asarray(probs, dtype=np.float64)
        return float(((~self.certified) @ alpha).mean())

    def lower(self, probs: ArrayLike | None = None) -> float:
        """The risk that attacks reach; without witnesses, the risk on the unperturbed inputs."""
        alpha = self.probs if probs is None else np.asarray(probs, dtype=np.float64)
        if self.witnesses is None:
            return float((self.clean @ alpha).mean())
        return self.witnesses.risk(alpha)

    @property
    def member_upper(self) -> Array:
        """Certified upper bound on η_i [M]."""
        return np.asarray((~self.certified).mean(axis=0), dtype=np.float64)

    @cached_property
    def best(self) -> Sampling:
        """The probabilities with the smallest certified risk, with proof that none are better on this profile.

        On test data this is a bound to look at; choose probabilities by it on validation data.
        """
        return optimal_sampling(self.profile, method="exact", clean_risks=self.clean.mean(axis=0))

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        names = "version ensemble data split n threat probs member_upper best refuted seconds profile"
        return {
            "format": _FORMAT,
            **picked(self, names),
            "upper": self.upper(),
            "upper_members_separately": self.separate(),
            "lower": self.lower(),
            "lower_from": "natural errors" if self.witnesses is None else "witnesses",
            "certified": to_words(self.certified),
        }


@dataclass(frozen=True)
class _Margins:
    """Lower bounds value + slope·δ of one member's margins: value [n, C] (inf: cannot be reached, or class y),
    slopes [n, C, d], and what they must be clear of [n]."""

    value: Tensor
    slopes: Tensor
    slack: Tensor


def certify(
    rec: RandomizedEnsemble,
    data: DataLike,
    threat: Threat | None = None,
    *,
    pool: WitnessPool | None = None,
    joint: bool = True,
    refine: int = 4096,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Certification:
    """Certify `rec` on `data` under `threat` (None: the ensemble's own).

    Parameters
    ----------
    rec : RandomizedEnsemble
        Of certifiable members.
    data : pair, loader or Data
        The inputs.
    threat : Threat
        linf or l2.
    pool : WitnessPool, optional
        Known witnesses, for the lower bound; sets that they fool cannot be refuted.
    joint : bool
        Refute sets of members (λ-certificates), not only single ones.
    refine : int
        ReLU layers up to this many units get bounds backward from each unit; larger ones keep interval bounds.
    folder : path or WitnessStore, optional
        A witness store, which keeps which members are certified at which inputs: later attacks with this radius or a
        smaller one spend nothing on them.
    progress
        As for `randens.evaluate`.

    Returns
    -------
    Certification
        Certified bounds on the risk.

    Examples
    --------
    >>> import randens
    >>> net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    >>> rec, data = randens.RandomizedEnsemble([net]), randens.data.load("digits", "validation")[:8]
    >>> found = certify(rec, data, randens.Threat("linf", 0.01))
    >>> 0 <= 1 - found.upper() <= 1
    True
    """
    start = time.perf_counter()
    report = progress or silent
    inputs = labelled(data, rec)
    chosen = threat_of(rec, threat)
    whole("refine", refine, 0)
    chosen.check(inputs.x)
    members = len(rec)
    if pool is not None and (pool.n, pool.members) != (len(inputs), members):
        raise InputError(
            f"pool describes {pool.n} inputs and {pool.members} members; there are {len(inputs)} and {members}"
        )
    networks = [_double(member) for member in rec.members]
    for index, (network, member) in enumerate(zip(networks, rec.members, strict=True)):
        _check(network, member, inputs.x[:4], index)
    certified = np.zeros((len(inputs), members), dtype=np.bool_)
    points: list[int] = []
    sets: list[NDArray[np.bool_]] = []
    refuted = 0
    for first in range(0, len(inputs), _CHUNK):
        rows = slice(first, min(len(inputs), first + _CHUNK))
        x, y = inputs.x[rows].double(), inputs.y[rows]
        region = Region.around(x, chosen)
        parts = [
            _margins(net, member, x, y, region, refine)
            for net, member in zip(networks, rec.members, strict=True)
        ]
        for j in range(len(x)):
            problem = _problem(parts, region, j)
            known = [] if pool is None else pool.fooled[pool.points == first + j].tolist()
            left = exact.possible(
                problem, known, joint=joint and members <= _MOST_MEMBERS, most_targets=_MOST_TARGETS
            )
            certified[first + j] = [not targets for targets in left.options]
            refuted += left.refuted
            points += [first + j] * len(left.sets)
            sets.append(left.sets)
        report("certifying", rows.stop, len(inputs))
    table = np.concatenate(sets)
    if pool is not None:
        _consistent(pool, np.array(points, dtype=np.int64), table)
    clean = rec.errors(inputs.x.to(rec.device), inputs.y.to(rec.device)).cpu().numpy()
    if (store := as_store(folder)) is not None:
        store.refresh(chosen, inputs.x)
        names = [member_key(member) for member in rec.members]
        store.prove(chosen, inputs.x, input_keys(inputs.x, inputs.y), names, certified)
    return Certification(
        probs=rec.probs.cpu().numpy().copy(),
        certified=certified,
        clean=clean,
        profile=RiskProfile.from_witnesses(np.array(points, dtype=np.int64), table, len(inputs)),
        threat=chosen,
        data=inputs.name,
        split=inputs.split,
        ensemble=fingerprint(rec),
        refuted=refuted,
        seconds=time.perf_counter() - start,
        witnesses=None if pool is None else pool.profile(),
    )


def _double(member: nn.Module) -> nn.Module:
    """A float64 copy on the CPU, in eval mode, without parameter gradients."""
    try:
        twin = copy.deepcopy(member).cpu().double().eval()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(f"{type(member).__name__} cannot be certified: {error}") from error
    return twin.requires_grad_(False)


def _check(network: nn.Module, member: nn.Module, x: Tensor, index: int) -> None:
    """Check that bounds around a single point equal its logits, which shows operations without a rule."""
    wide = x.double()
    with torch.no_grad():
        true, again = network(wide), network(wide)
        try:
            found, bounds = propagate(network, wide, wide)
        except InputError as error:
            raise InputError(f"member {index}: {error}") from error
    here = crown(network, wide, torch.arange(len(x)), lambda rows: torch.ones_like(true[rows]), bounds).value
    size = float(true.abs().max()) + 1e-30
    gaps = (
        (found.centre - true).abs().max(),
        (here - true.sum(dim=1)).abs().max(),
        (again - true).abs().max(),
    )
    if not all(float(gap) <= 1e-8 * size * true.shape[1] for gap in gaps):
        raise InputError(
            f"member {index} cannot be certified: it is not deterministic, or it changes values in place "
            f"({type(member).__name__})"
        )


def _margins(
    network: nn.Module, member: nn.Module, x: Tensor, y: Tensor, region: Region, refine: int
) -> _Margins:
    """Linear lower bounds of z_y − z_c for every class c and every input."""
    n = len(x)
    flat = x.flatten(1)
    low, high = (flat + region.low).reshape(x.shape), (flat + region.high).reshape(x.shape)
    finished: list[tuple[Tensor, Tensor]] = []

    def tighten(layer: int, below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
        if below[0].numel() <= refine and (layer > 0 or region.radius is not None):
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
    return _Margins(value, lower.slopes.reshape(n, classes, -1), slack)


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


def _problem(parts: Sequence[_Margins], region: Region, j: int) -> exact.LinearProblem:
    """Return the linear problem of one input in the form of the exact attack."""
    return exact.LinearProblem(
        np.stack([part.value[j].numpy() for part in parts]),
        np.stack([part.slopes[j].numpy() for part in parts]),
        region[j : j + 1],
        -np.array([float(part.slack[j]) for part in parts]),
    )


def _consistent(pool: WitnessPool, points: NDArray[np.int64], sets: NDArray[np.bool_]) -> None:
    """Every witness must lie in a set that was not refuted; if one does not, a bound or the witness is wrong."""
    for point, fooled in zip(pool.points.tolist(), pool.fooled, strict=True):
        allowed = sets[points == point]
        if not bool((allowed >= fooled).all(axis=1).any()):
            raise ModelError(
                f"a witness fools members {np.flatnonzero(fooled).tolist()} of input {point}, which were certified; "
                "the witness is of other members, inputs or threat, or a member is not deterministic"
            )
