"""The witness store: exact to the last bit, addressed by content, safe with two writers, within its limit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tests.cli.commands import Shell, shell
from torch import Tensor, nn

from randens import DeterministicEnsemble, RandomizedEnsemble, Threat, WitnessPool, attacks, evaluate, models
from randens.certify import certify
from randens.core.documents import Document
from randens.core.errors import FileError, InputError
from randens.core.files import tensor_checksum, write_json
from randens.witness.store import Question, WitnessStore, Work, _decode, _encode, input_keys, member_key

__all__ = ["shell"]  # a fixture

ROOT = Path(__file__).parents[2]
THREAT = Threat("linf", 0.1)


def inputs(n: int = 6, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(n, 1, 4, 4, generator=generator) * 255).round() / 255
    return x.to(dtype), torch.arange(n) % 3


def moved(x: Tensor, threat: Threat, seed: int = 1, size: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = (torch.rand(x.shape, generator=generator) - 0.5) * size * threat.eps
    return threat.project(x.float() + noise, x.float())


def put(store: WitnessStore, x: Tensor, y: Tensor, seed: int = 1, threat: Threat = THREAT) -> Tensor:
    points = moved(x, threat, seed)
    fooled = np.zeros((len(x), 2), dtype=bool)
    fooled[:, seed % 2] = True
    pool = WitnessPool(len(x), 2, np.arange(len(x)), fooled, x_adv=points.numpy(), sources=f"attack {seed}")
    store.extend(threat, x, input_keys(x, y), ["a", "b"], pool)
    return points


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["linf", "l2"]),
    st.floats(0.01, 0.4),
    st.integers(0, 999),
    st.sampled_from([0.0, 0.5, 3.0]),
)
def test_points_survive_to_the_last_bit(norm: str, eps: float, seed: int, size: float) -> None:
    x, _ = inputs(5, seed)
    threat = Threat(norm, eps)
    points = moved(x, threat, seed, size)
    points[0, 0, 0, 0] = -0.0
    tensors = _encode(points, x, threat)
    rows = [3, 0, 4]
    again = _decode(tensors, rows, x[rows], threat)
    assert again.numpy().tobytes() == points[rows].contiguous().numpy().tobytes()


def test_corners_of_the_ball_take_a_fraction_of_the_bytes() -> None:
    threat = Threat("linf", 8 / 255)
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(32, 3, 32, 32, generator=generator) * 255).round() / 255
    signs = torch.rand(x.shape, generator=generator).round() * 2 - 1
    corners = threat.project(x + signs, x)
    packed = sum(part.nbytes for part in _encode(corners, x, threat).values())
    assert packed < corners.nbytes / 16


def test_addresses_are_of_content_alone() -> None:
    x, y = inputs()
    keys = input_keys(x, y)
    assert len(np.unique(keys, axis=0)) == len(x)
    assert np.array_equal(input_keys(x[[4, 1]], y[[4, 1]]), keys[[4, 1]])
    assert not (input_keys(x, y + 1) == keys).all(axis=1).any()
    assert not (input_keys(x.double(), y) == keys).all(axis=1).any()
    assert not (input_keys(x.flatten(1), y) == keys).all(axis=1).any()
    other = x.clone()
    other[2, 0, 0, 0] += 1e-6
    assert (input_keys(other, y) == keys).all(axis=1).tolist() == [True, True, False, True, True, True]


def test_members_are_told_apart_by_weights_structure_and_settings() -> None:
    def net(seed: int = 0, act: nn.Module | None = None) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), act or nn.ReLU(), nn.Linear(4, 2))

    class Seeded(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.seed = seed

    assert member_key(net()) == member_key(net())
    assert member_key(net().eval()) == member_key(net().train())
    two = [net(), net(1)]
    different = [
        net(),
        net(1),
        net(act=nn.GELU()),
        net(act=nn.LeakyReLU(0.1)),
        net(act=nn.LeakyReLU(0.2)),
        Seeded(1),
        Seeded(2),
        DeterministicEnsemble(two),
        DeterministicEnsemble(two, [0.9, 0.1]),
        DeterministicEnsemble(two[::-1]),
    ]
    assert len({member_key(m) for m in different}) == len(different)


def test_what_is_stored_is_found_again_by_any_subset(tmp_path: Path) -> None:
    x, y = inputs()
    points = put(WitnessStore(tmp_path), x, y)
    store = WitnessStore(tmp_path)
    store.refresh(THREAT, x)
    rows = torch.tensor([5, 0, 2])
    found = store.recall(["b", "c"], input_keys(x[rows], y[rows]), x[rows], THREAT)
    assert found.points.tolist() == [1, 2, 0] or sorted(found.points.tolist()) == [0, 1, 2]
    for row, place in enumerate(found.points.tolist()):
        assert torch.equal(found.x_adv[row], points[int(rows[place])])
    assert found.verdicts.tolist() == [[1, -1]] * 3  # member c joined later
    assert found.sources == ("attack 1",) * 3
    # Members without any verdict here, another norm, another box and other inputs know nothing.
    assert not len(store.recall(["c"], input_keys(x, y), x, THREAT))
    for other in (Threat("l2", 0.1), Threat("linf", 0.1, (-1, 1))):
        store.refresh(other, x)
        assert not len(store.recall(["a", "b"], input_keys(x, y), x, other))
    assert not len(store.recall(["a", "b"], input_keys(x, y + 1), x, THREAT))


def test_a_witness_answers_for_every_radius_that_holds_it(tmp_path: Path) -> None:
    x, y = inputs()
    store = WitnessStore(tmp_path)
    points = put(store, x, y)
    reach = (points.double() - x.double()).flatten(1).abs().amax(dim=1)
    for scale in (0.5, 0.97, 1.0, 2.0):
        threat = THREAT.scaled(scale)
        found = store.recall(["a", "b"], input_keys(x, y), x, threat)
        assert sorted(found.points.tolist()) == torch.nonzero(reach <= threat.eps).flatten().tolist()
        assert bool(threat.contains(found.x_adv, x[found.points]).all())


def test_the_last_verdict_counts(tmp_path: Path) -> None:
    x, y = inputs()
    store = WitnessStore(tmp_path)
    points = put(store, x, y)
    keys = input_keys(x, y)
    store.judged(THREAT, x[:2], keys[:2], ["b"], points[:2], np.zeros((2, 1), dtype=bool), "again")
    again = WitnessStore(tmp_path)
    again.refresh(THREAT, x)
    found = again.recall(["a", "b"], keys, x, THREAT)
    verdicts = {int(p): v.tolist() for p, v in zip(found.points, found.verdicts, strict=True)}
    assert verdicts == {0: [0, 0], 1: [0, 0], **{j: [0, 1] for j in range(2, 6)}}
    assert again.lookup(["b"], keys, points).ravel().tolist() == [0, 0, 1, 1, 1, 1]


def question(alone: bool = True, **options: int) -> Question:
    return Question("pgd", options, 0.1, ("a", "b"), (0.5, 0.5), alone)


def test_spent_work_is_shared_out_by_input(tmp_path: Path) -> None:
    x, y = inputs()
    keys = input_keys(x, y)
    store = WitnessStore(tmp_path)
    outcome = np.arange(12).reshape(6, 2) % 3 == 0
    work = Work(question(steps=5), keys, outcome, ["pgd"] * 6, 600, 300, 6.0, {"zero_gradient": [0.5, 0.0]})
    store.extend(THREAT, x, keys, ["a", "b"], WitnessPool(6, 2), work=work)
    again = WitnessStore(tmp_path)
    again.refresh(THREAT, x)
    part = again.answer(question(steps=5), keys[[4, 2]], THREAT, x)
    assert part.done.all()
    assert np.array_equal(part.outcome, outcome[[4, 2]])
    assert (part.forwards, part.backwards, part.seconds) == (200, 100, 2.0)
    for other in (question(steps=6), question(alone=False, steps=5)):
        assert not again.answer(other, keys, THREAT, x).done.any()
    more, labels = inputs(9)
    assert again.answer(question(steps=5), input_keys(more, labels), THREAT, more).done.sum() == 6
    assert [(q.members, q.probs) for q in again.asked(THREAT, x)] == [(("a", "b"), (0.5, 0.5))]
    # All passes on these members: a third of the inputs, and none for an ensemble without one of them.
    assert again.passes(["a", "b", "c"], keys[[4, 2]], THREAT, x) == pytest.approx(300)
    assert again.passes(["a"], keys, THREAT, x) == 0


def test_the_oldest_segments_are_dropped_first_with_what_was_spent_on_them(tmp_path: Path) -> None:
    x, y = inputs()
    keys = input_keys(x, y)
    roomy = WitnessStore(tmp_path)
    work = Work(question(), keys, np.zeros((6, 2), dtype=bool), [""] * 6)
    roomy.extend(THREAT, x, keys, ["a", "b"], WitnessPool(6, 2), work=work)
    os.utime(next(tmp_path.glob("*/*.safetensors")), (1, 1))
    size = roomy.size
    tight = WitnessStore(tmp_path, limit=size + 100)
    put(tight, x, y)
    tight.refresh(THREAT, x)
    assert not tight.answer(question(), keys, THREAT, x).done.any()
    assert len(tight.recall(["a"], keys, x, THREAT)) == 6  # the newest segment stays, whatever its size
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 1


def test_fresh_reads_nothing_and_adds_all_the_same(tmp_path: Path) -> None:
    x, y = inputs()
    put(WitnessStore(tmp_path), x, y)
    fresh = WitnessStore(tmp_path, fresh=True)
    fresh.refresh(THREAT, x)
    assert not len(fresh.recall(["a"], input_keys(x, y), x, THREAT))
    put(fresh, x, y, seed=2)
    whole = WitnessStore(tmp_path)
    whole.refresh(THREAT, x)
    assert len(whole.recall(["a"], input_keys(x, y), x, THREAT)) == 12


# One process imports torch and goes on as two.
WRITERS = """
import os, sys
from tests.witness.test_store import WitnessStore, inputs, put
other = os.fork()
store, first = WitnessStore(sys.argv[1]), 1 if other else 100
x, y = inputs()
for seed in range(first, first + 10):
    put(store, x, y, seed=seed)
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WRITERS, str(tmp_path)]
    assert subprocess.run(command, env=environment, cwd=ROOT, timeout=300, check=False).returncode == 0
    x, y = inputs()
    store = WitnessStore(tmp_path)
    store.refresh(THREAT, x)
    assert store.notes == []
    found = store.recall(["a", "b"], input_keys(x, y), x, THREAT)
    expected = {f"attack {seed}" for seed in (*range(1, 11), *range(100, 110))}
    assert set(found.sources) == expected
    assert len(found) == 20 * 6


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = inputs()
    store = WitnessStore(tmp_path)
    put(store, x, y)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(FileError, match="No space left"):
            put(store, x, y, seed=2)
    again = WitnessStore(tmp_path)
    again.refresh(THREAT, x)
    assert again.notes == []
    assert set(again.recall(["a"], input_keys(x, y), x, THREAT).sources) == {"attack 1"}


def test_newer_versions_are_refused_in_one_sentence(tmp_path: Path) -> None:
    x, y = inputs()
    put(WitnessStore(tmp_path), x, y)
    path = next(tmp_path.glob("*/*.safetensors"))
    tensors = safetensors.numpy.load(path.read_bytes())
    metadata = {"format": "randens-witness-store-9"}
    metadata["checksum"] = tensor_checksum(tensors, metadata)
    path.write_bytes(safetensors.numpy.save(tensors, metadata))
    with pytest.raises(FileError, match="written by a newer version, as randens-witness-store-9"):
        WitnessStore(tmp_path).refresh(THREAT, x)
    assert path.exists()
    write_json(tmp_path / "store.json", {"format": "randens-witness-store-9"})
    with pytest.raises(FileError, match="is a witness store of format 'randens-witness-store-9'"):
        WitnessStore(tmp_path)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_bad_limits_are_named(tmp_path: Path, limit: object) -> None:
    with pytest.raises(InputError, match="limit is"):
        WitnessStore(tmp_path, limit=limit)  # type: ignore[arg-type]


class Reached(Document):
    reach: float


def test_notes_are_kept_and_damaged_ones_forgotten(tmp_path: Path) -> None:
    store, asked = WitnessStore(tmp_path), {"conflict": "linf", "members": ["a"]}
    assert store.note(asked, Reached) is None
    store.keep_note(asked, {"reach": 0.5})
    assert WitnessStore(tmp_path).note(asked, Reached) == Reached(reach=0.5)
    assert WitnessStore(tmp_path, fresh=True).note(asked, Reached) is None
    (path,) = tmp_path.glob("notes/*.json")
    path.write_text(path.read_text().replace("0.5", "0.7"))
    assert store.note(asked, Reached) is None
    store.keep_note(asked, {"reach": "far"})
    assert store.note(asked, Reached) is None


def test_verify_computes_every_stored_verdict_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    member = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    x, y = inputs(200)
    attack = attacks.create("pgd", THREAT, steps=2)
    first = evaluate(RandomizedEnsemble([member]), (x, y), attack, folder=WitnessStore(tmp_path))
    stored = int(first.errors.sum())
    assert stored > 100  # many more than the sample that is run otherwise
    spent = {
        verify: evaluate(
            RandomizedEnsemble([member]), (x, y), attack, folder=WitnessStore(tmp_path, verify=verify)
        ).now.forwards
        for verify in (False, True)
    }
    assert spent[False] <= 32
    assert spent[True] >= stored


def test_every_command_that_reads_witnesses_can_ignore_or_verify_them(shell: Shell) -> None:
    for name in ("evaluate", "sample", "audit", "certify", "advise"):
        assert "--fresh" in shell(name, "--help")[1], name
    assert "--verify" in shell("evaluate", "--help")[1]


# ---- members known to resist -------------------------------------------------------------------------------------


def linear_case(count: int = 24) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """Two linear members and the inputs that both classify alike, with that class as the label."""
    members = [models.create("linear", classes=3, input_shape=(1, 4, 4), seed=seed) for seed in (0, 1)]
    rec = RandomizedEnsemble(members).eval()
    x, _ = inputs(40 * count, seed=7)
    verdicts = rec.verdicts(x)
    alike = verdicts[:, 0] == verdicts[:, 1]
    return rec, x[alike][:count], verdicts[alike, 0][:count]


def test_certificates_hold_for_their_members_and_every_smaller_radius(tmp_path: Path) -> None:
    x, y = inputs(4)
    store, keys = WitnessStore(tmp_path), input_keys(x, y)
    safe = np.array([[1, 0], [0, 1], [0, 0], [1, 1]], dtype=bool)
    store.prove(THREAT, x, keys, ["a", "b"], safe)
    again = WitnessStore(tmp_path)
    again.refresh(THREAT, x)
    found = again.proved(["b", "c", "a"], keys, x, THREAT)
    assert (found[:, [2, 0]] == safe).all()
    assert not found[:, 1].any()
    assert (again.proved(["a", "b"], keys, x, THREAT.scaled(0.5)) == safe).all()
    assert not again.proved(["a", "b"], keys, x, THREAT.scaled(1.01)).any()
    assert not again.proved(["a", "b"], keys[::-1], x, THREAT)[2].all()
    before = len(again)
    again.prove(THREAT, x, keys, ["a", "b"], safe)
    assert len(again) == before  # known already


def test_no_attack_is_spent_on_what_is_certified(tmp_path: Path) -> None:
    rec, x, y = linear_case()
    threat = Threat("linf", 0.02)
    saddle = attacks.create("saddle", threat)
    without = evaluate(rec, (x, y), saddle, deterministic=False)
    proof = certify(rec, (x, y), threat, folder=tmp_path)
    assert 0 < proof.certified.all(axis=1).sum() < len(x)
    found = evaluate(rec, (x, y), saddle, deterministic=False, folder=tmp_path)
    assert float(found.robust) == float(without.robust)
    assert (found.errors == without.errors).all()
    assert found.now.backwards < without.now.backwards
    # Where everything is certified, nothing is attacked.
    rows = torch.from_numpy(np.flatnonzero(proof.certified.all(axis=1)))
    free = evaluate(rec, (x[rows], y[rows]), "pgd", eps=0.01, deterministic=False, folder=tmp_path)
    assert free.now.backwards == 2 * len(rows)  # the reach of the members' gradients at the inputs themselves
    assert float(free.robust) == 1


def test_a_certificate_that_a_witness_contradicts_is_not_used(tmp_path: Path) -> None:
    rec, x, y = linear_case()
    threat = Threat("linf", 0.3)
    first = evaluate(rec, (x, y), "pgd", eps=0.3, deterministic=False, folder=tmp_path)
    assert first.errors.any()
    store = WitnessStore(tmp_path)
    store.refresh(threat, x)
    names = [member_key(member) for member in rec.members]
    store.prove(threat, x, input_keys(x, y), names, np.ones((len(x), 2), dtype=bool))
    again = evaluate(rec, (x, y), "pgd", eps=0.3, deterministic=False, folder=store)
    assert float(again.robust) == float(first.robust)
    assert any("stored certificates are contradicted by witnesses" in note for note in store.notes)


def test_a_forged_certificate_is_set_aside(tmp_path: Path) -> None:
    x, y = inputs(4)
    store = WitnessStore(tmp_path)
    store.prove(THREAT, x, input_keys(x, y), ["a", "b"], np.ones((4, 2), dtype=bool))
    (path,) = tmp_path.glob("*/*.safetensors")
    tensors = safetensors.numpy.load_file(path)
    with safe_open(path, "numpy") as file:
        metadata = dict(file.metadata())
    tensors["proof.safe"] = np.ones((4, 3), dtype=np.uint8)
    del metadata["checksum"]
    metadata["checksum"] = tensor_checksum(tensors, metadata)
    path.write_bytes(safetensors.numpy.save(tensors, metadata))
    again = WitnessStore(tmp_path)
    again.refresh(THREAT, x)
    assert "was damaged and is set aside" in again.notes[0]
    assert not again.proved(["a", "b"], input_keys(x, y), x, THREAT).any()
