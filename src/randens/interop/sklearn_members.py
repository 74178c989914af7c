"""scikit-learn classifiers as members: linear ones become linear networks, all others answer without gradients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn import decomposition, preprocessing
from sklearn.base import is_classifier
from sklearn.feature_selection import SelectorMixin
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from randens import models
from randens.core.errors import InputError, shown
from randens.ensemble import RandomizedEnsemble

Array = NDArray[np.float64]

_AFFINE: tuple[Any, ...] = (
    preprocessing.MaxAbsScaler,
    preprocessing.MinMaxScaler,
    preprocessing.RobustScaler,
    preprocessing.StandardScaler,
    decomposition.PCA,
    SelectorMixin,
)
_CLEAR = 1e-3  # by how much the predicted class is lifted above the others, relative to the largest score


def sklearn_member(estimator: Any) -> nn.Module:
    """A fitted scikit-learn classifier as a member: inputs [n, features], logits [n, classes] in `classes_` order.

    Linear classifiers become a linear `models.Classifier`, affine steps of a Pipeline included; a grid search counts
    as its best estimator. Everything else becomes a `QueriedMember`. Labels are positions in `classes_`.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    >>> sklearn_member(fitted)(torch.zeros(1, 1)).shape
    torch.Size([1, 2])
    """
    queried = QueriedMember(estimator)
    if not _is_linear(queried.estimator):
        return queried
    (features,) = queried.input_shape
    rows = queried.scores(np.vstack([np.zeros(features), np.eye(features)]))
    member = models.create("linear", classes=queried.classes, input_shape=(features,), seed=0).eval()
    weight, bias = torch.from_numpy((rows[1:] - rows[0]).T), torch.from_numpy(rows[0])
    member.load_state_dict({"body.linear.weight": weight, "body.linear.bias": bias})
    return member


def sklearn_ensemble(
    estimators: Sequence[Any], probs: ArrayLike | Tensor | None = None
) -> RandomizedEnsemble:
    """A randomized ensemble of fitted scikit-learn classifiers, which must know the same classes."""
    if not isinstance(estimators, Sequence) or not len(estimators):
        raise InputError(f"estimators is {shown(estimators)}; give a list of fitted scikit-learn classifiers")
    members = [sklearn_member(estimator) for estimator in estimators]
    known = [f"{list(e.classes_)} and {e.n_features_in_} features" for e in estimators]
    for position, said in enumerate(known):
        if said != known[0]:
            raise InputError(
                f"estimators[{position}] knows {said}, estimators[0] {known[0]}; they must agree"
            )
    return RandomizedEnsemble(members, probs, classes=estimators[0].classes_).eval()


class QueriedMember(nn.Module):
    """A classifier without gradients (attacks flag it; use "random" or "suite"); the largest score is `predict`'s."""

    identity: Tensor

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        estimator = getattr(estimator, "best_estimator_", estimator)
        name = type(estimator).__name__
        if isinstance(estimator, type) or not hasattr(estimator, "predict") or not is_classifier(estimator):
            raise InputError(f"estimator is a {name}; give a fitted scikit-learn classifier")
        features = getattr(estimator, "n_features_in_", None)
        if features is None:
            raise InputError(f"estimator is a {name} not fitted to a table of numbers; fit it first")
        if np.ndim(estimator.classes_[0]):
            raise InputError(f"estimator is a {name} with several answers; give one with one answer")
        self.estimator, self.input_shape, self.classes = estimator, (int(features),), len(estimator.classes_)
        # Weights tell ensembles apart wherever witnesses are kept; this member has none of its own.
        digest = bytes.fromhex(joblib.hash(estimator))
        self.register_buffer("identity", torch.tensor(list(digest), dtype=torch.uint8))

    def scores(self, rows: Array) -> Array:
        """[n, C], larger is likelier."""
        if hasattr(self.estimator, "decision_function"):
            values = np.asarray(self.estimator.decision_function(rows), dtype=np.float64)
            if values.ndim == 1 and self.classes == 2:
                return np.stack([-values, values], axis=1) / 2
            if values.ndim == 2 and values.shape[1] == self.classes:
                return values.copy()
        if hasattr(self.estimator, "predict_proba"):
            return np.log(np.asarray(self.estimator.predict_proba(rows), dtype=np.float64).clip(1e-12))
        return np.zeros((len(rows), self.classes))

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.input_shape:
            name = type(self.estimator).__name__
            raise InputError(f"x has shape {tuple(x.shape)}; this {name} takes [n, {self.input_shape[0]}]")
        rows: Array = x.detach().cpu().double().numpy()
        if not len(rows):
            return x.new_zeros(0, self.classes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            scores = self.scores(rows)
            predicted = np.searchsorted(self.estimator.classes_, self.estimator.predict(rows))
        # With votes and ties, `predict` may differ from the scores; `predict` counts.
        lift = _CLEAR * np.abs(scores).max(axis=1).clip(1.0)
        scores[np.arange(len(rows)), predicted] = scores.max(axis=1) + lift
        return torch.from_numpy(scores).to(x)


def _is_linear(estimator: Any) -> bool:
    """Whether its decision function is affine in the inputs, and its answers are the largest."""
    if isinstance(estimator, Pipeline):
        steps = [step for _, step in estimator.steps]
        affine = all(isinstance(step, _AFFINE) and not getattr(step, "clip", False) for step in steps[:-1])
        return affine and _is_linear(steps[-1])
    # A class of one's own may predict otherwise than its scores say.
    official = type(estimator).predict.__module__.startswith("sklearn.")
    return official and isinstance(estimator, LinearClassifierMixin)
