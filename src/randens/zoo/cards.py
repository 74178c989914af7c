"""The card of a zoo entry, made from the entry's own files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from randens.core.files import sha256
from randens.evaluation import Evaluation, result_tables
from randens.evaluation.deployment_advice import AdviceDocument
from randens.evaluation.results import THREAT_MODEL
from randens.training.methods import METHOD_NAMES
from randens.zoo.entries import Entry

__all__ = ["attacks_of", "card", "given_names", "training_sentence"]


def card(entry: Entry) -> str:
    """Markdown: what it is, how it was made, what it cost, its numbers, its limits, its files.

    Parameters
    ----------
    entry : Entry
        Of the zoo.

    Returns
    -------
    str
        Markdown.

    Examples
    --------
    >>> from randens import zoo
    >>> zoo.card(zoo.entry("cifar10-resnet20-at")).startswith("#")
    True
    """
    recipe, manifest = entry.recipe, entry.run.manifest
    probs = entry.load().probs.tolist() if entry.ships else _evaluated_probs(entry)
    text = [
        f"# {entry.name}",
        "",
        f"{len(probs)} × {recipe['model']['name']} on {recipe['data']['name']}, trained by "
        f"{METHOD_NAMES.get(recipe['method'], recipe['method'])} against {recipe['threat']['norm']} "
        f"ε = {recipe['threat']['eps']:.4g}; α = ({', '.join(f'{p:.4g}' for p in probs)}).",
        "",
        *_how_to_get(entry),
        "",
        "## Numbers",
        "",
    ]
    for name, evaluation in entry.evaluations.items():
        about = f"the first {evaluation.n:,} images of {evaluation.data} {evaluation.split} (`{name}.json`)"
        text += [f"### {attacks_of(evaluation)}: {about}", ""]
        text += [result_tables.markdown(result_tables.rows(evaluation)), ""]
        text += [f"- {line}" for line in result_tables.statements(evaluation)] + [""]
    if not entry.evaluations:
        text += ["Not evaluated on test data.", ""]
    if entry.advice is not None:
        text += _k_of_m(entry.advice)
    cost = entry.training["cost"]
    versions = ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())
    text += [
        "## Training",
        "",
        training_sentence(recipe),
        "",
        f"{cost['forwards']:,} forward and {cost['backwards']:,} backward member passes in all, "
        f"{cost['seconds'] / 60:.0f} minutes; checkpoints and α chosen on validation images "
        f"({entry.training['validation']['images']} images, {entry.training['validation']['attack']}). "
        f"Seed {manifest.get('seed')}; sources at commit {manifest.get('git_commit') or 'unknown'}; "
        f"{versions}. The whole recipe is in `manifest.json`, the course of training in `metrics.jsonl`.",
        "",
        "## Limits",
        "",
        f"- {THREAT_MODEL}",
        f"- Made for {recipe['threat']['norm']} perturbations of {recipe['threat']['eps']:.4g} on "
        f"{recipe['data']['name']} images in [0, 1]; nothing is known about other perturbations, sizes or pictures.",
        "- Trained with a small budget, to show methods side by side: not meant for use where safety depends on it.",
        "",
    ]
    if entry.ships:
        text += ["## Files", "", "| file | SHA-256 |", "|---|---|"]
        for path in sorted(entry.run.ensemble.iterdir()):
            text.append(f"| `ensemble/{path.name}` | `{sha256(path.read_bytes())}` |")
    return "\n".join(text) + "\n"


def _k_of_m(advice: AdviceDocument) -> list[str]:
    """What averaging more members buys, with what it costs."""
    about = f"the first {advice.n:,} images of {advice.data} {advice.split} (`advice.json`)"
    table = result_tables.markdown([option.row for option in advice.options])
    said = [f"- {line}" for line in advice.sentences]
    return [f"### k of M averaged, {' + '.join(advice.attacks)}: {about}", "", table, "", *said, ""]


def _how_to_get(entry: Entry) -> list[str]:
    if entry.ships:
        return ["```python", "import randens", "", f'rec = randens.zoo.load("{entry.name}")', "```"]
    lines = ["Kept for its numbers and its verdicts per image; the members are not shipped."]
    if words := entry.run.manifest.get("command"):
        lines += [
            "They were trained by",
            "",
            "```bash",
            " ".join(["randens", *map(shlex.quote, words)]),
            "```",
        ]
    return lines


def _evaluated_probs(entry: Entry) -> list[float]:
    """Return the evaluated α; without an evaluation, the α of training."""
    evaluation = entry.evaluations.get("evaluation")
    found: list[float] = entry.training["probs"] if evaluation is None else evaluation.probs.tolist()
    return found


def given_names(recipe: Mapping[str, Any]) -> Sequence[str]:
    """Return the runs that its first members come from; for AT, the run that it continues."""
    first = recipe.get("first") or []
    return [first] if isinstance(first, str) else first


def training_sentence(recipe: Mapping[str, Any]) -> str:
    """How the members were trained, in a sentence."""
    optimizer = recipe["optimizer"]
    given, members = given_names(recipe), recipe["members"]
    later = recipe.get("later_epochs") or recipe["epochs"]
    names = ", ".join(f"`{name}`" for name in given)
    if given and recipe["method"] == "at":
        epochs = f"{recipe['epochs']} epochs on from {names}"
    elif given:
        epochs = f"Members taken from {names}" + (
            f", {later} epochs for each further one" if len(given) < members else ""
        )
    else:
        epochs = f"{recipe['epochs']} epochs" + (
            f" for the first member and {later} for each later one"
            if recipe.get("later_epochs") and members > 1
            else " per member"
        )
    rate = f"rate {optimizer['lr']:g}" + (
        f" ({optimizer['later_lr']:g} for later members)" if optimizer.get("later_lr") else ""
    )
    adversary = recipe["adversary"]
    how = adversary["name"] + (f"-{adversary['steps']}" if adversary["name"] == "pgd" else "")
    averaged = f", weights averaged ({recipe['ema']:g})" if recipe["ema"] else ""
    floor = recipe["sampling"]["floor"]
    if recipe["method"] == "barre" and floor:
        averaged += f", the member in training drawn with at least {floor:g}/m in its training attack"
    return (
        f"{epochs}, batches of {recipe['batch_size']}, adversary {how}, loss {recipe['loss']['name']}, "
        f"{recipe['schedule']['name']} schedule, {rate}, weight decay {optimizer['weight_decay']:g}{averaged}."
    )


def attacks_of(evaluation: Evaluation) -> str:
    """The attacks behind an evaluation, with the options that set their budgets."""
    budgets = ("preset", "steps", "hyperplanes", "orders", "restarts")
    return ", ".join(
        f"{attack['name']} ({', '.join(f'{key} {attack[key]}' for key in budgets if attack.get(key))})"
        for attack in evaluation.attacks
    )
