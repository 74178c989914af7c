"""Averaging logits can be worse than every member; sampling a member cannot (Appendix A.7, Theorem 3).

Two linear classifiers of the plane, class 1 where w·x ≥ 0, with w₁ = (1, 1) and w₂ = (1, −1); two inputs of class 1,
x₁ = (−1, 2) with probability p and x₂ = (−1, −2) otherwise; perturbations of l2 norm at most ε < 1/√2. Each member
is robust at one of the inputs. Their average is the sign of the first coordinate, and errs at both.

    python examples/worst_case_deterministic.py
    python examples/worst_case_deterministic.py --p 0.3 --eps 0.5
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from randens.risk import RiskProfile, bounds, exact_sampling

MEMBERS = np.array([[1.0, 1.0], [1.0, -1.0]])
INPUTS = np.array([[-1.0, 2.0], [-1.0, -2.0]])


def foolable(w: NDArray[np.float64], x: NDArray[np.float64], eps: float) -> bool:
    """Whether some ‖δ‖₂ ≤ ε has w·(x + δ) < 0: the worst perturbation is −ε w/‖w‖."""
    return bool(w @ x - eps * np.linalg.norm(w) < 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--p", type=float, default=0.4, help="probability of the first input, between 0 and 1"
    )
    parser.add_argument("--eps", type=float, default=0.6, help="radius of the l2 ball, between 0 and 0.7071")
    options = parser.parse_args()
    if not 0 < options.p < 1:
        parser.error(f"--p is {options.p}; it must lie between 0 and 1")
    if not 0 < options.eps < 1 / math.sqrt(2):
        parser.error(f"--eps is {options.eps}; it must lie between 0 and 1/√2")

    weights = [options.p, 1 - options.p]
    # One member is robust at each input, so no perturbation fools both and the set is complete.
    sets = [[[foolable(w, x, options.eps) for w in MEMBERS]] for x in INPUTS]
    profile = RiskProfile.from_configurations(sets, weights)
    limits, best = bounds(profile.member_risks), exact_sampling(profile)
    average = MEMBERS.sum(axis=0)
    deterministic = sum(p for p, x in zip(weights, INPUTS, strict=True) if foolable(average, x, options.eps))

    print(f"member risks                {profile.member_risks[0]:.3f} and {profile.member_risks[1]:.3f}")
    print(f"deterministic average       {deterministic:.3f}   worse than both members")
    print(
        f"sampling half and half      {profile.risk([0.5, 0.5]):.3f}   never above {limits.ceiling:.3f} (Theorem 3)"
    )
    print(f"sampling at its best        {best.risk:.3f}   with probabilities {best.probs.tolist()}")


if __name__ == "__main__":
    main()
