"""Members as attacks run them: BatchNorm folded once, and never older than the weights."""

from __future__ import annotations

import gc
import weakref

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
