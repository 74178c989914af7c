"""scikit-learn classifiers as members: same answers, exact attacks, flags of missing gradients."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn import datasets, ensemble, linear_model, svm, tree
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, RobustScaler, StandardScaler

import randens
from randens import Threat, attacks, interop, models
from randens.core.errors import InputError

Array = NDArray[np.float64]
LOGISTIC = linear_model.LogisticRegression()
LINEAR: dict[str, Any] = {
    "logistic": LOGISTIC,
    "linear svm": svm.LinearSVC(),
    "lda": LinearDiscriminantAnalysis(),
    "ridge": linear_model.RidgeClassifier(),
    "sgd": linear_model.SGDClassifier(random_state=0),
    "scaled twice": make_pipeline(MinMaxScaler(), RobustScaler(), svm.LinearSVC()),
    "pca": make_pipeline(StandardScaler(), PCA(3, whiten=True, random_state=0), LOGISTIC),
    "selected": make_pipeline(SelectKBest(k=2), LinearDiscriminantAnalysis()),
    "grid": GridSearchCV(
        make_pipeline(StandardScaler(), LOGISTIC), {"logisticregression__C": [0.1, 1]}, cv=2
    ),
}
QUERIED: dict[str, Any] = {
    "rbf": svm.SVC(),
    "linear svc, three classes": svm.SVC(kernel="linear"),
    "forest": ensemble.RandomForestClassifier(n_estimators=5, random_state=0),
    "clipped": make_pipeline(MinMaxScaler(clip=True), LOGISTIC),
    "polynomial": make_pipeline(PolynomialFeatures(2), StandardScaler(), LOGISTIC),
}


def fitted(estimator: Any, x: Array, y: NDArray[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clone(estimator).fit(x, y)


def iris(classes: int = 3) -> tuple[Array, NDArray[np.str_]]:
    """Kinds of flowers by name."""
    loaded = datasets.load_iris()
    keep = loaded.target >= 3 - classes
    return loaded.data[keep], loaded.target_names[loaded.target][keep]


def said(member: torch.nn.Module, estimator: Any, x: Array) -> NDArray[Any]:
    with torch.no_grad():
        names: NDArray[Any] = estimator.classes_[member(torch.from_numpy(x).float()).argmax(dim=1).numpy()]
    return names


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_classifiers_become_linear_networks_with_the_same_answers(name: str, classes: int) -> None:
    x, y = iris(classes)
    estimator = fitted(LINEAR[name], x, y)
    member = interop.sklearn_member(estimator)
    assert isinstance(member, models.Classifier)
    assert member.architecture["name"] == "linear"
    for inputs in (x, 20 * np.random.default_rng(0).standard_normal((500, 4))):
        assert np.array_equal(said(member, estimator, inputs), estimator.predict(inputs))


@pytest.mark.parametrize("name", QUERIED)
def test_the_others_are_asked_and_answer_as_they_predict(name: str) -> None:
    x, y = iris()
    estimator = fitted(QUERIED[name], x, y)
    member = interop.sklearn_member(estimator)
    assert isinstance(member, interop.QueriedMember)
    wide = 4 + 4 * np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    assert np.array_equal(said(member, estimator, wide.astype(np.float64)), estimator.predict(wide))
    assert member(torch.zeros(0, 4)).shape == (0, 3)


def test_one_margin_over_the_dual_norm_decides_a_single_member() -> None:
    """The textbook case: foolable iff |w·x + b| < ε‖w‖₁ (linf); scikit-learn's own classifier is fooled, too."""
    x, y = iris(2)
    estimator = fitted(svm.LinearSVC(), x, y)
    rec = interop.sklearn_ensemble([estimator])
    right = estimator.predict(x) == y
    inputs, names = torch.from_numpy(x[right]).float(), y[right]
    labels = torch.from_numpy(np.searchsorted(estimator.classes_, names))
    margin = np.abs(estimator.decision_function(inputs.double().numpy())) / np.abs(estimator.coef_).sum()
    for eps in (0.05, 0.2, 0.4):
        found = attacks.create("exact", Threat("linf", eps, None))(rec, inputs, labels)
        clear = np.abs(margin - eps) > 1e-3 * eps
        assert clear.mean() > 0.95
        assert np.array_equal((found.risk.numpy() == 1)[clear], (margin < eps)[clear])
        wrong = estimator.predict(found.x_adv.double().numpy()) != names
        assert np.array_equal(wrong, found.errors[:, 0].numpy())


def test_networks_from_scikit_learn_are_saved_and_read_back(tmp_path: Path) -> None:
    x, y = iris()
    rec = interop.sklearn_ensemble([fitted(LINEAR[k], x, y) for k in ("grid", "pca")], [0.75, 0.25])
    rec.save(tmp_path / "kept")
    again, inputs = randens.load(tmp_path / "kept"), torch.from_numpy(x).float()
    assert torch.equal(again.logits(inputs), rec.logits(inputs))
    assert again.classes == ("setosa", "versicolor", "virginica")


def test_random_search_fools_a_forest_and_gradients_are_flagged() -> None:
    points, labels = datasets.make_moons(200, noise=0.2, random_state=0)
    forest = fitted(ensemble.RandomForestClassifier(20, random_state=0), points[::2], labels[::2])
    rec = interop.sklearn_ensemble([forest, fitted(LOGISTIC, points[::2], labels[::2])])
    x, y, threat = (
        torch.from_numpy(points[1:81:2]).float(),
        torch.from_numpy(labels[1:81:2]),
        Threat("linf", 0.3, None),
    )
    found = attacks.create("random", threat)(rec, x, y)
    assert np.array_equal(found.errors[:, 0].numpy(), forest.predict(found.x_adv.numpy()) != y.numpy())
    assert float((found.errors & ~found.clean_errors)[:, 0].float().mean()) > 0.1
    flags = attacks.create("saddle", threat)(rec, x, y).flags["zero_gradient"]
    assert flags[0] > 0.5
    assert flags[1] == 0
    with pytest.raises(InputError, match=r"\(QueriedMember\) gives no gradients; the exact attack"):
        attacks.create("exact", threat)(rec, x[:4], y[:4])


def test_what_is_wrong_is_said_in_one_sentence() -> None:
    x, y = iris()
    several = fitted(MultiOutputClassifier(tree.DecisionTreeClassifier()), x, np.stack([y, y], axis=1))
    text = make_pipeline(CountVectorizer(), LOGISTIC).fit(["a word", "two words"], [0, 1])
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
    good = fitted(LOGISTIC, x, y)
    for other in (fitted(LOGISTIC, *iris(2)), fitted(LOGISTIC, x[:, :2], y)):
        with pytest.raises(InputError, match=r"estimators\[1\] knows .* they must agree"):
            interop.sklearn_ensemble([good, other])
    with pytest.raises(InputError, match="give a list of fitted scikit-learn classifiers"):
        interop.sklearn_ensemble(good)
    with pytest.raises(InputError, match=r"x has shape \(3, 2\); this SVC takes \[n, 4\]"):
        interop.sklearn_member(fitted(svm.SVC(), x, y))(torch.zeros(3, 2))
