"""The theory of randomized ensembles in NumPy and SciPy: profiles, bounds, sampling probabilities."""

from randens.risk.optimal import (
    Sampling,
    best_step,
    exact_sampling,
    project_simplex,
    subgradient_sampling,
    theorem4_bound,
)
from randens.risk.profile import RiskProfile
from randens.risk.sampling import cutting_planes, optimal_sampling
from randens.risk.theorems import (
    FIGURE_3,
    TwoClassifiers,
    auxiliary_risk,
    bounds,
    candidate_sampling,
    candidates,
    explain,
    necessary_size,
    rule_of_thumb,
    theorem1_test,
    tight_profile,
    two_classifiers,
)

__all__ = [
    "FIGURE_3",
    "RiskProfile",
    "Sampling",
    "TwoClassifiers",
    "auxiliary_risk",
    "best_step",
    "bounds",
    "candidate_sampling",
    "candidates",
    "cutting_planes",
    "exact_sampling",
    "explain",
    "necessary_size",
    "optimal_sampling",
    "project_simplex",
    "rule_of_thumb",
    "subgradient_sampling",
    "theorem1_test",
    "theorem4_bound",
    "tight_profile",
    "two_classifiers",
]
