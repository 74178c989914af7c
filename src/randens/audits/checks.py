"""A check, those of splits, batches and gradients, and when a difference is more than chance.

A check fails where a law is broken or the reported number is beaten: the number may be too high. A check that only
shows that some attack alone would have been weak is a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens.attacks.losses import margins
from randens.core.errors import RandensError
from randens.ensemble import evaluating, frozen, to_layout
from randens.evaluation.intervals import difference
from randens.evaluation.loop import Witnesses

__all__ = ["Check", "batches", "beyond_chance", "gradients", "made", "splits"]

_SAME = 1e-3  # logits with another batch size, relative to the largest
_ALONE = 8
_UNUSABLE = 0.02  # share of inputs whose gradient may be exactly zero


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
    """Whether risks [n] exceed others on the same inputs by more than the choice of inputs explains.

    Two attacks of the same strength find different errors on a few inputs, which is no fault.
    """
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
    unusable = [_unusable(member, points, known.y.to(points.device)) for member in known.rec.members]
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


def _unusable(member: nn.Module, points: Tensor, y: Tensor) -> tuple[float, float]:
    """The shares of inputs where the gradient of a member's margin is zero, and where it is NaN."""
    inputs = to_layout(points).detach().requires_grad_(True)
    slope = torch.zeros_like(inputs)
    try:
        with frozen(member), torch.enable_grad():
            value = margins(member(inputs.clone()).unsqueeze(0), y).sum()
            if value.requires_grad:
                slope = torch.autograd.grad(value, inputs)[0]
    except RandensError:
        pass  # a file without gradients says so: they are zero
    flat = slope.flatten(1)
    zero, nan = (flat == 0).all(dim=1), ~torch.isfinite(flat).all(dim=1)
    return float(zero.double().mean()), float(nan.double().mean())
