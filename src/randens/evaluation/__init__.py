"""Evaluation: accuracies on the worst perturbations found, and probabilities chosen under attack."""

import importlib
from typing import TYPE_CHECKING, Any

from randens.evaluation.curves import CostCurve, CostPoint, Curve, CurvePoint, cost_curve, curve
from randens.evaluation.deployment_advice import Advice, advise
from randens.evaluation.draw_statistics import score, single_draw
from randens.evaluation.gradient_conflict import Conflict, conflict
from randens.evaluation.intervals import Estimate, bounded_mean, difference, estimate, exact_binomial
from randens.evaluation.preparation import as_rec, from_factory, random_from_factory
from randens.evaluation.random_model_evaluation import StochasticEvaluation, evaluate_stochastic
from randens.evaluation.results import Accuracy, Evaluation, Level, Pair, Points
from randens.evaluation.sampling import (
    AttackedSampling,
    StochasticSampling,
    Sweep,
    optimize_sampling,
    optimize_stochastic_sampling,
)
from randens.evaluation.worst_case import evaluate, save_worst_inputs, transferred, worst_inputs

if TYPE_CHECKING:
    from randens.audit import Audit, Check, audit, audit_stochastic
    from randens.certify import Certification, certify

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

# These names live in higher rooms. Earlier releases had them here, so the old imports still work.
_LATER = {
    **dict.fromkeys(("Audit", "Check", "audit", "audit_stochastic"), "randens.audit"),
    **dict.fromkeys(("Certification", "certify"), "randens.certify"),
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'randens.evaluation' has no attribute {name!r}")
