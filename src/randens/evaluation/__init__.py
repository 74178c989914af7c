"""Numbers that can be trusted: accuracies on the worst perturbations found, probabilities chosen under attack."""

from randens.evaluation.auditing import Audit, Check, audit
from randens.evaluation.certifying import Certification, certify
from randens.evaluation.curves import CostCurve, CostPoint, Curve, CurvePoint, cost_curve, curve
from randens.evaluation.evaluating import save_worst_inputs, transferred, worst_inputs
from randens.evaluation.front import evaluate
from randens.evaluation.intervals import Estimate, difference, estimate
from randens.evaluation.own import as_rec, from_factory
from randens.evaluation.results import Accuracy, Evaluation, Level, Pair, Points
from randens.evaluation.sampling import AttackedSampling, Sweep, optimize_sampling

__all__ = [
    "Accuracy",
    "Audit",
    "AttackedSampling",
    "Certification",
    "Check",
    "CostCurve",
    "CostPoint",
    "Curve",
    "CurvePoint",
    "Estimate",
    "Evaluation",
    "Level",
    "Pair",
    "Points",
    "Sweep",
    "as_rec",
    "audit",
    "certify",
    "cost_curve",
    "curve",
    "difference",
    "estimate",
    "evaluate",
    "from_factory",
    "optimize_sampling",
    "save_worst_inputs",
    "transferred",
    "worst_inputs",
]
