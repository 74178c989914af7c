"""A tour of the theory: when does sampling one of several classifiers help, and with which probabilities?

python examples/theory_tour.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from randens import risk


def show(probs: NDArray[np.float64]) -> str:
    return "(" + ", ".join(f"{p:.4g}" for p in probs) + ")"


def two() -> None:
    print("Two classifiers (Theorem 1)")
    for frequencies in ([0.30, 0.10, 0.05, 0.10, 0.45], [0.10, 0.30, 0.25, 0.05, 0.30]):
        profile = risk.RiskProfile.from_configurations(risk.FIGURE_3.values(), frequencies)
        print("  " + risk.two_classifiers(profile).explanation)


def three() -> None:
    print("\nThree classifiers: always one of ten vectors (Theorem 2), here the seventh")
    sets = [[(0, 1, 1), (1, 0, 0)], [(0, 1, 0), (0, 0, 1)]]
    best = risk.optimal_sampling(risk.RiskProfile.from_configurations(sets, [0.5, 0.5]), "candidates")
    print(f"  sample with {show(best.probs)}: risk {best.risk}")


def limits() -> None:
    print("\nWhat member risks alone say (Theorem 3)")
    for sentence in risk.explain([0.58, 0.55, 0.56, 0.97], classes=10).sentences:
        print("  " + sentence)
    profile = risk.tight_profile([0.58, 0.55, 0.56, 0.97])
    floor = risk.bounds(profile.member_risks).floor
    best = risk.optimal_sampling(profile)
    print(f"  The construction of the proof reaches the floor: {best.risk:.4f} = {floor:.4f}")


def many() -> None:
    print("\nEight classifiers, 5,000 inputs: the optimum with proof, and Algorithm 1")
    rng = np.random.default_rng(0)
    points = np.repeat(np.arange(5_000), rng.integers(0, 9, 5_000))
    hardness = rng.beta(0.8, 0.8, 5_000)[points, None]
    fooled = rng.random((len(points), 8)) < np.linspace(0.2, 0.5, 8) * hardness
    profile = risk.RiskProfile.from_witnesses(points, fooled, n=5_000)
    best = risk.optimal_sampling(profile)
    assert best.certificate is not None
    print(
        f"  uniform sampling {profile.risk(np.full(8, 1 / 8)):.4f}, best member {profile.member_risks.min():.4f}"
    )
    print(f"  exact           {best.risk:.4f} at {show(best.probs)}")
    print(f"  proof checked without a solver: {best.certificate.verify(profile)}, gap {best.gap:.0e}")
    print(f"  matching penny gap at the optimum: {profile.gain(best.probs):.4f}")
    for sweeps in (10, 100):
        found = risk.optimal_sampling(profile, "subgradient", iterations=sweeps)
        print(
            f"  Algorithm 1, T = {sweeps:3d} {found.risk:.4f}: {found.risk - best.risk:.4f} above the optimum, "
            f"Theorem 4 promises {found.theorem4_bound:.2f}"
        )


if __name__ == "__main__":
    two()
    three()
    limits()
    many()
