"""The checks of an audit: of members without attacks, by attacks whose order is known, and of random models.

A check fails where a law is broken or the reported number is beaten: the number may be too high. A check that only
shows that some attack alone would have been weak is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randens import attacks
from randens.attacks import Cost
from randens.attacks.eot import draw_gradients, sources
from randens.attacks.losses import margin_gradient, margins
from randens.core.errors import RandensError
from randens.core.progress import within
from randens.ensemble import RandomizedEnsemble, evaluating, frozen, to_layout
from randens.evaluation.evaluate import Witnesses
from randens.evaluation.inputs import Case
from randens.evaluation.random_models import randomness
from randens.random_model import RandomizedModel, expanded
from randens.risk.intervals import difference, estimate
from randens.risk.sets import from_words, to_words

Risks = NDArray[np.float64]

_SAME = 1e-3  # logits with another batch size, relative to the largest
_ALONE = 8
_UNUSABLE = 0.02  # share of inputs whose gradient may be exactly zero
_ENSEMBLE = -1  # means the ensemble where a number means a member
_STEPS, _QUERIES = 40, 200
_WIDER = (0.5, 2.0, 4.0)
_LEFT = 0.02  # accuracy that may remain under unlimited perturbations
_JUDGES, _FIRST = 64, 1_800_000_000  # frozen draws that score every perturbation and that no attack uses
_SAMPLES = 16  # draws per gradient
_AGREE = 0.5  # cosine between two gradients below which a step is mostly noise


@dataclass(frozen=True)
class Check:
    """The result of one check.

    status: "ok", "note" (some attack alone would have been weak) or "fail" (the reported number may be too high).
    finding: one sentence with the numbers. evidence: the numbers behind it. advice: what to do, unless ok.
    """

    name: str
    status: str
    finding: str
    evidence: dict[str, Any] = field(default_factory=dict)
    advice: str = ""

    @property
    def passed(self) -> bool:
        """Whether the check did not fail."""
        return self.status != "fail"


def made(
    name: str, good: bool, finding: str, evidence: dict[str, Any], advice: str, bad: str = "fail"
) -> Check:
    """A check that is ok if `good`, and `bad` otherwise."""
    return Check(name, "ok" if good else bad, finding, evidence, "" if good else advice)


def beyond_chance(more: NDArray[np.float64], less: NDArray[np.float64], confidence: float = 0.98) -> bool:
    """Whether risks [n] exceed others on the same inputs by more than the choice of inputs explains."""
    return len(more) > 1 and difference(more, less, confidence).low > 1e-12


def splits(chosen_on: Mapping[str, str]) -> Check:
    """Nothing may have been chosen on test data."""
    wrong = sorted(what for what, split in chosen_on.items() if split == "test")
    said = "; ".join(f"{what} chosen on {split}" for what, split in chosen_on.items())
    advice = f"choose {', '.join(wrong)} on validation data and evaluate again"
    return made("splits", not wrong, said or "nothing was chosen on data", {"test": wrong}, advice)


def batches(known: Witnesses) -> Check:
    """An input's logits must not depend on the other inputs of the batch."""
    gaps, x = [], to_layout(known.x[:_ALONE].to(known.rec.device))
    for member in known.rec.members:
        with evaluating(member), torch.no_grad():
            together = member(x.clone())
            alone = torch.cat([member(x[j : j + 1].clone()) for j in range(len(x))])
        gaps.append(float((together - alone).abs().max() / together.abs().max().clamp_min(1e-30)))
    wrong = [i for i, gap in enumerate(gaps) if gap > _SAME]
    said = f"members {wrong} answer differently" if wrong else "members answer the same"
    return made(
        "batch-independent",
        not wrong,
        f"{said} when asked about one input at a time",
        {"relative_difference": gaps},
        "let normalization layers use stored statistics (BatchNorm with track_running_stats, in eval mode)",
    )


def gradients(known: Witnesses, seed: int) -> Check:
    """Margins must have gradients around the inputs."""
    points = known.threat.random(known.x, torch.Generator().manual_seed(seed)).to(known.rec.device)
    labels = known.y.to(points.device)
    unusable = [_unusable(known.rec, index, points, labels) for index in range(len(known.rec))]
    blind = any(zero > _UNUSABLE or nan > 0 for zero, nan in unusable)
    shares = ", ".join(f"member {i} {zero + nan:.1%}" for i, (zero, nan) in enumerate(unusable))
    return made(
        "gradients",
        not blind,
        f"inputs with zero or NaN gradients: {shares}",
        {"zero": [zero for zero, _ in unusable], "nan": [nan for _, nan in unusable]},
        "gradient attacks cannot see these members: remove rounding, sign or argmax operations, give them a "
        "differentiable stand-in, and trust only what a score-based attack (--attack random) confirms",
    )


def _unusable(rec: RandomizedEnsemble, member: int, points: Tensor, y: Tensor) -> tuple[float, float]:
    """The shares of inputs where the gradient of a member's margin is zero, and where it is NaN."""
    try:
        flat = margin_gradient(rec, member, points, y).flatten(1)
    except RandensError:  # a file without gradients says so: they are zero
        flat = torch.zeros(len(y), 1)
    zero, nan = (flat == 0).all(dim=1), ~torch.isfinite(flat).all(dim=1)
    return float(zero.double().mean()), float(nan.double().mean())


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
        """Errors [n, M] on the points of an attack on a member alone or the ensemble, at `scale` times the radius."""
        key = (who, name, scale, *sorted(options.items()))
        if key in self._made:
            return self._made[key]
        known, about = self.known, ("audit", repr(key), str(self.seed), repr(self.probs.tolist()))
        noted = known.note(lambda words: from_words("a note", words, self.members), *about)
        if noted is not None and len(noted) == self.n:
            self._made[key] = noted
            return noted
        target = known.rec if who == _ENSEMBLE else RandomizedEnsemble([known.rec.members[who]])
        threat = known.threat if scale == 1 else known.threat.scaled(scale)
        attack = attacks.create(name, threat, seed=self.seed, **options)
        progress = within(known.case.progress, f"audit, {named(who)}, {scale:g} ε")
        found = attack.run(target, (known.x, known.y), progress=progress)
        known.now, known.cost = known.now + found.cost, known.cost + found.cost
        if scale <= 1:  # beyond the threat's radius only the attacked member is asked
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


def random_checks(case: Case) -> tuple[list[Check], Cost]:
    """All checks and their passes; what is not random, or not by its seed, is not attacked."""
    found = randomness(case.rec, case.data.x)
    said = (
        f"logits of 8 draws differ by up to {found.difference:.2g} of the largest one; the class changes on "
        f"{found.class_changed:.1%} of the inputs"
    )
    results = [
        made(
            "random-at-all",
            found.random,
            said if found.random else "8 draws gave the same logits: the model is deterministic",
            {"difference": found.difference, "class_changed": found.class_changed},
            "evaluate the module itself; if it should be random, look at the modes of its layers",
        ),
        made(
            "seed-decides",
            found.seeded,
            f"the same seed gave {'the same' if found.seeded else 'different'} logits twice",
            {"seeded": found.seeded},
            "draw from torch's generators or the `generator` argument, or give a factory that takes the seed; "
            "without that no draw can be repeated and no number reproduced",
        ),
    ]
    if not (found.random and found.seeded):
        return results, Cost()
    case.progress("audit of the random model", 0, 1)
    (noise, before), (saturated, after) = _noise(case), _saturated(case)
    case.progress("audit of the random model", 1, 1)
    return [*results, noise, saturated], before + after


def _noise(case: Case) -> tuple[Check, Cost]:
    """Two independent gradients over 16 draws must point the same way, else a step follows noise."""
    x, y = (part[:64].to(case.rec.device) for part in (case.data.x, case.data.y))
    with frozen(case.rec), torch.enable_grad():
        one, two = (
            draw_gradients(sources(case.rec), x, y, _mean_margin, _SAMPLES, _FIRST + 100_003 * k)
            for k in (1, 2)
        )
    agreement = _cosine(one.mean.flatten(1), two.mean.flatten(1))
    single = _cosine(one.gradients[0].flatten(1), two.gradients[0].flatten(1))
    passes = 2 * _SAMPLES * len(y)
    return made(
        "gradients-above-noise",
        agreement >= _AGREE,
        f"two gradients over {_SAMPLES} draws agree with cosine {agreement:.2f}, two of single draws with {single:.2f}",
        {"draws": _SAMPLES, "agreement": agreement, "single": single},
        f"average at least {8 * _SAMPLES} draws per step (eot with samples={8 * _SAMPLES})",
    ), Cost(forwards=passes, backwards=passes)


def _mean_margin(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    return -(probs.to(z.dtype) @ margins(z, y))


def _cosine(one: Tensor, two: Tensor) -> float:
    """Mean over the inputs at which both are not zero, in float64: squares of steep gradients overflow in float32."""
    one, two = (torch.nan_to_num(part, 0.0, 0.0, 0.0).cpu().double() for part in (one, two))
    lengths = torch.linalg.vector_norm(one, dim=1) * torch.linalg.vector_norm(two, dim=1)
    usable = lengths > 0
    return float(((one * two).sum(dim=1)[usable] / lengths[usable]).mean()) if bool(usable.any()) else 0.0


def _saturated(case: Case) -> tuple[Check, Cost]:
    """Attacking the model's K frozen draws must find no more than attacking half of them, on draws that neither saw."""
    attack = attacks.create("adaptive-pgd-margin", case.threat, steps=20, seed=case.attacks[0].seed)
    judges, x, y = expanded(case.rec, _JUDGES, _FIRST), case.data.x, case.data.y
    most = max(m.draws for m in case.rec.members if isinstance(m, RandomizedModel))
    risks, cost, few = [], Cost(), max(1, most // 2)
    for draws in (few, most):
        found = attack(expanded(case.rec, draws, 1000 * attack.seed), x, y)
        risks.append(judges.risk(found.x_adv.to(judges.device), y).cpu().numpy())
        cost += found.cost + Cost(forwards=len(x) * len(judges))
    shares = [float(risk.mean()) for risk in risks]
    return made(
        "saturated-in-draws",
        not beyond_chance(risks[1], risks[0]),
        f"errors on fresh draws when {few} draws are attacked {shares[0]:.1%}, when {most} are {shares[1]:.1%}",
        {"draws": [few, most], "risks": shares},
        f"attack more draws: RandomizedModel(..., draws={4 * most})",
    ), cost
