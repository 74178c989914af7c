"""Evaluate a randomized ensemble: exact expectations on the worst perturbations found."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from randens import models
from randens.attacks import Attack, Cost
from randens.attacks.dataset import Knowledge, as_attacks, worst_inputs
from randens.callbacks import Callback, as_progress
from randens.core.documents import Document
from randens.core.errors import InputError
from randens.core.files import sha256, write_atomic
from randens.core.progress import Progress, silent
from randens.data import Data
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, check_probs, networks_of
from randens.evaluation.argument_checks import DataLike, class_count, fingerprint, labelled
from randens.evaluation.gradient_conflict import Conflict, ConflictDocument, conflict_of
from randens.evaluation.preparation import BOX, AttackLike, doubts, prepare
from randens.evaluation.random_model_evaluation import evaluate_stochastic
from randens.evaluation.results import Evaluation, PassesDocument, Points
from randens.models import on_device
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore, as_store

__all__ = [
    "ConflictNote",
    "average_of",
    "evaluate",
    "evaluate_ensemble",
    "save_worst_inputs",
    "transferred",
    "worst_inputs",
]


class ConflictNote(Document):
    """The entry of a witness store about the members' gradients."""

    conflict: ConflictDocument
    cost: PassesDocument


def evaluate(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    bounds: tuple[float, float] | None = BOX,
    device: str | torch.device | None = None,
    preprocessing: Any = None,
    probs: ArrayLike | Tensor | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    also: Mapping[str, ArrayLike | None] | None = None,
    deterministic: bool = True,
    pool: WitnessPool | None = None,
    chosen_on: Mapping[str, str] | None = None,
    confidence: float = 0.95,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    verify: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[Callback] = (),
) -> Evaluation:
    """Measure natural and robust accuracy of any classifier or ensemble, as exact expectations over the draw.

    The attacks are run on the ensemble at its probabilities and at those in `also`, on each member alone, and, unless
    `deterministic` is false, on the mean of all logits. Every perturbation found is tested on all of them. Inputs
    whose risk cannot increase are not attacked again.

    Parameters
    ----------
    model : nn.Module, sequence of nn.Module, RandomizedEnsemble, DeterministicEnsemble, str or path
        One classifier or several; also a run folder, a TorchScript or ONNX file, or a name of the zoo.
    data : tuple, Dataset, DataLoader, datasets.Dataset, Data, str or path
        Inputs with labels, as `randens.data.as_data` takes them. None: the test data of a run folder.
    attack : Attack, str, sequence of these, optional
        An attack, its name, several that work one after the other, or a preset (``"fast"``, ``"standard"``,
        ``"thorough"``) of the portfolio. Default: the portfolio ``standard``.
    eps : float or str, optional
        Radius of the perturbations, e.g. ``8/255`` or ``"8/255"``. Default: the attack's, else the ensemble's own,
        else 8/255.
    norm : str or float, optional
        ``"linf"`` or ``"l2"`` in any usual spelling. Default as for `eps`, else linf.
    bounds : (float, float) or None
        Smallest and largest valid input; None for tables.
    device : str or torch.device, optional
        ``"auto"``, ``"cpu"``, ``"cuda:0"``. Members are moved there and back; results are on the CPU. Default: where
        the members are if that is a GPU, else ``"auto"``.
    preprocessing : optional
        ``(mean, std)`` for the normalisation that the classifiers expect; a configuration of timm or an image
        processor of transformers; or ``"auto"`` for timm's models. Perturbations stay in pixels.
    probs : array, optional
        α of several modules; uniform by default.
    split, limit : str, int, optional
        Which split of a named data set, and how many of the first inputs.
    seed : int
        Determines every random choice of attacks given by name.
    also : mapping, optional
        Further probabilities to attack, by name; None stands for uniform.
    deterministic : bool
        Also attack the mean of all logits.
    pool : WitnessPool, optional
        Known witnesses of the same inputs and members.
    chosen_on : mapping, optional
        Which split chose what, e.g. ``{"probs": "validation"}``; choices made on test data are refused.
    confidence : float
        Of the intervals.
    folder : path or WitnessStore, optional
        A witness store: its searches are not repeated, and every finished batch is added. The same call
        continues an interrupted one and makes no attack twice.
    verify : bool
        Judge every stored witness again, and not a random sample only.
    progress : callable, optional
        ``progress(task, done, total)``.
    callbacks : sequence of Callback
        Called for batches and, at the end, with the accuracies.

    Returns
    -------
    Evaluation
        ``float(result.natural)``, ``float(result.robust)``, ``result.robust.low``, ``.high``, and other
        results.

    Examples
    --------
    >>> import randens
    >>> nets = [randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    >>> result = randens.evaluate(nets, "digits", "pgd", eps="8/255", limit=8)
    >>> 0 <= float(result.robust) <= float(result.natural) <= 1
    True
    """
    case = prepare(
        model,
        data,
        attack,
        eps=eps,
        norm=norm,
        bounds=bounds,
        preprocessing=preprocessing,
        probs=probs,
        split=split,
        limit=limit,
        seed=seed,
    )
    with on_device(case.rec, device):
        notes = doubts(case)
        tell = as_progress(callbacks, progress)
        if case.rec.stochastic:
            given = {"also": also or None, "pool": pool, "chosen_on": chosen_on or None, "folder": folder}
            if extra := [name for name, value in given.items() if value is not None]:
                raise InputError(f"{', '.join(extra)} cannot be given for a random model; leave it out")
            result: Any = evaluate_stochastic(
                case.rec, case.inputs, case.attacks, confidence=confidence, progress=tell
            )
        else:
            result = evaluate_ensemble(
                case.rec,
                case.inputs,
                case.attacks,
                also=also,
                deterministic=deterministic,
                pool=pool,
                chosen_on=chosen_on,
                confidence=confidence,
                folder=folder,
                verify=verify,
                progress=tell,
            )
    if isinstance(result, Evaluation):
        said = (*case.inputs.notes, *notes)
        result = dataclasses.replace(result, notes=said, x=case.inputs.x.numpy(), case=case)
    for callback in callbacks:
        callback.finished("evaluation", {"natural": float(result.natural), "robust": float(result.robust)})
    return result


def evaluate_ensemble(
    rec: RandomizedEnsemble,
    data: DataLike,
    attack: Attack | Sequence[Attack],
    *,
    also: Mapping[str, ArrayLike | None] | None = None,
    deterministic: bool = True,
    pool: WitnessPool | None = None,
    chosen_on: Mapping[str, str] | None = None,
    confidence: float = 0.95,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """`evaluate` for an ensemble, with inputs and attacks that fit it; the parameters are those of `evaluate`."""
    report = progress or silent
    choices = _choices(chosen_on)
    inputs = labelled(data, rec)
    if rec.stochastic:
        raise InputError(
            "rec has members that answer at random; randens.evaluate takes it, curves and advice do not"
        )
    chosen = as_attacks(attack)
    probs = rec.probs.cpu().numpy().copy()
    extra = {name: check_probs(value, len(rec)).numpy() for name, value in (also or {}).items()}
    store = as_store(folder)

    threat = chosen[0].threat
    known = Knowledge(rec, inputs.x, inputs.y, threat, store=store, verify=verify, progress=report)
    if pool is not None:
        known.accept(_with_inputs(pool))
    for step in chosen:
        known.attack(step, probs, f"{step.name} on the ensemble")
        for name, alpha in extra.items():
            known.attack(step, alpha, f"{step.name} on the ensemble, {name}")
        for member in range(len(rec)) if len(rec) > 1 else ():
            known.attack(step, np.eye(len(rec))[member], f"{step.name} on member {member}")
    alone = _deterministic(known, chosen, probs) if deterministic else None

    directions = _directions(known, inputs)
    worst, unstable = known.confirm(probs)
    rows = known.pool.best(probs)[1]
    sources = tuple(known.pool.sources[row] if row >= 0 else "" for row in rows.tolist())
    return Evaluation(
        probs=probs,
        points=Points(known.clean, worst, known.pool.foolable, sources, *(alone or (None, None))),
        profile=known.pool.profile(),
        threat=threat,
        data=inputs.name,
        split=inputs.split,
        classes=class_count(rec, inputs),
        ensemble=fingerprint(rec),
        attacks=tuple(_options(a) for a in chosen),
        flops=tuple(models.flops(m, inputs.x.shape[1:]) for m in rec.members),
        cost=known.cost,
        seconds=known.seconds,
        confidence=confidence,
        chosen_on=choices,
        also=extra,
        flags={"unstable": max(unstable, known.unstable), "gradients": known.flags},
        conflict=directions,
        pool=known.pool,
        now=known.now,
        reread=known.verified,
    )


def transferred(
    pool: WitnessPool, rec: RandomizedEnsemble, data: DataLike, source: str = "transfer"
) -> WitnessPool:
    """Return a pool of `rec` from the perturbed inputs that were found for other members.

    Pass the result as `pool=` to compare classifiers on the same perturbations.

    Parameters
    ----------
    pool : WitnessPool
        With perturbed inputs.
    rec : RandomizedEnsemble
        The members whose verdicts are computed.
    data : pair, loader or Data
        The inputs they are perturbations of.
    source : str
        What the witnesses are credited to.

    Returns
    -------
    WitnessPool
        Of `rec`.

    Examples
    --------
    >>> import randens
    >>> net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    >>> rec, data = randens.RandomizedEnsemble([net]), randens.data.load("digits", "validation")[:8]
    >>> pool = randens.attacks.PGD(randens.Threat("linf", 0.1))(rec, *data).pool
    >>> transferred(pool, rec, data).n
    8
    """
    inputs = labelled(data, rec)
    stored = _with_inputs(pool)
    if pool.n != len(inputs):
        raise InputError(f"pool describes {pool.n} inputs; data has {len(inputs)}")
    if not len(pool):
        return WitnessPool(pool.n, len(rec), x_adv=inputs.x[:0].contiguous().numpy())
    assert stored.x_adv is not None
    points, labels = torch.from_numpy(stored.x_adv), inputs.y[torch.from_numpy(pool.points)]
    fooled = rec.errors(points.to(rec.device), labels.to(rec.device)).cpu().numpy()
    return WitnessPool(
        pool.n, len(rec), pool.points, fooled, x_adv=stored.x_adv, sources=source, checked=True
    )


def save_worst_inputs(
    path: str | os.PathLike[str], evaluation: Evaluation, rec: RandomizedEnsemble, data: DataLike
) -> None:
    """Write x_adv, y, errors and probs of an evaluation as one safetensors file, so that others can score them.

    Parameters
    ----------
    path : str or path
        A safetensors file.
    evaluation : Evaluation
        With its witnesses in memory.
    rec : RandomizedEnsemble
        What was evaluated.
    data : pair, loader or Data
        The same inputs.

    Examples
    --------
    >>> import randens
    >>> net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    >>> rec, data = randens.RandomizedEnsemble([net]), randens.data.load("digits", "validation")[:8]
    >>> result = randens.evaluate(rec, data, "fgsm")
    >>> save_worst_inputs("worst.safetensors", result, rec, data)
    """
    inputs = labelled(data, rec)
    evaluation.check(rec)
    if evaluation.pool is None:
        raise InputError(
            "the evaluation was read from a file and has no witnesses; evaluate again to save them"
        )
    tensors = {
        "x_adv": worst_inputs(evaluation.pool, evaluation.probs, inputs.x).contiguous(),
        "y": inputs.y,
        "errors": torch.from_numpy(evaluation.points.worst),
        "probs": torch.from_numpy(evaluation.probs),
    }
    write_atomic(path, safetensors.torch.save(tensors))


def _deterministic(
    known: Knowledge, attacks: tuple[Attack, ...], probs: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Verdicts [n] on the mean of all logits: clean, and under its own attacks and the ensemble's worst cases.

    Its witnesses are also tested on the members.
    """
    rec = known.rec
    if len(rec) == 1:
        return known.clean[:, 0], known.pool.foolable[:, 0]
    whole = RandomizedEnsemble([average_of(rec)])
    mean = Knowledge(whole, known.x, known.y, known.threat, store=known.store, progress=known.progress)
    everyone = np.arange(len(known.x))
    mean.show(everyone, worst_inputs(known.pool, probs, known.x), "transfer")
    for attack in attacks:
        mean.attack(attack, np.ones(1), f"{attack.name} on the deterministic ensemble", known)
    known.cost += Cost(mean.cost.forwards + len(known.x) * len(rec.networks), mean.cost.backwards)
    known.now, known.seconds = known.now + mean.now, known.seconds + mean.seconds
    return mean.clean[:, 0], mean.pool.foolable[:, 0]


def _directions(known: Knowledge, data: Data) -> Conflict | None:
    """The joint reach of the members' gradients, computed once for a store; None where the threat has no dual norm."""
    store = known.store
    asked = {"conflict": known.threat.norm, "members": known.keys, "inputs": sha256(known.inputs.tobytes())}
    note = None if store is None else store.note(asked, ConflictNote)
    if note is not None:
        known.cost += Cost(note.cost.forwards, note.cost.backwards)
        return Conflict.from_json(vars(note.conflict))
    found = conflict_of(known.rec, data, known.threat)
    known.now, known.cost = known.now + found.cost, known.cost + found.cost
    if store is not None:
        store.keep_note(asked, {"conflict": found.to_json(), "cost": vars(found.cost)})
    return found


def average_of(rec: RandomizedEnsemble) -> DeterministicEnsemble:
    """The mean of all members' logits; of members that are averages themselves, over the networks behind them."""
    networks, parts = networks_of(rec.members)
    weights = np.zeros(len(networks))
    for member, part in zip(rec.members, parts, strict=True):
        own = member.weights.tolist() if isinstance(member, DeterministicEnsemble) else [1.0]
        np.add.at(weights, part, np.array(own) / len(parts))
    return DeterministicEnsemble(list(networks), weights)


def _with_inputs(pool: WitnessPool) -> WitnessPool:
    if len(pool) and not pool.located.all():
        raise InputError(
            "pool holds sets only; an evaluation needs the perturbed inputs, to look at them again"
        )
    return pool


def _choices(chosen_on: Mapping[str, str] | None) -> dict[str, str]:
    choices = dict(chosen_on or {})
    for what, split in choices.items():
        if split == "test":
            raise InputError(
                f"chosen_on says that {what} was chosen on test data; choose it on validation data"
            )
    return choices


def _options(attack: Attack) -> dict[str, Any]:
    """An attack's name and its options as plain values."""
    options: dict[str, Any] = {"name": attack.name}
    for option in dataclasses.fields(attack):
        value = getattr(attack, option.name)
        if isinstance(value, (str, int, float, bool)) or value is None:
            options[option.name] = value
    return options
