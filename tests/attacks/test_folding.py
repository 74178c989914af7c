"""Members as attacks run them: BatchNorm folded once, and never older than the weights."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor, nn

from randens import models
from randens.attacks.members import GradientMembers, folded


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


class Branches(nn.Module):
    """Outputs that are read twice, a sum that widens, a convolution with another padding, ReLUs of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.second = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.context = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.Identity())
        self.relu, self.head = nn.ReLU(), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.first(x)
        hidden = nn.functional.relu(kept, False) + kept
        hidden = self.relu(self.context(hidden) + hidden)
        hidden = self.relu(self.second(hidden)) * nn.functional.relu(input=hidden)
        return self.head(hidden.mean(dim=(2, 3)))


def test_a_folded_network_computes_what_the_network_does_and_leaves_its_inputs() -> None:
    torch.manual_seed(0)
    for net in (Branches().eval(), network()):
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                module.running_mean.uniform_(-1, 1)
        quick = folded(net)
        assert quick is not net
        assert not any(isinstance(module, nn.BatchNorm2d) for module in quick.modules())
        x = inputs()
        before = x.clone()
        with torch.no_grad():
            torch.testing.assert_close(quick(x), net(x), rtol=1e-4, atol=1e-5)
        assert torch.equal(x, before)
        gradients = []
        for each in (net, quick):
            point = x.clone().requires_grad_(True)
            z = each(point).square()
            # Twice through the same graph, as for two boundaries of a member.
            first = torch.autograd.grad(z[:, 0].sum(), point, retain_graph=True)[0]
            gradients.append(torch.stack([first, torch.autograd.grad(z[:, 1].sum(), point)[0]]))
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)


def test_a_member_that_is_gone_leaves_nothing_behind() -> None:
    net = network()
    answers(net, inputs())
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
