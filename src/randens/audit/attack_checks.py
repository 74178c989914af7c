"""Checks that attack: comparisons whose order is known in a sound evaluation, and laws of the risk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens.audit.case import ENSEMBLE, Case, Check, NotStored, Risks, StoredCase, named
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.results import Evaluation
from randens.risk import bounds
from randens.witness import WitnessPool

__all__ = ["checks", "stored_checks"]

_STEPS = (10, 20, 40)
_QUERIES = 200
_WIDER = (0.5, 2.0, 4.0)
_LEFT = 0.05  # accuracy that may remain under unlimited perturbations
_ROUNDING = 1e-9


def checks(case: Case, evaluation: Evaluation | None) -> list[Check]:
    """Run all checks; each names the members that it concerns."""
    return [make() for make in _makers(case, evaluation)]


def stored_checks(case: StoredCase, evaluation: Evaluation | None) -> list[Check]:
    """Run the checks whose attacks and verdicts are all in the store of `case`, without passes."""
    found = []
    for make in _makers(case, evaluation):
        with contextlib.suppress(NotStored):
            found.append(make())
    return found


def _makers(case: Case, evaluation: Evaluation | None) -> list[Callable[[], Check]]:
    plain = (_iterative, _losses, _random, _transfer, _plateau, _radius, _alone, _identical, _laws)
    found: list[Callable[[], Check]] = [partial(make, case) for make in plain]
    return found if evaluation is None else [*found, partial(_evaluation, case, evaluation)]


def _white_box(case: Case, who: int) -> Risks:
    """The best of PGD on the cross-entropy and on the margin, per input."""
    return np.maximum(case.risk(who, "pgd"), case.risk(who, "adaptive-pgd-margin", steps=_STEPS[-1]))


def _ordered(
    case: Case,
    name: str,
    stronger: Callable[[int], Risks],
    weaker: Callable[[int], Risks],
    words: tuple[str, str],
    advice: str,
    *,
    among: Iterable[int] | None = None,
    what: str = "",
) -> Check:
    """For every member and the ensemble (or `among` them): does the attack that must be stronger find at least as much?

    words: both attacks in the finding, which `what` can begin in another way.
    """
    evidence: dict[str, Any] = {}
    wrong = []
    said = []
    for who in case.everyone() if among is None else among:
        found, other = stronger(who), weaker(who)
        strong, weak = float(found.mean()), float(other.mean())
        evidence[named(who)] = {words[0]: strong, words[1]: weak}
        said.append(f"{named(who)} {strong:.1%} and {weak:.1%}")
        if case.beaten(found, other):
            wrong.append(named(who))
    return Check(
        name,
        not wrong,
        f"{what or f'errors under {words[0]} and under {words[1]}'}: {', '.join(said)}",
        {"risks": evidence, "at_fault": wrong, "allowed": case.allowed},
        f"{', '.join(wrong)}: {advice}",
    )


def _iterative(case: Case) -> Check:
    return _ordered(
        case,
        "iterative-beats-single-step",
        lambda who: case.risk(who, "pgd"),
        lambda who: case.risk(who, "fgsm"),
        ("20 steps", "1 step"),
        "steps that follow the gradient lead away from errors that one step finds; the loss surface is masked, so "
        "use attacks on margins and without gradients",
    )


def _losses(case: Case) -> Check:
    return _ordered(
        case,
        "cross-entropy-as-good-as-margin",
        lambda who: case.risk(who, "pgd"),
        # As many steps as PGD, so that only the losses differ.
        lambda who: case.risk(who, "adaptive-pgd-margin", steps=_STEPS[1]),
        ("cross-entropy", "margin"),
        "the cross-entropy misleads attacks here (very large logits, or a flat loss); numbers from attacks on it "
        "alone are too high, report those of the suite",
    )


def _random(case: Case) -> Check:
    return _ordered(
        case,
        "white-box-beats-random-search",
        lambda who: _white_box(case, who),
        lambda who: case.risk(who, "random", queries=_QUERIES),
        ("gradient attacks", "random search"),
        "random search finds errors that gradients do not: the gradients are masked, make the member "
        "differentiable or give it a differentiable stand-in",
    )


def _transfer(case: Case) -> Check:
    if len(case.members) == 1:
        return Check(
            "white-box-beats-transfer", True, "there is one member only; nothing can be transferred to it"
        )

    def transferred(who: int) -> Risks:
        """Errors on the perturbations found for other members alone."""
        if who == ENSEMBLE:
            tables = [_judged(case, other) @ case.probs for other in range(len(case.members))]
            return np.asarray(np.max(tables, axis=0))
        others = [_judged(case, other)[:, who] for other in range(len(case.members)) if other != who]
        return np.asarray(np.any(others, axis=0).astype(np.float64))

    return _ordered(
        case,
        "white-box-beats-transfer",
        lambda who: _white_box(case, who),
        transferred,
        ("its own attack", "attacks on other members"),
        "perturbations made for other members fool it better than its own: its gradients are masked",
    )


def _judged(case: Case, source: int) -> NDArray[np.bool_]:
    """Verdicts [n, M] of all members on what margin PGD found for member `source` alone."""
    return case.transferred(source, "adaptive-pgd-margin", steps=_STEPS[-1])


def _plateau(case: Case) -> Check:
    """Doubling the steps a second time must not find much more."""
    evidence, wrong, said = {}, [], []
    for who in case.everyone():
        values = []
        best = np.zeros(case.n)
        for steps in _STEPS:
            best = np.maximum(best, case.risk(who, "adaptive-pgd-margin", steps=steps))
            values.append(float(best.mean()))
        evidence[named(who)] = dict(zip(map(str, _STEPS), values, strict=True))
        said.append(f"{named(who)} " + ", ".join(f"{v:.1%}" for v in values))
        few, many = (case.risk(who, "adaptive-pgd-margin", steps=steps) for steps in _STEPS[-2:])
        if values[-1] > values[-2] + case.allowed + _ROUNDING and case.beaten(few, many):
            wrong.append(named(who))
    return Check(
        "plateau-in-steps",
        not wrong,
        f"errors after {', '.join(map(str, _STEPS))} steps: {'; '.join(said)}",
        {"risks": evidence, "at_fault": wrong, "allowed": case.allowed},
        f"{', '.join(wrong)}: more steps still find more; evaluate with at least {4 * _STEPS[-1]} steps",
    )


def _radius(case: Case) -> Check:
    """Errors must grow with the radius, and unlimited perturbations must fool all members."""
    evidence, wrong, said = {}, [], []
    scales = (*_WIDER, _everything(case))
    for who in range(len(case.members)):
        fooled = case.risk(who, "adaptive-pgd-margin", steps=_STEPS[-1])
        curve = {1.0: fooled}
        for scale in scales:
            name = "apgd-margin" if scale == scales[-1] else "adaptive-pgd-margin"
            risk = case.risk(who, name, scale, steps=_STEPS[-1])
            curve[scale] = risk
            if scale > 1:
                # A perturbation that was legal stays legal in a larger ball.
                fooled = np.maximum(fooled, risk)
        ordered = [curve[s] for s in sorted(curve)][:-1]
        falls = any(case.beaten(larger, smaller) for smaller, larger in pairwise(ordered))
        left = 1 - float(fooled.mean())
        evidence[named(who)] = {
            "risks": {f"{s:g}": float(curve[s].mean()) for s in sorted(curve)},
            "left": left,
        }
        said.append(f"{named(who)} {left:.1%}")
        if falls or left > max(_LEFT, 1 / case.n):
            wrong.append(named(who))
    return Check(
        "large-radius-leaves-nothing",
        not wrong,
        f"accuracy left when inputs can be changed at will: {', '.join(said)}",
        {"members": evidence, "at_fault": wrong},
        f"{', '.join(wrong)}: every classifier must fail then, so the attack is broken; look for masked gradients or a "
        "member that ignores its input",
    )


def _everything(case: Case) -> float:
    """The radius, in units of ε, at which the ball holds the whole box (without a box: a thousand times ε)."""
    if case.threat.bounds is None:
        return 1000.0
    low, high = case.threat.bounds
    width = high - low
    diameter = width if case.threat.norm == "linf" else width * case.x[0].numel() ** 0.5
    return max(8.0, diameter / case.threat.eps)


def _alone(case: Case) -> Check:
    """An attack on a member alone must fool it at least as often as the attack on the ensemble does."""
    together = case.attack(ENSEMBLE, "saddle").errors.double().numpy() if len(case.members) > 1 else None
    return _ordered(
        case,
        "members-alone",
        lambda who: _white_box(case, who),
        lambda who: _white_box(case, who) if together is None else together[:, who],
        ("alone", "within the ensemble"),
        "attacked alone it looks more robust than it is; its gradients are masked",
        among=range(len(case.members)),
        what="errors of members attacked alone, and under an attack on the ensemble",
    )


def _identical(case: Case) -> Check:
    """Copies of one member must give that member's risk, because drawing among copies gains nothing."""
    member = case.members[0]
    copies = type(case)(
        RandomizedEnsemble([member] * 3),
        case.x,
        case.y,
        case.threat,
        case.seed,
        case.progress,
        store=case.store,
    )
    whole, single = copies.attack(ENSEMBLE, "saddle"), case.attack(0, "saddle")
    case.cost, case.now = case.cost + copies.cost, case.now + copies.now
    three, one = whole.errors.numpy(), single.errors.numpy()[:, 0]
    split = float((three.any(axis=1) & ~three.all(axis=1)).mean())
    first, alone = three[:, 0].astype(np.float64), one.astype(np.float64)
    wrong = split > 0 or case.beaten(first, alone) or case.beaten(alone, first)
    return Check(
        "identical-members",
        not wrong,
        f"three copies of member 0: error {three[:, 0].mean():.1%}, member 0 alone {one.mean():.1%}, copies that "
        f"disagree on {split:.1%} of the inputs",
        {"copies": float(three[:, 0].mean()), "alone": float(one.mean()), "disagree": split},
        "equal members that answer differently are not deterministic; different risks mean that the attack "
        "depends on the number of members",
    )


def _laws(case: Case) -> Check:
    """Laws of every ensemble: perturbations are legal, verdicts repeat, Theorem 3 holds, and an attack on the
    ensemble is at least as strong as fooling its most probable fooled member."""
    members = len(case.members)
    who = ENSEMBLE if members > 1 else 0
    found = case.attack(who, "saddle")
    again = case.errors(found.x_adv)
    outside = int((~case.threat.contains(found.x_adv, case.x)).sum())
    unstable = float((again != found.errors.numpy()).any(axis=1).mean())
    own = np.stack([_white_box(case, i) for i in range(members)], axis=1) > 0
    likeliest = np.asarray((own * case.probs).max(axis=1))
    best = np.maximum(found.risk.numpy(), _white_box(case, who))
    heaviest, reached = float(likeliest.mean()), float(best.mean())
    pool = WitnessPool(case.n, members, np.arange(case.n), found.errors.numpy()).merge(
        *(WitnessPool(case.n, members, np.arange(case.n), _judged(case, i)) for i in range(members))
    )
    profile = pool.profile()
    risk, limits = profile.risk(case.probs), bounds(profile.member_risks)
    between = f"floor {limits.floor:.4f} and ceiling {limits.ceiling:.4f}"
    within = limits.floor - _ROUNDING <= risk <= limits.ceiling + _ROUNDING
    alone = f"attacks on the ensemble find {reached:.1%}, fooling its likeliest member alone {heaviest:.1%}"
    broken = {
        f"{outside} perturbed inputs leave the perturbation set": outside > 0,
        f"verdicts changed on {unstable:.1%} of the inputs when looked at again": unstable > 0,
        alone: case.beaten(best, likeliest),
        f"risk {risk:.4f} lies outside {between}": not within,
    }
    faults = [said for said, wrong in broken.items() if wrong]
    return Check(
        "consistency",
        not faults,
        "; ".join(faults)
        or f"risk {risk:.4f} within {between}; every perturbation is legal and gives the reported verdicts again",
        {
            "outside": outside,
            "unstable": unstable,
            "heaviest_member": heaviest,
            "ensemble_attack": reached,
            "risk": risk,
            "floor": limits.floor,
            "ceiling": limits.ceiling,
        },
        "these laws hold for every deterministic ensemble: some member answers at random, or the attack on the "
        "ensemble stalls; use the suite",
    )


def _evaluation(case: Case, evaluation: Evaluation) -> Check:
    """The reported robust accuracy must not be above that of these quick attacks on the same inputs."""
    shared = min(case.n, evaluation.n)
    reported = float(evaluation.risk[:shared].mean())
    found = np.zeros(case.n)
    for i in range(len(case.members)):
        found = np.maximum(found, _judged(case, i) @ case.probs)
    if len(case.members) > 1:
        found = np.maximum(found, case.risk(ENSEMBLE, "saddle"))
    quick = float(found[:shared].mean())
    same = evaluation.threat == case.threat
    wrong = same and quick > reported + case.allowed + _ROUNDING
    return Check(
        "evaluation-not-beaten",
        not wrong,
        f"reported risk on the first {shared} inputs {reported:.1%}, found here {quick:.1%}"
        + ("" if same else " (under another threat, not compared)"),
        {"reported": reported, "found": quick, "inputs": shared, "same_threat": same},
        "the reported robust accuracy is too high: evaluate again with the suite",
    )
