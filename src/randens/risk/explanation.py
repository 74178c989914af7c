"""Bounds and advice from the members' risks (Theorem 3), in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from randens.core.errors import InputError
from randens.core.files import picked
from randens.risk.checks import as_count, as_risks
from randens.risk.theorems import Bounds, RuleOfThumb, bounds, necessary_size, rule_of_thumb


@dataclass(frozen=True)
class Explanation:
    """Bounds and advice for an ensemble of which only the members' risks are known.

    bounds: Theorem 3. next_member: the risk a further member should have. best_member: index of the most
    robust one. possible_gain: its risk − floor, the largest possible gain of drawing over using it alone.
    needed_size: where all members but one are broken, the fewest members that can beat that one (`necessary_size`),
    else None. sentences: all of it in words.
    """

    bounds: Bounds
    next_member: RuleOfThumb
    best_member: int
    possible_gain: float
    needed_size: int | None
    sentences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        names = "best_member possible_gain needed_size sentences"
        following = picked(self.next_member, "low high necessary")
        return {**self.bounds.to_json(), "next_member": following, **picked(self, names)}


def explain(member_risks: ArrayLike, *, classes: int | None = None) -> Explanation:
    """Say which risks a randomized ensemble can have if its members have these adversarial risks.

    Parameters
    ----------
    member_risks : array
        η_i [M].
    classes : int, optional
        The number of classes; with two, a sentence says that some deterministic vote is at least as robust.

    Returns
    -------
    Explanation
        Sentences and the numbers in them.

    Examples
    --------
    >>> len(explain([0.5, 0.6]).sentences) > 0
    True
    """
    risks = as_risks("member_risks", member_risks)
    if classes is not None and as_count("classes", classes) < 2:
        raise InputError(f"classes must be a whole number of at least 2, got {classes!r}")
    limits = bounds(risks)
    # Members too weak to lower the floor must not make the advice for the next one more lenient.
    thumb = rule_of_thumb(risks[limits.probs > 0])
    best = int(np.argmin(risks))
    lowest = float(risks[best])
    broken = len(risks) > 1 and 0 < lowest < 1.0 <= np.delete(risks, best).min()
    size = necessary_size(lowest) if broken else None
    sentences = [f"There is one member, so there is nothing to draw: the risk is {limits.floor:.2%}."]
    if len(risks) > 1:
        sentences = [
            f"Whatever the probabilities, the risk of the ensemble lies between {limits.floor:.2%} and "
            f"{limits.ceiling:.2%}; from the members' risks alone nothing tighter can be said (Theorem 3).",
            _gain(limits, best, lowest),
        ]
    if size is not None:
        verdict = "too small" if len(risks) < size else "large enough for that"
        sentences.append(
            f"All members but {best} are always fooled: it takes at least {size} members to beat that one "
            f"(Equation 16), and an ensemble of {len(risks)} is {verdict}."
        )
    unused = np.flatnonzero(limits.probs == 0).tolist()
    if limits.m > 1 and unused:
        names = ", ".join(map(str, unused))
        sentences.append(f"Too weak to lower the floor: member{'s' if len(unused) > 1 else ''} {names}.")
    sentences.append(_next(thumb, limits.m, best))
    if len(risks) > 1 and classes in (None, 2):
        sentences.append(
            f"{'With two classes' if classes == 2 else 'If there are only two classes'}, some deterministic threshold "
            "vote of the same members is at least as robust as any way of drawing them (Gnecco-Heredia et al., NeurIPS "
            "2023): there the advantage of drawing is compute alone, one member per prediction instead of all of them."
        )
    return Explanation(limits, thumb, best, max(0.0, lowest - limits.floor), size, tuple(sentences))


def _gain(limits: Bounds, best: int, lowest: float) -> str:
    if limits.m == 1:
        return f"Drawing cannot help: member {best} alone, at {lowest:.2%}, is as good as the floor."
    return (
        f"The floor is reached, if at all, by drawing the {limits.m} most robust members alike: at best that "
        f"turns the {lowest:.2%} of member {best} into {limits.floor:.2%}. How much of it is real depends on "
        "how often one perturbation fools several members at once, which only an attack on the ensemble can tell."
    )


def _next(thumb: RuleOfThumb, m: int, best: int) -> str:
    if thumb.low == 0:
        return "A member that is never fooled needs no other member."
    if (1 + 1 / m) * thumb.low > 1:
        return (
            f"A second member can lower the floor of member {best} whatever its risk."
            if thumb.necessary
            else "A further member lowers the floor whatever its risk."
        )
    if thumb.necessary:
        return (
            f"A second member next to member {best} must have a risk below {thumb.high:.2%}: from there on, the "
            f"two together are never better than member {best} alone."
        )
    return (
        f"A further member must have a risk below {thumb.high:.2%} to lower the floor, 1 + 1/{m} times the largest "
        "risk among those that count (rule of thumb)."
    )
