"""Whether a random classifier can be more robust than every deterministic one on given data."""

from __future__ import annotations

from typing import Any

from randens.core.errors import InputError
from randens.data import as_data
from randens.risk import Ceiling, ceiling_from_conflicts, close_pairs
from randens.threat import Threat


def ceiling(data: Any, threat: Threat) -> Ceiling:
    """The largest robust accuracy of any classifier on these data, deterministic and random.

    Parameters
    ----------
    data : (x, y), Data, loader or name
        Inputs and labels, as for `evaluate`.
    threat : Threat
        In linf both numbers are exact. In l2 and l1 three sets that meet in pairs need not have a common point, so
        that of random classifiers is an upper bound.

    Returns
    -------
    Ceiling
        `.deterministic`, `.randomized`, `.gain`, the number of `.inputs` in conflict, and a `.message`.

    Examples
    --------
    >>> import torch, randens
    >>> x = torch.tensor([[0.1], [0.5], [0.9]])
    >>> randens.ceiling((x, torch.tensor([0, 1, 2])), randens.Threat("linf", 0.1)).inputs
    0
    """
    if not isinstance(threat, Threat):
        raise InputError(f"threat is {threat!r}; give a Threat, e.g. Threat('linf', 8/255)")
    if threat.norm not in ("linf", "l2", "l1"):
        raise InputError(f"threat has the norm {threat.norm}; a ceiling is known for linf, l2 and l1")
    inputs = as_data(data)
    x, y = inputs[:]
    pairs = close_pairs(x.flatten(1).numpy(), y.numpy(), threat.norm, 2 * threat.eps)
    return ceiling_from_conflicts(len(y), pairs, common_points=threat.norm == "linf")
