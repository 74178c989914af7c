"""A randomized ensemble for code that expects one deterministic model."""

from __future__ import annotations

from torch import Tensor, nn

from randens.core.errors import InputError
from randens.ensemble import RandomizedEnsemble

__all__ = ["Mixture"]


class Mixture(nn.Module):
    """log Σ_i α_i softmax_i(x), [n, C]: the log-probabilities of a randomized ensemble's answers, as one module.

    By logsumexp, so that confident members do not underflow; softmax leaves it unchanged, and cross-entropy of it is
    the mixture's. Attacks that expect a deterministic model (AutoAttack's standard version) can work on it.

    Its argmax is *not* the randomized ensemble: it is a deterministic ensemble that averages the
    probabilities of all members. To measure the robustness of the randomized ensemble, compute
    ``rec.risk(x_adv, y)`` on the perturbed inputs, or use `randens.attacks.from_autoattack` and similar
    functions, which do so.

    Parameters
    ----------
    rec : RandomizedEnsemble
        The ensemble.

    Examples
    --------
    >>> import torch, randens
    >>> rec = randens.RandomizedEnsemble([torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)])
    >>> bool(torch.isclose(Mixture(rec)(torch.zeros(1, 2)).exp().sum(), torch.tensor(1.0)))
    True
    """

    def __init__(self, rec: RandomizedEnsemble) -> None:
        super().__init__()
        if not isinstance(rec, RandomizedEnsemble):
            raise InputError(f"rec is a {type(rec).__name__}; give a RandomizedEnsemble")
        self.rec = rec

    @property
    def passes(self) -> int:
        """How many member passes one call costs."""
        return len(self.rec)

    def forward(self, x: Tensor) -> Tensor:
        return self.rec.mixture(x)
