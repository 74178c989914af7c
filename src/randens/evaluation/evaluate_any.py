"""`evaluate` for any classifier, any data, any attack and any device: everything is made to fit, then handed on."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from randens import attacks
from randens.attacks import Attack
from randens.attacks.dataset import as_attacks
from randens.attacks.suite import PRESETS
from randens.callbacks import Callback, as_progress
from randens.core.errors import InputError, RandensWarning
from randens.core.progress import Progress
from randens.data import ImageData, Inputs, as_inputs, check_range
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import evaluating
from randens.evaluation.any_model import as_rec, fitted
from randens.evaluation.results import Evaluation
from randens.evaluation.run_folder import open_subject
from randens.models import on_device
from randens.random_model import RandomizedModel
from randens.threat import Threat, norm_name, number
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore

__all__ = ["Prepared", "choose_attacks", "evaluate", "prepare"]

_BOX = (0.0, 1.0)
_EPS = 8 / 255
_LOOKED_AT = 256  # inputs on which members are checked for sense
_ENOUGH = 20  # with fewer, accuracies say nothing about chance

AttackLike = Attack | str | Sequence[Attack | str] | None


@dataclass(frozen=True)
class Prepared:
    """Everything an evaluation needs, made to fit: the ensemble, its inputs, the attacks against one threat."""

    rec: Any
    data: ImageData | tuple[Tensor, Tensor]
    inputs: Inputs
    attacks: tuple[Attack, ...]

    @property
    def threat(self) -> Threat:
        """What all attacks share."""
        return self.attacks[0].threat


def evaluate(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    bounds: tuple[float, float] | None = _BOX,
    device: str | torch.device | None = None,
    preprocessing: Any = None,
    probs: ArrayLike | Tensor | None = None,
    split: str = "test",
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
    """Natural and robust accuracy of any classifier or ensemble: exact expectations on the worst perturbations found.

    Attacked are: the ensemble at its probabilities, at those in `also`, each member alone, and unless `deterministic`
    is false the mean of all logits. Every perturbation found is shown to all of them, and inputs that cannot get worse
    are not attacked again.

    Parameters
    ----------
    model : nn.Module, sequence of nn.Module, RandomizedEnsemble, DeterministicEnsemble, str or path
        One classifier or several; also a run folder, a TorchScript or ONNX file, or a name of the zoo.
    data : tuple, Dataset, DataLoader, datasets.Dataset, ImageData, str or path
        Inputs with labels, as `randens.data.as_inputs` takes them. None: the test data of a run folder.
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
        ``(mean, std)`` that the classifiers want inputs normalised by; a configuration of timm or an image processor
        of transformers; or ``"auto"`` for timm's models. Perturbations stay in pixels.
    probs : array, optional
        α of several modules; uniform by default.
    split, limit : str, int, optional
        Which split of a named data set, and how many of the first inputs.
    seed : int
        Decides every random choice of attacks given by name.
    also : mapping, optional
        Further probabilities to attack, by name; None stands for uniform.
    deterministic : bool
        Attack the mean of all logits, too.
    pool : WitnessPool, optional
        Witnesses known already for these very inputs and members.
    chosen_on : mapping, optional
        Which split chose what, e.g. ``{"probs": "validation"}``; choices made on test data are refused.
    confidence : float
        Of the intervals.
    folder : path or WitnessStore, optional
        A witness store: what it knows is not attacked again, and what is found goes there batch by batch, so that an
        interrupted call is continued by the same call, and the same call attacks nothing a second time.
    verify : bool
        Judge every stored witness again, and not a random sample only.
    progress : callable, optional
        ``progress(task, done, total)``.
    callbacks : sequence of Callback
        Told about batches and, at the end, the accuracies.

    Returns
    -------
    Evaluation
        ``float(result.natural)``, ``float(result.robust)``, ``result.robust.low``, ``.high``, and much more.

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
        case, notes = _checked(case)
        result = evaluating.evaluate(
            case.rec,
            case.data,
            case.attacks,
            also=also,
            deterministic=deterministic,
            pool=pool,
            chosen_on=chosen_on,
            confidence=confidence,
            folder=folder,
            verify=verify,
            progress=as_progress(callbacks, progress),
        )
    if isinstance(result, Evaluation):
        result = dataclasses.replace(
            result,
            data=case.inputs.name,
            split=case.inputs.split,
            notes=(*case.inputs.notes, *notes),
            x=case.inputs.x.numpy(),
            case=case,
        )
    for callback in callbacks:
        callback.finished("evaluation", {"natural": float(result.natural), "robust": float(result.robust)})
    return result


def prepare(
    model: Any,
    data: Any,
    attack: AttackLike,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    bounds: tuple[float, float] | None = _BOX,
    preprocessing: Any = None,
    probs: ArrayLike | Tensor | None = None,
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
) -> Prepared:
    """Make model, data and attacks fit each other; the parameters are those of `evaluate`."""
    if data is None:
        data = _own_data(model)
    # A classifier with random answers is expanded by the evaluation itself.
    random = getattr(model, "stochastic", False)
    rec = as_rec(model, probs=probs, preprocessing=preprocessing)
    if isinstance(model, RandomizedModel):
        rec = rec.members[0]
    inputs = _in_precision(as_inputs(data, split=split, limit=limit), rec)
    known = getattr(rec, "threat", None)
    chosen = choose_attacks(attack, eps=eps, norm=norm, bounds=bounds, known=known, seed=seed)
    check_range(inputs.x, chosen[0].threat.bounds)
    single = inputs.x.dtype == torch.float32
    passed = data if isinstance(data, ImageData) and limit is None and single else (inputs.x, inputs.y)
    if (
        inputs.classes is not None
        and not isinstance(passed, ImageData)
        and inputs.split != "unknown"
        and single
    ):
        names = tuple(map(str, range(inputs.classes)))
        passed = ImageData(inputs.x, inputs.y, names, inputs.name, inputs.split)
    return Prepared(rec if random else fitted(rec, inputs.x), passed, inputs, chosen)


def choose_attacks(
    attack: AttackLike,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    bounds: tuple[float, float] | None = _BOX,
    known: Threat | None = None,
    seed: int = 0,
) -> tuple[Attack, ...]:
    """Attacks from attacks, names or nothing (the portfolio ``standard``), all against one threat.

    `known` is what the ensemble is meant to resist; it stands in for what is not said. Attacks bring their threat; an
    `eps` or `norm` that contradicts it is refused.
    """
    given = (
        ["standard"] if attack is None else list(attack) if isinstance(attack, (list, tuple)) else [attack]
    )
    made = [a for a in given if isinstance(a, Attack)]
    if made:
        threat = as_attacks(made)[0].threat
        for name, said, has in (
            ("eps", None if eps is None else number("eps", eps), threat.eps),
            ("norm", None if norm is None else norm_name(norm), threat.norm),
        ):
            if said is not None and said != has:
                raise InputError(
                    f"{name} is {said!r}, but the attack {made[0].name} has {has!r}; say it once"
                )
    elif known is not None and norm in (None, known.norm):
        threat = known if eps is None else Threat(known.norm, eps, known.bounds)  # type: ignore[arg-type]
    else:
        if known is not None and eps is None:
            raise InputError(
                f"norm is {norm!r} where the ensemble has {known.norm!r}; give its radius too, eps=..."
            )
        if norm is not None and norm_name(norm) != "linf" and eps is None:
            raise InputError(f"norm is {norm!r}; give its radius too, e.g. eps=0.5")
        threat = Threat("linf" if norm is None else norm, _EPS if eps is None else eps, bounds)  # type: ignore[arg-type]
    found = []
    for item in given:
        if isinstance(item, Attack):
            found.append(item)
        elif isinstance(item, str) and item in PRESETS:
            found.append(attacks.create("suite", threat, preset=item, seed=seed))
        elif isinstance(item, str):
            found.append(attacks.create(item, threat, seed=seed))
        else:
            raise InputError(
                f"attack holds a {type(item).__name__}; give attacks of randens.attacks.create, or names"
            )
    return as_attacks(found)


def _in_precision(inputs: Inputs, rec: Any) -> Inputs:
    """The inputs in the precision of the members' weights; half precision, or several, are refused."""
    members = list(rec.members) if isinstance(rec, RandomizedEnsemble) else [rec]
    weights = [next((p for p in m.parameters() if p.is_floating_point()), None) for m in members]
    kinds = sorted({str(w.dtype).removeprefix("torch.") for w in weights if w is not None})
    if len(kinds) > 1 or (kinds and kinds[0] not in ("float32", "float64")):
        raise InputError(
            f"the members' weights are {' and '.join(kinds)}; all must be float32, or all float64, e.g. member.float()"
        )
    wanted = torch.float64 if kinds == ["float64"] else torch.float32
    if not kinds or inputs.x.dtype == wanted:
        return inputs
    said = f"x is {str(inputs.x.dtype).removeprefix('torch.')}; it was read as {kinds[0]}, as the members' weights are"
    return dataclasses.replace(inputs, x=inputs.x.to(wanted), notes=(*inputs.notes, said))


def _own_data(model: Any) -> Any:
    if isinstance(model, (str, os.PathLike)) and (Path(model) / "manifest.json").is_file():
        return open_subject(model).data
    raise InputError("data is None; only a run folder knows its own data: give (x, y), a loader or a name")


def _checked(case: Prepared) -> tuple[Prepared, tuple[str, ...]]:
    """What looks wrong with members and labels, as warnings and as sentences for the result."""
    if not isinstance(case.rec, RandomizedEnsemble):
        return case, ()
    said = []
    # Wrappers are in training mode when they are made; what they hold decides.
    training = [
        i
        for i, member in enumerate(case.rec.members)
        if any(m.training and next(m.children(), None) is None for m in member.modules())
    ]
    if training:
        said.append(f"{_who(training, case.rec)} in training mode; evaluation is in eval mode, as always")
    y = case.inputs.y[:_LOOKED_AT]
    verdicts = case.rec.verdicts(case.inputs.x[:_LOOKED_AT]).cpu()
    if len(y) >= _ENOUGH:
        with torch.no_grad():
            classes = case.rec.logits(case.inputs.x[:1].to(case.rec.device)).shape[2]
        chance = 1 / classes
        limit = chance + 2 * (chance * (1 - chance) / len(y)) ** 0.5
        right = (verdicts == y.unsqueeze(1)).double().mean(dim=0)
        for shift in (1, -1):
            shifted = (verdicts == (y + shift).unsqueeze(1)).double().mean(dim=0)
            if bool((shifted > 0.5).all()) and bool((shifted > 2 * right).all()):
                instead, now = (", ".join(f"{v:.0%}" for v in part.tolist()) for part in (shifted, right))
                said.append(
                    f"labels look shifted by one: y{shift:+d} would give accuracies of {instead}, y gives {now}"
                )
        poor = [i for i, value in enumerate(right.tolist()) if value <= limit]
        if poor:
            said.append(
                f"{_who(poor, case.rec)} right no more often than by chance ({chance:.0%}) on clean inputs: wrong "
                "preprocessing, wrong labels, or an untrained network"
            )
    for sentence in said:
        warnings.warn(sentence, RandensWarning, stacklevel=3)
    return case, tuple(said)


def _who(members: Sequence[int], rec: RandomizedEnsemble) -> str:
    """Subject and verb of a sentence about some of the members."""
    if len(rec) == 1:
        return "the model is"
    if len(members) == 1:
        return f"member {members[0]} is"
    return f"members {', '.join(map(str, members[:-1]))} and {members[-1]} are"
