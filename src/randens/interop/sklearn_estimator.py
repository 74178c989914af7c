"""A randomized ensemble with scikit-learn's interface, for tables of numbers."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from randens import attacks, models
from randens.attacks import Attack
from randens.core.errors import InputError, unknown, whole
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import AttackedSampling, optimize_sampling
from randens.interop.sklearn_members import QueriedMember, classifies, sklearn_member
from randens.threat import Threat
from randens.training.adversaries import Start, TrainingPGD, Victims
from randens.training.losses import Examples, margin_cross_entropy
from randens.witness import WitnessPool

__all__ = ["RandomizedEnsembleClassifier"]

_KINDS = ("linear", "mlp")
_FEW = 32  # ways to choose a wrong class for every member, up to which linear members are evaluated exactly
_MOST_EXACT = 10


@dataclass(eq=False, repr=False)
class RandomizedEnsembleClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """M classifiers, trained and weighted against an adversary, of which one is drawn per input.

    Parameters
    ----------
    estimators : sequence of scikit-learn classifiers, optional
        Members; they are cloned and fitted. None trains networks adversarially, each on the perturbations that fool the
        ensemble so far (BARRE).
    n_members, kind, width : int, str, int
        Without estimators: how many networks, "mlp" of `width` units or "linear".
    norm, eps : str, float
        The threat.
    bounds : pair of float, optional
        Limits of the features, in their own units, without `standardize`.
    standardize : bool
        Divide features by their standard deviation first; eps is then measured in standard deviations.
    epochs, batch_size, steps, learning_rate : int, int, int, float
        How networks are trained: PGD with `steps` steps, Adam with `learning_rate`.
    validation_fraction, tol : float
        The part of the training data held out to choose the probabilities on, to within `tol` of the smallest risk that
        any have against the witnesses found.
    random_state : int, RandomState or None
        None draws from the operating system's secure generator, which is necessary against an adversary. A
        whole number is for tests and papers: it fixes training, and a draw that depends only on that number
        and the input.

    Attributes
    ----------
    ensemble_, probs_ : RandomizedEnsemble, float64 [M]
        After `fit`; the ensemble is over `scaled(X)`.
    sampling_ : AttackedSampling
        With its certificate and `claim`.
    threat_, classes_, chosen_on_
        `chosen_on_` is "held-out", or "training" where there were too few inputs to hold any out.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = RandomizedEnsembleClassifier(n_members=2, kind="linear", epochs=3, random_state=0).fit(X, y)
    >>> model.predict(X[:5]).shape, len(model.probs_)
    ((5,), 2)
    """

    estimators: Sequence[Any] | None = None
    _: KW_ONLY
    n_members: int = 3
    kind: str = "mlp"
    width: int = 32
    norm: str = "linf"
    eps: float = 0.1
    bounds: tuple[float, float] | None = None
    standardize: bool = True
    epochs: int = 20
    batch_size: int = 64
    steps: int = 5
    learning_rate: float = 0.01
    validation_fraction: float = 0.2
    tol: float = 1e-3
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> RandomizedEnsembleClassifier:
        """Fit the members on one part of the data and choose the probabilities on the rest."""
        self._check_options()
        self.threat_ = Threat(self.norm, self.eps, self.bounds)
        table, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y holds one class, {self.classes_.tolist()[0]!r}; a classifier needs at least 2 classes"
            )
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        self.mean_ = table.mean(axis=0) if self.standardize else np.zeros(table.shape[1])
        spread = table.std(axis=0) if self.standardize else np.ones(table.shape[1])
        # A constant feature has no standard deviation.
        self.scale_ = np.where(spread > 1e-12 * np.abs(self.mean_).clip(1e-300), spread, 1.0)
        rows, held, self.chosen_on_ = self._held_out(codes, seed)
        inputs, targets = self._tensor(table), torch.from_numpy(codes.astype(np.int64))
        self.threat_.check(inputs)
        if self.estimators is None:
            members = self._train(inputs[rows], targets[rows], seed)
        else:
            scaled = inputs.double().numpy()
            members = [self._adopt(e, scaled[rows], codes[rows], seed) for e in self.estimators]
        everyone = RandomizedEnsemble(
            members, classes=[str(c) for c in self.classes_], threat=self.threat_
        ).eval()
        self.sampling_: AttackedSampling = optimize_sampling(
            everyone, (inputs[held], targets[held]), self._judges(everyone, self.threat_, seed), tol=self.tol
        )
        self.probs_: NDArray[np.float64] = self.sampling_.probs
        self.ensemble_ = everyone.with_probs(self.probs_).eval()
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the answer of one member per input, drawn with `probs_`; a second call may differ."""
        check_is_fitted(self)
        verdicts = self._verdicts(X)
        drawn = np.searchsorted(np.cumsum(self.probs_), self._uniform(X), side="right")
        last = int(np.flatnonzero(self.probs_).max())
        return self.classes_[verdicts[np.arange(len(verdicts)), drawn.clip(max=last)]]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Σ α_i softmax_i(x), [n, C]: the mixture's probabilities. How often `predict` gives each class is `vote`."""
        check_is_fitted(self)
        rec, inputs = self.ensemble_, self.scaled(X)
        # In float32 the last digits of a row depend, on some processors, on the rows beside it.
        if not any(isinstance(member, QueriedMember) for member in rec.members):
            members = [copy.deepcopy(member).double() for member in rec.members]
            rec, inputs = RandomizedEnsemble(members, self.probs_.tolist()).eval(), inputs.double()
        with torch.no_grad():
            mixed: NDArray[np.float64] = rec.mixture(inputs).double().exp().numpy()
        mixed /= mixed.sum(axis=1, keepdims=True)
        return mixed

    def vote(self, X: ArrayLike) -> NDArray[np.float64]:
        """Σ α_i 1[f_i(x) = c], [n, C]: the exact probability that `predict` answers c."""
        check_is_fitted(self)
        shares: NDArray[np.float64] = np.eye(len(self.classes_))[self._verdicts(X)]
        return np.einsum("m,nmc->nc", self.probs_, shares)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Expected accuracy of `predict`: an exact sum over the members, not the accuracy of one draw."""
        votes, codes = self.vote(X), self.encode(y)
        if codes.shape != (len(votes),):
            raise InputError(f"y has shape {codes.shape}; X has {len(votes)} rows, so give as many labels")
        right = votes[np.arange(len(votes)), codes]
        return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)))

    def robust_score(
        self, X: ArrayLike, y: ArrayLike, eps: float | None = None, *, attack: Attack | None = None
    ) -> float:
        """Expected accuracy on the worst perturbations found within `eps` (None: the one trained for).

        Exact where the members are linear and few; otherwise an upper bound, which a stronger `attack` may lower.
        """
        inputs, labels = self.scaled(X), torch.from_numpy(self.encode(y))
        if eps is not None and attack is not None:
            raise InputError(f"eps is {eps!r} and attack is given too; the attack has an eps of its own")
        if attack is not None and not isinstance(attack, Attack):
            raise InputError(f"attack is {attack!r}; give one made by randens.attacks.create, or None")
        if isinstance(eps, (int, float)) and not isinstance(eps, bool) and eps == 0:
            return self.score(X, y)
        threat = self.threat_ if eps is None else Threat(self.norm, eps, self.bounds)
        chosen = self._judges(self.ensemble_, threat, 0) if attack is None else [attack]
        pools = [one(self.ensemble_, inputs, labels).pool for one in chosen]
        return 1.0 - reduce(WitnessPool.merge, pools).risk(self.probs_)

    def scaled(self, X: ArrayLike) -> Tensor:
        """Inputs as `ensemble_` takes them, float32 [n, features], for use with the rest of randens."""
        check_is_fitted(self)
        return self._tensor(validate_data(self, X, dtype=np.float64, reset=False))

    def encode(self, y: ArrayLike) -> NDArray[np.int64]:
        """Labels as positions in `classes_`, as `ensemble_` takes them."""
        check_is_fitted(self)
        given = np.asarray(y)
        codes = np.searchsorted(self.classes_, given).clip(max=len(self.classes_) - 1)
        strange = given[self.classes_[codes] != given]
        if len(strange):
            raise InputError(f"y holds {strange.tolist()[0]!r}; the classes are {self.classes_.tolist()}")
        return codes.astype(np.int64)

    # ---- fitting -------------------------------------------------------------------------------------------------

    def _check_options(self) -> None:
        if self.kind not in _KINDS:
            unknown("kind", self.kind, _KINDS)
        for option in ("n_members", "width", "epochs", "batch_size", "steps"):
            whole(option, getattr(self, option))
        if not isinstance(self.learning_rate, (int, float)) or not 0 < self.learning_rate < float("inf"):
            raise InputError(f"learning_rate is {self.learning_rate!r}; it must be a number > 0")
        share = self.validation_fraction
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
            raise InputError(
                f"validation_fraction is {share!r}; it must be a number between 0 and 1, e.g. 0.2"
            )
        if self.standardize and self.bounds is not None:
            raise InputError(
                f"bounds is {self.bounds!r} and standardize is true; bounds are in the features' own units, so pass "
                "standardize=False"
            )
        given = self.estimators
        if given is not None and (isinstance(given, str) or not isinstance(given, Sequence) or not given):
            raise InputError(f"estimators is {given!r}; give a list of scikit-learn classifiers")
        for estimator in given or ():
            if not classifies(estimator):
                raise InputError(f"estimators holds {estimator!r}; each must be a scikit-learn classifier")

    def _held_out(self, codes: NDArray[np.intp], seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp], str]:
        """Rows to fit on and rows to choose probabilities on."""
        everything = np.arange(len(codes))
        count = round(self.validation_fraction * len(codes))
        classes = len(self.classes_)
        if np.bincount(codes).min() < 2 or count < classes or len(codes) - count < classes:
            return everything, everything, "training"
        rows, held = train_test_split(everything, test_size=count, stratify=codes, random_state=seed % 2**32)
        return rows, held, "held-out"

    def _train(self, x: Tensor, y: Tensor, seed: int) -> list[nn.Module]:
        """BARRE: member m starts from member m − 1 and learns the perturbations that fool members 1..m together."""
        generator = torch.Generator().manual_seed(seed)
        adversary = TrainingPGD(
            self.threat_, "softmax", steps=int(self.steps), step=2.5 * self.threat_.eps / self.steps
        )
        loss, finished = margin_cross_entropy(), list[nn.Module]()
        classes, features = len(self.classes_), x.shape[1]
        options = {"width": int(self.width)} if self.kind == "mlp" else {}
        for number in range(int(self.n_members)):
            # A linear member that starts from the first would stay at its optimum.
            fresh = models.create(
                self.kind, classes=classes, input_shape=(features,), seed=seed + number, **options
            )
            if finished and self.kind != "linear":
                fresh.load_state_dict(finished[-1].state_dict())
            everyone = [*finished, fresh]
            victims = Victims.of(everyone, torch.full((len(everyone),), 1 / len(everyone)))
            optimizer = torch.optim.Adam(fresh.parameters(), lr=self.learning_rate)
            for _ in range(int(self.epochs)):
                for part in torch.split(torch.randperm(len(x), generator=generator), int(self.batch_size)):
                    clean = x[part]
                    start = Start(clean, y[part], adversary.begin(clean, generator))
                    worst = adversary.craft(victims, start)
                    values, _ = loss(fresh, Examples(clean, worst, y[part]))
                    optimizer.zero_grad()
                    values.mean().backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            finished.append(fresh.eval().requires_grad_(False))
        return finished

    def _adopt(
        self, estimator: Any, table: NDArray[np.float64], codes: NDArray[np.intp], seed: int
    ) -> nn.Module:
        twin = clone(estimator)
        if "random_state" in twin.get_params() and twin.get_params()["random_state"] is None:
            twin.set_params(random_state=seed)
        member = sklearn_member(twin.fit(table, codes))
        if len(twin.classes_) != len(self.classes_):
            raise InputError(
                f"estimators holds {type(estimator).__name__}, which met {len(twin.classes_)} of {len(self.classes_)} "
                "classes in its part of the data; give more inputs of each class"
            )
        return member

    @staticmethod
    def _judges(rec: RandomizedEnsemble, threat: Threat, seed: int) -> list[Attack]:
        """The exact attack if it is affordable; else `saddle`, and random search for members without gradients."""
        linear = all(
            isinstance(m, models.Classifier) and m.architecture["name"] == "linear" for m in rec.members
        )
        classes = rec.classes or ()
        if linear and len(rec) <= _MOST_EXACT and (len(classes) - 1) ** len(rec) <= _FEW:
            return [attacks.create("exact", threat, seed=seed)]
        chosen = [attacks.create("saddle", threat, seed=seed)]
        if any(isinstance(m, QueriedMember) for m in rec.members):
            chosen.append(attacks.create("random", threat, seed=seed))
        return chosen

    # ---- answering -----------------------------------------------------------------------------------------------

    def _tensor(self, table: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy((table - self.mean_) / self.scale_).float()

    def _verdicts(self, X: ArrayLike) -> NDArray[np.int64]:
        return self.ensemble_.verdicts(self.scaled(X)).numpy()

    def _uniform(self, X: ArrayLike) -> NDArray[np.float64]:
        """One number in [0, 1) for every input."""
        table = validate_data(self, X, dtype=np.float64, reset=False)
        if self.random_state is None:
            raw = np.frombuffer(os.urandom(8 * len(table)), dtype=np.uint64)
        elif isinstance(self.random_state, (int, np.integer)):
            key = str(int(self.random_state)).encode()
            digests = [
                hashlib.blake2b((row + 0.0).tobytes(), digest_size=8, key=key).digest() for row in table
            ]
            raw = np.frombuffer(b"".join(digests), dtype=np.uint64)
        else:
            return check_random_state(self.random_state).random_sample(len(table))
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
