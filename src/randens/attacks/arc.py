"""ARC and ARC-R (Dbouk and Shanbhag 2022, Algorithm 2; Appendix B.3): fool members one after another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.search import Search
from randens.region import norms

_RHO = 0.05  # ρ/ε: how far past the boundary a move aims
# By the members' linear models: a step that ends further than this, in ε, before its boundary gets no verdict. On 1,152
# validation images, with two seeds, as many members were fooled as without the rule.
_NEAR = 0.15
# An input whose boundaries were all further than this, in ε, outside the ball for two steps in a row is given up;
# chosen on the same images, with the same result.
_FAR = 0.35


@register("arc-r", shuffle=True)
@register("arc", shuffle=False)
@dataclass(frozen=True, kw_only=True)
class ARC(Attack):
    """Attacking Randomized ensembles of Classifiers.

    For each member in turn: move towards the nearest of G boundaries, inside a local ball of radius b around the point
    x + δ of this step, just far enough to pass the boundary after scaling back into that ball. The move is kept if the
    risk does not fall. For a member that is fooled already, the point goes back to its boundary, as in the paper:
    another member may be fooled instead. After a refused move it goes further past the boundary.

    ARC takes the members in order of their probabilities; ARC-R (`shuffle`) in a new random order at every step, and
    always from the input itself.
    """

    steps: int = 20  # K
    boundaries: int = 2  # G
    step: float | None = None  # b in units of ε; the paper's choice by default: 1, and 1/4 for a single model
    shuffle: bool = False

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            self.walk(s, s.start(0 if self.shuffle else restart), restart)

    def walk(self, s: Search, point: Tensor, restart: int) -> None:
        """Algorithm 2 from `point` = x + δ."""
        eps, everyone = self.threat.eps, torch.arange(s.n, device=s.device)
        b = eps * (self.step or (1.0 if s.members > 1 else 0.25))
        errors = s.clean.clone() if torch.equal(point, s.x) else s.judge(everyone, point)
        met = torch.zeros_like(errors)  # members whose boundary was met at this point before
        far = torch.zeros(s.n, dtype=torch.int64, device=s.device)  # steps since a boundary was within reach
        heaviest = s.probs.argsort(descending=True, stable=True).expand(s.n, -1)
        for _ in range(self.steps):
            far += 1
            center, local = point.clone(), torch.zeros_like(point)  # x + δ, and δ_l ← 0
            for member in (s.orders(restart) if self.shuffle else heaviest).T:
                rows = s.open[(s.probs[member] > 0)[s.open] & (far[s.open] <= 2)]
                if not len(rows):
                    continue
                # The nearest of G boundaries of the member, linearized at x + δ + δ_l: unit normal w, distance ζ.
                wanted = torch.zeros_like(errors[rows]).scatter(1, member[rows, None], True)
                margins, slopes, _ = s.linearize(rows, point[rows], wanted, self.boundaries)
                size = norms(slopes[wanted], s.threat.q).clamp_min(1e-20)
                w, zeta = slopes[wanted] / size[:, None], margins[wanted] / size
                back = errors[rows][wanted] & ~met[rows][wanted]
                met[rows] |= wanted

                # The candidate for δ_l, and its point Π(x + δ + δ_l).
                moved = self.move(s, local[rows], center[rows], w, zeta, back, b)
                candidate = s.project(rows, center[rows] + moved)

                # Distances of the boundary, in the linear model, from the input and from the candidate.
                from_x, from_candidate = (
                    zeta + (w * (end - point[rows]).flatten(1)).sum(dim=1) for end in (s.x[rows], candidate)
                )
                within = from_x < (1 + _FAR) * eps
                far[rows[within | errors[rows].any(dim=1)]] = 0
                near = wanted & (from_candidate < _NEAR * eps)[:, None]
                # Members that were fooled may no longer be; after a step back, any member may be.
                verdicts = s.judge(rows, candidate, errors[rows] | near | back[:, None])

                # Kept where the risk does not fall: δ_l is the candidate, and the next member starts there.
                better = s.risk(verdicts) >= s.risk(errors[rows])
                kept = rows[better]
                point[kept], errors[kept], local[kept] = candidate[better], verdicts[better], moved[better]
                met[kept] = False

    def move(
        self, s: Search, local: Tensor, center: Tensor, w: Tensor, zeta: Tensor, back: Tensor, b: float
    ) -> Tensor:
        """b(δ_l + βg)/‖δ_l + βg‖: β just passes the boundary with the unit normal w [k, d] at the distance zeta [k]."""
        shape = (-1,) + (1,) * (local.dim() - 1)
        side = torch.where(back, -1.0, 1.0).to(local.dtype)
        residual = side * zeta
        from_center = residual - side * (w * local.flatten(1)).sum(dim=1)
        passing = b / (b - from_center).clamp_min(1e-6 * b) * residual.abs() + _RHO * s.threat.eps
        beta = torch.where(from_center < b, passing, b).clamp(max=1e3 * s.threat.eps)
        # The first move of a step may have any length, because it is scaled.
        beta = torch.where(local.flatten(1).any(dim=1), beta, torch.full_like(beta, b))
        moved = s.threat.step(center + local, -(side[:, None] * w).reshape(local.shape), beta) - center
        return moved * (b / norms(moved.flatten(1), s.threat.p).clamp_min(1e-20)).reshape(shape)
