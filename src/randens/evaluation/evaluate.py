"""Evaluate any classifier or ensemble: exact expectations on the worst perturbations found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from randens import models
from randens.core.errors import InputError
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, check_probs, networks_of
from randens.evaluation.conflict import known_conflict
from randens.evaluation.inputs import AttackLike, Case, prepare
from randens.evaluation.loop import Witnesses
from randens.evaluation.random_models import RandomEvaluation, evaluate_random
from randens.evaluation.result import Evaluation, worst_inputs
from randens.risk.sets import as_attempts
from randens.witness import WitnessPool

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from randens.evaluation.inputs import Settings


def evaluate(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    attempts: float | Sequence[float] = (),
    votes: int = 1,
    also: Mapping[str, ArrayLike | Tensor | None] | None = None,
    confidence: float = 0.95,
    **settings: Unpack[Settings],
) -> Evaluation | RandomEvaluation:
    """Measure natural and robust accuracy of any classifier or ensemble, as exact expectations over the draw.

    The attacks are run on the ensemble at its probabilities and at those in `also`, on each member alone, and on
    the average of all logits. Every perturbation found is tested on all of them. Inputs whose risk cannot increase
    are not attacked again.

    Parameters
    ----------
    model : nn.Module, sequence of nn.Module, RandomizedEnsemble, RandomizedModel, str or path
        One classifier or several; also a run folder, a name of the zoo, ``torchscript:PATH``, ``onnx:PATH`` or
        ``package.module:factory``. These last three are code: name only what you trust.
    data : tuple, Dataset, DataLoader, datasets.Dataset, Data, str or path
        Inputs with labels, as `randens.data.as_data` takes them. None: the test data of a run folder.
    attack : Attack, str, sequence of these, optional
        An attack, its name, several that work one after the other, or a preset (``"fast"``, ``"standard"``,
        ``"thorough"``) of the suite. Default: ``"standard"``.
    attempts : int, inf or sequence of these
        Numbers of attempts that the table shows, too; `result.after` gives any other.
    votes : int
        For random models: the table also shows the accuracy if the majority of so many draws answers.
    also : mapping, optional
        Further probabilities to attack, by name; None stands for uniform.
    confidence : float
        Confidence level of the intervals.
    eps : float or str, optional
        Radius of the perturbations, e.g. ``8/255`` or ``"8/255"``. Default: the attack's, else the ensemble's own,
        else 8/255.
    norm : str or float, optional
        ``"linf"``, ``"l2"`` or ``"l1"`` in any usual spelling. Default as for `eps`, else linf.
    threat : Threat, optional
        Instead of `eps` and `norm`: also sets the bounds of valid inputs, or a finite set.
    device : str or torch.device, optional
        ``"auto"``, ``"cpu"``, ``"cuda:0"``. Members are moved there and back; results are on the CPU. Default: where
        the members are if that is a GPU, else ``"auto"``.
    preprocessing : optional
        ``(mean, std)`` for the normalization that the classifiers expect; a configuration of timm or an image
        processor of transformers; ``"auto"`` for timm's models; or a list with one entry per member. Perturbations
        stay in pixels.
    probs : array, optional
        α of several modules; uniform by default.
    split, limit : str, int, optional
        Which split of a named data set (the test split by default), and how many of the first inputs.
    seed : int
        Determines every random choice of attacks given by name.
    folder : path or WitnessStore, optional
        A witness store: its searches are not repeated, and every finished batch is added. The same call
        continues an interrupted one and makes no attack twice.
    progress : callable, optional
        ``progress(task, done, total)``; by default bars in a terminal or notebook.

    Returns
    -------
    Evaluation or RandomEvaluation
        ``float(result.natural)``, ``float(result.robust)``, ``result.robust.low``, ``.high``, ``result.after(10)``.
        A `RandomEvaluation` for a `RandomizedModel`, or an ensemble with such members.

    Examples
    --------
    >>> import randens
    >>> nets = [randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    >>> result = randens.evaluate(nets, "digits", "pgd", eps="8/255", limit=8)
    >>> 0 <= float(result.robust) <= float(result.natural) <= 1
    True
    """
    tries = tuple(map(as_attempts, attempts if isinstance(attempts, Sequence) else [attempts]))
    with prepare(model, data, attack, **settings) as case:
        if case.rec.stochastic:
            if also or case.store is not None:
                raise InputError("also and folder cannot be given for a random model; leave them out")
            return evaluate_random(case, confidence, tries, votes)
        if votes != 1:
            raise InputError(f"votes is {votes!r}; only random models vote, so leave it out")
        return evaluate_case(case, also, confidence, attempts=tries)


def evaluate_case(
    case: Case,
    also: Mapping[str, ArrayLike | Tensor | None] | None = None,
    confidence: float = 0.95,
    *,
    attempts: Sequence[int | float] = (),
    average: bool = True,
) -> Evaluation:
    """`evaluate` for deterministic members that are prepared; average: also attack the average of all logits."""
    rec, data = case.rec, case.data
    for what, split in case.chosen_on.items():
        if split == "test":
            raise InputError(f"{what} was chosen on test data; choose it on validation data, then evaluate")
    probs = rec.probs.cpu().numpy().copy()
    extra = {name: check_probs(value, len(rec)).numpy() for name, value in (also or {}).items()}
    known = Witnesses(rec, data, case.threat, store=case.store, progress=case.progress)
    attack_all(known, case, [probs, *extra.values()])
    mean = attack_average(known, case) if average and len(rec) > 1 else known
    known.confirm(probs)
    reach = known_conflict(known, case)
    return Evaluation(
        **case.head(known),
        clean=known.clean,
        pool=known.pool,
        average=(mean.clean[:, 0], mean.pool.foolable[:, 0]) if average else None,
        classes=known.classes,
        flops=tuple(models.flops(member, data.x.shape[1:]) for member in rec.members),
        confidence=confidence,
        chosen_on=dict(case.chosen_on),
        also=extra,
        flags=known.flags,
        conflict=reach,
        verified=known.verified,
        attempts=tuple(attempts),
        x=data.x,
    )


def attack_all(known: Witnesses, case: Case, several: list[NDArray[np.float64]]) -> None:
    """The loop: every attack, on the ensemble at several probabilities and on each member alone."""
    members = len(known.rec)
    alone = list(np.eye(members)) if members > 1 else []
    for attack in case.attacks:
        for probs in several:
            known.attack(attack, probs, f"{attack.name} on the ensemble")
        for index, probs in enumerate(alone):
            known.attack(attack, probs, f"{attack.name} on member {index}")


def attack_average(known: Witnesses, case: Case, pool: WitnessPool | None = None) -> Witnesses:
    """Attack the average of all logits: by the ensemble's worst cases, then by its own attacks.

    Its witnesses are also tested on the members. pool: witnesses of the average that are known.
    """
    one = RandomizedEnsemble([average_of(known.rec)])
    mean = Witnesses(one, known.data, known.threat, store=known.store, pool=pool, progress=known.progress)
    worst = worst_inputs(known.pool, known.rec.probs, known.x)
    mean.judge(np.arange(len(worst)), worst, ["transfer"] * len(worst))
    for attack in case.attacks:
        mean.attack(attack, np.ones(1), f"{attack.name} on the average")
    known.show(mean.pool)
    known.cost, known.now = known.cost + mean.cost, known.now + mean.now
    return mean


def average_of(rec: RandomizedEnsemble) -> DeterministicEnsemble:
    """The mean of all members' logits; of members that are averages themselves, over the networks behind them."""
    networks, parts = networks_of(rec.members)
    weights = np.zeros(len(networks))
    for member, part in zip(rec.members, parts, strict=True):
        own = member.weights.tolist() if isinstance(member, DeterministicEnsemble) else [1.0]
        np.add.at(weights, part, np.array(own) / len(parts))
    return DeterministicEnsemble(list(networks), weights)
