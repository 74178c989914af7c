"""Maintenance of the zoo: `add` puts a finished run into it; python -m paper.zoo_maintenance writes the cards."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from randens import ensemble
from randens.core.errors import FileError
from randens.core.files import read_json, sha256, write_atomic
from randens.core.runs import Run
from randens.evaluation import Evaluation
from randens.evaluation.result import THREAT_MODEL
from randens.training.methods import METHOD_NAMES

ZOO = Path(__file__).parents[1] / "zoo"
# The folders of a path inside a word of a command; a fraction like 8/255 is none.
_PLACE = re.compile(r"(?:(?<!\w)/|[\w.~-]*[^\W\d][\w.~-]*/)(?:[\w.~-]+/)*")
_KEPT = ("training.json", "sampling.json", "advice.json", "metrics.jsonl")


def evaluations(folder: Path) -> dict[str, Evaluation]:
    """The evaluations in a run folder, by file name."""
    return {path.stem: Evaluation.load(path) for path in sorted(folder.glob("evaluation*.json"))}


def add(run_folder: str | os.PathLike[str], name: str, zoo: Path = ZOO, *, commit: str | None = None) -> Path:
    """Put a finished run into the zoo under `name` and write its card; an entry of that name is replaced.

    Paths in its command lose their folders. `commit`: the sources that trained it, if the manifest does not say that.
    """
    run = Run.open(run_folder)
    if not run.ensemble.is_dir() or not (run.path / "training.json").is_file():
        raise FileError(f"{run.path} is not a finished training run; the zoo takes no others")
    rec = ensemble.load(run.ensemble)
    for evaluation in evaluations(run.path).values():
        evaluation.check(rec)
    fresh, place = zoo / f".{name}.new", zoo / name
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(run.ensemble, fresh / "ensemble")
    for path in (*(run.path / kept for kept in _KEPT), *run.path.glob("evaluation*.json")):
        if path.is_file():
            shutil.copyfile(path, fresh / path.name)
    manifest = dict(run.manifest)
    manifest["command"] = [_PLACE.sub("", word) for word in manifest.get("command", [])]
    if first := manifest["recipe"].get("first"):
        named = Path(first).name if isinstance(first, str) else [Path(path).name for path in first]
        manifest["recipe"] = {**manifest["recipe"], "first": named}
    manifest["git_commit"] = commit or manifest.get("git_commit")
    Run(fresh, {}).write("manifest", manifest)
    write_atomic(fresh / "CARD.md", card(fresh, name).encode())
    shutil.rmtree(place, ignore_errors=True)
    os.replace(fresh, place)
    return place


def card(folder: Path, name: str) -> str:
    """Markdown: what it is, how it was made, what it cost, its numbers, its limits, its files."""
    run = Run.open(folder)
    recipe, manifest, training = run.manifest["recipe"], run.manifest, run.read("training")
    probs = ", ".join(f"{p:.4g}" for p in ensemble.load(run.ensemble).probs.tolist())
    threat = f"{recipe['threat']['norm']} ε = {recipe['threat']['eps']:.4g}"
    numbers = []
    for file, found in evaluations(folder).items():
        images = f"the first {found.n:,} images of {found.about.data} {found.about.split}"
        numbers += [f"### {attacks_of(found)}: {images} (`{file}.json`)", "", found.table().markdown(), ""]
        numbers += [*(f"- {line}" for line in found.sentences()), ""]
    if (folder / "advice.json").is_file():
        advice = read_json(folder / "advice.json")["sentences"]
        numbers += ["### What to deploy (`advice.json`)", "", *(f"- {line}" for line in advice), ""]
    files = [
        f"- `ensemble/{p.name}`: SHA-256 `{sha256(p.read_bytes())}`" for p in sorted(run.ensemble.iterdir())
    ]
    cost, held = training["cost"], training["validation"]
    text = [
        f"# {name}\n\n{recipe['members']} × {recipe['model']['name']} on {recipe['data']['name']}, trained by "
        f"{METHOD_NAMES.get(recipe['method'], recipe['method'])} against {threat}; α = ({probs}).\n",
        f'```python\nimport randens\n\nrec = randens.zoo.load("{name}")\n```\n\n## Numbers\n',
        *numbers,
        f"## Training\n\n{recipe['epochs']} epochs per member, batches of {recipe['batch_size']}, adversary "
        f"{recipe['adversary']['name']}, learning rate {recipe['optimizer']['lr']:g}: {cost['forwards']:,} forward and "
        f"{cost['backwards']:,} backward member passes, {cost['seconds'] / 60:.0f} minutes. Checkpoints and α were "
        f"chosen on {held['images']} validation images ({held['attack']}). Seed {manifest.get('seed')}; sources at "
        f"commit {manifest.get('git_commit') or 'unknown'}; "
        f"{', '.join(f'{package} {number}' for package, number in manifest['versions'].items())}. The recipe is in "
        "`manifest.json`, the course of training in `metrics.jsonl`.\n",
        f"## Limits\n\n- {THREAT_MODEL}\n- Made for perturbations in {threat} of {recipe['data']['name']} images in "
        "[0, 1]; nothing is known about others.\n- Made to compare methods on a small budget: not meant for use where "
        "safety depends on it.\n\n## Files\n",
        *files,
    ]
    return "\n".join(text) + "\n"


def attacks_of(evaluation: Evaluation) -> str:
    """The attacks behind an evaluation, with the options that set their budgets."""
    budgets = ("preset", "steps", "hyperplanes", "orders", "restarts")
    return ", ".join(
        f"{attack['name']} ({', '.join(f'{key} {attack[key]}' for key in budgets if attack.get(key))})"
        for attack in evaluation.about.attacks
    )


if __name__ == "__main__":
    for manifest in sorted(ZOO.glob("*/manifest.json")):
        folder = manifest.parent
        write_atomic(folder / "CARD.md", card(folder, folder.name).encode())
