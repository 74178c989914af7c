"""Enumeration of a finite set of perturbations: every fooled set of every input, whatever α is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from randens.attacks.base import Attack, register
from randens.attacks.search import Search
from randens.threat import FiniteThreat


@register("finite")
@dataclass(frozen=True, kw_only=True)
class Finite(Attack):
    """Try every transformation of a `FiniteThreat` on every input. The source of a witness is its transformation.

    Examples
    --------
    >>> import torch, randens
    >>> Finite(randens.FiniteThreat([torch.zeros_like])).name
    'finite'
    """

    exact: ClassVar[bool] = True
    enumerates: ClassVar[bool] = True

    def search(self, s: Search) -> None:
        assert isinstance(s.threat, FiniteThreat)
        # Members with probability 0 count, too: what is found holds for every α.
        rows = (~s.best.all(dim=1)).nonzero().flatten()
        for name, points in s.threat.points(s.x[rows]) if len(rows) else ():
            open_ = ~s.best[rows].all(dim=1)
            s.source = name
            # The original members, so that ties are decided as `RandomizedEnsemble.errors` does.
            errors = s.rec.errors(points[open_], s.y[rows[open_]])
            s.cost.forwards += len(errors) * len(s.rec.networks)
            s.record(rows[open_], points[open_], errors)
