"""Maintenance of the zoo: put a finished run into it, write cards and the page of results.

python -m paper.zoo_maintenance add RUN NAME [--commit C] [--numbers-only]
python -m paper.zoo_maintenance cards
python -m paper.zoo_maintenance results docs/results.md
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from randens import ensemble
from randens.core.errors import FileError, InputError
from randens.core.files import seal, sha256, write_atomic, write_json
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import Evaluation
from randens.evaluation.result import THREAT_MODEL
from randens.evaluation.tables import table_of
from randens.report.load import AdviceNote, read_note
from randens.training.methods import METHOD_NAMES
from randens.witness.fingerprints import fingerprint

__all__ = [
    "ZOO",
    "Entry",
    "add",
    "attacks_of",
    "card",
    "entry",
    "given_names",
    "names",
    "training_sentence",
    "trials",
]

ZOO = Path(__file__).parents[1] / "zoo"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TRIALS = "trials"
# The folders of a path inside a word of a command; a fraction like 8/255 is none.
_PLACE = re.compile(r"(?:(?<!\w)/|[\w.~-]*[^\W\d][\w.~-]*/)(?:[\w.~-]+/)*")
_KEPT = ("training.json", "sampling.json", "advice.json", "metrics.jsonl")


@dataclass(frozen=True)
class Entry:
    """One ensemble of the zoo: its run folder, its evaluations by file name, and the advice of `randens advise`."""

    name: str
    run: Run
    evaluations: Mapping[str, Evaluation]
    advice: AdviceNote | None = None

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe it was trained by, with every default written out."""
        recipe: Mapping[str, Any] = self.run.manifest["recipe"]
        return recipe

    @property
    def training(self) -> Mapping[str, Any]:
        """What training measured on validation data, and its cost."""
        found: Mapping[str, Any] = self.run.read("training")
        return found

    @property
    def ships(self) -> bool:
        """Whether the entry includes the members; some entries have numbers only."""
        return self.run.ensemble.is_dir()

    def load(self) -> RandomizedEnsemble:
        """The ensemble; damaged files are refused."""
        if not self.ships:
            raise FileError(
                f"{self.name} is in the zoo for its numbers alone, without its members; its card says how to train them"
            )
        return ensemble.load(self.run.ensemble)


def names(zoo: Path = ZOO) -> tuple[str, ...]:
    """The entries of a zoo, sorted."""
    return tuple(sorted(manifest.parent.name for manifest in zoo.glob("*/manifest.json")))


def entry(name: str, zoo: Path = ZOO) -> Entry:
    """The entry called `name`, with its evaluations."""
    run = Run.open(zoo / name)
    files = sorted(run.path.glob("evaluation*.json"))
    return Entry(name, run, {path.stem: Evaluation.load(path) for path in files}, _advice(run))


def trials(zoo: Path = ZOO) -> tuple[Entry, ...]:
    """The kept results of runs that compare settings, by name."""
    folder = zoo / _TRIALS
    return tuple(entry(name, folder) for name in names(folder))


def add(
    run_folder: str | os.PathLike[str],
    name: str,
    zoo: Path = ZOO,
    *,
    commit: str | None = None,
    members: bool = True,
) -> Entry:
    """Put a finished run into the zoo under `name` and write its card; an entry of that name is replaced.

    In the command that made the run, paths are shortened to their last part, because folders of another machine are
    useless. `commit`: the sources that trained it, where the manifest does not say.
    """
    run = Run.open(run_folder)
    if not run.ensemble.is_dir() or not (run.path / "training.json").is_file():
        raise FileError(f"{run.path} is not a finished training run; the zoo takes no others")
    _put(run, zoo, name, commit, members=members)
    added = entry(name, zoo)
    write_atomic(added.run.path / "CARD.md", card(added).encode())
    return added


def _advice(run: Run) -> AdviceNote | None:
    return read_note(run, "advice", AdviceNote)


def _put(run: Run, folder: Path, name: str, commit: str | None, *, members: bool) -> None:
    """Copy a run to `folder`/`name`, completely or not at all."""
    if not _NAME.fullmatch(name) or name == _TRIALS:
        raise InputError(
            f"name is {name!r}; use small letters, digits and single hyphens, e.g. cifar10-resnet20-at"
        )
    rec = ensemble.load(run.ensemble)
    for path in sorted(run.path.glob("evaluation*.json")):
        Evaluation.load(path).check(rec)
    advice = _advice(run)
    if advice is not None and advice.ensemble != fingerprint(rec):
        raise InputError(f"{run.path / 'advice.json'} is about other members; run randens advise again")
    fresh = folder / f".{name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    _copy(run.path, fresh, members=members)
    manifest = dict(run.manifest)
    manifest["command"] = [_PLACE.sub("", word) for word in manifest.get("command", [])]
    manifest["recipe"] = _without_places(manifest["recipe"])
    if "earlier_recipes" in manifest:
        manifest["earlier_recipes"] = [_without_places(recipe) for recipe in manifest["earlier_recipes"]]
    manifest["git_commit"] = manifest.get("git_commit") or commit
    write_json(fresh / "manifest.json", seal(manifest))
    old = folder / f".{name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if (folder / name).exists():
        os.replace(folder / name, old)
    os.replace(fresh, folder / name)
    shutil.rmtree(old, ignore_errors=True)


def _without_places(recipe: Mapping[str, Any]) -> dict[str, Any]:
    first = recipe.get("first")
    if not first:
        return dict(recipe)
    named = Path(first).name if isinstance(first, str) else [Path(path).name for path in first]
    return {**recipe, "first": named}


def _copy(source: Path, target: Path, *, members: bool = True) -> None:
    target.mkdir(parents=True)
    for path in (
        source / "manifest.json",
        *(source / kept for kept in _KEPT),
        *source.glob("evaluation*.json"),
    ):
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    if members:
        shutil.copytree(source / "ensemble", target / "ensemble")


def card(entry: Entry) -> str:
    """Markdown: what it is, how it was made, what it cost, its numbers, its limits, its files."""
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
        about = f"the first {evaluation.n:,} images of {evaluation.about.data} {evaluation.about.split} (`{name}.json`)"
        text += [f"### {attacks_of(evaluation)}: {about}", ""]
        text += [evaluation.table().markdown(), ""]
        text += [f"- {line}" for line in evaluation.sentences()] + [""]
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


def _k_of_m(advice: AdviceNote) -> list[str]:
    """What averaging more members buys, with what it costs."""
    about = f"the first {advice.n:,} images of {advice.data} {advice.split} (`advice.json`)"
    table = table_of([option.row for option in advice.options], advice.confidence).markdown()
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
        for attack in evaluation.about.attacks
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Add an entry, or write the page of results."""
    from paper.results_page import results

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("run", type=Path)
    adding.add_argument("name")
    adding.add_argument("--commit")
    adding.add_argument("--numbers-only", action="store_true")
    commands.add_parser("cards")
    commands.add_parser("results").add_argument("page", type=Path)
    asked = parser.parse_args(arguments)
    if asked.command == "add":
        add(asked.run, asked.name, commit=asked.commit, members=not asked.numbers_only)
    elif asked.command == "cards":
        for name in names():
            write_atomic(ZOO / name / "CARD.md", card(entry(name)).encode())
    else:
        write_atomic(asked.page, results().encode())


if __name__ == "__main__":
    main()
