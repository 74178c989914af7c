"""Numbers that can be trusted: accuracies on the worst perturbations found, probabilities chosen under attack."""

from randens.evaluation.audit_stochastic import audit_stochastic
from randens.evaluation.auditing import Audit, Check, audit
from randens.evaluation.certifying import Certification, certify
from randens.evaluation.draws import score, single_draw
from randens.evaluation.evaluating import evaluate, save_worst_inputs, transferred, worst_inputs
from randens.evaluation.intervals import Estimate, bounded_mean, difference, estimate, exact_binomial
from randens.evaluation.reach import Conflict, conflict
from randens.evaluation.results import Accuracy, Evaluation, Level, Pair, Points
from randens.evaluation.sampling import AttackedSampling, Sweep, optimize_sampling
from randens.evaluation.stochastic import StochasticEvaluation, evaluate_stochastic
from randens.evaluation.stochastic_sampling import StochasticSampling, optimize_stochastic_sampling

__all__ = [
    "Accuracy",
    "Audit",
    "AttackedSampling",
    "Certification",
    "Check",
    "Conflict",
    "Estimate",
    "Evaluation",
    "Level",
    "Pair",
    "Points",
    "StochasticEvaluation",
    "StochasticSampling",
    "Sweep",
    "audit",
    "audit_stochastic",
    "bounded_mean",
    "certify",
    "conflict",
    "difference",
    "estimate",
    "evaluate",
    "evaluate_stochastic",
    "exact_binomial",
    "optimize_sampling",
    "optimize_stochastic_sampling",
    "save_worst_inputs",
    "score",
    "single_draw",
    "transferred",
    "worst_inputs",
]
