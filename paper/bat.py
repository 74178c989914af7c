"""The paper's account of BAT (Section 3.1), made again on digits: python -m paper.bat [FOLDER], half a minute.

BAT trains f₂ on the adversarial examples of f₁, without an adversary of its own. The paper: η₂ ≈ 1, so (0.9, 0.1) and
its like cannot beat f₁ (Theorem 1), and two members are fewer than the ⌈1/η₁⌉ that a first member of this risk needs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from randens import data, evaluate
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import Evaluation
from randens.risk import necessary_size, two_classifiers
from randens.training import load_recipe, train

SETTINGS = (
    "method=bat members=2 epochs=12 ema=0 model.name=convnet model.width=8 model.hidden=32 threat.eps=0.2 "
    "adversary.steps=7 adversary.warmup=3 sampling.method=uniform"
)
"""What differs from the digits of the paper's tables."""
USED = (0.9, 0.1)
"""The probabilities of the work that proposed BAT."""


def account(rec: RandomizedEnsemble, attack: str) -> Evaluation:
    """The pair on test data, attacked at (0.9, 0.1), uniform, and each member alone."""
    found = evaluate(rec, data.load("digits", "test"), attack, probs=USED, also={"uniform": None})
    assert isinstance(found, Evaluation)
    return found


def lines(weak: Evaluation, strong: Evaluation) -> list[str]:
    """What the paper says about BAT, and what was measured."""
    pair = two_classifiers(strong.profile)
    first, second = strong.member_risks.tolist()
    uniform = 1 - float(strong.at(None).robust)
    return [
        f"η₁ = {first:.1%}, η₂ = {second:.1%} (the paper: η₂ ≈ 1)",
        f"P(R₁) = {pair.conflict:.1%} against |η₁ − η₂| = {abs(first - second):.1%}: sampling "
        f"{'can' if pair.helps else 'cannot'} beat f₁ (Theorem 1)",
        f"at (0.9, 0.1): robust accuracy {float(weak.robust):.1%} under adaptive PGD, {float(strong.robust):.1%} under "
        f"the suite; f₁ alone {1 - first:.1%}; sampled uniformly {1 - uniform:.1%}",
        f"members that a first one of risk η₁ needs: {necessary_size(first)}; BAT has 2",
    ]


def main(folder: str | None = None) -> None:
    """Train BAT, attack it, and print the account."""
    recipe = load_recipe(Path(__file__).parent / "reproduce" / "digits.toml", SETTINGS.split())
    with tempfile.TemporaryDirectory() as temporary:
        rec = train(recipe, Path(folder or temporary) / "bat").with_probs(USED)
        print("\n".join(lines(account(rec, "adaptive-pgd-s"), account(rec, "standard"))))


if __name__ == "__main__":
    main(*sys.argv[1:2])
