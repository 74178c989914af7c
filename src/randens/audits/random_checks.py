"""Checks of random models: randomness, dependence on the seed, noisy gradients, the number of draws."""

from __future__ import annotations

import torch
from torch import Tensor

from randens import attacks
from randens.attacks import Cost
from randens.attacks.eot import draw_gradients, sources
from randens.attacks.losses import margins
from randens.audits.checks import Check, beyond_chance, made
from randens.core.progress import Progress
from randens.ensemble import frozen
from randens.evaluation.draws import members_of, randomness
from randens.evaluation.inputs import Case
from randens.random_model import RandomizedModel, expanded

_JUDGES, _FIRST = 64, 1_800_000_000  # frozen draws that score every perturbation and that no attack uses
_SAMPLES = 16  # draws per gradient
_AGREE = 0.5  # cosine between two gradients below which a step is mostly noise
_STEPS = 20


def checks(case: Case, progress: Progress) -> tuple[list[Check], Cost]:
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
    progress("audit of the random model", 0, 1)
    (noise, before), (saturated, after) = _noise(case), _saturated(case)
    progress("audit of the random model", 1, 1)
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
    attack = attacks.create("adaptive-pgd-margin", case.threat, steps=_STEPS, seed=case.attacks[0].seed)
    judges, x, y = expanded(case.rec, _JUDGES, _FIRST), case.data.x, case.data.y
    most = max(m.draws for m in members_of(case.rec) if isinstance(m, RandomizedModel))
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
