"""Members as attacks run them: BatchNorm folded where that changes nothing, the originals elsewhere."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks, models
from randens.attacks.members import fast_members, folded
from randens.core.errors import RandensWarning


def network(seed: int = 0) -> nn.Module:
    net = models.create("resnet8", classes=4, input_shape=(3, 8, 8), width=4, seed=seed).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
    return net


def inputs() -> Tensor:
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def has_batch_norm(net: nn.Module) -> bool:
    return any(isinstance(module, nn.BatchNorm2d) for module in net.modules())


def test_a_folded_network_computes_what_the_network_does_and_leaves_its_inputs() -> None:
    net, x = network(), inputs()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    (quick,) = fast_members([net], x)
    assert quick is not net
    assert not has_batch_norm(quick)
    assert not any(p.requires_grad for p in quick.parameters())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(x, inputs())
    gradients = []
    for each in (net, quick):
        point = x.clone().requires_grad_(True)
        z = each(point).square()
        # Twice through the same graph, as for two boundaries of a member.
        first = torch.autograd.grad(z[:, 0].sum(), point, retain_graph=True)[0]
        gradients.append(torch.stack([first, torch.autograd.grad(z[:, 1].sum(), point)[0]]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)


called: set[object] = set()


class Guarded(nn.Module):
    """Control flow that depends on the data."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        called.add(nn.Module.__call__)
        z: Tensor = self.inner(x)
        return z if bool(torch.isfinite(z).all()) else torch.zeros_like(z)


class Unfaithful(Guarded):
    """A copy answers otherwise."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.copies = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Unfaithful:
        twin = Unfaithful(copy.deepcopy(self.inner, memo))
        twin.copies = self.copies + 1
        return twin

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * self.copies


def test_networks_that_cannot_be_traced_are_folded() -> None:
    assert not has_batch_norm(folded(Guarded(network()).eval(), inputs()))
    assert called == {nn.Module.__call__}  # other threads' networks work meanwhile


def test_members_that_cannot_be_folded_are_attacked_as_they_are() -> None:
    net, x = Unfaithful(network()).eval(), inputs()
    assert fast_members([net], x) == [net]
    y = net(x).argmax(dim=1)
    found = attacks.create("pgd", Threat("linf", 0.1), steps=3)(net, x, y)
    assert torch.equal(RandomizedEnsemble([net]).errors(found.x_adv, y), found.errors)


class Noisy(nn.Module):
    """Answers the same input differently each time, in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :4] + torch.rand(len(x), 4)


def test_members_that_answer_at_random_are_warned_of() -> None:
    with pytest.warns(RandensWarning, match=r"members \[1\] answer the same input differently each time"):
        fast_members([network(), Noisy()], inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast_members([network(), Guarded(network()).eval()], inputs())
