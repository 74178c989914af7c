"""Evaluation: accuracies on the worst perturbations found, and probabilities chosen under attack."""

from randens.evaluation.curves import Curve, CurvePoint, curve
from randens.evaluation.data_ceiling import ceiling
from randens.evaluation.deployment_advice import Advice, advise
from randens.evaluation.draw_statistics import score, single_draw
from randens.evaluation.gradient_conflict import Conflict, conflict
from randens.evaluation.intervals import Estimate, bounded_mean, difference, estimate, exact_binomial
from randens.evaluation.preparation import as_rec, from_factory, random_from_factory
from randens.evaluation.random_model_evaluation import StochasticEvaluation, evaluate_stochastic
from randens.evaluation.results import Accuracy, Evaluation, Level, Pair, Points
from randens.evaluation.sampling import (
    AttackedSampling,
    optimize_sampling,
)
from randens.evaluation.worst_case import evaluate, save_worst_inputs, transferred, worst_inputs

__all__ = [
    "Accuracy",
    "Advice",
    "AttackedSampling",
    "Conflict",
    "Curve",
    "CurvePoint",
    "Estimate",
    "Evaluation",
    "Level",
    "Pair",
    "Points",
    "StochasticEvaluation",
    "advise",
    "as_rec",
    "bounded_mean",
    "ceiling",
    "conflict",
    "curve",
    "difference",
    "estimate",
    "evaluate",
    "evaluate_stochastic",
    "exact_binomial",
    "from_factory",
    "optimize_sampling",
    "random_from_factory",
    "save_worst_inputs",
    "score",
    "single_draw",
    "transferred",
    "worst_inputs",
]
