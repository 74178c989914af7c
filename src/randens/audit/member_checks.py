"""Checks without attacks: the members' outputs, their gradients, and which data were used for choices."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from randens._version import __version__
from randens.attacks import Cost
from randens.attacks.losses import margins
from randens.audit.case import Case, Check, logits
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, evaluating, frozen, to_layout
from randens.evaluation.argument_checks import fingerprint
from randens.evaluation.gradient_conflict import conflict_of
from randens.evaluation.results import Evaluation

__all__ = ["belongs", "checks", "scorable", "splits"]

_REPEATS = 4
_SAME = 1e-5  # logits computed twice, relative to the largest
_SAME_BATCH = 1e-3  # another batch size may choose another algorithm
_ALONE = 8
_UNUSABLE = 0.02  # share of inputs whose gradient may be exactly zero
_DOWNHILL = 0.8


def splits(evaluation: Evaluation | None, chosen_on: Mapping[str, str] | None) -> Check:
    """Nothing may have been chosen on test data."""
    choices = dict(chosen_on or {})
    if evaluation is not None:
        choices = {**evaluation.chosen_on, **choices}
    wrong = sorted(what for what, split in choices.items() if split == "test")
    said = "; ".join(f"{what} chosen on {split}" for what, split in choices.items())
    return Check(
        "splits",
        not wrong,
        said or "nothing is recorded to have been chosen on data",
        {"chosen_on": choices},
        f"choose {', '.join(wrong)} on validation data and evaluate again",
    )


def belongs(evaluation: Evaluation, rec: RandomizedEnsemble) -> Check:
    """The evaluation must be of these members, at these probabilities, by this version."""
    other = f"it was made by version {evaluation.version}, this is {__version__}"
    differs = {
        "it is of other members": fingerprint(rec) != evaluation.ensemble,
        "it is at other probabilities": not np.array_equal(evaluation.probs, rec.probs.cpu().numpy()),
        other: evaluation.version != __version__,
    }
    faults = [said for said, wrong in differs.items() if wrong]
    return Check(
        "evaluation-current",
        not faults,
        f"the evaluation does not fit the ensemble: {'; '.join(faults)}" if faults else "the evaluation fits",
        {"version": evaluation.version, "ensemble": evaluation.ensemble, "faults": faults},
        "run the evaluation again",
    )


def checks(case: Case) -> list[Check]:
    """Run all checks; those of gradients only if the outputs are finite."""
    found = [_outputs(case)]
    if not scorable(found):
        return found
    found += [_mode(case), _deterministic(case), _batches(case), *_gradients(case), _one_hot(case)]
    return found if len(case.members) == 1 else [*found, _conflict(case)]


def scorable(found: Sequence[Check]) -> bool:
    """Whether the outputs are finite numbers."""
    return not any(check.name == "outputs" and check.evidence["not_finite"] for check in found)


def _outputs(case: Case) -> Check:
    """Logits must be finite, not probabilities, and depend on the input."""
    broken, probabilities, constant = [], [], []
    for member in range(len(case.members)):
        z = logits(case, member, case.x)
        if not bool(torch.isfinite(z).all()):
            broken.append(member)
            continue
        sums = z.double().sum(dim=1)
        if bool((z >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
            probabilities.append(member)
        if len(z) > 1 and bool((z == z[:1]).all()):
            constant.append(member)
    faults = {
        "return NaN or infinite values": broken,
        "return probabilities instead of logits": probabilities,
        "return the same for every input": constant,
    }
    said = [f"members {who} {what}" for what, who in faults.items() if who]
    remedies = (
        "repair members that return NaN before anything else",
        "remove the softmax at the end of the member: a second one inside the losses flattens every gradient",
        "drop members that ignore their input",
    )
    advice = [remedy for remedy, who in zip(remedies, faults.values(), strict=True) if who]
    return Check(
        "outputs",
        not said,
        "; ".join(said) or "all members return finite logits",
        {"not_finite": broken, "probabilities": probabilities, "constant": constant},
        "; ".join(advice),
    )


def _mode(case: Case) -> Check:
    """Members must give the same outputs in their current mode as in eval mode."""
    differing = {}
    for member, module in enumerate(case.members):
        if not any(m.training for m in module.modules()):
            continue
        # A copy is used, because running a module in training mode may change its statistics.
        twin = copy.deepcopy(module)
        with torch.no_grad():
            found = twin(to_layout(case.x.to(case.rec.device))).cpu()
        gap = _gap(found, logits(case, member, case.x))
        if gap > _SAME:
            differing[member] = gap
    return Check(
        "eval-mode",
        not differing,
        f"members {sorted(differing)} are in training mode and answer differently from eval mode"
        if differing
        else "members answer as they do in eval mode",
        {"difference": {str(k): v for k, v in differing.items()}},
        "call rec.eval() before the ensemble is used",
    )


def _deterministic(case: Case) -> Check:
    """Several calls on the same input must give the same output: only the draw may be random."""
    gaps, changed = [], []
    for member in range(len(case.members)):
        first = logits(case, member, case.x)
        gap, moved = 0.0, torch.zeros(case.n, dtype=torch.bool)
        for _ in range(_REPEATS):
            again = logits(case, member, case.x)
            gap = max(gap, _gap(first, again))
            moved |= again.argmax(dim=1) != first.argmax(dim=1)
        gaps.append(gap)
        changed.append(float(moved.double().mean()))
    wrong = [i for i, gap in enumerate(gaps) if gap > _SAME]
    shares = ", ".join(f"member {i}: {changed[i]:.1%}" for i in wrong)
    return Check(
        "deterministic",
        not wrong,
        f"members {wrong} answer the same input differently (class changed on {shares} of the inputs)"
        if wrong
        else f"{_REPEATS + 1} calls on the same inputs gave the same logits",
        {"relative_difference": gaps, "class_changed": changed},
        "make the member deterministic, list each of its random states as a member of its own, or wrap it in "
        "randens.RandomizedModel, which is judged on fresh draws",
    )


def _batches(case: Case) -> Check:
    """An input's logits must not depend on the other inputs of the batch."""
    gaps = []
    few = case.x[:_ALONE]
    for member in range(len(case.members)):
        together = logits(case, member, few)
        alone = torch.cat([logits(case, member, few[j : j + 1]) for j in range(len(few))])
        gaps.append(_gap(together, alone))
    wrong = [i for i, gap in enumerate(gaps) if gap > _SAME_BATCH]
    return Check(
        "batch-independent",
        not wrong,
        f"members {wrong} answer differently when asked about one input at a time"
        if wrong
        else "answers do not depend on the rest of the batch",
        {"relative_difference": gaps},
        "let normalisation layers use stored statistics (BatchNorm with track_running_stats, in eval mode)",
    )


def _gap(one: Tensor, two: Tensor) -> float:
    """Largest difference, relative to the largest logit."""
    largest = float(one.abs().max().clamp_min(1e-30))
    return float((one.double() - two.double()).abs().max()) / largest


def _gradients(case: Case) -> list[Check]:
    """Gradients of the two losses that attacks use: do they exist, and do they point downhill?"""
    generator = torch.Generator().manual_seed(case.seed)
    device = case.rec.device
    points = torch.cat([case.x, case.threat.random(case.x, generator)]).to(device)
    centres = torch.cat([case.x, case.x]).to(device)
    y = torch.cat([case.y, case.y]).to(device)
    table: dict[str, list[float]] = {key: [] for key in ("zero", "nan", "saturated", "downhill")}
    for member in range(len(case.members)):
        slope, flat, broken = _slopes(case, member, points, y, margin=True)
        _, saturated, broken_loss = _slopes(case, member, points, y, margin=False)
        table["zero"].append(_share(flat))
        table["nan"].append(_share(broken | broken_loss))
        table["saturated"].append(_share(saturated & ~flat))
        table["downhill"].append(_downhill(case, member, points, centres, y, slope))
    blind = _above(table["zero"], _UNUSABLE) + _above(table["nan"], 0.0)
    return [
        Check(
            "gradients",
            not blind,
            _listed(
                "inputs with zero or NaN gradients",
                [a + b for a, b in zip(table["zero"], table["nan"], strict=True)],
            ),
            {"zero": table["zero"], "nan": table["nan"]},
            "gradient attacks cannot see these members: remove rounding, sign or argmax operations, give them a "
            "differentiable stand-in, and trust only what a gradient-free attack (--attack random) confirms",
        ),
        Check(
            "loss-gradients",
            not _above(table["saturated"], _UNUSABLE),
            _listed("inputs where the cross-entropy's gradient is exactly zero", table["saturated"]),
            {"saturated": table["saturated"]},
            "the logits are so large that the loss saturates: divide them by a constant, or use attacks on margins "
            "(adaptive-pgd-margin, saddle, suite), which do not depend on the scale",
        ),
        Check(
            "gradients-point-downhill",
            all(share >= _DOWNHILL for share in table["downhill"]),
            _listed("inputs whose margin falls after a small step along its gradient", table["downhill"]),
            {"downhill": table["downhill"]},
            "gradients that do not say where the margin falls are noise to an attack: look for random, "
            "discontinuous or substituted gradients in the member",
        ),
    ]


def _slopes(
    case: Case, member: int, points: Tensor, y: Tensor, *, margin: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the margin (else of the cross-entropy) at `points`, where it is zero, where it is NaN."""
    module = case.members[member]
    inputs = to_layout(points).detach().requires_grad_(True)
    with frozen(module), torch.enable_grad():
        z = module(inputs)
        value = margins(z.unsqueeze(0), y).sum() if margin else F.cross_entropy(z, y, reduction="sum")
        gradient = torch.autograd.grad(value, inputs)[0] if value.requires_grad else torch.zeros_like(inputs)
    case.cost += Cost(forwards=len(points), backwards=len(points))
    flat = gradient.flatten(1)
    return gradient.detach(), (flat == 0).all(dim=1), ~torch.isfinite(flat).all(dim=1)


def _downhill(case: Case, member: int, points: Tensor, centres: Tensor, y: Tensor, slope: Tensor) -> float:
    """The share of points whose margin decreases after a legal step of ε/100 down the slope."""
    usable = torch.nan_to_num(slope, 0.0, 0.0, 0.0)
    step = 0.01 * case.threat.eps * case.threat.steepest(usable)
    moved = case.threat.project(points - step, centres)
    promised = ((moved - points) * usable).flatten(1).sum(dim=1)
    module = case.members[member]
    with evaluating(module), torch.no_grad():
        before = margins(module(to_layout(points)).unsqueeze(0), y).squeeze(0)
        after = margins(module(to_layout(moved)).unsqueeze(0), y).squeeze(0)
    case.cost += Cost(forwards=2 * len(points))
    # Predicted decreases below the resolution of float32 logits are not checked.
    judged = promised < -1e-5 * before.abs().clamp_min(1e-3)
    if not bool(judged.any()):
        return 1.0
    return float((after < before)[judged].double().mean())


def _conflict(case: Case) -> Check:
    """Joint reach of the members: a gain without conflict between their gradients would be suspicious."""
    found = conflict_of(case.rec, Data(case.x, case.y, name="audit"), case.threat)
    case.cost += found.cost
    known = not np.isnan(found.reach)
    return Check(
        "conflict",
        known,
        found.sentence,
        found.to_json(),
        "the reach needs gradients; see the check named gradients",
    )


def _one_hot(case: Case) -> Check:
    """With α = e_i the ensemble must be member i: same logits, same errors."""
    wrong = []
    members = len(case.members)
    for member in range(members):
        alone = case.rec.with_probs(np.eye(members)[member])
        with evaluating(alone), torch.no_grad():
            drawn = alone(case.x.to(case.rec.device)).cpu()
        same = _gap(logits(case, member, case.x), drawn) <= _SAME
        own = torch.from_numpy(case.judge(member, case.x))
        risks = alone.risk(case.x.to(case.rec.device), case.y.to(case.rec.device)).cpu()
        if not same or not torch.equal(risks, own.double()):
            wrong.append(member)
    return Check(
        "one-hot",
        not wrong,
        f"with all probability on one of the members {wrong}, the ensemble answers differently from that member"
        if wrong
        else "with all probability on one member, the ensemble is that member",
        {"members": wrong},
        "members that are not deterministic or share state with others cannot be told apart; separate them",
    )


def _share(rows: Tensor) -> float:
    return float(rows.double().mean())


def _above(shares: Sequence[float], limit: float) -> list[int]:
    return [i for i, share in enumerate(shares) if share > limit]


def _listed(what: str, shares: Sequence[float]) -> str:
    return f"{what}: " + ", ".join(f"member {i} {share:.1%}" for i, share in enumerate(shares))
