"""Networks compiled for ONNX Runtime: the same logits, gradients, verdicts and costs as torch's."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from randens import RandomizedEnsemble, Threat, attacks, models
from randens.attacks import members as gradient_members
from randens.attacks.compiled import Pass, compiled, joined_passes, passes
from randens.attacks.losses import OF_ENTROPIES, Loss
from randens.attacks.members import GradientMembers, folded
from randens.attacks.search import attacking

CLASSES = 5


class Odd(nn.Module):
    """Strides, groups, dilations and paddings of all kinds, and a sum of two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5, padding=2)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2)
        self.left = nn.Conv2d(8, 6, 3, stride=3)
        self.right = nn.Conv2d(8, 6, (2, 3), stride=(3, 3), padding=(0, 0), bias=False)
        self.rim = nn.Conv2d(6, 6, 1, padding=1)
        self.linear = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.wide(x) + x)
        x = torch.relu(torch.add(self.left(x), self.right(x)))
        return self.linear(torch.relu(self.rim(x)).mean((2, 3)))


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    if name == "odd":
        return Odd().eval(), (3, 15, 16)
    if name == "pooled":
        layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)]
        return nn.Sequential(*layers).eval(), (3, 9, 9)
    name, _, side = name.partition(" ")
    shape = (3, int(side), int(side))
    made = models.create(
        name, classes=CLASSES, input_shape=shape, seed=0, width=4, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4]
    )
    with torch.no_grad():
        for part in made.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return made.eval(), shape


NAMES = (
    "odd",
    "pooled",
    "resnet8 16",
    "resnet20 12",
    "resnet18 8",
    "mobilenetv1 8",
    "strided 11",
    "convnet 8",
)


def hot(y: Tensor) -> Tensor:
    return nn.functional.one_hot(y, CLASSES).float()


def assert_gradients_close(gradient: Tensor, expected: Tensor) -> None:
    off = (gradient - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    # A ReLU whose input is zero but for rounding may be open on one side and closed on the other.
    assert off.median() < 1e-5
    assert off.max() < 0.05


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 3])
def test_logits_and_gradients_are_those_of_torch(name: str, count: int) -> None:
    net, shape = network(name)
    made = compiled(folded(net), shape, threads=2)
    assert made is not None
    x, y = torch.rand(11, *shape), torch.arange(11) % CLASSES
    inputs = x.clone().requires_grad_(True)
    z = net(inputs)
    torch.testing.assert_close(made.logits(x), z.detach(), rtol=1e-4, atol=1e-5 * float(z.abs().max()))
    found, *gradients = passes([made.planes(x, hot(y), count)], 2)[0]
    torch.testing.assert_close(found, z.detach(), rtol=1e-4, atol=1e-5 * float(z.abs().max()))
    gaps = z.gather(1, y.unsqueeze(1)) - z
    near = gaps.detach().scatter(1, y.unsqueeze(1), torch.inf).topk(count, dim=1, largest=False).indices
    assert len(gradients) == count
    for number, gradient in enumerate(gradients):
        chosen = gaps.gather(1, near[:, number : number + 1]).sum()
        (expected,) = torch.autograd.grad(chosen, inputs, retain_graph=True)
        assert_gradients_close(gradient, expected)
    found, gradient = passes([made.entropy(x, hot(y))], 2)[0]
    torch.testing.assert_close(found, z.detach(), rtol=1e-4, atol=1e-5 * float(z.abs().max()))
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(z, y, reduction="sum"), inputs)
    assert_gradients_close(gradient, expected)


@pytest.mark.parametrize("name", ["resnet8 16", "strided 11"])
def test_results_depend_neither_on_the_threads_nor_on_the_other_inputs(name: str) -> None:
    net, shape = network(name)
    made = compiled(folded(net), shape, threads=1)
    assert made is not None
    x, y = torch.rand(7, *shape), torch.arange(7) % CLASSES
    alone = passes([made.planes(x, hot(y), 1)], 1)[0]
    for threads in (2, 3, 16):
        first, second = passes([made.planes(x, hot(y), 1), made.forward(x[2:5])], threads)
        assert all(torch.equal(a, b) for a, b in zip(alone, first, strict=True))
        twice = joined_passes([made.planes(x, hot(y), 1), made.planes(x[2:5], hot(y[2:5]), 1)], threads)
        for whole, part in zip(twice, alone, strict=True):
            assert torch.equal(whole[:7], part)
            torch.testing.assert_close(whole[7:], part[2:5], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(second[0], alone[0][2:5], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_thread_that_is_done_takes_calls_that_another_has_not_begun(threads: int) -> None:
    """The first call waits until all others are made, also those of its thread's share."""
    others = threading.Event()
    made: list[int] = []

    class Slow:
        def run(self, _: None, inputs: dict[str, NDArray[np.float32]]) -> list[NDArray[np.float32]]:
            number = int(inputs["x"][0, 0])
            if number == 0 and threads > 1:
                assert others.wait(20)
            made.append(number)
            if len(made) == 11:
                others.set()
            return [2 * inputs["x"]]

    x = np.arange(12, dtype=np.float32).reshape(12, 1)
    wanted = [Pass(Slow(), {"x": x[:5]}, 1), Pass(Slow(), {"x": x[5:]}, 1)]
    first, second = passes(wanted, threads)
    assert torch.equal(torch.cat([first[0], second[0]]), torch.from_numpy(2 * x))
    assert sorted(made) == list(range(12))


@pytest.mark.parametrize("kind", [ValueError, IndexError])
def test_a_call_that_fails_fails_the_pass(kind: type[Exception]) -> None:
    class Broken:
        def run(self, _: None, inputs: dict[str, NDArray[np.float32]]) -> list[NDArray[np.float32]]:
            raise kind(f"call {inputs['x'][0, 0]:g}")

    with pytest.raises(kind, match="call"):
        passes([Pass(Broken(), {"x": np.zeros((4, 1), np.float32)}, 1)], 2)


def test_one_call_takes_one_input_of_a_large_network_and_many_of_a_small_one() -> None:
    large, small = network("resnet20 32"), network("convnet 8")
    wide = models.create("resnet20", classes=CLASSES, input_shape=(3, 32, 32), seed=0).eval()
    made = [compiled(folded(net), shape, 1) for net, shape in (large, small, (wide, (3, 32, 32)))]
    widths = [
        each.forward(torch.rand(3, *shape)).width
        for each, (_, shape) in zip(made, (large, small, large), strict=True)
        if each
    ]
    assert widths[2] == 1
    assert widths[0] > 1
    assert widths[1] == 64


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2),
        nn.Sigmoid(),
        nn.GroupNorm(1, 3),
        nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_are_left_to_torch(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3), layer, nn.Flatten(), nn.LazyLinear(CLASSES)).eval()
    x = torch.rand(3, 3, 8, 8)
    net(x)
    assert compiled(net, (3, 8, 8), 1) is None
    found = attacks.create("saddle", Threat("linf", 0.1), restarts=1)(net, x, torch.arange(3))
    assert found.risk.shape == (3,)


class DependsOnData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x if bool(x.mean() > 0.2) else -x)
        return z


def test_control_flow_sizes_types_and_missing_packages_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compiled(DependsOnData().eval(), (3, 8, 8), 1) is None
    net, shape = network("resnet8 16")
    assert compiled(folded(net), shape, 1) is not None
    assert compiled(folded(net), (3 * 16 * 16,), 1) is None
    assert (
        compiled(
            nn.Sequential(nn.Conv2d(3, 2, 8), nn.Flatten(), nn.Linear(2, CLASSES)).double(), (3, 8, 8), 1
        )
        is None
    )
    assert compiled(nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES)), (3, 8, 8), 1) is None
    assert (
        compiled(nn.Sequential(nn.Conv2d(3, 300, 8), nn.Flatten(), nn.Linear(300, 20000)), (3, 8, 8), 1)
        is None
    )
    with monkeypatch.context() as patched:
        patched.setattr("platform.machine", lambda: "arm64")
        assert compiled(folded(net), shape, 1) is None
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert compiled(folded(net), shape, 1) is None


def ensemble() -> RandomizedEnsemble:
    torch.manual_seed(1)
    nets = [
        models.create("resnet8", classes=CLASSES, input_shape=(3, 16, 16), seed=seed, width=4).eval()
        for seed in range(3)
    ]
    return RandomizedEnsemble(nets, probs=[0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    "name", ["saddle", "arc-r", "lattice", "pgd", "adaptive-pgd-l", "adaptive-pgd-s", "apgd", "suite"]
)
def test_attacks_find_the_same_as_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rec = ensemble()
    x = torch.rand(12, 3, 16, 16)
    with torch.no_grad():
        y = rec.members[0](x).argmax(dim=1)
    attack = attacks.create(name, Threat("linf", 2 / 255), precision="float32")
    ours = attack(rec, x, y)
    used = GradientMembers(list(rec.members))
    used.verify(x)
    assert used.all_compiled
    monkeypatch.setattr(gradient_members, "_kept_compiled", lambda *_: None)
    plain = attack(rec, x, y)
    # Near ties may go either way, and the search then takes another path.
    assert (ours.errors != plain.errors).any(dim=1).float().mean() <= 0.2
    assert abs(float(ours.risk.mean() - plain.risk.mean())) <= 0.1
    assert 0.7 <= ours.cost.forwards / plain.cost.forwards <= 1.4
    assert torch.equal(rec.errors(ours.x_adv, y), ours.errors)


def test_weights_that_change_unnoticed_are_noticed() -> None:
    rec = ensemble()
    x = torch.rand(6, 3, 16, 16)
    for net in (rec.members[0], network("convnet 8")[0]):
        sample = x[:, :, : net.input_shape[1], : net.input_shape[2]]  # type: ignore[index]
        first = GradientMembers([net])
        first.verify(sample)
        assert first.compiled(0) is not None
        for parameter in net.parameters():
            parameter.data.mul_(1.5)
        second = GradientMembers([net])
        second.verify(sample)
        made = second.compiled(0)
        assert made is not None
        with torch.no_grad():
            torch.testing.assert_close(made.logits(sample), net(sample), rtol=1e-4, atol=1e-4)


def test_torch_has_its_threads_again_after_an_attack_and_after_an_error() -> None:
    rec, before = ensemble(), torch.get_num_threads()
    x, y = torch.rand(4, 3, 16, 16), torch.arange(4)
    seen = []

    class Looking(attacks.Saddle):
        name = "looking"

        def search(self, s: attacks.Search) -> None:
            seen.append(torch.get_num_threads())
            if self.seed:
                raise RuntimeError("stop")
            super().search(s)

    torch.set_num_threads(2)
    try:
        Looking(Threat("linf", 2 / 255))(rec, x, y)
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="stop"):
            Looking(Threat("linf", 2 / 255), seed=1)(rec, x, y)
        assert torch.get_num_threads() == 2
        assert set(seen) == {1}
    finally:
        torch.set_num_threads(before)


def test_verdicts_of_compiled_passes_are_exact_with_bfloat16_gradients() -> None:
    used = GradientMembers(list(ensemble().members))
    used.verify(torch.rand(4, 3, 16, 16))
    used.exact = False
    assert not used.exact_planes
    with used.one_thread():
        assert used.exact_planes
    assert not used.exact_planes
    averages = GradientMembers(list(ensemble().subsets(2).members))
    averages.verify(torch.rand(4, 3, 16, 16))
    averages.exact = False
    with averages.one_thread():
        assert not averages.exact_planes
    assert not averages.all_compiled


@pytest.mark.parametrize(
    ("kind", "float32", "threads"),
    [(attacks.PGD, True, 1), (attacks.PGD, False, 2), (attacks.APGD, True, 2), (attacks.Saddle, False, 1)],
)
def test_gradients_are_left_to_torch_with_all_its_threads_where_it_takes_them(
    kind: type[attacks.Attack], float32: bool, threads: int
) -> None:
    rec, before = ensemble(), torch.get_num_threads()
    x, y = torch.rand(4, 3, 16, 16), torch.arange(4)
    prepared = GradientMembers(list(rec.members))
    prepared.exact = float32  # false: as if gradients were taken in bfloat16
    seen = []

    looking = dataclasses.make_dataclass(
        "looking",
        [],
        bases=(kind,),
        frozen=True,
        namespace={"search": lambda *_: seen.append(torch.get_num_threads())},
    )
    torch.set_num_threads(2)
    try:
        with attacking(rec):
            looking(Threat("linf", 2 / 255), restarts=1).attack_batch(rec, x, y, prepared=prepared)
        assert seen == [threads]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("loss", OF_ENTROPIES)
@pytest.mark.parametrize("members", [None, [1]])
def test_gradients_of_losses_are_those_of_torch(loss: Loss, members: list[int] | None) -> None:
    rec = ensemble()
    x, y, rows = torch.rand(6, 3, 16, 16), torch.arange(6) % CLASSES, torch.tensor([4, 0, 1, 5])
    with attacking(rec):
        s = attacks.Search(rec, x, y, Threat("linf", 2 / 255))
        expected = s.gradient(rows, x[rows], loss, members)
        spent = dataclasses.replace(s.cost)
        with s.one_thread():
            found = s.gradient(rows, x[rows], loss, members)
    assert_gradients_close(found, expected)
    assert s.cost.backwards == 2 * spent.backwards == 2 * len(rows) * len(members or rec.members)


def test_folded_members_are_checked_in_float32_before_they_answer_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = GradientMembers(list(ensemble().members))
    x = torch.rand(4, 3, 16, 16)
    used.verify(x)
    used.exact = False
    low = []

    @contextlib.contextmanager
    def lower(*_: object) -> Iterator[None]:
        low.append(True)
        yield
        low.clear()

    checks = []
    agrees = used._agrees

    def noted(network: int, candidate: Callable[[Tensor], Any]) -> bool:
        checks.append(bool(low))
        return agrees(network, candidate)

    monkeypatch.setattr(used, "_agrees", noted)
    monkeypatch.setattr(torch, "autocast", lower)
    used.run(0, x)
    assert checks == [False]
    assert used._members[0] is not used._originals[0]


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_members_are_not_kept_alive(normalised: bool, wrapped: bool) -> None:
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3), *([nn.BatchNorm2d(4)] if normalised else []), nn.ReLU()]
    net: nn.Module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 36, CLASSES)).eval()
    net = fx.symbolic_trace(net) if wrapped else net
    attacks.create("saddle", Threat("linf", 0.1), restarts=1)(net, torch.rand(3, 3, 8, 8), torch.arange(3))
    used = GradientMembers([net])
    used.verify(torch.rand(3, 3, 8, 8))
    assert used.all_compiled
    kept = weakref.ref(net)
    del net, used
    gc.collect()
    assert kept() is None


def test_a_graph_that_the_runtime_refuses_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    net, shape = network("resnet8 16")

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    assert compiled(folded(net), shape, 1) is None
