"""scikit-learn classifiers as members.

Linear ones, with affine steps such as a StandardScaler in front, become linear networks: the `exact` attack applies,
and they are saved, exported and served like any other. All others give answers but no gradients: attacks that
need gradients flag them, and random search works.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn import (
    decomposition,
    discriminant_analysis,
    feature_selection,
    impute,
    linear_model,
    preprocessing,
    svm,
)
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from randens import models
from randens.core.errors import InputError
from randens.ensemble import RandomizedEnsemble
from randens.threat import Threat

__all__ = ["QueriedMember", "sklearn_ensemble", "sklearn_member"]

Array = NDArray[np.float64]

_LINEAR: tuple[type, ...] = (
    linear_model.LogisticRegression,
    linear_model.Perceptron,
    linear_model.RidgeClassifier,
    linear_model.RidgeClassifierCV,
    linear_model.SGDClassifier,
    discriminant_analysis.LinearDiscriminantAnalysis,
    svm.LinearSVC,
)
_AFFINE: tuple[Any, ...] = (
    preprocessing.MaxAbsScaler,
    preprocessing.MinMaxScaler,
    preprocessing.RobustScaler,
    preprocessing.StandardScaler,
    decomposition.PCA,
    decomposition.TruncatedSVD,
    feature_selection.SelectKBest,
    feature_selection.SelectFromModel,
    feature_selection.VarianceThreshold,
    impute.SimpleImputer,  # of inputs without missing values, which attacks ask for
)
_CLEAR = 1e-3  # by how much the predicted class is lifted above the others, relative to the largest score


def sklearn_member(estimator: Any) -> nn.Module:
    """A fitted scikit-learn classifier as a member: inputs [n, features], logits [n, classes] in `classes_` order.

    Logistic regression, linear SVM, LDA, ridge, perceptron, SGD and a two-class SVC with linear kernel become a linear
    `models.Classifier` in float32, steps of a Pipeline that are affine included; a grid search counts as its best
    estimator. Everything else becomes a `QueriedMember`. Labels are positions in `classes_`:
    ``np.searchsorted(estimator.classes_, y)``.

    Parameters
    ----------
    estimator : sklearn classifier
        Fitted.

    Returns
    -------
    nn.Module
        A linear network if it is one, else a `QueriedMember`.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    >>> sklearn_member(fitted)(torch.zeros(1, 1)).shape
    torch.Size([1, 2])
    """
    _check(estimator)
    steps, final = _taken_apart(estimator)
    parts = _coefficients(final)
    before = None if parts is None else _affine(steps, _features(estimator))
    if parts is None or before is None:
        return QueriedMember(estimator)
    member = _linear(*parts, *before)
    return member if _agrees(member, estimator) else QueriedMember(estimator)


def sklearn_ensemble(
    estimators: Sequence[Any],
    probs: ArrayLike | Tensor | None = None,
    *,
    threat: Threat | None = None,
    seed: int | None = None,
) -> RandomizedEnsemble:
    """A randomized ensemble of fitted scikit-learn classifiers, which must know the same classes.

    Parameters
    ----------
    estimators : sequence of sklearn classifiers
        Fitted, with the same classes.
    probs, threat, seed
        As for `RandomizedEnsemble`.

    Returns
    -------
    RandomizedEnsemble
        With the same answers.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    >>> len(sklearn_ensemble([fitted, fitted]))
    2
    """
    if not isinstance(estimators, Sequence) or not len(estimators):
        raise InputError(f"estimators is {estimators!r}; give a list of fitted scikit-learn classifiers")
    members = [sklearn_member(estimator) for estimator in estimators]
    classes = [np.asarray(estimator.classes_).tolist() for estimator in estimators]
    features = [_features(estimator) for estimator in estimators]
    for said, values in (("knows the classes {}", classes), ("takes {} features", features)):
        for position, value in enumerate(values):
            if value != values[0]:
                raise InputError(
                    f"estimators[{position}] {said.format(value)}, estimators[0] {values[0]}; they must agree"
                )
    return RandomizedEnsemble(members, probs, classes=classes[0], threat=threat, seed=seed).eval()


class QueriedMember(nn.Module):
    """A classifier without gradients: scores whose largest is always the answer of `predict`.

    Scores are its decision function, or its log-probabilities, or 0 and 1. An attack that needs gradients
    flags the member (`found.flags["zero_gradient"]`), which says nothing about its robustness. Evaluate it
    with "random", "suite", or a decision-based attack of another package.

    Parameters
    ----------
    estimator : sklearn classifier
        Fitted.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> fitted = DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1])
    >>> sklearn_member(fitted)(torch.zeros(1, 1)).argmax().item()
    0
    """

    identity: Tensor

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        _check(estimator)
        self.estimator = estimator
        self.input_shape = (_features(estimator),)
        self.classes = len(estimator.classes_)
        # Weights tell ensembles apart wherever witnesses are kept; this member has none of its own.
        digest = bytes.fromhex(joblib.hash(estimator))
        self.register_buffer("identity", torch.tensor(list(digest), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.input_shape:
            raise InputError(
                f"x has shape {tuple(x.shape)}; this {type(self.estimator).__name__} takes [n, {self.input_shape[0]}]"
            )
        rows: Array = x.detach().cpu().double().numpy()
        if not len(rows):
            return x.new_zeros(0, self.classes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            scores = _scores(self.estimator, rows)
            said = np.searchsorted(self.estimator.classes_, self.estimator.predict(rows))
        # With votes and ties, `predict` may differ from the scores; `predict` counts.
        scores[np.arange(len(rows)), said] = scores.max(axis=1) + _CLEAR * np.abs(scores).max(axis=1).clip(
            1.0
        )
        return torch.from_numpy(scores).to(x)

    def extra_repr(self) -> str:
        return repr(self.estimator)


def classifies(estimator: Any) -> bool:
    """Whether this is a classifier in scikit-learn's sense; any object may be asked about."""
    try:
        return bool(is_classifier(estimator)) and not isinstance(estimator, type)
    except (AttributeError, TypeError):
        return False


def _check(estimator: Any) -> None:
    if isinstance(estimator, type):
        raise InputError(f"estimator is the class {estimator.__name__}; give a fitted instance")
    name = type(estimator).__name__
    if not classifies(estimator):
        raise InputError(f"estimator is a {name}; give a fitted scikit-learn classifier")
    try:
        check_is_fitted(estimator)
        classes, features = estimator.classes_, _features(estimator)
    except NotFittedError:
        raise InputError(f"estimator is a {name} that is not fitted; call its fit first") from None
    except AttributeError as error:
        raise InputError(
            f"estimator is a {name} that does not say its classes and number of features ({error}); give a classifier "
            "of tables of numbers"
        ) from None
    if isinstance(classes, list) or np.asarray(classes).ndim != 1 or len(classes) < 2:
        raise InputError(
            f"estimator is a {name} with classes_ {classes!r}; it must know one list of 2 classes or more"
        )
    probe = np.zeros((1, features))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = np.asarray(estimator.predict(probe))
    if answer.shape != (1,):
        raise InputError(
            f"estimator is a {name} that answers with shape {answer.shape} for one input; give one with one answer"
        )


def _features(estimator: Any) -> int:
    """How many features it takes; a Pipeline whose first step does nothing does not say itself."""
    if isinstance(estimator, Pipeline):
        return _features(next(s for _, s in estimator.steps if s is not None and s != "passthrough"))
    return int(estimator.n_features_in_)


def _taken_apart(estimator: Any) -> tuple[list[Any], Any]:
    """The steps before the classifier, and the classifier."""
    best = getattr(estimator, "best_estimator_", None)
    if best is not None and is_classifier(best):
        return _taken_apart(best)
    if isinstance(estimator, Pipeline):
        steps, final = _taken_apart(estimator.steps[-1][1])
        return [step for _, step in estimator.steps[:-1]] + steps, final
    return [], estimator


def _coefficients(final: Any) -> tuple[Array, Array] | None:
    """W [C, d] and b [C] with argmax(Wx + b) = predict; None if the classifier is not known to be linear."""
    two = len(final.classes_) == 2
    kernel = isinstance(final, (svm.SVC, svm.NuSVC)) and final.kernel == "linear" and two
    if not isinstance(final, _LINEAR) and not kernel:
        return None
    raw = final.coef_
    coef = np.atleast_2d(np.asarray(raw.toarray() if hasattr(raw, "toarray") else raw, dtype=np.float64))
    intercept = np.broadcast_to(np.asarray(final.intercept_, dtype=np.float64), (len(coef),))
    if two and len(coef) == 1:
        return np.vstack([-coef, coef]) / 2, np.r_[-intercept, intercept] / 2
    return (coef, intercept.copy()) if len(coef) == len(final.classes_) else None


def _affine(steps: Sequence[Any], features: int) -> tuple[Array, Array] | None:
    """A [k, d] and c [k] with steps(x) = Ax + c; None if a step is not known to be affine."""
    inputs = np.vstack([np.zeros(features), np.eye(features)])
    for step in steps:
        if step is None or step == "passthrough":
            continue
        if not isinstance(step, _AFFINE) or getattr(step, "clip", False):
            return None
        if isinstance(step, impute.SimpleImputer) and step.add_indicator:
            return None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            inputs = np.asarray(step.transform(inputs), dtype=np.float64)
    return (inputs[1:] - inputs[0]).T, inputs[0]


def _linear(weight: Array, bias: Array, a: Array, c: Array) -> models.Classifier:
    """The network W(Ax + c) + b. Plain scaling stays a step of its own, which float32 rounds less than its product."""
    features = a.shape[1]
    slope = np.diag(a) if a.shape[0] == features else np.zeros(features)
    scaling = bool((slope > 0).all()) and np.array_equal(a, np.diag(slope))
    if scaling:
        before = {"mean": (-c / slope).tolist(), "std": (1 / slope).tolist()}
    else:
        before, weight, bias = {}, weight @ a, weight @ c + bias
    member = models.create("linear", classes=len(bias), input_shape=(features,), seed=0, **before)
    learned = {"body.linear.weight": torch.from_numpy(weight), "body.linear.bias": torch.from_numpy(bias)}
    member.load_state_dict(member.state_dict() | learned)
    return member.eval()


def _agrees(member: models.Classifier, estimator: Any) -> bool:
    """Whether the network agrees with the classifier, except where rounding decides."""
    rng = np.random.default_rng(0)
    spread = np.repeat([0.1, 1.0, 10.0, 1000.0], 32)[:, None]
    centre = 0.0 if member.mean is None else member.mean.numpy()
    width = 1.0 if member.std is None else member.std.numpy()
    probes = (centre + spread * width * rng.standard_normal((len(spread), *member.input_shape))).astype(
        np.float32
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        z = member(torch.from_numpy(probes)).double().numpy()
        said = np.searchsorted(estimator.classes_, estimator.predict(probes.astype(np.float64)))
    first, second = np.sort(z, axis=1)[:, -1], np.sort(z, axis=1)[:, -2]
    clear = first - second > 1e-4 * np.abs(z).max(axis=1)
    return bool((z.argmax(axis=1) == said)[clear].all())


def _scores(estimator: Any, rows: Array) -> Array:
    """[n, C], larger is likelier."""
    count = len(estimator.classes_)
    if hasattr(estimator, "decision_function"):
        values = np.asarray(estimator.decision_function(rows), dtype=np.float64)
        if values.ndim == 1 and count == 2:
            return np.stack([-values, values], axis=1) / 2
        if values.ndim == 2 and values.shape[1] == count:
            return values.copy()
    if hasattr(estimator, "predict_proba"):
        return np.log(np.asarray(estimator.predict_proba(rows), dtype=np.float64).clip(1e-12))
    said = np.searchsorted(estimator.classes_, estimator.predict(rows))
    return np.eye(count)[said]
