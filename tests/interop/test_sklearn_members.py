"""scikit-learn classifiers as members: same answers, exact attacks, flags of missing gradients."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn import datasets, ensemble, linear_model, neighbors, svm, tree
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, RobustScaler, StandardScaler
from torch import Tensor

import randens
from randens import RandomizedEnsemble, Threat, attacks, interop, models
from randens.attacks import exact
from randens.core.errors import InputError

Array = NDArray[np.float64]

LINEAR: dict[str, Any] = {
    "logistic": linear_model.LogisticRegression(),
    "logistic cv": linear_model.LogisticRegressionCV(
        Cs=2, cv=2, l1_ratios=(0.0,), use_legacy_attributes=False
    ),
    "linear svm": svm.LinearSVC(),
    "lda": LinearDiscriminantAnalysis(),
    "ridge": linear_model.RidgeClassifier(),
    "perceptron": linear_model.Perceptron(),
    "sgd": linear_model.SGDClassifier(random_state=0),
    "scaled": make_pipeline(StandardScaler(), linear_model.LogisticRegression()),
    "scaled twice": make_pipeline(MinMaxScaler(), RobustScaler(), svm.LinearSVC()),
    "pca": make_pipeline(
        StandardScaler(), PCA(3, whiten=True, random_state=0), linear_model.LogisticRegression()
    ),
    "selected": make_pipeline(SelectKBest(k=2), LinearDiscriminantAnalysis()),
    "grid": GridSearchCV(
        make_pipeline(StandardScaler(), linear_model.LogisticRegression()),
        {"logisticregression__C": [0.1, 1]},
        cv=2,
    ),
}
QUERIED: dict[str, Any] = {
    "rbf": svm.SVC(),
    "linear svc, three classes": svm.SVC(kernel="linear"),
    "tree": tree.DecisionTreeClassifier(random_state=0),
    "forest": ensemble.RandomForestClassifier(n_estimators=5, random_state=0),
    "neighbours": neighbors.KNeighborsClassifier(),
    "clipped": make_pipeline(MinMaxScaler(clip=True), linear_model.LogisticRegression()),
    "polynomial": make_pipeline(PolynomialFeatures(2), StandardScaler(), linear_model.LogisticRegression()),
}


def fitted(estimator: Any, x: Array, y: NDArray[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clone(estimator).fit(x, y)


def iris() -> tuple[Array, NDArray[np.str_]]:
    """Three kinds of flowers by name."""
    loaded = datasets.load_iris()
    return loaded.data, loaded.target_names[loaded.target]


def said(member: torch.nn.Module, estimator: Any, x: Array) -> NDArray[Any]:
    with torch.no_grad():
        names: NDArray[Any] = estimator.classes_[member(torch.from_numpy(x).float()).argmax(dim=1).numpy()]
    return names


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_classifiers_become_linear_networks_with_the_same_answers(name: str, classes: int) -> None:
    x, y = iris()
    keep = np.isin(y, np.unique(y)[-classes:])
    estimator = fitted(LINEAR[name], x[keep], y[keep])
    member = interop.sklearn_member(estimator)
    assert isinstance(member, models.Classifier)
    assert member.architecture["name"] == "linear"
    wide = 20 * np.random.default_rng(0).standard_normal((500, 4))
    for inputs in (x, wide):
        assert np.array_equal(said(member, estimator, inputs), estimator.predict(inputs))
    weight, bias = exact.affine(member, torch.from_numpy(x).float())
    scores = estimator.decision_function(wide)
    ours = wide @ weight.T + bias
    ours = ours[:, 1] - ours[:, 0] if classes == 2 else ours
    assert np.allclose(ours, scores, rtol=1e-4, atol=1e-3)


def test_a_two_class_svc_with_linear_kernel_is_linear() -> None:
    x, y = iris()
    keep = y != "setosa"
    estimator = fitted(svm.SVC(kernel="linear"), x[keep], y[keep])
    member = interop.sklearn_member(estimator)
    assert isinstance(member, models.Classifier)
    assert np.array_equal(said(member, estimator, x), estimator.predict(x))


@pytest.mark.parametrize("name", QUERIED)
def test_the_others_are_asked_and_answer_as_they_predict(name: str) -> None:
    x, y = iris()
    estimator = fitted(QUERIED[name], x, y)
    member = interop.sklearn_member(estimator)
    assert isinstance(member, interop.QueriedMember)
    wide = 4 + 4 * np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    assert np.array_equal(said(member, estimator, wide.astype(np.float64)), estimator.predict(wide))
    assert member(torch.zeros(0, 4)).shape == (0, 3)


class Contrary(linear_model.LogisticRegression):  # type: ignore[misc]
    """Has coefficients and answers otherwise."""

    def predict(self, X: Array) -> NDArray[Any]:
        return self.classes_[(super().decision_function(X).argmax(axis=1) + 1) % 3]


def test_coefficients_are_not_believed_against_the_answers() -> None:
    x, y = iris()
    estimator = Contrary(max_iter=500).fit(x, y)
    member = interop.sklearn_member(estimator)
    assert isinstance(member, interop.QueriedMember)
    assert np.array_equal(said(member, estimator, x), estimator.predict(x))


# ---- exact attacks -----------------------------------------------------------------------------------------------


def brute_force(estimators: list[Any], probs: Array, x: Array, y: NDArray[Any], threat: Threat) -> Array:
    """The largest u·α on a fine grid of the ball in the plane, by the classifiers' own `predict`."""
    line = np.linspace(-1, 1, 161)
    grid = threat.eps * np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    if threat.norm == "l2":
        grid = grid[np.linalg.norm(grid, axis=1) <= threat.eps]
    worst = []
    for point, label in zip(x, y, strict=True):
        wrong = np.stack([e.predict(point + grid) != label for e in estimators], axis=1)
        worst.append((wrong @ probs).max())
    return np.array(worst)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_exact_attack_agrees_with_brute_force(norm: str, classes: int) -> None:
    x, y = iris()
    keep = np.isin(y, np.unique(y)[-classes:])
    x, y = x[keep][:, [0, 2]], y[keep]
    kinds = ["scaled", "lda", "ridge"]
    estimators = [fitted(LINEAR[kind], x[i::2], y[i::2]) for i, kind in enumerate(kinds)]
    probs = np.array([0.5, 0.3, 0.2])
    threat = Threat(norm, 0.5, bounds=None)
    rec = interop.sklearn_ensemble(estimators, probs, threat=threat)
    assert rec.classes == tuple(np.unique(y))
    rows = slice(0, len(x), 3)
    labels = torch.from_numpy(np.searchsorted(estimators[0].classes_, y[rows]))
    inputs = torch.from_numpy(x[rows]).float()
    found = attacks.create("exact", threat)(rec, inputs, labels)
    expected = brute_force(estimators, probs, inputs.double().numpy(), y[rows], threat)
    risk = found.risk.numpy()
    assert (risk >= expected - 1e-9).all()  # nothing on the grid is worse than the proven optimum
    # The grid misses slivers of the ball, and no more than that.
    assert (risk > expected + 1e-9).mean() <= 0.08
    assert 0.05 < risk.mean() < 1
    # scikit-learn's own classifier is fooled by what is found.
    worst = found.x_adv.double().numpy()
    wrong = np.stack([e.predict(worst) != y[rows] for e in estimators], axis=1)
    assert np.array_equal(wrong, found.errors.numpy())
    for problem in exact.problems(rec.members, inputs[:5], labels[:5], threat):
        assert exact.verify(problem, exact.optimum(problem, probs), probs)


def test_one_margin_over_the_dual_norm_decides_a_single_member() -> None:
    """The textbook case: foolable iff |w·x + b| < ε‖w‖₁ (linf)."""
    x, y = iris()
    keep = y != "setosa"
    estimator = fitted(svm.LinearSVC(), x[keep], y[keep])
    rec = interop.sklearn_ensemble([estimator])
    right = estimator.predict(x[keep]) == y[keep]
    inputs = torch.from_numpy(x[keep][right]).float()
    labels = torch.from_numpy(np.searchsorted(estimator.classes_, y[keep][right]))
    margin = np.abs(estimator.decision_function(inputs.double().numpy())) / np.abs(estimator.coef_).sum()
    for eps in (0.05, 0.2, 0.4):
        found = attacks.create("exact", Threat("linf", eps, None))(rec, inputs, labels)
        clear = np.abs(margin - eps) > 1e-3 * eps
        assert clear.mean() > 0.95
        assert np.array_equal((found.risk.numpy() == 1)[clear], (margin < eps)[clear])


def test_networks_from_scikit_learn_are_saved_and_read_back(tmp_path: Path) -> None:
    x, y = iris()
    rec = interop.sklearn_ensemble([fitted(LINEAR[k], x, y) for k in ("scaled", "pca")], [0.75, 0.25])
    rec.save(tmp_path / "kept")
    again = randens.load(tmp_path / "kept")
    inputs = torch.from_numpy(x).float()
    assert torch.equal(again.logits(inputs), rec.logits(inputs))
    assert again.classes == ("setosa", "versicolor", "virginica")


# ---- members without gradients -----------------------------------------------------------------------------------


def moons() -> tuple[Tensor, Tensor, list[Any]]:
    x, y = datasets.make_moons(200, noise=0.2, random_state=0)
    estimators = [
        fitted(ensemble.RandomForestClassifier(20, random_state=0), x[::2], y[::2]),
        fitted(LINEAR["logistic"], x, y),
    ]
    return torch.from_numpy(x[1::2]).float(), torch.from_numpy(y[1::2]), estimators


def test_random_search_fools_a_forest_and_gradients_are_flagged() -> None:
    x, y, estimators = moons()
    rec = interop.sklearn_ensemble(estimators)
    threat = Threat("linf", 0.3, None)
    found = attacks.create("random", threat)(rec, x[:40], y[:40])
    forest = estimators[0]
    assert np.array_equal(found.errors[:, 0].numpy(), forest.predict(found.x_adv.numpy()) != y[:40].numpy())
    assert (
        float(found.errors[:, 0].float().mean())
        > float(rec.errors(x[:40], y[:40])[:, 0].float().mean()) + 0.1
    )
    with_gradients = attacks.create("saddle", threat)(rec, x[:40], y[:40])
    assert with_gradients.flags["zero_gradient"][0] > 0.5
    assert with_gradients.flags["zero_gradient"][1] == 0


def test_the_exact_attack_refuses_them() -> None:
    x, y, estimators = moons()
    with pytest.raises(InputError, match="QueriedMember gives no gradients; the exact attack"):
        attacks.create("exact", Threat("linf", 0.1, None))(interop.sklearn_ensemble(estimators), x[:4], y[:4])


# ---- getting it wrong --------------------------------------------------------------------------------------------


def test_what_is_wrong_is_said_in_one_sentence() -> None:
    x, y = iris()
    good = fitted(LINEAR["logistic"], x, y)
    two = fitted(LINEAR["logistic"], x[:100], y[:100])
    narrow = fitted(LINEAR["logistic"], x[:, :2], y)
    several = fitted(MultiOutputClassifier(tree.DecisionTreeClassifier()), x, np.stack([y, y], axis=1))
    text = make_pipeline(CountVectorizer(), linear_model.LogisticRegression()).fit(
        ["a word", "two words"], [0, 1]
    )
    wrong = {
        "not fitted": linear_model.LogisticRegression(),
        "is a type; give a fitted": linear_model.LogisticRegression,
        "is a LinearRegression": fitted(linear_model.LinearRegression(), x, x[:, 0]),
        "is a str": "logistic",
        "MultiOutputClassifier": several,
        "table of numbers": text,
    }
    for message, estimator in wrong.items():
        with pytest.raises(InputError, match=message) as raised:
            interop.sklearn_member(estimator)
        assert "\n" not in str(raised.value)
    for other in (two, narrow):
        with pytest.raises(InputError, match=r"estimators\[1\] knows .* they must agree"):
            interop.sklearn_ensemble([good, other])
    with pytest.raises(InputError, match="give a list of fitted scikit-learn classifiers"):
        interop.sklearn_ensemble(good)
    with pytest.raises(InputError, match=r"x has shape \(3, 2\); this SVC takes \[n, 4\]"):
        RandomizedEnsemble([interop.sklearn_member(fitted(svm.SVC(), x, y))])(torch.zeros(3, 2))
