"""Checks without attacks: which data were used for choices, the members' outputs, modes and gradients.

A check fails where a law is broken or the reported number is beaten: the number may be too high. A check that only
shows that some attack alone would have been weak is a note.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from randens.attacks.losses import margins
from randens.core.errors import RandensError
from randens.ensemble import RandomizedEnsemble, evaluating, frozen, to_layout
from randens.evaluation.loop import Witnesses
from randens.evaluation.result import Evaluation
from randens.witness.fingerprints import fingerprint

__all__ = ["Check", "belongs", "made", "member_checks", "outputs", "splits"]

_SAME, _SAME_BATCH = 1e-5, 1e-3  # logits computed twice, or with another batch size, relative to the largest
_ALONE = 8
_UNUSABLE = 0.02  # share of inputs whose gradient may be exactly zero
_DOWNHILL = 0.8


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
    return Check(name, "ok" if good else bad, finding, evidence, "" if good else advice)


def splits(chosen_on: Mapping[str, str]) -> Check:
    """Nothing may have been chosen on test data."""
    wrong = sorted(what for what, split in chosen_on.items() if split == "test")
    said = "; ".join(f"{what} chosen on {split}" for what, split in chosen_on.items())
    advice = f"choose {', '.join(wrong)} on validation data and evaluate again"
    return made(
        "splits", not wrong, said or "nothing was chosen on data", {"chosen_on": dict(chosen_on)}, advice
    )


def belongs(evaluation: Evaluation, rec: RandomizedEnsemble) -> Check:
    """The evaluation must be of these members at these probabilities."""
    differs = {
        "other members": fingerprint(rec) != evaluation.about.ensemble,
        "other probabilities": not np.array_equal(evaluation.probs, rec.probs.cpu().numpy()),
    }
    faults = [said for said, wrong in differs.items() if wrong]
    said = f"the evaluation is of {' and '.join(faults)}" if faults else "the evaluation fits the ensemble"
    return made("evaluation-current", not faults, said, {"faults": faults}, "run the evaluation again")


def outputs(rec: RandomizedEnsemble, x: Tensor) -> Check:
    """Logits must be finite, not probabilities, and depend on the input."""
    broken, probabilities, constant = [], [], []
    for index in range(len(rec)):
        z = _logits(rec, index, x)
        if not bool(torch.isfinite(z).all()):
            broken.append(index)
            continue
        if bool((z >= 0).all()) and bool(((z.double().sum(dim=1) - 1).abs() < 1e-4).all()):
            probabilities.append(index)
        if len(z) > 1 and bool((z == z[:1]).all()):
            constant.append(index)
    faults = {
        "return NaN or infinite values": (broken, "repair members that return NaN before anything else"),
        "return probabilities instead of logits": (
            probabilities,
            "remove the softmax at the end of the member: a second one inside the losses flattens every gradient",
        ),
        "return the same for every input": (constant, "drop members that ignore their input"),
    }
    said = [f"members {who} {what}" for what, (who, _) in faults.items() if who]
    return made(
        "outputs",
        not said,
        "; ".join(said) or "all members return finite logits",
        {"not_finite": broken, "probabilities": probabilities, "constant": constant},
        "; ".join(advice for who, advice in faults.values() if who),
    )


def member_checks(known: Witnesses, seed: int) -> list[Check]:
    """Modes, batches and gradients of the members."""
    return [_mode(known), _batches(known), *_gradients(known, seed)]


def _logits(rec: RandomizedEnsemble, index: int, x: Tensor) -> Tensor:
    member = rec.members[index]
    with evaluating(member), torch.no_grad():
        z: Tensor = member(to_layout(x.to(rec.device)).clone()).cpu()
    return z


def _gap(one: Tensor, two: Tensor) -> float:
    """Largest difference, relative to the largest logit."""
    largest = float(one.abs().max().clamp_min(1e-30))
    return float((one.double() - two.double()).abs().max()) / largest


def _mode(known: Witnesses) -> Check:
    """Members must give the same outputs in their current mode as in eval mode."""
    rec, x = known.rec, known.x
    differing: dict[str, float] = {}
    for index, module in enumerate(rec.members):
        if any(m.training for m in module.modules()):
            # A copy is used, because running a module in training mode may change its statistics.
            with torch.no_grad():
                found = copy.deepcopy(module)(to_layout(x.to(rec.device)).clone()).cpu()
            gap = _gap(found, _logits(rec, index, x))
            differing |= {str(index): gap} if gap > _SAME else {}
    said = f"members {', '.join(differing)} are in training mode and answer differently from eval mode"
    return made(
        "eval-mode",
        not differing,
        said if differing else "members answer as they do in eval mode",
        {"difference": differing},
        "call rec.eval() before the ensemble is used",
    )


def _batches(known: Witnesses) -> Check:
    """An input's logits must not depend on the other inputs of the batch."""
    rec, few = known.rec, known.x[:_ALONE]
    gaps = []
    for index in range(len(rec)):
        alone = torch.cat([_logits(rec, index, few[j : j + 1]) for j in range(len(few))])
        gaps.append(_gap(_logits(rec, index, few), alone))
    wrong = [i for i, gap in enumerate(gaps) if gap > _SAME_BATCH]
    return made(
        "batch-independent",
        not wrong,
        f"members {wrong} answer differently when asked about one input at a time"
        if wrong
        else "answers do not depend on the rest of the batch",
        {"relative_difference": gaps},
        "let normalization layers use stored statistics (BatchNorm with track_running_stats, in eval mode)",
    )


def _gradients(known: Witnesses, seed: int) -> list[Check]:
    """Gradients of the two losses that attacks use: do they exist, and do they point downhill?"""
    generator = torch.Generator().manual_seed(seed)
    centers, y = torch.cat([known.x, known.x]), torch.cat([known.y, known.y])
    points = torch.cat([known.x, known.threat.random(known.x, generator)])
    table: dict[str, list[float]] = {key: [] for key in ("zero", "nan", "saturated", "downhill")}
    for index in range(len(known.rec)):
        slope, flat, broken = _slopes(known.rec, index, points, y, margin=True)
        _, saturated, broken_loss = _slopes(known.rec, index, points, y, margin=False)
        table["zero"].append(_share(flat))
        table["nan"].append(_share(broken | broken_loss))
        table["saturated"].append(_share(saturated & ~flat))
        table["downhill"].append(_downhill(known, index, points, centers, y, slope))
    blind = _above(table["zero"], _UNUSABLE) + _above(table["nan"], 0.0)
    unusable = [a + b for a, b in zip(table["zero"], table["nan"], strict=True)]
    return [
        made(
            "gradients",
            not blind,
            _listed("inputs with zero or NaN gradients", unusable),
            {"zero": table["zero"], "nan": table["nan"]},
            "gradient attacks cannot see these members: remove rounding, sign or argmax operations, give them a "
            "differentiable stand-in, and trust only what a score-based attack (--attack random) confirms",
        ),
        made(
            "loss-gradients",
            not _above(table["saturated"], _UNUSABLE),
            _listed("inputs where the cross-entropy's gradient is exactly zero", table["saturated"]),
            {"saturated": table["saturated"]},
            "the logits are so large that the loss saturates: use attacks on margins (saddle, standard), which do not "
            "depend on the scale",
            bad="note",
        ),
        made(
            "gradients-point-downhill",
            all(share >= _DOWNHILL for share in table["downhill"]),
            _listed("inputs whose margin falls after a small step along its gradient", table["downhill"]),
            {"downhill": table["downhill"]},
            "gradients that do not say where the margin falls are noise to an attack: look for random, "
            "discontinuous or substituted gradients in the member",
        ),
    ]


def _slopes(
    rec: RandomizedEnsemble, index: int, points: Tensor, y: Tensor, *, margin: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the margin (else of the cross-entropy) at `points`, where it is zero, where it is NaN."""
    module, labels = rec.members[index], y.to(rec.device)
    inputs = to_layout(points.to(rec.device)).detach().requires_grad_(True)
    gradient = torch.zeros_like(inputs)
    try:
        with frozen(module), torch.enable_grad():
            z = module(inputs.clone())
            value = (
                margins(z.unsqueeze(0), labels).sum()
                if margin
                else F.cross_entropy(z, labels, reduction="sum")
            )
            if value.requires_grad:
                gradient = torch.autograd.grad(value, inputs)[0]
    except RandensError:
        pass  # a file without gradients says so: they are zero
    flat = gradient.flatten(1).cpu()
    return gradient.detach().cpu(), (flat == 0).all(dim=1), ~torch.isfinite(flat).all(dim=1)


def _downhill(
    known: Witnesses, index: int, points: Tensor, centers: Tensor, y: Tensor, slope: Tensor
) -> float:
    """The share of points whose margin decreases after a legal step of ε/100 down the slope."""
    usable = torch.nan_to_num(slope, 0.0, 0.0, 0.0)
    step = 0.01 * known.threat.eps * known.threat.steepest(usable)
    moved = known.threat.project(points - step, centers)
    promised = ((moved - points) * usable).flatten(1).sum(dim=1)
    before, after = (
        margins(_logits(known.rec, index, p).unsqueeze(0), y).squeeze(0) for p in (points, moved)
    )
    # Predicted decreases below the resolution of float32 logits are not checked.
    judged = promised < -1e-5 * before.abs().clamp_min(1e-3)
    return float((after < before)[judged].double().mean()) if bool(judged.any()) else 1.0


def _share(rows: Tensor) -> float:
    return float(rows.double().mean())


def _above(shares: Sequence[float], limit: float) -> list[int]:
    return [i for i, share in enumerate(shares) if share > limit]


def _listed(what: str, shares: Sequence[float]) -> str:
    return f"{what}: " + ", ".join(f"member {i} {share:.1%}" for i, share in enumerate(shares))
