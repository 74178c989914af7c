"""Random classifiers: noise, dropout, random resizing, random weights, one draw at a time.

A draw s is a seed. f_s(x) is the model's answer to the input x alone when its random numbers come from s.
For a fixed s this is an ordinary classifier. K draws are a `RandomizedEnsemble`, which every attack can use.
The model itself is the mixture of all f_s.
"""

from __future__ import annotations

import contextlib
import inspect
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from randens.core.errors import InputError, expect, whole
from randens.ensemble import RandomizedEnsemble, to_layout
from randens.models import Adapted, adapt, in_precision, logits_of, undisturbed
from randens.threat import Threat

__all__ = ["FrozenDraw", "RandomizedModel", "expanded"]

_SAME = 1e-5  # logits computed in two ways, relative to the largest
_PROBES = 8  # seeds with which that is done
_PROBED = 3  # rows on which two ways of computing a draw are compared
_MOST_DRAWS = 1 << 16
_SEEDS = 2**31  # every generator, NumPy's old one too, takes a seed below this

Factory = Callable[[int], nn.Module]


class RandomizedModel(nn.Module):
    """A random classifier whose randomness can be seeded, as a mixture of its draws.

    Parameters
    ----------
    model : nn.Module or callable
        A module whose `forward` takes `generator`; or any module that draws from torch's global generator, which is
        seeded around every call and restored afterwards; or a factory ``seed -> nn.Module``.
    draws : int
        K, how many frozen draws stand for the model while it is attacked; at least 2.
    active : type or tuple of types
        Layers that stay in training mode when the model answers, e.g. ``nn.Dropout``; all others are in eval mode.
        Empty: every layer stays in the mode it has now.
    threat : Threat, optional
        What the model is meant to resist.
    seed : int, optional
        Decides the draws of `forward`; None takes fresh entropy from the operating system.

    Examples
    --------
    >>> import torch, randens
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    >>> model = randens.RandomizedModel(net, draws=16, active=torch.nn.Dropout)
    >>> x = torch.rand(5, 4)
    >>> torch.equal(model.freeze(7)(x), model.freeze(7)(x))
    True
    >>> len(model.ensemble().members)
    16
    """

    stochastic = True
    foldable = False  # a traced copy would lose the order of the random numbers

    def __init__(
        self,
        model: nn.Module | Factory,
        draws: int = 64,
        *,
        active: type[nn.Module] | tuple[type[nn.Module], ...] = (),
        threat: Threat | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        whole("draws", draws, 2, _MOST_DRAWS, why=", as one draw says nothing about a random model")
        if not isinstance(model, nn.Module) and not callable(model):
            raise InputError(f"model is {type(model).__name__}; give a module, or a function that makes one")
        self.draws, self.threat = draws, threat
        self.module: nn.Module | None = model if isinstance(model, nn.Module) else None
        self.factory: Factory | None = None if isinstance(model, nn.Module) else model
        self.active = active if isinstance(active, tuple) else (active,)
        for kind in self.active:
            expect("active", kind, type)
        self._modes = [] if self.module is None else _modes(self.module, self.active)
        self._takes_generator = self.module is not None and _takes_generator(self.module)
        # By shape of an input: how a draw is computed on a batch, and whether rows of one call can have own draws.
        self._ways: dict[tuple[int, ...], Callable[[nn.Module, Tensor, int], Tensor]] = {}
        self._independent: dict[tuple[int, ...], bool] = {}
        self._count = 0  # of logits, as soon as it is known
        self._next = secrets.randbelow(_SEEDS) if seed is None else whole("seed", seed, 0) % _SEEDS

    @property
    def device(self) -> torch.device:
        """Where the first parameter lives (the CPU if there is none, and for factories)."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def train(self, mode: bool = True) -> RandomizedModel:
        """Set the model's own flag only, because the random layers are part of the model."""
        self.training = mode
        return self

    def freeze(self, seed: int) -> FrozenDraw:
        """f_s for s = `seed`: a deterministic classifier that shares the model's weights."""
        return FrozenDraw(self, whole("seed", seed, 0))

    def ensemble(self, draws: int | None = None, first: int = 0) -> RandomizedEnsemble:
        """The draws with seeds first, …, first + K − 1 as equally likely members; K is `draws` or the model's own."""
        return expanded(self, draws, first)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, C], each row under a fresh draw of its own."""
        x = to_layout(x)
        self._next = (self._next + max(1, len(x))) % _SEEDS
        return self.sample(x, self._next)

    def sample(self, x: Tensor, seed: int) -> Tensor:
        """Logits [n, C], each row under an independent draw; `seed` decides all of them."""
        x = to_layout(x)
        whole("seed", seed, 0, _SEEDS - 1)
        if self.independent(x) and self.module is not None:
            return self._mapped(self.module, x, seed, "different")
        return torch.cat([self.freeze((seed + i) % _SEEDS)(row) for i, row in enumerate(torch.split(x, 1))])

    def fresh(self, copies: Tensor, seed: int) -> Tensor:
        """Logits [S, n, C] for S copies of n inputs [S, n, ...], a draw for each copy, and input where torch can."""
        if self.independent(copies[0]):
            return self.sample(copies.flatten(0, 1), seed).reshape(*copies.shape[:2], -1)
        return torch.stack([self.freeze((seed + s) % _SEEDS)(copies[s]) for s in range(len(copies))])

    def independent(self, x: Tensor) -> bool:
        """Whether one call can give every row random numbers of its own, so that copies of a row differ."""
        if self.module is None or len(x) == 0:
            return False
        shape = tuple(x.shape[1:])
        if shape not in self._independent:
            self._independent[shape] = False
            row = x[:1].detach()
            # vmap refuses what it cannot batch in many ways.
            with torch.no_grad(), contextlib.suppress(Exception):
                z = self._mapped(self.module, row.repeat(8, *[1] * (x.dim() - 1)), 11, "different")
                fits = z.shape == (8, self._call(self.module, row, 11).shape[1])
                self._independent[shape] = fits and not bool((z == z[:1]).all())
        return self._independent[shape]

    def build(self, seed: int) -> nn.Module:
        """The module behind the draw `seed`: the model's own, or what its factory makes of the seed."""
        if self.module is not None:
            return self.module
        assert self.factory is not None
        try:
            with _seeded(seed, torch.device("cpu")), torch.enable_grad():
                made = self.factory(seed)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            raise InputError(f"the factory fails at seed {seed} ({reason}); it must take any seed") from error
        if not isinstance(made, nn.Module):
            raise InputError(f"the factory returned a {type(made).__name__}; it must make a torch.nn.Module")
        for layer, mode in _modes(made, self.active):
            layer.training = mode
        return made

    def answer(self, module: nn.Module, x: Tensor, seed: int) -> Tensor:
        """f_s(x) [n, C]: every row is computed as if it were alone, whatever its place in the batch."""
        if len(x) < 2:
            return self._call(module, x, seed)
        shape = tuple(x.shape[1:])
        if shape not in self._ways:
            self._ways[shape] = self._way(module, x[:_PROBED].detach())
        return self._ways[shape](module, x, seed)

    def _way(self, module: nn.Module, x: Tensor) -> Callable[[nn.Module, Tensor, int], Tensor]:
        """How to compute a draw on a batch so that it agrees with a row-by-row computation."""
        # What a factory makes is mostly deterministic, and then a plain call is right and fastest. Else a plain call
        # could agree by luck (rare dropout), so the way that is right by construction is tried first.
        ways = (self._call, self._mapped) if self.module is None else (self._mapped, self._call)
        with torch.no_grad():
            wanted = [self._row_by_row(module, x, seed) for seed in range(_PROBES)]
            for way in ways:
                with contextlib.suppress(Exception):
                    if all(_close(way(module, x, seed), z) for seed, z in enumerate(wanted)):
                        return way
        return self._row_by_row

    def normalized(self, preprocessing: Any) -> RandomizedModel:
        """The same model behind (x − mean) / std, as `randens.models.adapt` takes it; weights are shared."""

        def wrapped(seed: int) -> nn.Module:
            return adapt(self.build(seed), preprocessing)

        inner = wrapped if self.module is None else wrapped(0)
        return RandomizedModel(inner, self.draws, active=self.active, threat=self.threat, seed=self._next)

    def _call(self, module: nn.Module, x: Tensor, seed: int) -> Tensor:
        name = type(module).__name__
        with self._drawing(seed, x.device) as options, undisturbed(name):
            answer = module(in_precision(x, module), **options)
        z = logits_of(answer, len(x), name, self._count)
        self._count = z.shape[1]
        return z

    def _row_by_row(self, module: nn.Module, x: Tensor, seed: int) -> Tensor:
        return torch.cat([self._call(module, row, seed) for row in torch.split(x, 1)])

    def _mapped(self, module: nn.Module, x: Tensor, seed: int, randomness: str = "same") -> Tensor:
        with self._drawing(seed, x.device) as options:

            def alone(row: Tensor) -> Tensor:
                return logits_of(module(row.unsqueeze(0), **options), 1, type(module).__name__).squeeze(0)

            z: Tensor = torch.func.vmap(alone, randomness=randomness)(in_precision(x, module))
        return z

    @contextlib.contextmanager
    def _drawing(self, seed: int, device: torch.device) -> Iterator[dict[str, Any]]:
        """Seeded generators and the layers' modes; yields the arguments for the module."""
        changed = [(layer, mode) for layer, mode in self._modes if layer.training != mode]
        for layer, mode in changed:
            layer.training = mode
        try:
            with _seeded(seed, device):
                generator = torch.Generator(device).manual_seed(seed)
                yield {"generator": generator} if self._takes_generator else {}
        finally:
            for layer, mode in changed:
                layer.training = not mode


class FrozenDraw(nn.Module):
    """One draw of a `RandomizedModel`: a deterministic classifier, the same for an input in any batch."""

    foldable = False
    seed: Tensor

    def __init__(self, model: RandomizedModel, seed: int) -> None:
        super().__init__()
        whole("seed", seed, 0, _SEEDS - 1)
        self.model = model
        self.built = None if model.factory is None else model.build(seed)
        # A buffer, so that fingerprints tell draws of the same weights apart.
        self.register_buffer("seed", torch.tensor(seed))
        self._number = seed

    def train(self, mode: bool = True) -> FrozenDraw:
        """Sets the draw's own flag only; see `RandomizedModel.train`."""
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, C] of this draw."""
        expect("x", x, Tensor)
        module = self.model.build(self._number) if self.built is None else self.built
        return self.model.answer(module, x, self._number)


def expanded(
    model: RandomizedModel | RandomizedEnsemble, draws: int | None = None, first: int = 0
) -> RandomizedEnsemble:
    """A finite ensemble for `model`: a random member of α_i is K frozen draws (seeds first, first + 1 …) of α_i / K."""
    whole("first", first, 0)
    rec = model if isinstance(model, RandomizedEnsemble) else RandomizedEnsemble([model], threat=model.threat)
    parts: list[nn.Module] = []
    probs: list[float] = []
    for member, weight in zip(rec.members, rec.probs.tolist(), strict=True):
        own = [member]
        if isinstance(member, RandomizedModel):
            count = whole("draws", member.draws if draws is None else draws, 1, _MOST_DRAWS)
            own = [member.freeze(first + draw) for draw in range(count)]
        parts += own
        probs += [weight / len(own)] * len(own)
    return RandomizedEnsemble(parts, np.array(probs) / sum(probs), threat=rec.threat)


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's global generators start from `seed` inside and are as they were outside."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        # Not torch.manual_seed, which seeds the generators of all kinds of devices, at fifty times the cost.
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


def _takes_generator(module: nn.Module) -> bool:
    if isinstance(module, Adapted):
        return _takes_generator(module.module)
    with contextlib.suppress(TypeError, ValueError):  # of what has no signature
        return "generator" in inspect.signature(module.forward).parameters
    return False


def _modes(module: nn.Module, active: tuple[type[nn.Module], ...]) -> list[tuple[nn.Module, bool]]:
    """The mode in which each layer answers."""
    modes = [
        (m, isinstance(m, active) if active else getattr(m, "training", False)) for m in module.modules()
    ]
    if active and not any(isinstance(m, active) for m, _ in modes):
        names = ", ".join(kind.__name__ for kind in active)
        raise InputError(f"active is {names}; {type(module).__name__} has no such layer")
    if any(mode and isinstance(m, _BatchNorm) and m.track_running_stats for m, mode in modes):
        mixes = f"{type(module).__name__} has batch normalization in training mode, which mixes the batch"
        raise InputError(f"{mixes}; call .eval() and name the random layers, e.g. active=torch.nn.Dropout")
    return modes


def _close(one: Tensor, two: Tensor) -> bool:
    largest = two.abs().max().clamp_min(1e-30)
    return one.shape == two.shape and bool((one - two).abs().max() <= _SAME * largest)
