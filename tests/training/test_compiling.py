"""``compile = "auto"``: a trial by an injected clock and compiler decides, and the decision is kept."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small_runs import small
from torch import nn

from randens.core.errors import InputError
from randens.core.runs import Run
from randens.training import Stopped, train
from randens.training import engine as engine_module
from randens.training.compiling import CompileChoice, CompileTrial
from randens.training.cost import StagePlan
from randens.training.recipe import Recipe
from randens.training.run_files import open_folder


class _Pretended:
    """A clock and a compiler: a pass takes one second, a compiled one `compiled`, compiling `compiling`."""

    def __init__(self, compiled: float, compiling: float = 0.0, error: Exception | None = None) -> None:
        self.now, self.step = 0.0, 1.0
        self.compiled, self.compiling, self.error = compiled, compiling, error
        self.asked: list[dict[str, Any]] = []

    def clock(self) -> float:
        self.now += self.step
        return self.now

    def compiler(self, member: nn.Module, **options: Any) -> nn.Module:
        self.asked.append(options)
        if self.error is not None:
            raise self.error
        self.now += self.compiling
        self.step = self.compiled
        return member


def _use(monkeypatch: pytest.MonkeyPatch, pretended: _Pretended, least: float = 0.0) -> list[nn.Module]:
    """Make runs use the trial; return the list of members that they compile."""
    compiled: list[nn.Module] = []

    def compile_member(member: nn.Module, **_: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        compiled.append(member)
        # Not the same numbers as eager, so that it shows from which step on members are compiled.
        return lambda x: member(x) * 1.5

    trial = functools.partial(CompileTrial, least=least, clock=pretended.clock, compiler=pretended.compiler)
    monkeypatch.setattr(engine_module, "CompileTrial", trial)
    monkeypatch.setattr(torch, "compile", compile_member)
    return compiled


def _logged(folder: Path) -> list[dict[str, Any]]:
    return [line for line in Run.open(folder).metrics() if line["event"] == "compile"]


def _files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "ensemble").iterdir())}


def test_the_trial_weighs_the_saving_against_compiling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Half the time per pass saves about half of what is left, a little over nothing: any time to compile is too much.
    pretended = _Pretended(compiled=0.5, compiling=1e6)
    compiled = _use(monkeypatch, pretended)
    said: list[str] = []
    train(small(epochs=3), tmp_path / "run", say=said.append)
    assert compiled == []
    [line] = _logged(tmp_path / "run")
    assert (line["compiled"], line["ratio"], line["member"], line["epoch"]) == (False, 2.0, 1, 2)
    assert line["seconds"] > 1e6
    assert said == [f"member 1, epoch 2, step 0: {line['reason']}"]
    assert "it does not pay" in line["reason"]
    # 1257 images in 7 batches are of two sizes; breaks in the graph are refused.
    assert pretended.asked == [{"dynamic": True, "fullgraph": True}]


def _trial(pretended: _Pretended, left: float, members: int = 1) -> CompileChoice:
    """A trial that leaves the member and torch's own generator as they are."""
    stage = StagePlan(epochs=1, crafting=3, training=1, validation=0)
    trial = CompileTrial(clock=pretended.clock, compiler=pretended.compiler)
    member = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    before = {key: value.clone() for key, value in member.state_dict().items()}
    x, state = torch.rand(8, 4), torch.get_rng_state()
    choice = trial(member, [x], stage, contextlib.nullcontext, left, members)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in member.state_dict().items())
    assert all(parameter.grad is None for parameter in member.parameters())
    return choice


def test_it_pays_from_a_multiple_of_the_time_to_compile_on() -> None:
    # A pass takes 0.8 s instead of 1 s; compiling takes 100 s and a warm-up, which reads the clock five times.
    seconds = 100 + 5 * 0.8
    for members in (1, 3):
        least = 2.0 * seconds * members / 0.2
        for left, pays in ((0.99 * least, False), (1.01 * least, True)):
            choice = _trial(_Pretended(compiled=0.8, compiling=100.0), left, members)
            assert choice.compiled is pays
            assert choice.ratio == pytest.approx(1.25)
            assert choice.seconds == pytest.approx(seconds)
    # However much training is left, a difference within the noise of the measurement does not count.
    for compiled, pays in ((1.1, False), (0.96, False), (0.94, True)):
        assert _trial(_Pretended(compiled=compiled), 1e9).compiled is pays


def test_a_compiler_that_fails_leaves_members_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train(small(compile=False), tmp_path / "eager")
    compiled = _use(monkeypatch, _Pretended(compiled=0.5, error=RuntimeError("no compiler")))
    said: list[str] = []
    train(small(), tmp_path / "run", say=said.append)
    assert compiled == []
    assert said == [
        "member 1, epoch 2, step 0: torch.compile does not work here (RuntimeError), so members are not compiled"
    ]
    assert _files(tmp_path / "run") == _files(tmp_path / "eager")


def test_short_runs_and_fixed_settings_make_no_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretended = _Pretended(compiled=0.5)
    _use(monkeypatch, pretended, least=1e9)
    train(small(), tmp_path / "short")
    _use(monkeypatch, pretended)
    train(small(compile=False), tmp_path / "eager")
    train(small(compile=True), tmp_path / "compiled")
    assert pretended.asked == []
    assert _files(tmp_path / "short") == _files(tmp_path / "eager")
    assert _files(tmp_path / "compiled") != _files(tmp_path / "eager")


def test_a_continued_run_repeats_the_decision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = small(method="barre", members=2, epochs=3)
    # No time to compile: whatever is left, it pays.
    compiled = _use(monkeypatch, _Pretended(compiled=1e-9))
    train(recipe, tmp_path / "whole")
    assert compiled
    [line] = _logged(tmp_path / "whole")
    assert (line["compiled"], line["epoch"]) == (True, 2)
    train(small(method="barre", members=2, epochs=3, compile=False), tmp_path / "eager")
    assert _files(tmp_path / "whole") != _files(tmp_path / "eager")
    # Stopped after the decision, in the second epoch. A second trial would decide otherwise.
    steps = iter(range(1000))
    _use(monkeypatch, _Pretended(compiled=1e-9))
    with pytest.raises(Stopped, match="member 1, epoch 2, step 3"):
        train(recipe, tmp_path / "parts", stop=lambda: next(steps) == 7 + 2)
    again = _Pretended(compiled=2.0)
    assert _use(monkeypatch, again) == []
    train(recipe, tmp_path / "parts")
    assert again.asked == []
    assert _files(tmp_path / "parts") == _files(tmp_path / "whole")
    assert [line["compiled"] for line in _logged(tmp_path / "parts")] == [True]


def test_the_settings_of_compile() -> None:
    assert small().compile == "auto"
    for value in (True, False, "auto"):
        assert Recipe.model_validate(small(compile=value).to_json()).compile == value
        assert small(compile=value).to_json()["compile"] == value
    assert small().with_settings(["compile=true"]).compile is True
    with pytest.raises(InputError, match="compile: 'maybe' is not valid; valid: auto, true, false"):
        small(compile="maybe")


def test_a_run_from_before_the_default_changed_continues(tmp_path: Path) -> None:
    recipe = small(epochs=1)
    open_folder(recipe.model_copy(update={"compile": False}), tmp_path / "old", print, force=False)
    open_folder(recipe, tmp_path / "old", print, force=False)
    with pytest.raises(InputError, match=r"compile: False → True"):
        open_folder(recipe.model_copy(update={"compile": True}), tmp_path / "old", print, force=False)
