"""Members as attacks run them: BatchNorm folded once, and never older than the weights."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from randens import models
from randens.attacks.members import GradientMembers


def network(seed: int = 0) -> nn.Module:
    return models.create("resnet8", classes=4, input_shape=(3, 8, 8), width=4, seed=seed).eval()


def inputs() -> Tensor:
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def answers(net: nn.Module, x: Tensor) -> Tensor:
    """As an attack asks: prepared, verified, run."""
    members = GradientMembers([net])
    members.verify(x)
    with torch.no_grad():
        return members(0, x)


def test_unchanged_weights_are_folded_once() -> None:
    net, x = network(), inputs()
    first, second = GradientMembers([net]), GradientMembers([net])
    for each in (first, second):
        each.verify(x)
    assert first._members[0] is second._members[0] is not net
    torch.testing.assert_close(answers(net, x), net(x).detach(), rtol=1e-4, atol=1e-5)


def test_changed_weights_are_folded_anew() -> None:
    net, x = network(), inputs()
    before = answers(net, x)
    with torch.no_grad():
        next(iter(net.parameters())).mul_(1.5)
    torch.testing.assert_close(answers(net, x), net(x).detach(), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(answers(net, x), before, rtol=1e-3)


def test_weights_changed_behind_the_counters_are_noticed() -> None:
    net, x = network(), inputs()
    before = answers(net, x)
    for parameter in net.parameters():
        parameter.data.mul_(1.5)  # leaves the version as it is
    after = net(x).detach()
    assert not torch.allclose(after, before, rtol=1e-3)
    torch.testing.assert_close(answers(net, x), after, rtol=1e-4, atol=1e-5)


def test_running_statistics_count_as_weights() -> None:
    net, x = network(), inputs()
    answers(net, x)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.add_(0.3)
    torch.testing.assert_close(answers(net, x), net(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_member_that_is_gone_leaves_nothing_behind() -> None:
    net = network()
    answers(net, inputs())
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_a_small_pass_runs_on_one_thread_and_the_others_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads is the process's own, so it is restored after an error too."""
    asked = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: asked[-1])
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    net = nn.Linear(1000, 300)  # 300,300 weights: four images are a small pass, five are not
    members = GradientMembers([net])
    with members.threads(5):
        assert asked == [2]
    with members.threads(4):
        assert asked == [2, 1]
        with members.threads(1):  # one thread already
            assert asked == [2, 1]
    assert asked == [2, 1, 2]
    with pytest.raises(RuntimeError), members.threads(1):
        raise RuntimeError
    assert asked == [2, 1, 2, 1, 2]
