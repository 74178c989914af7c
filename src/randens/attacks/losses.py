"""Losses of gradient attacks: functions of the members' logits, one value per input, larger is worse.

Each takes logits z [M, n, C], labels y [n] and probabilities α [M], and returns [n]. All use
logsumexp or differences of logits: log Σ softmax underflows for confident members, its gradient becomes NaN,
and a stalled attack makes a member look robust.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def margins(z: Tensor, y: Tensor) -> Tensor:
    """z_y − max_{c≠y} z_c, [M, n]: negative where the member is fooled."""
    index = y.expand(z.shape[0], -1).unsqueeze(2)
    right = z.gather(2, index).squeeze(2)
    others = z.scatter(2, index, -torch.inf)
    return right - others.amax(dim=2)


def expected_cross_entropy(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    """Σ_i α_i CE(z_i, y): expectation at the loss (APGD-L, Eq. 96)."""
    return probs.to(z.dtype) @ cross_entropies(z, y)


def mixture_cross_entropy(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    """−log Σ_i α_i softmax(z_i)_y: expectation at the softmax (APGD-S), by logsumexp."""
    return -torch.logsumexp(probs.to(z.dtype).log()[:, None] - cross_entropies(z, y), dim=0)


def mean_logit_cross_entropy(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    """CE(Σ_i α_i z_i, y): expectation at the logits, as against a deterministic ensemble."""
    return F.cross_entropy(torch.einsum("m,mnc->nc", probs.to(z.dtype), z), y, reduction="none")


def expected_margin(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    """Carlini and Wagner's loss, expected: flat for fooled members, in units of each member's spread over classes."""
    spread = z.detach().std(dim=2).clamp_min(1e-12)
    return -(probs.to(z.dtype) @ (margins(z, y) / spread).clamp_min(-0.1))


def toward(target: Tensor) -> Loss:
    """Σ_i α_i (z_t − z_y): the margin to one class t [n] of each input."""

    def loss(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
        gap = z - z.gather(2, y.expand(len(z), -1)[:, :, None])
        return probs.to(z.dtype) @ gap.gather(2, target.expand(len(z), -1)[:, :, None])[:, :, 0]

    return loss


def expected_bounded_risk(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    """Σ_i α_i σ(−margin_i): a smooth form of the ensemble's risk itself, at most 1 per input."""
    return probs.to(z.dtype) @ torch.sigmoid(-margins(z, y))


def mce(z: Tensor, y: Tensor, weight: float = 1.0) -> Tensor:
    """Margin-maximizing cross-entropy, [..., n, C] → [..., n]: CE(z, y) + w/(C−1) Σ_{j≠y} −log softmax(−z)_j."""
    index = y.expand(z.shape[:-1]).unsqueeze(-1)
    wrong = z.neg().log_softmax(dim=-1)
    others = wrong.sum(dim=-1) - wrong.gather(-1, index).squeeze(-1)
    right = z.log_softmax(dim=-1).gather(-1, index).squeeze(-1)
    return -right - weight / (z.shape[-1] - 1) * others


def expected_mce(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    """Σ_i α_i MCE(z_i, y)."""
    return probs.to(z.dtype) @ mce(z, y)


def mixture_mce(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    """MCE(log Σ_i α_i softmax(z_i), y): expectation at the softmax, the training adversary of BARRE's release."""
    logs = z.log_softmax(dim=2) + probs.to(z.dtype).log().reshape(-1, 1, 1)
    return mce(torch.logsumexp(logs, dim=0), y)


def mean_logit_mce(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    """MCE(Σ_i α_i z_i, y): expectation at the logits, the training adversary of MRBoost's release."""
    return mce(torch.einsum("m,mnc->nc", probs.to(z.dtype), z), y)


def standardized(loss: Loss) -> Loss:
    """`loss` of logits with spread 3 for each member and input: neither saturated nor flat, whatever their scale."""

    def scaled(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
        return loss(z * (3.0 / z.detach().std(dim=2, keepdim=True).clamp_min(1e-20)), y, probs)

    return scaled


def cross_entropies(z: Tensor, y: Tensor) -> Tensor:
    """CE(z_i, y) of every member, [M, n]."""
    return -z.log_softmax(dim=2).gather(2, y.expand(z.shape[0], -1).unsqueeze(2)).squeeze(2)


LOSSES: dict[str, Loss] = {
    "loss": expected_cross_entropy,
    "softmax": mixture_cross_entropy,
    "logits": mean_logit_cross_entropy,
    "margin": expected_margin,
    "mce": expected_mce,
}
"""By where the expectation over the members is taken, or by what it is taken of."""
