"""Evaluation: accuracies on the worst perturbations found, and probabilities chosen under attack."""

from randens.evaluation.advice import Advice, advise
from randens.evaluation.conflict import Conflict, conflict
from randens.evaluation.curve import Curve, curve
from randens.evaluation.evaluate import evaluate
from randens.evaluation.inputs import as_rec, load_model
from randens.evaluation.random_models import RandomEvaluation
from randens.evaluation.result import Evaluation
from randens.evaluation.sampling import AttackedSampling, optimize_sampling
from randens.evaluation.tables import About

__all__ = [
    "About",
    "Advice",
    "AttackedSampling",
    "Conflict",
    "Curve",
    "Evaluation",
    "RandomEvaluation",
    "advise",
    "as_rec",
    "conflict",
    "curve",
    "evaluate",
    "load_model",
    "optimize_sampling",
]
