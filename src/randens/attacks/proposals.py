"""Attacks on one model, of functions and other packages: they propose points on ensembles, and `Search` judges."""

from __future__ import annotations

import contextlib
import math
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from randens.attacks.base import Attack
from randens.attacks.search import Search
from randens.core.errors import InputError, ModelError, RandensError, shown
from randens.ensemble import RandomizedEnsemble
from randens.models import in_precision, logits_of
from randens.threat import Threat

NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}  # as other packages write them


class Mixture(nn.Module):
    """log Σ_i α_i softmax_i(x), [n, C]: the log-probabilities of a randomized ensemble's answers, as one module.

    Its argmax is *not* the randomized ensemble but a deterministic one that averages probabilities. Use it to attack,
    and ``rec.risk(x_adv, y)`` to measure; `from_autoattack` and similar functions do so.
    """

    def __init__(self, rec: RandomizedEnsemble) -> None:
        super().__init__()
        self.rec = rec
        self.passes = len(rec.networks)

    def forward(self, x: Tensor) -> Tensor:
        return self.rec.mixture(x)


class View(nn.Module):
    """What foreign attacks receive: a classifier of images in the box 0..1; passes are counted, weights hidden."""

    def __init__(self, s: Search, model: nn.Module) -> None:
        super().__init__()
        self._hidden = s, model
        self.passes = model.passes if isinstance(model, Mixture) else 1
        # Unbounded inputs get a box that holds every legal point.
        low, high = s.threat.bounds or (float(s.x.min()) - s.threat.eps, float(s.x.max()) + s.threat.eps)
        self._low, self._size = low, high - low
        self.threat = Threat(s.threat.norm, s.threat.eps / self._size)
        shape = tuple(s.x.shape[1:])
        self.shape = shape if len(shape) == 3 else (math.prod(shape), 1, 1)
        # Packages read the device from a parameter.
        self.place = nn.Parameter(torch.zeros((), device=s.device), requires_grad=False)
        with torch.no_grad():
            self.classes = self(self.show(s.x[:1])).shape[1]
        self.eval()

    def show(self, x: Tensor) -> Tensor:
        return ((x.detach().float().contiguous() - self._low) / self._size).clamp(0, 1).view(-1, *self.shape)

    def read(self, shown: Tensor) -> Tensor:
        s, _ = self._hidden
        return shown.to(s.device, s.x.dtype).reshape(-1, *s.x.shape[1:]) * self._size + self._low

    def forward(self, shown: Tensor) -> Tensor:
        s, model = self._hidden
        passes = len(shown) * self.passes
        s.cost.forwards += passes

        def count(gradient: Tensor) -> Tensor:
            s.cost.backwards += passes
            # Members work in channels_last, and packages call `view` on what they get.
            return gradient.contiguous()

        differentiated = shown.requires_grad and torch.is_grad_enabled()
        if differentiated:
            shown = shown.view_as(shown)
            shown.register_hook(count)  # type: ignore[no-untyped-call]
        z = logits_of(model(in_precision(self.read(shown), model)), len(shown), type(model).__name__)
        if differentiated and not z.requires_grad:
            # The member has no gradients; the search has flagged it, and the package continues with zeros.
            z = z + 0 * shown.flatten(1).sum(dim=1, keepdim=True)
        return z.to(shown.dtype)


Proposal = Callable[[View, Tensor, Tensor, Threat, int], Tensor]
"""(view, shown inputs, labels, threat in the view's units, seed) → perturbed shown inputs."""


@dataclass(frozen=True)
class Foreign(Attack):
    """Another package's attack on the mixture, then on each member that can be sampled.

    A member is attacked on the inputs at which it has not been fooled yet. The global random number generators are
    seeded for each call and restored after it. Stored witnesses know the attack by its `description`, "name(options)".
    """

    propose: Proposal = field(repr=False, compare=False)
    description: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.norm not in NORMS:
            raise InputError(f"threat is {self.threat.norm}; other packages take {', '.join(NORMS)}")

    @property
    def name(self) -> str:
        return self.description.partition("(")[0]

    def search(self, s: Search) -> None:
        drawn = s.probs.nonzero().flatten().tolist()
        members = [s.rec.members[i] for i in drawn]
        # One gradient of every member at the inputs flags those without usable gradients.
        s.linearize(s.open, s.x[s.open], (s.probs > 0).expand(len(s.open), -1))
        for seed in range(s.seed, s.seed + 31 * self.restarts, 31):
            if len(drawn) > 1:
                mixture = Mixture(RandomizedEnsemble(members, s.probs[drawn]))
                self._propose(s, mixture, s.open, seed)
            for number, member in zip(drawn, members, strict=True):
                self._propose(s, member, s.open[~s.foolable[s.open, number]], seed)

    def _propose(self, s: Search, model: nn.Module, rows: Tensor, seed: int) -> None:
        """Let the package attack `model` at these rows, and judge its points."""
        if not len(rows):
            return
        view = View(s, model)
        try:
            with _seeded(seed):
                shown = self.propose(view, view.show(s.x[rows]), s.y[rows], view.threat, seed).detach()
        except RandensError:
            raise
        except Exception as error:  # the packages' exceptions have no common base class
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:240]
            inputs = f"{len(rows)} inputs of shape {tuple(s.x.shape[1:])}"
            raise ModelError(f"{self.description} failed on {inputs}: {reason}") from error
        points = view.read(shown)
        s.judge(rows, torch.where(torch.isfinite(points), points, s.x[rows]))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python with `seed`, and restore them afterwards."""
    legacy, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(plain)


def from_function(
    function: Callable[[nn.Module, Tensor, Tensor], Tensor], threat: Threat, **common: int
) -> Foreign:
    """A function f(model, x, y) → x_adv, which may call any package: ``from_function(f, Threat("linf", 8 / 255))``."""
    if not callable(function):
        raise InputError(f"function is {shown(function)}; give f(model, x, y) that returns perturbed inputs")
    name = getattr(function, "__qualname__", type(function).__name__)
    # What is stored about a function is not what another one would find.
    code = getattr(function, "__code__", None)
    said = f"{name}({zlib.crc32(repr((code.co_code, code.co_consts)).encode()) if code else ''})"
    return Foreign(threat, lambda view, x, y, *_: function(view, x, y), said, **common)
