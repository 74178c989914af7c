"""Evaluation: accuracies on the worst perturbations found, and probabilities chosen under attack."""

from randens.evaluation.advice import Advice, advise
from randens.evaluation.conflict import Conflict, ceiling, conflict
from randens.evaluation.curve import Curve, CurvePoint, curve
from randens.evaluation.evaluate import evaluate
from randens.evaluation.inputs import as_rec, load_model
from randens.evaluation.intervals import Estimate, bounded_mean, difference, estimate, exact_binomial, two_way
from randens.evaluation.random_models import RandomEvaluation
from randens.evaluation.result import Evaluation
from randens.evaluation.sampling import AttackedSampling, optimize_sampling
from randens.evaluation.tables import About, Accuracy

__all__ = [
    "About",
    "Accuracy",
    "Advice",
    "AttackedSampling",
    "Conflict",
    "Curve",
    "CurvePoint",
    "Estimate",
    "Evaluation",
    "RandomEvaluation",
    "advise",
    "as_rec",
    "bounded_mean",
    "ceiling",
    "conflict",
    "curve",
    "difference",
    "estimate",
    "evaluate",
    "exact_binomial",
    "load_model",
    "optimize_sampling",
    "two_way",
]
