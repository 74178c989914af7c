"""Checks that attack: comparisons whose order is known in a sound evaluation, laws, and the reported number."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from randens import attacks
from randens.audits.checks import Check, made
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.loop import Witnesses
from randens.risk import bounds
from randens.risk.sets import from_words, to_words

__all__ = ["TOLERANCE", "Probes", "attack_checks"]

Risks = NDArray[np.float64]

TOLERANCE = (
    0.02  # share of the inputs on which the weaker of two attacks may be luckier than the stronger one
)
_ENSEMBLE = -1  # means the ensemble where a number means a member
_LUCK = 0.01  # the weaker attack is lucky, and no more, unless a sign test over the inputs rejects that at this level
_STEPS = (10, 20, 40)
_QUERIES = 200
_WIDER = (0.5, 2.0, 4.0)
_LEFT = 0.05  # accuracy that may remain under unlimited perturbations
_ROUNDING = 1e-9


class Probes:
    """The attacks of an audit on one ensemble, each from the unperturbed inputs and made once, also for a store.

    Points that are legal under the threat are shown to all members and join the witnesses `known`.
    """

    def __init__(self, known: Witnesses, seed: int) -> None:
        self.known, self.seed = known, seed
        self.n, self.members = known.clean.shape
        self.probs = known.rec.probs.cpu().numpy()
        self.outside = 0
        self._made: dict[tuple[Any, ...], NDArray[np.bool_]] = {}

    @property
    def allowed(self) -> float:
        """`TOLERANCE`, but never less than a single input."""
        return max(TOLERANCE, 1.0 / self.n)

    def beaten(self, stronger: Risks, weaker: Risks) -> bool:
        """Whether the attack that must be weaker finds more [n] than the other: beyond `allowed` and chance."""
        ahead, behind = int((weaker > stronger).sum()), int((weaker < stronger).sum())
        luck = float(stats.binom.sf(ahead - 1, ahead + behind, 0.5))
        return bool(weaker.mean() > stronger.mean() + self.allowed + _ROUNDING) and luck < _LUCK

    def everyone(self) -> list[int]:
        """Every member, and the ensemble if it has more than one."""
        return [*range(self.members), *([_ENSEMBLE] if self.members > 1 else [])]

    def errors(self, who: int, name: str, scale: float = 1.0, **options: Any) -> NDArray[np.bool_]:
        """Errors [n, M] on the points of an attack on a member alone or the ensemble, at `scale` times the radius.

        Beyond the threat's radius only the attacked member is asked.
        """
        key = (who, name, scale, *sorted(options.items()))
        if key in self._made:
            return self._made[key]
        known, about = self.known, ("audit", repr(key), str(self.seed), repr(self.probs.tolist()))
        if (noted := known.note(*about)) is not None:
            self._made[key] = from_words("the witness store", noted, self.members)
            return self._made[key]
        target = known.rec if who == _ENSEMBLE else RandomizedEnsemble([known.rec.members[who]])
        threat = known.threat if scale == 1 else known.threat.scaled(scale)
        attack = attacks.create(name, threat, seed=self.seed, **options)
        task = f"audit: {name} on {named(who)}" + ("" if scale == 1 else f", {scale:g} ε")
        known.progress(task, 0, self.n)
        found = attack.run(target, (known.x, known.y))
        known.now, known.cost = known.now + found.cost, known.cost + found.cost
        self.outside += int((~threat.contains(found.x_adv, known.x)).sum())
        if scale <= 1:
            table = known.judge(np.arange(self.n), found.x_adv, [name] * self.n)
        else:
            table = np.zeros((self.n, self.members), dtype=bool)
            table[:, who] = found.errors[:, 0].numpy()
        known.progress(task, self.n, self.n)
        known.add_note(to_words(table), *about)
        self._made[key] = table
        return table

    def risk(self, who: int, name: str, scale: float = 1.0, **options: Any) -> Risks:
        """Expected error per input [n] that an attack reaches on what it attacks."""
        table = self.errors(who, name, scale, **options)
        return np.asarray(table @ self.probs if who == _ENSEMBLE else table[:, who], dtype=np.float64)

    def white_box(self, who: int) -> Risks:
        """The best of PGD on the cross-entropy and on the margin, per input."""
        margin = self.risk(who, "adaptive-pgd-margin", steps=_STEPS[-1])
        return np.maximum(self.risk(who, "pgd"), margin)

    def transferred(self, who: int) -> Risks:
        """Errors on the perturbations that margin PGD found for other members alone."""
        tables = {i: self.errors(i, "adaptive-pgd-margin", steps=_STEPS[-1]) for i in range(self.members)}
        if who == _ENSEMBLE:
            return np.asarray(np.max([table @ self.probs for table in tables.values()], axis=0))
        others = [table[:, who] for i, table in tables.items() if i != who]
        return np.asarray(np.any(others, axis=0), dtype=np.float64)


def named(who: int) -> str:
    """A name for sentences."""
    return "the ensemble" if who == _ENSEMBLE else f"member {who}"


def attack_checks(probes: Probes, reported: Risks) -> list[Check]:
    """Comparisons whose order is known, laws, and whether the reported risk [n] of the ensemble is beaten."""

    def margin(who: int, steps: int) -> Risks:
        return probes.risk(who, "adaptive-pgd-margin", steps=steps)

    found = [
        _ordered(
            probes,
            "iterative-beats-single-step",
            lambda who: probes.risk(who, "pgd"),
            lambda who: probes.risk(who, "fgsm"),
            ("20 steps", "1 step"),
            "steps that follow the gradient lead away from errors that one step finds: do not report PGD alone",
        ),
        _ordered(
            probes,
            "cross-entropy-as-good-as-margin",
            lambda who: probes.risk(who, "pgd"),
            lambda who: margin(who, _STEPS[1]),  # as many steps, so that only the losses differ
            ("cross-entropy", "margin"),
            "the cross-entropy misleads PGD here, as it often does on ensembles: do not report it alone",
        ),
        _ordered(
            probes,
            "white-box-beats-random-search",
            probes.white_box,
            lambda who: probes.risk(who, "random", queries=_QUERIES),
            ("gradient attacks", "random search"),
            "random search finds errors that PGD's gradients do not: they are masked, so use a differentiable stand-in",
        ),
        _ordered(
            probes,
            "plateau-in-steps",
            lambda who: np.maximum(margin(who, _STEPS[0]), margin(who, _STEPS[1])),
            lambda who: margin(who, _STEPS[2]),
            (f"{_STEPS[1]} steps", f"{_STEPS[2]} steps"),
            f"more steps still find more: margin PGD alone would need more than {_STEPS[2]} steps",
        ),
    ]
    if probes.members > 1:
        advice = "perturbations made for others fool it better than PGD's own: its gradients are masked"
        words = ("its own attack", "attacks on other members")
        found.append(
            _ordered(probes, "white-box-beats-transfer", probes.white_box, probes.transferred, words, advice)
        )
    return [*found, _radius(probes), _laws(probes), _not_beaten(probes, reported)]


def _ordered(
    probes: Probes,
    name: str,
    stronger: Callable[[int], Risks],
    weaker: Callable[[int], Risks],
    words: tuple[str, str],
    advice: str,
) -> Check:
    """For every member and the ensemble: does the attack that must be stronger find at least as much?"""
    evidence: dict[str, Any] = {}
    wrong = []
    for who in probes.everyone():
        found, other = stronger(who), weaker(who)
        evidence[named(who)] = {words[0]: float(found.mean()), words[1]: float(other.mean())}
        if probes.beaten(found, other):
            wrong.append(named(who))
    said = ", ".join(
        f"{who} {' and '.join(f'{v:.1%}' for v in pair.values())}" for who, pair in evidence.items()
    )
    return made(
        name,
        not wrong,
        f"errors under {words[0]} and under {words[1]}: {said}",
        {"risks": evidence, "at_fault": wrong, "allowed": probes.allowed},
        f"{', '.join(wrong)}: {advice}",
        bad="note",
    )


def _radius(probes: Probes) -> Check:
    """Errors must grow with the radius, and unlimited perturbations must fool all members."""
    evidence, wrong = {}, []
    scales = (*_WIDER, _everything(probes.known))
    for who in range(probes.members):
        curve = {1.0: probes.risk(who, "adaptive-pgd-margin", steps=_STEPS[-1])}
        for scale in scales:
            curve[scale] = probes.risk(who, "adaptive-pgd-margin", scale, steps=_STEPS[-1])
        ordered = [curve[s] for s in sorted(curve)][:-1]
        falls = any(probes.beaten(larger, smaller) for smaller, larger in pairwise(ordered))
        # A perturbation that was legal stays legal in a larger ball.
        left = 1 - float(np.max([risk for scale, risk in curve.items() if scale >= 1], axis=0).mean())
        evidence[named(who)] = {
            "risks": {f"{s:g}": float(curve[s].mean()) for s in sorted(curve)},
            "left": left,
        }
        if falls or left > max(_LEFT, 1 / probes.n):
            wrong.append(named(who))
    said = ", ".join(f"{who} {found['left']:.1%}" for who, found in evidence.items())
    return made(
        "large-radius-leaves-nothing",
        not wrong,
        f"accuracy left when inputs can be changed at will: {said}",
        {"members": evidence, "at_fault": wrong},
        f"{', '.join(wrong)}: every classifier must fail then, so attacks on it are broken; look for masked gradients "
        "or a member that ignores its input",
    )


def _everything(known: Witnesses) -> float:
    """The radius, in units of ε, at which the ball holds the whole box (without a box: a thousand times ε)."""
    if known.threat.bounds is None:
        return 1000.0
    width = known.threat.bounds[1] - known.threat.bounds[0]
    size = known.x[0].numel()
    diameter = width * {"linf": 1.0, "l2": size**0.5}.get(known.threat.norm, float(size))
    return max(8.0, diameter / known.threat.eps)


def _laws(probes: Probes) -> Check:
    """Laws of every ensemble: perturbations are legal, errors repeat, Theorem 3 holds."""
    known = probes.known
    who = _ENSEMBLE if probes.members > 1 else 0
    probes.errors(who, "saddle")
    known.confirm(probes.probs)
    profile = known.pool.profile()
    risk, limits = profile.risk(probes.probs), bounds(profile.member_risks)
    between = f"floor {limits.floor:.4f} and ceiling {limits.ceiling:.4f}"
    unstable = max((max(flags.get("unstable", [0.0])) for flags in known.flags.values()), default=0.0)
    broken = {
        f"{probes.outside} perturbed inputs leave the perturbation set": probes.outside > 0,
        f"errors changed on {unstable:.1%} of the inputs when computed again": unstable > 0,
        f"risk {risk:.4f} lies outside {between}": not limits.floor - _ROUNDING
        <= risk
        <= limits.ceiling + _ROUNDING,
    }
    faults = [said for said, wrong in broken.items() if wrong]
    return made(
        "consistency",
        not faults,
        "; ".join(faults)
        or f"risk {risk:.4f} within {between}; every perturbation is legal and its errors repeat",
        {
            "outside": probes.outside,
            "unstable": unstable,
            "risk": risk,
            "floor": limits.floor,
            "ceiling": limits.ceiling,
        },
        "these laws hold for every deterministic ensemble: some member answers at random",
    )


def _not_beaten(probes: Probes, reported: Risks) -> Check:
    """The reported robust accuracy must not be above what everything found here gives on the same inputs."""
    shared = min(probes.n, len(reported))
    found, said = probes.known.pool.best(probes.probs)[0][:shared], reported[:shared]
    wrong = bool(found.mean() > said.mean() + probes.allowed + _ROUNDING)
    return made(
        "evaluation-not-beaten",
        not wrong,
        f"reported robust accuracy on {shared} inputs {1 - said.mean():.1%}, found here {1 - found.mean():.1%}",
        {"reported": float(said.mean()), "found": float(found.mean()), "inputs": shared},
        "the reported robust accuracy is too high: evaluate again with the preset thorough",
    )
