"""The estimator for tables: scikit-learn's own checks, exact expectations, draws, and what it claims."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine, make_moons
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from randens import Threat, attacks, interop, models
from randens.attacks import exact
from randens.core.errors import InputError

Estimator = interop.RandomizedEnsembleClassifier
Array = NDArray[np.float64]

NOT_PASSED = {
    "check_classifiers_train": "asserts that predict is the argmax of predict_proba; here predict draws a member, and "
    "where members disagree the draw may differ from the most likely class"
}


@functools.cache
def cancer() -> tuple[Array, Array, NDArray[np.str_], NDArray[np.str_]]:
    loaded = load_breast_cancer()
    names = loaded.target_names[loaded.target]
    x, x_test, y, y_test = train_test_split(loaded.data, names, test_size=0.3, random_state=0, stratify=names)
    return x, x_test, y, y_test


@functools.cache
def linear() -> Any:
    """Three linear members of scikit-learn that differ, on the breast cancer data."""
    x, _, y, _ = cancer()
    kinds = [
        LogisticRegression(C=0.01),
        LinearSVC(C=0.01),
        LogisticRegression(C=0.05, l1_ratio=1.0, solver="liblinear"),
    ]
    return Estimator(kinds, eps=0.3, random_state=0).fit(x, y)


@functools.cache
def trained() -> Any:
    x, y = make_moons(300, noise=0.15, random_state=0)
    return Estimator(n_members=2, eps=0.25, epochs=15, random_state=0).fit(x, y)


@pytest.mark.parametrize("kind", ["trained", "adopted"])
def test_scikit_learns_own_checks(kind: str) -> None:
    members = [LogisticRegression(C=0.1), LogisticRegression()] if kind == "adopted" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            Estimator(members, epochs=8, n_members=2),
            expected_failed_checks=NOT_PASSED,
            on_skip=None,
            on_fail=None,
        )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(NOT_PASSED)
    assert sum(r["status"] == "passed" for r in results) >= 45


# ---- answers -----------------------------------------------------------------------------------------------------


def test_expectations_are_exact_sums_over_the_members() -> None:
    estimator = linear().set_params(random_state=0)
    _, x, _, y = cancer()
    rec, inputs = estimator.ensemble_, estimator.scaled(x)
    with torch.no_grad():
        verdicts = np.stack([m(inputs).argmax(dim=1).numpy() for m in rec.members], axis=1)
        softmax = np.stack([m(inputs).double().softmax(dim=1).numpy() for m in rec.members])
    right = estimator.classes_[verdicts] == y[:, None]
    assert estimator.score(x, y) == pytest.approx(float((right @ estimator.probs_).mean()), abs=1e-12)
    weights = np.arange(1, len(y) + 1)
    weighted = float(np.average(right @ estimator.probs_, weights=weights))
    assert estimator.score(x, y, sample_weight=weights) == pytest.approx(weighted, abs=1e-12)
    mixed = np.einsum("m,mnc->nc", estimator.probs_, softmax)
    assert np.allclose(estimator.predict_proba(x), mixed, atol=1e-5)
    votes = estimator.vote(x)
    for c in range(2):
        assert np.allclose(votes[:, c], (verdicts == c) @ estimator.probs_)


def disputed() -> tuple[Any, Array, float]:
    """Two members that disagree on one input, and how often class 1 is drawn there."""
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 6)
    y = np.array([0, 0, 1, 1] * 6)
    estimator = Estimator([LogisticRegression(), LogisticRegression(C=0.1)], standardize=False).fit(x, y)
    first, second = estimator.ensemble_.members
    assert isinstance(first, models.Classifier)
    assert isinstance(second, models.Classifier)
    with torch.no_grad():
        second.body.linear.bias.copy_(torch.tensor([0.0, 5.0]))  # type: ignore[union-attr, operator]
        first.body.linear.bias.copy_(torch.tensor([5.0, 0.0]))  # type: ignore[union-attr, operator]
    estimator.probs_ = np.array([0.7, 0.3])
    return estimator, np.zeros((4000, 1)), 0.3


def test_fresh_draws_follow_the_probabilities_and_differ_from_call_to_call() -> None:
    estimator, x, share = disputed()
    assert np.allclose(estimator.vote(x[:1]), [[0.7, 0.3]])
    drawn = estimator.predict(x)
    # Four standard deviations of a binomial share.
    assert abs(drawn.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(x))
    assert not np.array_equal(drawn, estimator.predict(x))
    estimator.probs_ = np.array([1.0, 0.0])
    assert (estimator.predict(x) == 0).all()


def test_a_seeded_draw_depends_on_the_seed_and_the_input_alone() -> None:
    estimator, _, share = disputed()
    x = np.random.default_rng(0).uniform(-0.1, 0.1, (4000, 1))
    estimator.set_params(random_state=3)
    drawn = estimator.predict(x)
    assert abs(drawn.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(x))
    order = np.random.default_rng(1).permutation(len(x))
    assert np.array_equal(estimator.predict(x[order]), drawn[order])
    assert np.array_equal(np.concatenate([estimator.predict(row[None]) for row in x[:50]]), drawn[:50])
    estimator.set_params(random_state=4)
    assert not np.array_equal(estimator.predict(x), drawn)
    estimator.set_params(random_state=np.random.RandomState(0))
    assert not np.array_equal(estimator.predict(x), estimator.predict(x))


def test_the_global_generators_play_no_part() -> None:
    x, y = make_moons(80, noise=0.15, random_state=0)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = float(torch.rand(())), np.random.random()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    first = Estimator(n_members=2, epochs=2, random_state=5).fit(x, y)
    assert (float(torch.rand(())), np.random.random()) == expected  # noqa: NPY002
    second = Estimator(n_members=2, epochs=2, random_state=5).fit(x, y)
    assert np.array_equal(first.predict_proba(x), second.predict_proba(x))
    assert np.array_equal(first.probs_, second.probs_)


# ---- what it claims ----------------------------------------------------------------------------------------------


def test_probabilities_are_proven_optimal_for_linear_members_on_the_part_held_out() -> None:
    estimator = linear()
    sampling = estimator.sampling_
    assert estimator.chosen_on_ == "held-out"
    assert sampling.exact_oracle
    assert sampling.converged
    assert sampling.attacks == ("exact",)
    assert sampling.certificate.verify(sampling.profile)
    assert sampling.pool.n == round(0.2 * len(cancer()[2]))
    for probs in np.random.default_rng(0).dirichlet(np.ones(3), 50):
        assert sampling.profile.risk(probs) >= sampling.risk - estimator.tol


def test_the_robust_score_of_linear_members_is_the_exact_one() -> None:
    estimator = linear()
    _, x, _, y = cancer()
    inputs, labels = estimator.scaled(x), torch.from_numpy(estimator.encode(y))
    for eps in (0.1, 0.3):
        threat = Threat("linf", eps, None)
        cases = exact.problems(estimator.ensemble_.members, inputs, labels, threat)
        best = np.mean([exact.optimum(case, estimator.probs_).value for case in cases])
        assert estimator.robust_score(x, y, eps) == pytest.approx(1 - best, abs=1e-9)
    assert estimator.robust_score(x, y) == estimator.robust_score(x, y, 0.3)
    assert estimator.robust_score(x, y, 0) == estimator.score(x, y)
    assert estimator.robust_score(x, y, 0.1) > estimator.robust_score(x, y, 0.3)
    weak = estimator.robust_score(x, y, attack=attacks.create("fgsm", Threat("linf", 0.3, None)))
    assert weak >= estimator.robust_score(x, y)


def test_adversarial_training_raises_the_robust_score() -> None:
    x, y = make_moons(300, noise=0.15, random_state=1)
    plain = Estimator(n_members=2, eps=1e-6, epochs=15, random_state=0).fit(
        *make_moons(300, noise=0.15, random_state=0)
    )
    robust = trained()
    assert robust.score(x, y) > 0.8
    assert robust.robust_score(x, y, 0.25) > plain.robust_score(x, y, 0.25) + 0.03


def test_linear_networks_are_trained_and_evaluated_exactly() -> None:
    x, x_test, y, y_test = cancer()
    estimator = Estimator(kind="linear", n_members=2, eps=0.2, epochs=10, random_state=0).fit(x, y)
    assert estimator.sampling_.exact_oracle
    assert estimator.score(x_test, y_test) > 0.93
    assert estimator.robust_score(x_test, y_test) > 0.8


def test_forests_are_also_attacked_by_random_search() -> None:
    x, y = make_moons(120, noise=0.2, random_state=0)
    kinds = [RandomForestClassifier(5, random_state=0), LogisticRegression()]
    estimator = Estimator(kinds, eps=0.2, random_state=0).fit(x, y)
    assert estimator.sampling_.attacks == ("saddle", "random")
    assert not estimator.sampling_.exact_oracle
    assert estimator.robust_score(x, y) < estimator.score(x, y)


def test_too_few_inputs_are_not_split_and_that_is_said() -> None:
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    assert Estimator(epochs=1, n_members=1).fit(x, y).chosen_on_ == "training"


# ---- among scikit-learn's tools ----------------------------------------------------------------------------------


def test_it_works_in_pipelines_searches_and_cross_validation() -> None:
    x, y = load_wine(return_X_y=True)
    base = Estimator([LogisticRegression(C=0.1), LogisticRegression(C=1.0)], random_state=0)
    assert cross_val_score(make_pipeline(StandardScaler(), base), x, y, cv=3).mean() > 0.9
    search = GridSearchCV(base, {"eps": [0.05, 0.5]}, cv=2).fit(x, y)
    assert search.best_params_["eps"] in (0.05, 0.5)
    twin = clone(base)
    assert twin.get_params(deep=False) | {"estimators": None} == base.get_params(deep=False) | {
        "estimators": None
    }


def test_its_ensemble_is_an_ordinary_one() -> None:
    estimator = trained()
    x, y = make_moons(60, noise=0.15, random_state=2)
    found = attacks.create("suite", estimator.threat_, preset="fast")(
        estimator.ensemble_, estimator.scaled(x), torch.from_numpy(estimator.encode(y))
    )
    assert 1 - float(found.risk.mean()) == pytest.approx(
        estimator.robust_score(x, y, attack=attacks.create("suite", estimator.threat_, preset="fast")),
        abs=1e-9,
    )


# ---- getting it wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "tree"}, "unknown kind 'tree'; valid: linear, mlp"),
        ({"n_members": 0}, "n_members is 0; it must be a whole number ≥ 1"),
        ({"epochs": 2.5}, r"epochs is 2\.5; it must be a whole number ≥ 1"),
        ({"eps": -1}, "eps is -1; it must be finite and > 0"),
        ({"norm": "l3"}, "unknown norm 'l3'; valid: "),
        ({"learning_rate": 0}, "learning_rate is 0; it must be a number > 0"),
        ({"validation_fraction": 1.0}, r"validation_fraction is 1\.0; it must be a number between 0 and 1"),
        ({"bounds": (0, 1)}, r"bounds is \(0, 1\) and standardize is true"),
        (
            {"bounds": (0, 1), "standardize": False},
            r"x ranges over \[-1, 2\]; the threat's bounds are \[0, 1\]",
        ),
        ({"estimators": []}, r"estimators is \[\]; give a list of scikit-learn classifiers"),
        ({"estimators": "trees"}, "estimators is 'trees'; give a list of scikit-learn classifiers"),
        ({"estimators": ["tree"]}, "estimators holds 'tree'; each must be a scikit-learn classifier"),
        ({"estimators": [LinearRegression()]}, r"estimators holds LinearRegression\(\); each must be"),
        ({"estimators": [LogisticRegression]}, "estimators holds .*; each must be a scikit-learn classifier"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(options: dict[str, Any], message: str) -> None:
    x, y = np.array([[-1.0], [1.0], [2.0], [2.0]]), np.array([0, 0, 1, 1])
    with pytest.raises(InputError, match=message) as raised:
        Estimator(**options).fit(x, y)
    assert "\n" not in str(raised.value)


def test_labels_and_radii_that_cannot_be() -> None:
    estimator = trained()
    x = np.zeros((2, 2))
    with pytest.raises(InputError, match=r"y holds 7; the classes are \[0, 1\]"):
        estimator.score(x, [0, 7])
    with pytest.raises(InputError, match="eps is -1; it must be finite and > 0"):
        estimator.robust_score(x, [0, 1], -1)
    with pytest.raises(InputError, match=r"eps is 0\.1 and attack is given too"):
        estimator.robust_score(x, [0, 1], 0.1, attack=attacks.create("pgd", estimator.threat_))
    with pytest.raises(InputError, match=r"y has shape \(3,\); X has 2 rows, so give as many labels"):
        estimator.score(x, [0, 1, 1])
    with pytest.raises(InputError, match="attack is 'pgd'; give one made by"):
        estimator.robust_score(x, [0, 1], attack="pgd")
    with pytest.raises(InputError, match="y holds one class, 1; a classifier needs at least 2 classes"):
        Estimator().fit(x, [1, 1])
