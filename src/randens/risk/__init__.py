"""The theory of randomized ensembles in NumPy and SciPy: profiles, bounds, sampling probabilities."""

from randens.risk.bounds import (
    Bounds,
    RuleOfThumb,
    auxiliary_risk,
    bounds,
    necessary_size,
    rule_of_thumb,
    tight_profile,
)
from randens.risk.candidates import candidate_sampling, candidates
from randens.risk.certificate import Certificate
from randens.risk.exact import exact_sampling
from randens.risk.profile import RiskProfile
from randens.risk.result import Sampling
from randens.risk.sampling import optimal_sampling
from randens.risk.simplex import project_simplex
from randens.risk.subgradient import best_step, subgradient_sampling, theorem4_bound

__all__ = [
    "Bounds",
    "Certificate",
    "RiskProfile",
    "RuleOfThumb",
    "Sampling",
    "auxiliary_risk",
    "best_step",
    "bounds",
    "candidate_sampling",
    "candidates",
    "exact_sampling",
    "necessary_size",
    "optimal_sampling",
    "project_simplex",
    "rule_of_thumb",
    "subgradient_sampling",
    "theorem4_bound",
    "tight_profile",
]
