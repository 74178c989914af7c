"""Numbers that can be trusted: accuracies on the worst perturbations found, probabilities chosen under attack."""

from randens.evaluation.advising import Advice, advise
from randens.evaluation.audit_stochastic import audit_stochastic
from randens.evaluation.auditing import Audit, Check, audit
from randens.evaluation.certifying import Certification, certify
from randens.evaluation.curves import CostCurve, CostPoint, Curve, CurvePoint, cost_curve, curve
from randens.evaluation.draws import score, single_draw
from randens.evaluation.evaluating import save_worst_inputs, transferred, worst_inputs
from randens.evaluation.front import evaluate
from randens.evaluation.intervals import Estimate, bounded_mean, difference, estimate, exact_binomial
from randens.evaluation.own import as_rec, from_factory, random_from_factory
from randens.evaluation.reach import Conflict, conflict
from randens.evaluation.results import Accuracy, Evaluation, Level, Pair, Points
from randens.evaluation.sampling import AttackedSampling, Sweep, optimize_sampling
from randens.evaluation.stochastic import StochasticEvaluation, evaluate_stochastic
from randens.evaluation.stochastic_sampling import StochasticSampling, optimize_stochastic_sampling

__all__ = [
    "Accuracy",
    "Advice",
    "AttackedSampling",
    "Audit",
    "Certification",
    "Check",
    "Conflict",
    "CostCurve",
    "CostPoint",
    "Curve",
    "CurvePoint",
    "Estimate",
    "Evaluation",
    "Level",
    "Pair",
    "Points",
    "StochasticEvaluation",
    "StochasticSampling",
    "Sweep",
    "advise",
    "as_rec",
    "audit",
    "audit_stochastic",
    "bounded_mean",
    "certify",
    "conflict",
    "cost_curve",
    "curve",
    "difference",
    "estimate",
    "evaluate",
    "evaluate_stochastic",
    "exact_binomial",
    "from_factory",
    "optimize_sampling",
    "optimize_stochastic_sampling",
    "random_from_factory",
    "save_worst_inputs",
    "score",
    "single_draw",
    "transferred",
    "worst_inputs",
]
