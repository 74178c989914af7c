"""Attacks on whole data sets: interrupted, continued, shared out, damaged, and always the same result."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.attacks.cases import attack, case, mlp, quadrants, untrained_mlp
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from randens import RandomizedEnsemble, Threat, data
from randens.attacks import Attack, Found
from randens.core.errors import InputError
from randens.witness.store import WitnessStore

ROOT = Path(__file__).parents[2]
PROBS = [0.5, 0.3, 0.2]


def ensemble() -> RandomizedEnsemble:
    return RandomizedEnsemble([mlp(0), mlp(1), mlp(2)], PROBS)


def kept_ensemble(path: str) -> RandomizedEnsemble:
    """The ensemble by its weights: in a new process, training it takes longer than attacking it."""
    rec = RandomizedEnsemble([untrained_mlp() for _ in PROBS], PROBS).eval()
    rec.load_state_dict(torch.load(path, weights_only=True))
    return rec


def arc_r(batch_size: int = 16) -> Attack:
    return attack("arc-r", Threat("linf", 0.4, None), batch_size=batch_size)


def same(a: Found, b: Found) -> bool:
    return (
        torch.equal(a.errors, b.errors)
        and torch.equal(a.risk, b.risk)
        and torch.equal(a.clean_errors, b.clean_errors)
        and np.array_equal(a.pool.points, b.pool.points)
        and np.array_equal(a.pool.fooled, b.pool.fooled)
        and a.pool.sources == b.pool.sources
        and a.cost == b.cost
        and a.sources == b.sources
        and a.flags.keys() == b.flags.keys()
        and all(np.allclose(a.flags[name], b.flags[name]) for name in a.flags)
    )


def as_sets(found: Found) -> list[tuple[int, tuple[bool, ...]]]:
    return sorted(zip(found.pool.points.tolist(), map(tuple, found.pool.fooled.tolist()), strict=True))


def known_again(a: Found, b: Found) -> bool:
    """The same answer, read from a store: the same verdicts, sets and cost, in whatever order of witnesses."""
    return (
        torch.equal(a.errors, b.errors)
        and torch.equal(a.clean_errors, b.clean_errors)
        and as_sets(a) == as_sets(b)
        and a.cost == b.cost
        and a.sources == b.sources
    )


def test_a_data_set_is_attacked_as_its_batches_are(tmp_path: Path) -> None:
    x, y = quadrants(50)
    rec = ensemble()
    found, whole = arc_r()(rec, x, y), arc_r().survey(rec, (x, y), folder=tmp_path / "a", inputs=True)
    assert same(whole, found)
    assert torch.equal(whole.clean_errors, rec.errors(x, y))
    assert whole.robust_accuracy == found.robust_accuracy
    assert torch.equal(whole.x_adv, found.x_adv)
    assert torch.equal(rec.errors(whole.x_adv, y), whole.errors)
    assert len(arc_r().survey(rec, (x, y)).x_adv) == 0


@pytest.mark.parametrize("size", [1, 7, 16, 50, 200])
def test_the_loaders_batch_size_does_not_matter(size: int) -> None:
    x, y = quadrants(50)
    expected = arc_r().survey(ensemble(), (x, y))
    loader = DataLoader(TensorDataset(x, y), batch_size=size)
    assert same(arc_r().survey(ensemble(), loader), expected)
    pairs = list(zip(torch.split(x, size), torch.split(y, size), strict=True))
    assert same(arc_r().survey(ensemble(), pairs), expected)
    assert same(arc_r().survey(ensemble(), iter(pairs)), expected)


def test_image_data_can_be_attacked() -> None:
    images = data.load("digits", "test").subset(slice(0, 20))
    given = case("convnet", "linf")
    whole = attack("pgd", given.threat, batch_size=8).survey(given.rec, images)
    found = attack("pgd", given.threat, batch_size=8)(given.rec, images.x, images.y)
    assert torch.equal(whole.errors, found.errors)


class Interrupted(Exception):
    """Raised in place of a signal that ends the process in the middle."""


def broken(x: Tensor, y: Tensor, after: int) -> Iterator[tuple[Tensor, Tensor]]:
    for number, pair in enumerate(zip(torch.split(x, 10), torch.split(y, 10), strict=True)):
        if number == after:
            raise Interrupted
        yield pair


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the batches that are attacked from now on."""
    attacked: list[int] = []
    original = Attack.attack_batch

    def counting(self: Attack, rec: Any, x: Tensor, y: Tensor, number: int = 0, *rest: Any) -> Any:
        attacked.append(number)
        return original(self, rec, x, y, number, *rest)

    monkeypatch.setattr(Attack, "attack_batch", counting)
    return attacked


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def test_an_interrupted_attack_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = quadrants(50)
    expected = arc_r().survey(ensemble(), (x, y), inputs=True)
    with pytest.raises(Interrupted):
        arc_r().survey(ensemble(), broken(x, y, after=4), folder=tmp_path)
    assert len(segments(tmp_path)) == 2
    attacked = counted(monkeypatch)
    calls: list[tuple[str, float, float]] = []
    again = arc_r().survey(
        ensemble(), (x, y), folder=tmp_path, inputs=True, progress=lambda *told: calls.append(told)
    )
    assert attacked == [2, 3]
    assert known_again(again, expected)
    assert torch.equal(ensemble().errors(again.x_adv, y), again.errors)
    assert calls[-1] == ("attack arc-r", 50, 50)
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert all(total == 50 for _, _, total in calls)
    # Everything is known: a third call attacks nothing, and says so.
    attacked.clear()
    third = arc_r().survey(ensemble(), (x, y), folder=tmp_path)
    assert known_again(third, expected)
    assert attacked == []
    assert third.reused == third.cost


KILLED = """
import sys, time, torch
torch.set_num_threads(1)
from tests.attacks.cases import quadrants
from tests.attacks.test_dataset import arc_r, kept_ensemble
def tell(task, done, total):
    print(done, flush=True)
    time.sleep({pause})
arc_r().survey(kept_ensemble(sys.argv[1]), quadrants(50), folder=sys.argv[2], progress=tell)
"""


def _python(script: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    weights = folder / "weights.pt"
    torch.save(ensemble().state_dict(), weights)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", script, str(weights), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def test_a_killed_process_is_continued(tmp_path: Path) -> None:
    x, y = quadrants(50)
    process = _python(KILLED.format(pause=5), tmp_path, str(tmp_path / "a"))
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "16"
    process.send_signal(signal.SIGKILL)
    assert process.wait(300) == -signal.SIGKILL
    assert len(segments(tmp_path / "a")) in (1, 2)
    assert known_again(
        arc_r().survey(ensemble(), (x, y), folder=tmp_path / "a"), arc_r().survey(ensemble(), (x, y))
    )


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "nonsense"])
def test_a_damaged_segment_is_set_aside_and_its_batch_attacked_again(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = quadrants(40)
    expected = arc_r().survey(ensemble(), (x, y), folder=tmp_path)
    path = segments(tmp_path)[1]
    content = path.read_bytes()
    altered = {
        "truncated": content[: len(content) // 2],
        "flipped": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
        "empty": b"",
        "nonsense": b"\x02\x00\x00\x00\x00\x00\x00\x00[]",
    }[damage]
    path.write_bytes(altered)
    store, attacked = WitnessStore(tmp_path), counted(monkeypatch)
    assert known_again(arc_r().survey(ensemble(), (x, y), folder=store), expected)
    assert len(attacked) == 1
    (note,) = store.notes
    assert "was damaged and is set aside" in note
    assert path.with_suffix(".damaged").read_bytes() == altered


def test_one_store_holds_many_questions_and_mixes_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = quadrants(40)
    other = RandomizedEnsemble([mlp(0), mlp(1), mlp(1)], [0.5, 0.3, 0.2])
    threat = Threat("linf", 0.4, None)
    cases: list[tuple[Attack, RandomizedEnsemble, tuple[Tensor, Tensor]]] = [
        (arc_r(), ensemble(), (x, y)),
        (attack("arc", threat, batch_size=16), ensemble(), (x, y)),
        (attack("arc-r", threat, batch_size=16, steps=9), ensemble(), (x, y)),
        (attack("arc-r", threat.scaled(0.5), batch_size=16), ensemble(), (x, y)),
        (attack("arc-r", Threat("l2", 0.4, None), batch_size=16), ensemble(), (x, y)),
        (attack("arc-r", Threat("linf", 0.4, (-9, 9)), batch_size=16), ensemble(), (x, y)),
        (arc_r(), other, (x, y)),
        (arc_r(), ensemble().with_probs(None), (x, y)),
        (arc_r(), ensemble(), (x + 1, y)),
        (arc_r(), ensemble(), (x, (y + 1) % 4)),
    ]
    alone = [made.survey(rec, data_) for made, rec, data_ in cases]
    for _ in range(2):
        for (made, rec, data_), expected in zip(cases, alone, strict=True):
            assert known_again(made.survey(rec, data_, folder=tmp_path), expected)
    attacked = counted(monkeypatch)
    # A part of the inputs, in another order, is known too.
    part = torch.tensor([7, 3, 30])
    found = arc_r().survey(ensemble(), (x[part], y[part]), folder=tmp_path, inputs=True)
    assert attacked == []
    assert torch.equal(found.errors, alone[0].errors[part])
    assert torch.equal(ensemble().errors(found.x_adv, y[part]), found.errors)


def test_wrong_data_is_refused() -> None:
    x, y = quadrants(8)
    for data_, message in (
        ([], "data is empty; there is nothing to attack"),
        ((x[:0], y[:0]), "data is empty|nothing to attack"),
        ([x, y, x], r"data yields Tensor; it must yield \(inputs, labels\) pairs"),
        ([(x, y.tolist())], "labels are needed to attack"),
        ((x, y[:3]), "y has 3 labels; there are 8 inputs"),
    ):
        with pytest.raises(InputError, match=message):
            arc_r().survey(ensemble(), data_)


# One process imports torch and starts both as forks of itself.
SHARED = """
import gc, os, sys, torch
import torch.distributed as dist
torch.set_num_threads(1)
from tests.attacks.cases import quadrants
from tests.attacks.test_dataset import arc_r, kept_ensemble
weights, folder = sys.argv[1:]
first = os.fork()
rank = int(first == 0)
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
survey = arc_r().survey(kept_ensemble(weights), quadrants(50))
kept = arc_r().survey(kept_ensemble(weights), quadrants(50), folder=f"{folder}/kept")
torch.save({"errors": survey.errors, "risk": survey.risk, "fooled": torch.from_numpy(survey.pool.fooled),
            "points": torch.from_numpy(survey.pool.points), "kept": kept.risk,
            "cost": torch.tensor([survey.cost.forwards, survey.cost.backwards])}, f"{folder}/{rank}.pt")
gc.collect()
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
"""


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    expected = arc_r().survey(ensemble(), quadrants(50), folder=tmp_path / "one")
    assert _python(SHARED, tmp_path, str(tmp_path)).wait(900) == 0
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert torch.equal(got["errors"], expected.errors)
        assert torch.equal(got["risk"], expected.risk)
        assert torch.equal(got["kept"], expected.risk)
        assert np.array_equal(got["fooled"].numpy(), expected.pool.fooled)
        assert np.array_equal(got["points"].numpy(), expected.pool.points)
        assert got["cost"].tolist() == [expected.cost.forwards, expected.cost.backwards]
    # Both wrote into one store, and a single process finds everything there.
    assert len(segments(tmp_path / "kept")) == 4
    again = arc_r().survey(ensemble(), quadrants(50), folder=tmp_path / "kept")
    assert again.reused == again.cost
    assert known_again(again, expected)


def _live_megabytes(n: int, folder: Path | None) -> float:
    """The most that tensors hold while `n` inputs of 12 kB each are streamed through an attack."""
    torch.manual_seed(0)
    rec = RandomizedEnsemble([nn.Sequential(nn.Flatten(), nn.Linear(3072, 2)) for _ in range(2)])

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, n, 32):
            generator = torch.Generator().manual_seed(start)
            x = torch.rand(32, 3, 32, 32, generator=generator)
            yield x, rec.members[0](x).argmax(dim=1)

    largest = 0

    def measure(*_: object) -> None:
        nonlocal largest
        storages = [t.untyped_storage() for t in gc.get_objects() if type(t) is Tensor]
        largest = max(largest, sum({s.data_ptr(): s.nbytes() for s in storages}.values()))

    attack("fgsm", Threat("linf", 0.1), batch_size=32).survey(rec, stream(), folder=folder, progress=measure)
    return largest / 2**20


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    """Four times the data is 3.4 MB more of inputs, and as much again of perturbed ones and of witnesses."""
    gc.collect()
    gc.freeze()  # What is there already need not be looked through at every batch.
    for folder in (None, tmp_path):
        gc.collect()
        small = _live_megabytes(96, folder / "small" if folder else None)
        large = _live_megabytes(384, folder / "large" if folder else None)
        continued = _live_megabytes(384, folder / "large" if folder else None)
        assert large < small + 0.5
        assert continued < small + 0.5
    gc.unfreeze()
