"""The theory of randomized ensembles in NumPy and SciPy: profiles, bounds, sampling probabilities."""

from randens.risk.candidate_sets import candidate_sampling, candidates
from randens.risk.certificate import Certificate, Sampling
from randens.risk.confidence import ConfidenceCertificate, ConfidentSampling, confident_sampling, upper_bound
from randens.risk.crossfit import CrossFit, cross_fit
from randens.risk.cutting import Oracle, cutting_planes
from randens.risk.exact_lp import exact_sampling
from randens.risk.explanation import Explanation, explain
from randens.risk.floor_ceiling import (
    Bounds,
    RuleOfThumb,
    auxiliary_risk,
    bounds,
    necessary_size,
    rule_of_thumb,
    tight_profile,
)
from randens.risk.pairs import FIGURE_3, Theorem1Test, TwoClassifiers, theorem1_test, two_classifiers
from randens.risk.profile import RiskProfile
from randens.risk.sampling import optimal_sampling
from randens.risk.simplex import project_simplex
from randens.risk.subgradient import best_step, subgradient_sampling, theorem4_bound

__all__ = [
    "Bounds",
    "Certificate",
    "ConfidenceCertificate",
    "ConfidentSampling",
    "CrossFit",
    "Explanation",
    "FIGURE_3",
    "Oracle",
    "RiskProfile",
    "RuleOfThumb",
    "Sampling",
    "Theorem1Test",
    "TwoClassifiers",
    "auxiliary_risk",
    "best_step",
    "bounds",
    "candidate_sampling",
    "candidates",
    "confident_sampling",
    "cross_fit",
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
    "upper_bound",
]
