"""scikit-learn classifiers: linear ones have gradients, and the exact attack proves their worst cases."""

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import randens

X, X_test, y, y_test = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
scaler = StandardScaler().fit(X)
fitted = [model.fit(scaler.transform(X), y) for model in (LogisticRegression(), RidgeClassifier())]
rec = randens.interop.sklearn_ensemble(fitted)
print(
    randens.evaluate(rec, (scaler.transform(X_test), y_test), "exact", threat=randens.Threat("l2", 0.3, None))
)
