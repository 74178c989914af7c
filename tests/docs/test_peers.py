"""The README's comparison with other libraries says what their installed sources show.

A cell is "yes" exactly where the pattern of its row occurs in the package. RobustBench and the paper's scripts are not
installed here: docs/compare.md says how they were checked.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT

# Column of the README → package. AutoAttack is the package pyautoattack.
PACKAGES = {
    "Foolbox": "foolbox",
    "torchattacks": "torchattacks",
    "ART": "art",
    "AutoAttack, RobustBench": "pyautoattack",
}
# Row of the README → what a source that has it contains.
PATTERNS = {
    "randomized ensemble: members drawn with probabilities": r"(?i)randomi[sz]ed.{0,3}ensemble",
    "attack made for it (ARC, ARC-R)": r"\barc_attack\b|\bclass ARC",
    "optimal sampling probabilities": r"(?i)optimal.sampling|sampling.probabilit",
    "gradients averaged over draws (EOT)": r"eot_iter|ExpectationOverTransformation|class EoT",
    "intervals for every accuracy": r"def (clopper|wilson|hoeffding|bernstein|bootstrap)|binom\.interval",
    "a killed evaluation continues": r"\bstate_path\b",
    "random numbers from its own generator": r"torch\.Generator\b",
    "adversarial training": r"class AdversarialTrainer",
    "certified bounds": r"class .*(DeepZ|Interval\w*Certif|IntervalDense)",
    "ONNX export and a server": r"onnx\.export|import onnx\b|uvicorn",
    "TensorFlow models": r"import tensorflow",
    "decision-based attacks (no gradients, no scores)": r"class HopSkipJump",
}


@cache
def _source(package: str) -> str:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed: pip install '.[interop]'")
    folder = Path(next(iter(found.submodule_search_locations)))
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in folder.rglob("*.py"))


def _table() -> dict[str, dict[str, str]]:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith("| | randens |"))
    head = [cell.strip() for cell in lines[first].strip("|").split("|")]
    rows = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = dict(zip(head[1:], cells, strict=True))
    return rows


def test_every_row_is_checked() -> None:
    assert set(_table()) - {"leaderboard of published models", "runs without a GPU"} == set(PATTERNS)


@pytest.mark.parametrize("column", PACKAGES)
@pytest.mark.parametrize("row", PATTERNS)
def test_a_cell_is_what_the_source_shows(row: str, column: str) -> None:
    there = re.search(PATTERNS[row], _source(PACKAGES[column])) is not None
    assert _table()[row][column].startswith("yes") == there, (row, column)


def test_an_attack_leaves_the_global_generator_alone() -> None:
    assert _table()["random numbers from its own generator"]["randens"] == "yes"
    torch = pytest.importorskip("torch")
    randens = pytest.importorskip("randens")
    net = randens.models.create("mlp", classes=3, input_shape=(1, 2, 2), width=4, depth=1, seed=0).eval()
    x, y = torch.full((2, 1, 2, 2), 0.5), torch.tensor([0, 1])
    before = torch.get_rng_state()
    attack = randens.attacks.create("pgd", randens.Threat("linf", 0.1), steps=2, restarts=2)
    attack(randens.RandomizedEnsemble([net, net]), x, y)
    assert torch.equal(before, torch.get_rng_state())
