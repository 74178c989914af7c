"""Randomized ensembles: exact expectations, draws that follow α, files that are checked."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor, nn

import randens
from randens import DeterministicEnsemble, RandomizedEnsemble, Threat, models
from randens.core.errors import FileError, InputError, ModelError
from randens.core.files import read_json, write_json
from randens.ensemble import check_probs, frozen

CLASSES, FEATURES = 4, 6


def linear_members(count: int, seed: int = 0) -> list[nn.Module]:
    return [
        models.create("linear", classes=CLASSES, input_shape=(FEATURES,), seed=seed + i) for i in range(count)
    ]


def inputs(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, FEATURES, generator=generator)
    return x, torch.randint(0, CLASSES, (n,), generator=generator)


class Fixed(nn.Module):
    """Always gives the same class, and remembers how it was called."""

    def __init__(self, answer: int, classes: int = CLASSES) -> None:
        super().__init__()
        self.answer, self.classes = answer, classes
        self.weight = nn.Parameter(torch.zeros(1))
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.training)
        z = torch.zeros(len(x), self.classes)
        z[:, self.answer] = 1
        return z + self.weight


weights = st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(lambda w: sum(w) > 0)


@given(weights, st.integers(0, 1000))
def test_exact_risk_equals_brute_force_over_the_draws(counts: list[int], seed: int) -> None:
    probs = np.array(counts) / sum(counts)
    rec = RandomizedEnsemble(linear_members(len(counts), seed), probs)
    x, y = inputs(7, seed)
    expected = np.zeros(len(x))
    for j, i in itertools.product(range(len(x)), range(len(counts))):
        with torch.no_grad():
            wrong = int(rec.members[i](x[j : j + 1]).argmax()) != int(y[j])
        expected[j] += probs[i] * wrong
    np.testing.assert_allclose(rec.risk(x, y).numpy(), expected, atol=1e-12)
    assert rec.accuracy(x, y) == pytest.approx(1 - expected.mean(), abs=1e-12)


@given(st.integers(0, 3), st.integers(0, 1000))
def test_one_hot_probabilities_are_the_single_member(chosen: int, seed: int) -> None:
    members = linear_members(4, seed)
    probs = np.eye(4)[chosen]
    rec = RandomizedEnsemble(members, probs, seed=seed)
    x, y = inputs(9, seed)
    with torch.no_grad():
        alone = members[chosen](x)
        assert torch.equal(rec(x), alone)
        torch.testing.assert_close(rec.mixture(x), alone.log_softmax(dim=1))
    assert torch.equal(rec.risk(x, y), (alone.argmax(1) != y).double())
    assert set(rec.draw(1000).tolist()) == {chosen}


@pytest.mark.parametrize("probs", [(0.5, 0.5), (0.1, 0.2, 0.7), (0.0, 0.25, 0.0, 0.75), (0.05,) * 20])
def test_drawn_frequencies_pass_a_chi_square_test(probs: tuple[float, ...]) -> None:
    rec = RandomizedEnsemble([Fixed(0) for _ in probs], probs, seed=7)
    draws = rec.draw(20_000).numpy()
    counts = np.bincount(draws, minlength=len(probs))
    possible = np.array(probs) > 0
    assert not counts[~possible].any()
    assert chisquare(counts[possible], np.array(probs)[possible] * len(draws)).pvalue > 1e-3


def test_draws_of_different_inputs_are_independent() -> None:
    rec = RandomizedEnsemble([Fixed(0), Fixed(1)], seed=3)
    drawn = rec(torch.zeros(20_000, FEATURES)).argmax(1).numpy()
    pairs = np.bincount(2 * drawn[0::2] + drawn[1::2], minlength=4)
    assert chisquare(pairs).pvalue > 1e-3


def test_draws_do_not_touch_the_global_generator_and_repeat_with_a_seed() -> None:
    first, second = (RandomizedEnsemble(linear_members(3), seed=5) for _ in range(2))
    before = torch.random.get_rng_state()
    assert torch.equal(first.draw(500), second.draw(500))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(0)
    unseeded = RandomizedEnsemble(linear_members(3)).draw(500)
    torch.manual_seed(0)
    assert not torch.equal(RandomizedEnsemble(linear_members(3)).draw(500), unseeded)


def test_the_answer_of_each_input_comes_from_the_member_drawn_for_it() -> None:
    rec = RandomizedEnsemble(linear_members(3), (0.2, 0.3, 0.5), seed=1)
    x, _ = inputs(200)
    state = rec.generator.get_state()
    drawn = rec.draw(len(x))
    rec.generator.set_state(state)
    with torch.no_grad():
        answers = rec(x)
        for j, member in enumerate(drawn.tolist()):
            torch.testing.assert_close(answers[j], rec.members[member](x[j : j + 1])[0])


def test_deterministic_ensemble_averages_logits() -> None:
    members = linear_members(3)
    x, _ = inputs(5)
    with torch.no_grad():
        z = torch.stack([m(x) for m in members])
        torch.testing.assert_close(DeterministicEnsemble(members)(x), z.mean(0))
        weighted = DeterministicEnsemble(members, (0.5, 0.5, 0.0))(x)
        torch.testing.assert_close(weighted, (z[0] + z[1]) / 2)


@pytest.mark.parametrize(
    ("probs", "named"),
    [
        ((0.5, 0.6), "1.1"),
        ((-0.5, 1.5), "-0.5"),
        ((1.0,), "probs has 1 values; expected one for each member, 2"),
        ((0.2, 0.3, 0.5), "probs has 3 values"),
        ((float("nan"), 1.0), "nan"),
        ((float("inf"), 0.0), "inf"),
        ("ab", "ab"),
        (((0.5, 0.5),), "non-empty list of numbers"),
    ],
)
def test_bad_probabilities_are_named(probs: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        RandomizedEnsemble(linear_members(2), probs)  # type: ignore[arg-type]


@given(weights)
def test_probabilities_survive_any_number_of_passes(counts: list[int]) -> None:
    once = check_probs(np.array(counts) / sum(counts), len(counts))
    assert torch.equal(check_probs(once, len(counts)), once)


def test_members_must_be_modules_that_agree_on_the_classes() -> None:
    with pytest.raises(InputError, match="function"):
        RandomizedEnsemble([lambda x: x])  # type: ignore[list-item]
    with pytest.raises(InputError, match="empty"):
        RandomizedEnsemble([])
    for wrong in (nn.Sequential(*linear_members(2)), iter(linear_members(2)), None):
        with pytest.raises(InputError, match="list of classifiers"):
            RandomizedEnsemble(wrong)  # type: ignore[arg-type]
    for names in (3, "abc"):
        with pytest.raises(InputError, match="classes is"):
            RandomizedEnsemble(linear_members(2), classes=names)  # type: ignore[arg-type]
    different = RandomizedEnsemble([Fixed(0, classes=3), Fixed(0, classes=4)])
    with pytest.raises(ModelError, match="all must agree"):
        different.risk(*inputs(2))


def test_a_member_whose_classes_change_is_reported() -> None:
    class Changing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 3 + (len(x) < 100))

    with pytest.raises(ModelError, match="member 0 returned 4 logits, and 3 were returned before"):
        RandomizedEnsemble([Changing()]).errors(torch.zeros(520, 2), torch.zeros(520, dtype=torch.int64))


def test_verdicts_are_made_in_eval_mode_and_modes_are_restored() -> None:
    members = [Fixed(0), Fixed(1)]
    rec = RandomizedEnsemble(members)
    members[0].train()
    members[1].eval()
    rec.errors(*inputs(3))
    assert members[0].modes == [False]
    assert [m.training for m in members] == [True, False]
    members[1].weight.requires_grad_(False)
    with contextlib.suppress(KeyError), frozen(rec):
        assert not any(p.requires_grad for p in rec.parameters())
        assert not any(m.training for m in rec.modules())
        raise KeyError
    assert [m.weight.requires_grad for m in members] == [True, False]
    assert [m.training for m in members] == [True, False]
    # Two threads that share a model: the first to begin is the first to end.
    threads = [contextlib.ExitStack(), contextlib.ExitStack()]
    for thread in threads:
        thread.enter_context(frozen(rec))
    threads[0].close()
    assert not any(m.training or m.weight.requires_grad for m in members)
    threads[1].close()
    assert [m.training for m in members] == [m.weight.requires_grad for m in members] == [True, False]


def test_a_copy_draws_the_same_and_keeps_the_modes_of_its_members() -> None:
    rec = RandomizedEnsemble(
        linear_members(3), (0.2, 0.3, 0.5), seed=11, classes=list("abcd"), threat=Threat("l2", 1.0)
    )
    rec.members[0].eval()
    twin = copy.deepcopy(rec)
    assert torch.equal(twin.draw(100), rec.draw(100))
    assert [m.training for m in twin.members] == [False, True, True]
    assert twin.classes == ("a", "b", "c", "d")
    assert twin.threat == rec.threat
    with torch.no_grad():
        next(twin.members[0].parameters()).zero_()
    assert next(rec.members[0].parameters()).abs().sum() > 0


# ---- files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def rec() -> RandomizedEnsemble:
    members = [
        models.create("convnet", classes=3, input_shape=(1, 8, 8), mean=0.5, std=0.3, seed=i) for i in (0, 1)
    ]
    return RandomizedEnsemble(members, (0.25, 0.75), classes=("a", "b", "c"), threat=Threat("linf", 8 / 255))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_an_ensemble_survives_the_disk(rec: RandomizedEnsemble, tmp_path: Path) -> None:
    again = randens.load(rec.save(tmp_path / "ensemble"))
    x = torch.rand(20, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(again.logits(x), rec.eval().logits(x))
    assert again.probs.tolist() == [0.25, 0.75]
    assert again.classes == ("a", "b", "c")
    assert again.threat == Threat("linf", 8 / 255)
    assert not any(m.training for m in again.modules())
    manifest = json.loads((tmp_path / "ensemble" / "ensemble.json").read_text())
    assert manifest["members"][0]["architecture"]["name"] == "convnet"


def test_an_existing_ensemble_is_kept_unless_asked(rec: RandomizedEnsemble, tmp_path: Path) -> None:
    folder = rec.save(tmp_path / "ensemble")
    before = content(folder)
    other = rec.with_probs((0.5, 0.5))
    with pytest.raises(FileError, match="exists already"):
        other.save(folder)
    assert content(folder) == before
    other.save(folder, overwrite=True)
    assert randens.load(folder).probs.tolist() == [0.5, 0.5]
    assert os.listdir(tmp_path) == ["ensemble"]


def test_networks_of_your_own_are_filled(tmp_path: Path) -> None:
    torch.manual_seed(1)
    member = nn.Linear(FEATURES, CLASSES)
    folder = RandomizedEnsemble([member]).save(tmp_path / "own")
    with pytest.raises(InputError, match="members="):
        randens.load(folder)
    again = randens.load(folder, members=[nn.Linear(FEATURES, CLASSES)])
    assert torch.equal(again.members[0].weight, member.weight)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="2 modules"):
        randens.load(folder, members=[nn.Linear(1, 1), nn.Linear(1, 1)])
    with pytest.raises(FileError, match="does not fit a Linear"):
        randens.load(folder, members=[nn.Linear(FEATURES, CLASSES + 1)])


def test_damaged_and_altered_files_are_detected(rec: RandomizedEnsemble, tmp_path: Path) -> None:
    folder = rec.save(tmp_path / "e")
    for name in ("member-01.safetensors", "ensemble.json"):
        whole = (folder / name).read_bytes()
        # The manifest ends in a newline that JSON does not need: cut into the content.
        for damaged in (b"", whole[:40], whole[:-2], whole[:-2] + bytes([whole[-2] ^ 1, whole[-1]])):
            (folder / name).write_bytes(damaged)
            with pytest.raises(FileError, match=name):
                randens.load(folder)
        (folder / name).unlink()
        with pytest.raises(FileError, match=name.partition(".")[0]):
            randens.load(folder)
        (folder / name).write_bytes(whole)
    manifest = read_json(folder / "ensemble.json")
    for key, value, message in (("width", 3, "not fit a Classifier"), ("name", "convnt", "unknown model")):
        manifest["members"][0]["architecture"][key] = value
        write_json(folder / "ensemble.json", manifest)
        with pytest.raises(FileError, match=message):
            randens.load(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float32])
def test_inputs_take_the_precision_of_each_member(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    nets = [nn.Linear(4, 3), nn.Linear(4, 3).double()]
    x = torch.rand(5, 4).to(dtype)
    for net in nets:
        rec = RandomizedEnsemble([net, net], seed=0)
        own = next(net.parameters()).dtype
        assert torch.equal(rec(x), net(x.to(own)))
        assert torch.equal(rec.logits(x)[0], net(x.to(own)))
        assert torch.allclose(rec.mixture(x), net(x.to(own)).log_softmax(dim=1))
        assert torch.allclose(DeterministicEnsemble([net, net])(x), net(x.to(own)))
        assert torch.equal(rec.verdicts(x)[:, 0], net(x.to(own)).argmax(dim=1))
        drawn = randens.RandomizedModel(nn.Sequential(nn.Dropout(0.0), net), 2, active=nn.Dropout)
        assert torch.allclose(drawn(x), net(x.to(own)))


@pytest.mark.parametrize("member", [nn.LazyLinear(3), nn.Linear(4, 3, device="meta")])
def test_weights_without_values_are_one_sentence(member: nn.Module) -> None:
    with pytest.raises(InputError, match="weights of member 1 have no values"):
        RandomizedEnsemble([nn.Linear(4, 3), member])


def test_bytes_and_arrays_are_refused_in_one_sentence() -> None:
    rec = RandomizedEnsemble([nn.Linear(4, 3)])
    for call in (rec, rec.logits, rec.mixture, rec.verdicts, DeterministicEnsemble([nn.Linear(4, 3)])):
        with pytest.raises(InputError, match=r"x has dtype torch\.uint8; inputs must be floating point"):
            call(torch.zeros(2, 4, dtype=torch.uint8))
    for call in (rec, rec.logits, rec.mixture):
        for wrong in (np.zeros((2, 4), dtype=np.float32), torch.tensor(1.0)):
            with pytest.raises(InputError, match=r"x is a \w+; give a dense tensor"):
                call(wrong)  # type: ignore[arg-type]
    tokens = RandomizedEnsemble([nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(6, 3))])
    assert tokens(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3)


@pytest.mark.parametrize(
    "change", [Tensor.to_sparse, lambda z: z.to("meta"), lambda z: z[:, :0], Tensor.long, lambda z: z[:-1]]
)
def test_answers_that_are_no_logits_are_reported(change: Callable[[Tensor], Tensor]) -> None:
    class Answering(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return change(torch.zeros(len(x), 3))

    with pytest.raises(ModelError, match=r"member 0 returned .* logits"):
        RandomizedEnsemble([Answering()]).errors(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))


def test_weights_of_inference_mode_are_refused_and_inputs_taken() -> None:
    x, y = inputs(4)
    with torch.inference_mode():
        made, held = RandomizedEnsemble(linear_members(2)), (x.clone(), y.clone())
    with pytest.raises(InputError, match=r"made in torch\.inference_mode"):
        randens.evaluate(made, (x, y), "fgsm", eps=0.1)
    assert randens.evaluate(linear_members(2), held, "fgsm", eps=0.1).about.n == 4
