"""The result of an evaluation: the members' errors and the witnesses, and everything computed from them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from randens.core.errors import InputError
from randens.core.files import plain
from randens.ensemble import RandomizedEnsemble, check_probs
from randens.evaluation.conflict import Conflict
from randens.evaluation.tables import Accuracy, Result, Row, Table, bars, probs_text, table_of
from randens.risk import RiskProfile, bounds, theorem1_test, two_classifiers
from randens.risk.intervals import Estimate, estimate, joint
from randens.risk.sets import from_words
from randens.risk.theorems import Bounds, Theorem1Test
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.fingerprints import fingerprint

THREAT_MODEL = (
    "The attacker knows the members and their probabilities but not the draw; every query is a fresh draw. "
    "Robust accuracies hold against the perturbations found: a stronger attack can only lower them."
)
_ATTEMPTS = (1, 2, 10, math.inf)  # in every document
_FOUND = {"": "(no member fooled)", "clean": "no attack needed"}


@dataclass(frozen=True)
class Pair:
    """Theorem 1 for members i and j: sampling between them beats both iff conflict > difference.

    together: whether an attack sampled both; else nothing is known. test: conflict − difference, with an interval.
    """

    i: int
    j: int
    conflict: float
    difference: float
    helps: bool
    together: bool
    test: Theorem1Test


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evaluation(Result):
    """The errors of one ensemble on some inputs under one threat; `randens.evaluate` returns it.

    clean: bool [n, M], which members are wrong on the unperturbed inputs. pool: the maximal fooled sets of every input,
    without the perturbed inputs if it was read from a file. average: errors [n] of the average of all logits, clean and
    under attack. flops: of one inference of each member. chosen_on: the split used for each choice. also: further
    probabilities that were attacked. flags: per attack and member, shares of inputs with unusable gradients, or with
    errors that changed when computed again. conflict: the joint reach. verified: how many stored witnesses were scored
    again, and how many hold. attempts: numbers of attempts that the table shows.
    """

    kind: ClassVar[str] = "evaluation"
    in_memory: ClassVar[str] = "now pool x"

    clean: NDArray[np.bool_]
    pool: WitnessPool
    average: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None
    classes: int
    flops: tuple[int, ...]
    confidence: float = 0.95
    chosen_on: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    conflict: Conflict | None = None
    verified: tuple[int, int] | None = None
    attempts: tuple[int | float, ...] = ()
    x: Tensor | None = None

    @property
    def n(self) -> int:
        """How many inputs."""
        return self.about.n

    @property
    def members(self) -> int:
        """M."""
        return self.pool.members

    @cached_property
    def probs(self) -> NDArray[np.float64]:
        """α [M]."""
        return np.array(self.about.probs)

    @cached_property
    def threat(self) -> Threat:
        """The perturbation set."""
        return Threat.from_dict(dict(self.about.threat))

    @cached_property
    def profile(self) -> RiskProfile:
        """η as found."""
        return self.pool.profile()

    @cached_property
    def errors(self) -> NDArray[np.bool_]:
        """u on the worst perturbation of each input, bool [n, M]."""
        rows = self.pool.best(self.probs)[1]
        worst = np.zeros((self.n, self.members), dtype=bool)
        worst[rows >= 0] = self.pool.fooled[rows[rows >= 0]]
        return worst

    @property
    def foolable(self) -> NDArray[np.bool_]:
        """Which members are fooled by some perturbation found, bool [n, M]."""
        return self.pool.foolable

    @property
    def x_adv(self) -> NDArray[np.generic]:
        """The worst perturbation found of each input, [n, ...]; the input itself where no member is fooled."""
        if self.x is None:
            raise InputError("the evaluation was read from a file; evaluate again to get perturbed inputs")
        return self.pool.worst(self.probs, self.x.numpy())

    @cached_property
    def risk(self) -> NDArray[np.float64]:
        """Expected error on the worst perturbation of each input, [n]."""
        return self.pool.best(self.probs)[0]

    @property
    def natural(self) -> Estimate:
        """Expected accuracy on the unperturbed inputs; a float with `low` and `high`."""
        return self._mean(1 - self.clean @ self.probs)

    @property
    def robust(self) -> Estimate:
        """Expected accuracy on the worst perturbations found; a float with `low` and `high`."""
        return self._mean(1 - self.risk)

    def at(self, probs: ArrayLike | None) -> Accuracy:
        """Accuracies at other probabilities (None: uniform) on the witnesses found; too high if not attacked there."""
        alpha = check_probs(probs, self.members).numpy()
        return Accuracy(self._mean(1 - self.clean @ alpha), self._mean(1 - self.pool.best(alpha)[0]))

    def after(self, attempts: float, draw: str = "query") -> Estimate:
        """Robust accuracy against an attacker who may try `attempts` times (math.inf: without limit).

        draw: "query" if every attempt meets a fresh draw, "client" if the member is fixed for each attacker.
        """
        risks = self.profile.configuration_risks(self.probs, attempts, draw)
        counts = np.rint(self.profile.weights * self.n).astype(np.int64)
        return self._mean(1 - np.repeat(risks, counts))

    @cached_property
    def member_accuracies(self) -> tuple[Accuracy, ...]:
        """Of each member alone."""
        pairs = zip(self.clean.T, self.foolable.T, strict=True)
        return tuple(Accuracy(self._mean(~clean), self._mean(~fooled)) for clean, fooled in pairs)

    @property
    def deterministic(self) -> Accuracy | None:
        """Accuracies of the average of all logits, if it was evaluated."""
        return None if self.average is None else Accuracy(*(self._mean(~errors) for errors in self.average))

    @property
    def member_risks(self) -> NDArray[np.float64]:
        """η_i [M]."""
        return self.profile.member_risks

    @cached_property
    def bounds(self) -> Bounds:
        """Floor and ceiling of the risk at any probabilities (Theorem 3)."""
        return bounds(self.member_risks)

    @property
    def gain(self) -> float:
        """E π = Σ α_i η_i − η(α): how much sampling lowers the members' mean risk."""
        return self.profile.gain(self.probs)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Theorem 1's condition for every two members."""
        found, level = [], joint(self.confidence, max(1, math.comb(self.members, 2)))
        for i, j in itertools.combinations(range(self.members), 2):
            both = self.profile.restrict((i, j))
            two, test = two_classifiers(both), theorem1_test(both, self.n, confidence=level)
            gap = abs(two.member_risks[0] - two.member_risks[1])
            together = any(alpha[i] > 0 and alpha[j] > 0 for alpha in (self.probs, *self.also.values()))
            found.append(Pair(i, j, two.conflict, gap, two.helps, together, test))
        return tuple(found)

    @property
    def expected_flops(self) -> float:
        """Floating-point operations of one inference of the randomized ensemble, Σ α_i flops_i."""
        return float(self.probs @ np.array(self.flops, dtype=np.float64))

    @property
    def found_by(self) -> dict[str, int]:
        """How many worst cases each attack found; "clean" needed none, "" are inputs where no member is fooled."""
        rows = self.pool.best(self.probs)[1].tolist()
        return dict(sorted(Counter(self.pool.sources[row] if row >= 0 else "" for row in rows).items()))

    def check(self, rec: RandomizedEnsemble) -> None:
        """Raise an error if this is the evaluation of another ensemble."""
        if fingerprint(rec) != self.about.ensemble:
            raise InputError("the evaluation belongs to other members than these; evaluate them again")

    def rows(self, name: str = "") -> list[Row]:
        """Members, the randomized ensemble at each of its probabilities, the average of all logits."""
        flops, own = np.array(self.flops, dtype=np.float64), Accuracy(self.natural, self.robust)
        if self.members == 1:
            return [Row(name or "member 0", own, float(flops[0]), "single")]
        found = [("member", f"member {i}", one, flops[i]) for i, one in enumerate(self.member_accuracies)]
        for label, probs in self.also.items():
            if not np.allclose(probs, self.probs):
                found.append(("also", f"sampled, {label}", self.at(probs), probs @ flops))
        found.append(("randomized", f"sampled, α = {probs_text(self.probs)}", own, self.expected_flops))
        if (whole := self.deterministic) is not None:
            found.append(("deterministic", f"average of all {self.members}", whole, flops.sum()))
        title = f"{name} " if name else ""
        return [Row(f"{title}{label}", accuracy, float(cost), kind) for kind, label, accuracy, cost in found]

    def table(self) -> Table:
        draws = ("query", "client") if self.members > 1 else ("query",)
        tries = itertools.product(self.attempts, draws)
        more = {f"after {q:g} attempts, one draw per {draw}": self.after(q, draw) for q, draw in tries}
        return table_of(self.rows(), self.confidence, more)

    def figure(self) -> Any:
        return bars([(row.name, row.accuracy.robust) for row in self.rows()], "robust accuracy")

    def sentences(self) -> list[str]:
        said = []
        if self.members > 1:
            said = [
                f"Risk at any α: floor {self.bounds.floor:.4f}, ceiling {self.bounds.ceiling:.4f} (Theorem 3); "
                f"here {1 - self.robust:.4f}. Randomization gain Σ α_i η_i − η(α): {self.gain:.4f}.",
                *([] if self.conflict is None else self.conflict.sentences()),
                self._theorem1(),
            ]
        if self.members > 1 and self.classes == 2:
            vote = "With two classes some deterministic threshold vote is at least as robust"
            said.append(f"{vote}: the advantage of sampling is compute alone.")
        found = ", ".join(f"{_FOUND.get(name, name)} {count}" for name, count in self.found_by.items())
        said.append(f"Worst cases found by: {found}. Cost: {self.cost}.")
        said += [f"{what} chosen on {split}." for what, split in self.chosen_on.items()]
        if self.verified is not None:
            said.append("Scored again: {:,} stored witnesses, of which {:,} hold.".format(*self.verified))
        return said

    def _theorem1(self) -> str:
        """Theorem 1 for the pairs that an attack sampled together; about the others nothing is known."""
        helpful, apart = [], [f"{p.i}+{p.j}" for p in self.pairs if not p.together]
        for pair in (p for p in self.pairs if p.together and p.helps):
            chance = "" if pair.test.verdict == "helps" else ", may be chance"
            helpful.append(f"{pair.i}+{pair.j} (by {pair.test.value:.3f}{chance})")
        rest = f"; not attacked together: {', '.join(apart)}." if apart else "."
        known = len(self.pairs) - len(apart)
        return f"Pairs that beat both members (Theorem 1): {', '.join(helpful) or 'none'} of {known}{rest}"

    def _mean(self, values: ArrayLike) -> Estimate:
        return estimate(values, self.confidence)

    def content(self) -> dict[str, Any]:
        names = sorted(set(self.pool.sources))
        witnesses = {
            "inputs": self.pool.points,
            "fooled": self.pool.fooled,
            "source_names": names,
            "sources": [names.index(source) for source in self.pool.sources],
        }
        extra = {"threat_model": THREAT_MODEL, "summary": self.summary(), "witnesses": witnesses}
        return {**super().content(), **extra}

    def summary(self) -> dict[str, Any]:
        """The numbers that follow from the witnesses, as plain values."""
        names = "n members natural robust member_accuracies deterministic member_risks bounds gain pairs expected_flops"
        tries = sorted({*_ATTEMPTS, *self.attempts})
        attempts = {draw: {f"{q:g}": self.after(q, draw) for q in tries} for draw in ("query", "client")}
        also = {name: self.at(probs) for name, probs in self.also.items()}
        own = {name: getattr(self, name) for name in f"{names} found_by".split()}
        return dict(plain({**own, "also": also, "attempts": attempts}))

    @classmethod
    def parts(cls, document: Mapping[str, Any]) -> Mapping[str, Any]:
        found, about = document["witnesses"], document["about"]
        members, names = len(about["probs"]), found["source_names"]
        fooled = from_words("it", found["fooled"], members)
        sources = [names[i] for i in found["sources"]]
        pool = WitnessPool(about["n"], members, found["inputs"], fooled, sources=sources)
        return {**document, "pool": pool}
