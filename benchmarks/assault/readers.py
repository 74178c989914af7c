"""Forged and damaged files for every reader: each is read, or refused with one sentence that names the file.

A forger here is careful: where a document has a checksum, it is made to fit again. A file that is damaged by accident
has changed bytes, and its checksum does not fit.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from tests.deploy.planted import random_bundle
from tests.report.made_runs import chosen_evaluation, chosen_run

import randens
from benchmarks.assault.finding import Finding
from randens import zoo
from randens.core.documents import read_document
from randens.core.errors import FileError, RandensError
from randens.core.files import seal, tensor_checksum, write_json
from randens.core.runs import Run
from randens.deploy import Predictor
from randens.evaluation import Evaluation
from randens.evaluation.run_folder import open_subject
from randens.report import write_report
from randens.risk import RiskProfile
from randens.training.recipe import load_recipe
from randens.training.run_files import Summary
from randens.witness import WitnessPool, WitnessStore
from randens.witness.pool import read_tensors
from randens.witness.store import Question, Work, input_keys

__all__ = ["FORGED", "Outcome", "damaged", "digits", "findings", "forge", "forged", "made", "segments"]

FORGED: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    10**400,
    1e308,
    -0.5,
    "",
    "x",
    "../../etc/passwd",
    "\x00",
    "9" * 5000,
    [],
    {},
    [[]],
    [None],
    ["x", 1],
    {"x": {}},
)
_RECIPE = """
method = "barre"
members = 2
epochs = 3
[model]
name = "mlp"
width = 8
[data]
name = "digits"
[threat]
eps = "8/255"
"""
_THREAT = randens.Threat("linf", 0.1)
_QUESTION = Question("pgd", {"steps": 2}, 0.1, ("a", "b"), (0.5, 0.5))
_NOT_JSON = ("NaN", "-Infinity", "1e999", "[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000)


def made(folder: Path) -> Path:
    """A run with everything that readers read, and a bundle, a recipe and a profile beside it."""
    path = chosen_run(folder / "run", chosen_evaluation(3, n=20), epochs=8)
    run = Run.open(path)
    members = [
        randens.models.create("mlp", classes=10, input_shape=(1, 8, 8), width=4, depth=1, seed=seed)
        for seed in range(3)
    ]
    randens.RandomizedEnsemble(members, [0.5, 0.3, 0.2], threat=randens.Threat("linf", 0.1)).save(
        run.ensemble
    )
    recipe = {"method": "barre", "data": {"name": "digits"}, "members": 3}
    run.write("manifest", {**run.manifest, "kind": "training", "recipe": recipe})
    probs = [0.5, 0.3, 0.2]
    run.write(
        "sampling",
        {
            "probs": probs,
            "risk": 0.25,
            "lower_bound": 0.25,
            "gap": 0.0,
            "method": "exact",
            "split": "validation",
            "methods": [{"name": "exact", "risk": 0.25}, {"name": "uniform", "risk": 0.3}],
            "contributions": [{"prob": 0, "advice": "drop member 2"}],
        },
    )
    validation = {"natural_accuracy": 0.9, "robust_accuracy": 0.5, "attack": "apgd-s", "images": 10}
    cost = {"forwards": 10, "backwards": 10, "seconds": 1.0}
    summary = {"method": "barre", "members": 3, "probs": probs, "validation": validation, "cost": cost}
    run.write("training", {**summary, "finished": True})
    checks = [{"name": "gradients", "passed": True, "finding": "fine", "advice": ""}]
    run.write("audit", {"passed": True, "verdict": "fine", "ensemble": "0" * 64, "checks": checks})
    interval = {"value": 0.5, "low": 0.4, "high": 0.6}
    shared = {
        "ensemble": "0" * 64,
        "probs": probs,
        "data": "digits",
        "split": "test",
        "norm": "linf",
        "n": 20,
    }
    radius = {"robust": interval, "members": [interval] * 3, "deterministic": None}
    radii = [{"eps": eps, **radius} for eps in (0.05, 0.1)]
    run.write(
        "report/radii",
        {
            **shared,
            "format": "randens-radii-1",
            "attacks": ["saddle"],
            "confidence": 0.95,
            "radii": radii,
        },
    )
    line = {"name": "pgd", "robust": interval, "forwards": 1, "backwards": 1, "seconds": 1.0}
    run.write(
        "report/attacks",
        {
            **shared,
            "format": "randens-attack-table-1",
            "eps": 0.1,
            "attacks": [line],
            "together": interval,
        },
    )
    random_bundle(folder / "bundle", shape=(1, 20, 20))
    (folder / "recipe.toml").write_text(_RECIPE)
    _zoo(folder)
    _store(folder)
    write_json(folder / "profile.json", RiskProfile.from_configurations([[[1, 0], [0, 1]]], [1.0]).to_json())
    return folder


def _zoo(folder: Path) -> None:
    """A zoo of one entry, which is the run with its whole recipe."""
    run = Run.open(shutil.copytree(folder / "run", folder / "zoo" / "entry"))
    run.write("manifest", {**run.manifest, "recipe": load_recipe(folder / "recipe.toml").to_json()})


def _store(folder: Path) -> None:
    """A witness store of one segment with points, verdicts and work, and a pool of the same witnesses."""
    x, y = _inputs()
    pool = WitnessPool(4, 2, np.arange(4), np.eye(2, dtype=bool)[y], x_adv=(x + 0.05).numpy(), sources="pgd")
    keys = input_keys(x, y)
    work = Work(
        _QUESTION, keys, np.ones((4, 2), dtype=bool), ["pgd"] * 4, 8, 8, 0.5, {"unstable": [0.0, 0.5]}
    )
    WitnessStore(folder / "store").extend(_THREAT, x, keys, ["a", "b"], pool, work=work)
    pool.save(folder / "pool.safetensors")


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(0.2, 0.8, 64).reshape(4, 1, 4, 4), torch.arange(4) % 2


def _recall(folder: Path) -> None:
    """Everything that is read from a store; a segment that is no segment is set aside with a note."""
    store, (x, y) = WitnessStore(folder / "store"), _inputs()
    keys = input_keys(x, y)
    store.refresh(_THREAT, x)
    store.recall(["a", "b"], keys, x, _THREAT)
    store.answer(_QUESTION, keys, _THREAT, x)
    store.asked(_THREAT, x)
    if store.notes:
        raise FileError(store.notes[0])


def _card(folder: Path) -> None:
    zoo.card(zoo.entry("entry", folder / "zoo"))


def _report(folder: Path) -> None:
    write_report([folder / "run"], folder / "report.html")


def _evaluation(folder: Path) -> None:
    found = Evaluation.load(folder / "run" / "evaluation.json")
    found.summary()
    str(found)


def _subject(folder: Path) -> None:
    _ = open_subject(folder / "run").chosen_on


def _metrics(folder: Path) -> None:
    list(Run.open(folder / "run").metrics())


def _summary(folder: Path) -> None:
    read_document(folder / "run" / "training.json", Summary)


def _profile(folder: Path) -> None:
    profile = RiskProfile.from_json((folder / "profile.json").read_text(encoding="utf-8", errors="replace"))
    profile.risk(np.full(profile.members, 1 / profile.members))


READERS: Mapping[str, tuple[Callable[[Path], Any], ...]] = {
    "run/ensemble/ensemble.json": (lambda f: randens.load(f / "run" / "ensemble"), _subject),
    "run/evaluation.json": (_evaluation, _report),
    "run/sampling.json": (_subject, _report),
    "run/manifest.json": (lambda f: Run.open(f / "run"), _subject, _report),
    "run/training.json": (_summary, _report),
    "run/audit.json": (_report,),
    "run/report/radii.json": (_report,),
    "run/report/attacks.json": (_report,),
    "run/metrics.jsonl": (_metrics, _report),
    "bundle/bundle.json": (lambda f: Predictor(f / "bundle"),),
    "zoo/entry/manifest.json": (_card,),
    "zoo/entry/training.json": (_card,),
    "store/store.json": (_recall,),
    "recipe.toml": (lambda f: load_recipe(f / "recipe.toml"),),
    "profile.json": (_profile,),
}


@dataclass
class Outcome:
    """How often files were read and refused, and what else happened."""

    tried: int = 0
    read: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)


def places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a document a value can be replaced."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(inner)[:40]:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))


def forge(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy of the document with another value, or without the entry if the value is `...`."""
    copy = json.loads(json.dumps(document))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return copy


def _attempt(folder: Path, name: str, what: str, outcome: Outcome, page: bool) -> None:
    for reader in READERS[name]:
        if reader is _report and not page:
            continue
        _attempt_one(reader, folder, f"{name}: {what}", outcome)


def _attempt_one(reader: Callable[[Path], Any], folder: Path, what: str, outcome: Outcome) -> None:
    outcome.tried += 1
    try:
        reader(folder)
        outcome.read += 1
    except RandensError as error:
        outcome.refused += 1
        if "\n" in str(error).strip():
            outcome.faults.append(f"{what}: more than one line")
    except Exception as error:
        outcome.faults.append(f"{what}: {type(error).__name__}: {str(error)[:120]}")


@contextlib.contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    """The file with another content for a while."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def forged(folder: Path, count: int, seed: int = 0, *, pages: int = 1) -> Outcome:
    """Documents with wrong values at `count` random places, their checksums made to fit again.

    A report takes half a second, other readers milliseconds: it is written in every `pages`-th round of the documents.
    """
    rng, outcome = random.Random(seed), Outcome()
    names = [name for name in READERS if name.endswith(".json")]
    for index in range(count):
        name = names[index % len(names)]
        path = folder / name
        document = json.loads(path.read_bytes())
        place = rng.choice([p for p in places(document) if p != ("checksum",)])
        value = rng.choice([*FORGED, ...])
        changed = forge(document, place, value)
        if "checksum" in document:
            with contextlib.suppress(RandensError):
                changed = seal(changed)
        text = json.dumps(changed)
        if rng.random() < 0.1:
            text = json.dumps(forge(document, place, "HERE")).replace('"HERE"', rng.choice(_NOT_JSON), 1)
        with replaced(path, text.encode()):
            page = index // len(names) % pages == 0
            _attempt(folder, name, f"{place} = {str(value)[:30]}", outcome, page)
    return outcome


def damaged(folder: Path, count: int, seed: int = 0, *, pages: int = 1) -> Outcome:
    """Files with bytes changed, removed or cut off at random; `pages` as for `forged`."""
    rng, outcome = random.Random(seed), Outcome()
    names = list(READERS)
    for index in range(count):
        name = names[index % len(names)]
        content = bytearray((folder / name).read_bytes())
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        if rng.random() < 0.3:
            content = content[: rng.randrange(len(content))]
        with replaced(folder / name, bytes(content)):
            _attempt(folder, name, f"damage {index}", outcome, page=index // len(names) % pages == 0)
    return outcome


def segments(folder: Path, count: int, seed: int = 0) -> Outcome:
    """Files of witnesses with a wrong entry or a wrong array each, their checksums made to fit again."""
    rng, outcome = random.Random(seed), Outcome()
    (segment,) = (folder / "store").glob("*/*.safetensors")
    readers = {
        segment: _recall,
        folder / "pool.safetensors": lambda f: WitnessPool.load(f / "pool.safetensors"),
    }
    for index in range(count):
        path, reader = list(readers.items())[index % 2]
        tensors, metadata = read_tensors(path, "witnesses")
        if rng.random() < 0.5:
            name = rng.choice([key for key in metadata if key not in ("format", "checksum")])
            value = rng.choice([*FORGED, ...])
            changed = {key: old for key, old in metadata.items() if key != name}
            if value is not ...:
                changed[name] = value if isinstance(value, str) else json.dumps(value)
        else:
            name, changed = rng.choice(sorted(tensors)), dict(metadata)
            tensors[name] = _misshapen(tensors[name], rng)
        changed["checksum"] = tensor_checksum(tensors, changed)
        with replaced(path, safetensors.numpy.save(tensors, changed)):
            _attempt_one(reader, folder, f"{path.name}: {name}", outcome)
            path.with_suffix(".damaged").unlink(missing_ok=True)
    return outcome


def _misshapen(array: np.ndarray[Any, Any], rng: random.Random) -> np.ndarray[Any, Any]:
    """The array with another length, type, number of axes, or values."""
    ways: list[Callable[[], Any]] = [
        lambda: array[: len(array) // 2].copy(),
        lambda: np.concatenate([array, array]),
        lambda: array.astype(np.float16),
        lambda: array.astype(np.int64) - 7,
        lambda: array.reshape(-1, 1).copy(),
        lambda: np.zeros((), dtype=array.dtype),
        lambda: array + array.dtype.type(1),
        lambda: np.full_like(array, np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.nan),
    ]
    return np.asarray(rng.choice(ways)())


def digits(folder: Path, count: int, seed: int = 0) -> tuple[int, int]:
    """Change single digits of documents; how many were changed, how many went unnoticed.

    A report goes on without what is damaged and says so.
    """
    rng, changed, unnoticed = random.Random(seed), 0, 0
    names = [name for name in READERS if name.startswith(("run/", "bundle/", "zoo/", "store/"))]
    for index in range(count):
        name = names[index % len(names)]
        content = bytearray((folder / name).read_bytes())
        spots = [i for i, code in enumerate(content) if 48 <= code <= 57]
        spot = rng.choice(spots)
        content[spot] = rng.choice([code for code in range(48, 58) if code != content[spot]])
        with replaced(folder / name, bytes(content)):
            # The first reader is the one that uses the document.
            noticed = _notices(READERS[name][0], folder)
        changed += 1
        unnoticed += not noticed
    return changed, unnoticed


def _notices(reader: Callable[[Path], Any], folder: Path) -> bool:
    try:
        reader(folder)
    except RandensError:
        return True
    if reader is _report:
        text = (folder / "report.html").read_text()
        return "does not match its checksum" in text or "damaged" in text or "not valid JSON" in text
    return False


def findings(folder: Path, count: int, seed: int = 0) -> Iterator[Finding]:
    """Points 3, 4 and 7 for files."""
    made(folder)
    attacks = {"forged documents": forged, "damaged files": damaged, "forged witness files": segments}
    for name, attack in attacks.items():
        found = attack(folder, count, seed)
        note = f"{count} of them, {found.tried} readings: {found.read} read, {found.refused} refused in one sentence"
        if found.faults:
            note += f"; first: {found.faults[0]}"
        yield Finding("readers", f"{name}: other exceptions", len(found.faults), "", 0, note=note)
    changed, unnoticed = digits(folder, max(96, count // 4), seed)
    yield Finding("readers", "changed digits that went unnoticed", unnoticed, "", 0, note=f"of {changed}")
