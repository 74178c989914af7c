"""A randomized ensemble for code that expects one deterministic model."""

from __future__ import annotations

from torch import Tensor, nn

from randens.core.errors import InputError
from randens.ensemble import RandomizedEnsemble


class Mixture(nn.Module):
    """log Σ_i α_i softmax_i(x), [n, C]: the log-probabilities of a randomized ensemble's answers, as one module.

    Its argmax is *not* the randomized ensemble but a deterministic one that averages probabilities. Use it to attack,
    and ``rec.risk(x_adv, y)`` to measure; `from_autoattack` and similar functions do so.
    """

    def __init__(self, rec: RandomizedEnsemble) -> None:
        super().__init__()
        if not isinstance(rec, RandomizedEnsemble):
            raise InputError(f"rec is a {type(rec).__name__}; give a RandomizedEnsemble")
        self.rec = rec

    @property
    def passes(self) -> int:
        """How many network passes one call costs."""
        return len(self.rec.networks)

    def forward(self, x: Tensor) -> Tensor:
        return self.rec.mixture(x)
