"""Checks that attack: comparisons whose order is known in a sound evaluation, laws, and the reported number."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens import attacks
from randens.audits.checks import Check, beyond_chance, made
from randens.core.progress import within
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.intervals import estimate
from randens.evaluation.loop import Witnesses
from randens.risk.sets import from_words, to_words

__all__ = ["Probes", "attack_checks"]

Risks = NDArray[np.float64]

_ENSEMBLE = -1  # means the ensemble where a number means a member
_STEPS = 40
_QUERIES = 200
_WIDER = (0.5, 2.0, 4.0)
_LEFT = 0.02  # accuracy that may remain under unlimited perturbations


class Probes:
    """The attacks of an audit on one ensemble, each from the unperturbed inputs and made once, also for a store.

    Points that are legal under the threat are shown to all members and join the witnesses `known`.
    """

    def __init__(self, known: Witnesses, seed: int) -> None:
        self.known, self.seed = known, seed
        self.n, self.members = known.clean.shape
        self.probs = known.rec.probs.cpu().numpy()
        self._made: dict[tuple[Any, ...], NDArray[np.bool_]] = {}

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
        progress = within(known.progress, f"audit, {named(who)}, {scale:g} ε")
        found = attack.run(target, (known.x, known.y), progress=progress)
        known.now, known.cost = known.now + found.cost, known.cost + found.cost
        if scale <= 1:
            table = known.judge(np.arange(self.n), found.x_adv, [name] * self.n)
        else:
            table = np.zeros((self.n, self.members), dtype=bool)
            table[:, who] = found.errors[:, 0].numpy()
        known.add_note(to_words(table), *about)
        self._made[key] = table
        return table

    def risk(self, who: int, name: str, scale: float = 1.0, **options: Any) -> Risks:
        """Expected error per input [n] that an attack reaches on what it attacks."""
        table = self.errors(who, name, scale, **options)
        return np.asarray(table @ self.probs if who == _ENSEMBLE else table[:, who], dtype=np.float64)

    def margin(self, who: int, steps: int = _STEPS, scale: float = 1.0) -> Risks:
        """The same of PGD on the margin."""
        return self.risk(who, "adaptive-pgd-margin", scale, steps=steps)

    def white_box(self, who: int) -> Risks:
        """The best of PGD on the cross-entropy and on the margin, per input."""
        return np.maximum(self.risk(who, "pgd"), self.margin(who))

    def transferred(self, who: int) -> Risks:
        """Errors on the perturbations that margin PGD found for other members alone."""
        tables = {
            i: self.errors(i, "adaptive-pgd-margin", steps=_STEPS) for i in range(self.members) if i != who
        }
        found = [table @ self.probs if who == _ENSEMBLE else table[:, who] for table in tables.values()]
        return np.asarray(np.max(found, axis=0), dtype=np.float64)


def named(who: int) -> str:
    """A name for sentences."""
    return "the ensemble" if who == _ENSEMBLE else f"member {who}"


def attack_checks(probes: Probes, reported: Risks) -> list[Check]:
    """Comparisons whose order is known, laws, and whether the reported risk [n] of the ensemble is beaten."""
    compared: list[tuple[str, tuple[str, str], Callable[[int], Risks], Callable[[int], Risks], str]] = [
        (
            "iterative-beats-single-step",
            ("20 steps", "1 step"),
            lambda who: probes.risk(who, "pgd"),
            lambda who: probes.risk(who, "fgsm"),
            "steps that follow the gradient lead away from errors that one step finds: do not report PGD alone",
        ),
        (
            "cross-entropy-as-good-as-margin",
            ("cross-entropy", "margin"),
            lambda who: probes.risk(who, "pgd"),
            lambda who: probes.margin(who, 20),  # as many steps, so that only the losses differ
            "the cross-entropy misleads PGD here, as it often does on ensembles: do not report it alone",
        ),
        (
            "white-box-beats-random-search",
            ("gradient attacks", "random search"),
            probes.white_box,
            lambda who: probes.risk(who, "random", queries=_QUERIES),
            "random search finds errors that PGD's gradients do not: they are masked, so use a differentiable stand-in",
        ),
        (
            "white-box-beats-transfer",
            ("its own attack", "attacks on other members"),
            probes.white_box,
            probes.transferred,
            "perturbations made for others fool it better than PGD's own: its gradients are masked",
        ),
    ]
    found = [_ordered(probes, *one) for one in compared[: 4 if probes.members > 1 else 3]]
    return [*found, _radius(probes), _repeatable(probes), _not_beaten(probes, reported)]


def _ordered(
    probes: Probes,
    name: str,
    words: tuple[str, str],
    stronger: Callable[[int], Risks],
    weaker: Callable[[int], Risks],
    advice: str,
) -> Check:
    """For every member and the ensemble: does the attack that must be stronger find at least as much?"""
    evidence, wrong = {}, []
    for who in probes.everyone():
        found, other = stronger(who), weaker(who)
        evidence[named(who)] = {words[0]: float(found.mean()), words[1]: float(other.mean())}
        if beyond_chance(other, found):
            wrong.append(named(who))
    said = ", ".join(
        f"{who} {' and '.join(f'{v:.1%}' for v in pair.values())}" for who, pair in evidence.items()
    )
    return made(
        name,
        not wrong,
        f"errors under {words[0]} and under {words[1]}: {said}",
        {"risks": evidence, "at_fault": wrong},
        f"{', '.join(wrong)}: {advice}",
        bad="note",
    )


def _radius(probes: Probes) -> Check:
    """Errors must grow with the radius, and unlimited perturbations must fool all members."""
    threat, left, wrong = probes.known.threat, {}, []
    # The radius, in units of ε, at which the ball holds the whole box (without a box: a thousand times ε).
    low, high = threat.bounds or (0.0, 1000 * threat.eps)
    everything = max(8.0, (high - low) * probes.known.x[0].numel() ** (1 / threat.p) / threat.eps)
    for who in range(probes.members):
        curve = {scale: probes.margin(who, scale=scale) for scale in (1.0, *_WIDER, everything)}
        ordered = [curve[scale] for scale in sorted(curve)]
        falls = any(beyond_chance(smaller, larger) for smaller, larger in pairwise(ordered[:-1]))
        # A perturbation that was legal stays legal in a larger ball.
        remains = estimate(1 - np.max([risk for scale, risk in curve.items() if scale >= 1], axis=0))
        left[named(who)] = float(remains)
        if falls or remains.low > _LEFT:
            wrong.append(named(who))
    said = ", ".join(f"{who} {share:.1%}" for who, share in left.items())
    return made(
        "large-radius-leaves-nothing",
        not wrong,
        f"accuracy left when inputs can be changed at will: {said}",
        {"left": left, "at_fault": wrong},
        f"{', '.join(wrong)}: every classifier must fail then, so attacks on it are broken; look for masked gradients "
        "or a member that ignores its input",
    )


def _repeatable(probes: Probes) -> Check:
    """The errors on the worst inputs must be the same when they are computed again."""
    probes.known.confirm(probes.probs)
    flags = probes.known.flags.values()
    unstable = max((max(flag.get("unstable", [0.0])) for flag in flags), default=0.0)
    return made(
        "repeatable",
        unstable == 0,
        f"errors changed on {unstable:.1%} of the inputs when computed again",
        {"unstable": unstable},
        "some member answers at random, or depends on the batch: find out which, or wrap it in RandomizedModel",
    )


def _not_beaten(probes: Probes, reported: Risks) -> Check:
    """The reported robust accuracy must not be above what everything found here gives on the same inputs."""
    probes.errors(_ENSEMBLE if probes.members > 1 else 0, "saddle")
    shared = min(probes.n, len(reported))
    found, said = probes.known.pool.best(probes.probs)[0][:shared], reported[:shared]
    beaten = beyond_chance(found, said, 0.9)
    return made(
        "evaluation-not-beaten",
        bool(found.mean() <= said.mean() + 1e-9),
        f"reported robust accuracy on {shared} inputs {1 - said.mean():.1%}, found here {1 - found.mean():.1%}",
        {"reported": float(said.mean()), "found": float(found.mean()), "inputs": shared},
        f"the reported number is {'too high' if beaten else 'high by a few inputs'}: evaluate with the preset thorough",
        bad="fail" if beaten else "note",
    )
