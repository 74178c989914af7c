"""Other people's tools: scikit-learn classifiers as members, an estimator for them, one model for code that wants one.

Attacks of other packages are in `randens.attacks`: `from_foolbox`, `from_torchattacks`, `from_art`,
`from_autoattack`.
"""

from randens.interop.estimator import RandomizedEnsembleClassifier
from randens.interop.mixture import Mixture
from randens.interop.sklearn_members import QueriedMember, sklearn_ensemble, sklearn_member

__all__ = ["Mixture", "QueriedMember", "RandomizedEnsembleClassifier", "sklearn_ensemble", "sklearn_member"]
