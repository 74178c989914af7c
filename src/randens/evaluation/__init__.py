"""Numbers that can be trusted: accuracies on the worst perturbations found, probabilities chosen under attack."""

from randens.evaluation.auditing import Audit, Check, audit
from randens.evaluation.certifying import Certification, certify
from randens.evaluation.evaluating import evaluate, save_worst_inputs, transferred, worst_inputs
from randens.evaluation.intervals import Estimate, difference, estimate
from randens.evaluation.reach import Conflict, conflict
from randens.evaluation.results import Accuracy, Evaluation, Level, Pair, Points
from randens.evaluation.sampling import AttackedSampling, Sweep, optimize_sampling

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
    "Sweep",
    "audit",
    "certify",
    "conflict",
    "difference",
    "estimate",
    "evaluate",
    "optimize_sampling",
    "save_worst_inputs",
    "transferred",
    "worst_inputs",
]
