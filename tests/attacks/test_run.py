"""Attacks on whole data sets: in batches, in parts, from known witnesses and on several processes, the same result."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.attacks.cases import attack, case, quadrants
from torch import Tensor

from randens import RandomizedEnsemble, Threat
from randens.attacks import Attack, AttackResult
from randens.core.errors import InputError
from randens.witness import WitnessPool

ROOT = Path(__file__).parents[2]
N = 14
PROBS = [0.5, 0.3, 0.2]
NAMES = ("pgd", "arc-r", "lattice", "random", "fast")


@functools.cache
def ensemble() -> RandomizedEnsemble:
    """In float64, so that no verdict depends on how many inputs share a pass."""
    return case("mlp", "linf").rec.with_probs(PROBS)


def inputs() -> tuple[Tensor, Tensor]:
    x, y = quadrants(N)
    return x.double(), y


def made(name: str = "arc-r", batch_size: int = 8, **options: object) -> Attack:
    return attack(name, Threat("linf", 0.4, None), batch_size=batch_size, restarts=2, **options)


def as_sets(found: AttackResult | WitnessPool) -> list[tuple[int, tuple[bool, ...]]]:
    pool = found.pool if isinstance(found, AttackResult) else found
    return sorted(zip(pool.points.tolist(), map(tuple, pool.fooled.tolist()), strict=True))


def same(a: AttackResult, b: AttackResult) -> bool:
    return (
        torch.equal(a.errors, b.errors)
        and torch.equal(a.clean_errors, b.clean_errors)
        and torch.equal(a.risk, b.risk)
        and torch.allclose(a.x_adv, b.x_adv, rtol=0, atol=1e-9)
        and as_sets(a) == as_sets(b)
        and a.sources == b.sources
        and a.cost == b.cost
        and all(np.allclose(a.flags[name], b.flags[name]) for name in a.flags)
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_size_changes_nothing(name: str) -> None:
    whole = made(name, batch_size=N).run(ensemble(), inputs())
    assert same(whole, made(name, batch_size=N)(ensemble(), *inputs()))
    assert set(whole.sources) > {"clean"}
    assert same(made(name, batch_size=3).run(ensemble(), inputs()), whole)


def test_batches_come_one_after_another_with_their_rows() -> None:
    rows = [11, 3, 13, 0, 7]
    parts = list(made(batch_size=2).batches(ensemble(), inputs(), rows=rows))
    assert [part.tolist() for part, _ in parts] == [[11, 3], [13, 0], [7]]
    whole = made().run(ensemble(), inputs())
    for part, found in parts:
        assert torch.equal(found.errors, whole.errors[torch.from_numpy(part)])
        assert found.pool.n == len(part)


def test_some_rows_are_attacked_as_among_all_and_in_the_given_order() -> None:
    rows = np.array([10, 2, 9, 4, 12])
    whole, part = (made("fast").run(ensemble(), inputs(), rows=r) for r in (None, rows))
    assert torch.equal(part.errors, whole.errors[rows])
    torch.testing.assert_close(part.x_adv, whole.x_adv[rows], rtol=0, atol=1e-9)
    assert part.sources == tuple(whole.sources[row] for row in rows)
    assert as_sets(part) == as_sets(whole.pool.take(rows))


@pytest.mark.parametrize("name", ["pgd", "saddle", "random"])
def test_known_witnesses_are_begun_from_and_only_new_ones_returned(name: str) -> None:
    first = made("arc-r", steps=1).run(ensemble(), inputs())
    known, rows = first.pool, np.array([13, 1, 8, 5, 10, 2])
    alone = made(name).run(ensemble(), inputs(), rows=rows)
    found = made(name).run(ensemble(), inputs(), rows=rows, start=known)
    assert bool((found.risk >= first.risk[rows]).all())
    assert torch.equal(ensemble().errors(found.x_adv, inputs()[1][rows]), found.errors)
    here = known.take(rows)
    for row, members in as_sets(found):
        before = here.fooled[here.points == row]
        assert not (before | ~np.array(members)).all(axis=1).any(), "a known set was found again"
    # Together they are the risk.
    together, _ = here.merge(found.pool).best(PROBS)
    np.testing.assert_allclose(together, found.risk.numpy(), rtol=0, atol=1e-12)
    assert found.cost.passes <= alone.cost.passes + len(rows) * 6
    assert {s for s, r, b in zip(found.sources, found.risk, first.risk[rows], strict=True) if r > b} <= {name}
    # Where everything is known, nothing is computed but the verdicts on the inputs.
    everyone = WitnessPool(N, 3, range(N), np.ones((N, 3)), x_adv=inputs()[0].numpy(), sources="known")
    nothing = made(name).run(ensemble(), inputs(), start=everyone)
    assert (nothing.cost.forwards, nothing.cost.backwards, len(nothing.pool)) == (N * 3, 0, 0)
    assert nothing.risk.tolist() == [1.0] * N


def test_progress_is_told_after_every_batch() -> None:
    told: list[tuple[str, float, float]] = []
    made(batch_size=8).run(ensemble(), inputs(), progress=lambda *all_: told.append(all_))
    assert [done for _, done, _ in told] == [8, 14]
    assert {(task, total) for task, _, total in told} == {("arc-r", N)}


def test_members_are_as_they_were_between_batches() -> None:
    rec = case("mlp", "linf").rec.train()
    for _ in made().batches(rec, inputs()):
        assert all(module.training for module in rec.modules())
        assert all(parameter.requires_grad for parameter in rec.parameters())
        break


def test_wrong_data_rows_and_witnesses_are_refused() -> None:
    x, y = inputs()
    for given, options, message in (
        ((x[:0], y[:0]), {}, "rows is empty; give at least one input to attack|data is empty"),
        ((x, y), {"rows": []}, "rows is empty; give at least one input to attack"),
        ((x, y), {"rows": [0, N]}, r"rows is \[0, 14\]; give whole numbers \[k\] from 0 to 13"),
        ((x, y), {"rows": [-1]}, r"rows is \[-1\]; give whole numbers"),
        ((x, y), {"rows": [3, 3]}, r"rows is array\(\[3, 3\]\); all must be different"),
        (
            (x, y),
            {"start": WitnessPool(N, 2)},
            "start holds witnesses of 14 inputs and 2 members; there are 14",
        ),
        (
            (x, y),
            {"start": WitnessPool(5, 3)},
            "start holds witnesses of 5 inputs and 3 members; there are 14",
        ),
        ((x, y), {"start": WitnessPool(N, 3, [0], [[True] * 3])}, "start holds witnesses without their"),
        ([x, y, x], {}, "data"),
    ):
        with pytest.raises(InputError, match=message):
            made().run(ensemble(), given, **options)


# One process imports torch and starts the other as a fork of itself.
SHARED = """
import os, sys, torch
import torch.distributed as dist
torch.set_num_threads(1)
from tests.attacks.test_run import inputs, made
from randens import RandomizedEnsemble
from torch import nn
folder = sys.argv[1]
members = [nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4)) for _ in range(3)]
rec = RandomizedEnsemble(members, [0.5, 0.3, 0.2]).double().eval()
rec.load_state_dict(torch.load(f"{folder}/weights.pt", weights_only=True))
first = os.fork()
rank = int(first == 0)
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
found = made("fast").run(rec, inputs())
rows = [part.tolist() for part, _ in made("fast").batches(rec, inputs(), rows=[5, 3, 9])]
torch.save({"errors": found.errors, "risk": found.risk, "fooled": torch.from_numpy(found.pool.fooled), "rows": rows,
            "points": torch.from_numpy(found.pool.points), "x_adv": found.x_adv, "sources": list(found.sources),
            "cost": [found.cost.forwards, found.cost.backwards]}, f"{folder}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
"""


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    expected = made("fast").run(ensemble(), inputs())
    torch.save(ensemble().state_dict(), tmp_path / "weights.pt")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", SHARED, str(tmp_path)], env=environment, cwd=ROOT)
    assert process.wait(900) == 0
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert all(torch.equal(got[name], getattr(expected, name)) for name in ("errors", "risk", "x_adv"))
        assert np.array_equal(got["fooled"].numpy(), expected.pool.fooled)
        assert np.array_equal(got["points"].numpy(), expected.pool.points)
        assert tuple(got["sources"]) == expected.sources
        assert got["cost"] == [expected.cost.forwards, expected.cost.backwards]
        assert got["rows"] == [[5, 3, 9]]
