"""Losses of gradient attacks: logits z [M, n, C], labels y [n], α [M] → [n], larger is worse; none underflows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from randens.ensemble import RandomizedEnsemble, frozen, to_layout

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def of_label(values: Tensor, y: Tensor) -> Tensor:
    """The entry [..., n] of every input's label in values [..., n, C]."""
    return values.gather(-1, y.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def margins(z: Tensor, y: Tensor) -> Tensor:
    """z_y − max_{c≠y} z_c, [..., n]: negative where the member is fooled."""
    others = z.scatter(-1, y.expand(z.shape[:-1]).unsqueeze(-1), -torch.inf)
    return of_label(z, y) - others.amax(dim=-1)


def margin_gradient(rec: RandomizedEnsemble, member: int, x: Tensor, y: Tensor) -> Tensor:
    """The gradient [n, ...] of one member's margins; zeros where there is none."""
    with frozen(rec), torch.enable_grad():
        inputs = to_layout(x).detach().requires_grad_(True)
        value = margins(rec.answer(member, rec.members[member], inputs).unsqueeze(0), y).sum()
        found = torch.autograd.grad(value, inputs, allow_unused=True)[0] if value.requires_grad else None
    return torch.zeros_like(inputs) if found is None else found.detach()


def cross_entropies(z: Tensor, y: Tensor) -> Tensor:
    """CE(z, y), z [..., n, C] → [..., n]."""
    return -of_label(z.log_softmax(dim=-1), y)


def bounded_risk(z: Tensor, y: Tensor) -> Tensor:
    """σ(−margin), [..., n]: between 0 and 1 like the error, so that no input costs more than 1."""
    return torch.sigmoid(-margins(z, y))


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
    return probs.to(z.dtype) @ bounded_risk(z, y)


def mce(z: Tensor, y: Tensor, weight: float = 1.0) -> Tensor:
    """Margin-maximizing cross-entropy, [..., n, C] → [..., n]: CE(z, y) + w/(C−1) Σ_{j≠y} −log softmax(−z)_j."""
    wrong = z.neg().log_softmax(dim=-1)
    others = wrong.sum(dim=-1) - of_label(wrong, y)
    return cross_entropies(z, y) - weight / (z.shape[-1] - 1) * others


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


LOSSES: dict[str, Loss] = {
    "loss": expected_cross_entropy,
    "softmax": mixture_cross_entropy,
    "logits": mean_logit_cross_entropy,
    "margin": expected_margin,
    "mce": expected_mce,
}
"""By where the expectation over the members is taken, or by what it is taken of."""
