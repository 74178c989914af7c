"""Members as a search asks them: copies that compute the same faster, and a cache of their linear models."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from randens.core.errors import RandensWarning
from randens.ensemble import evaluating, to_layout
from randens.models import in_precision, logits_of, undisturbed

_RANDOM = 1e-3  # of the largest logit; sums on a GPU differ by less
_FOLDED = 1e-5  # of the largest logit; more means that folding changed the network


def fast_members(members: Sequence[nn.Module], x: Tensor) -> list[nn.Module]:
    """Folded members where they answer a few inputs alike, else the originals; warns of random answers."""
    sample = to_layout(x[:4])
    found, random = [], []
    for number, member in enumerate(members):
        quick = folded(member, sample)
        found.append(quick)
        z = _answer(member, sample, number) if quick is member else None
        if z is not None and _differ(z, _answer(member, sample, number)) > _RANDOM:
            random.append(number)
    if random:
        warnings.warn(
            f"members {random} answer the same input differently each time, in eval mode; what an attack finds on "
            "one draw says little about the next, so wrap them in randens.RandomizedModel",
            RandensWarning,
            stacklevel=2,
        )
    return found


def folded(member: nn.Module, x: Tensor) -> nn.Module:
    """A frozen copy with BatchNorm folded into convolutions if it answers x alike, else the member itself."""
    if not getattr(member, "foldable", True) or not _has_batch_norm(member):
        return member
    # Whatever a copy may fail with, the member itself answers. No tracing by torch.fx, which patches all modules of
    # the process: other threads would fail.
    with contextlib.suppress(Exception):
        with evaluating(member):
            z, copied = _answer(member, x, 0), copy.deepcopy(member).eval()
        _fold(copied, x)
        copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if _differ(z, _answer(copied, x, 0)) <= _FOLDED:
            return copied.requires_grad_(False)
    return member


def _fold(module: nn.Module, x: Tensor) -> None:
    """Fold every BatchNorm into the convolution whose output it was given, if each was called once."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    parts = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.BatchNorm2d)]
    hooks = [part.register_forward_hook(lambda part, x, z: calls.append((part, x[0], z))) for part in parts]
    _answer(module, x, 0)
    for hook in hooks:
        hook.remove()
    once = {part for part, count in Counter(part for part, _, _ in calls).items() if count == 1}
    sources = {id(z): part for part, _, z in calls if isinstance(part, nn.Conv2d)}
    for norm, given, _ in calls:
        conv: Any = sources.get(id(given))
        if isinstance(norm, nn.BatchNorm2d) and {norm, conv} <= once:
            own: Any = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            conv.weight, conv.bias = fuse_conv_bn_weights(conv.weight, conv.bias, *own)
            for name, part in list(module.named_modules()):
                if part is norm:
                    module.set_submodule(name, nn.Identity())


def _has_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(part, nn.BatchNorm2d) for part in module.modules())


def _answer(member: nn.Module, sample: Tensor, number: int) -> Tensor:
    with torch.no_grad(), undisturbed(name := f"member {number}"):
        answer = member(in_precision(sample, member))
    return logits_of(answer, len(sample), name)


def _differ(z: Tensor, again: Tensor) -> float:
    """The largest difference of two answers, in units of the largest logit."""
    return float((z - again).abs().max() / z.abs().max().clamp_min(1e-30)) if z.numel() else 0.0


class LinearModels:
    """Margins [n, M], gradients [n, M, d] and verdicts [n, M] at `points` [n, ...], where `have` [n, M] is true."""

    def __init__(self, x: Tensor, errors: Tensor) -> None:
        self.x, self.have, self.errors = x, torch.zeros_like(errors), torch.zeros_like(errors)
        self.classes = 0  # runners-up that the models look at; models of one number are kept at a time

    def known(self, rows: Tensor, points: Tensor, classes: int) -> Tensor:
        """Bool [k, M]: the models at `points` that are here."""
        if classes != self.classes:
            return torch.zeros_like(self.have[rows])
        return self.have[rows] & (points == self.points[rows]).flatten(1).all(dim=1)[:, None]

    def add(
        self, rows: Tensor, member: int, points: Tensor, classes: int, models: tuple[Tensor, ...]
    ) -> None:
        """Keep one member's margins [k], gradients [k, d] and verdicts [k]; those at other points are forgotten."""
        if not len(rows):
            return
        if classes != self.classes:
            self.classes, self.points = classes, torch.full_like(self.x, torch.nan)
            self.have = torch.zeros_like(self.have)
            self.margin = self.x.new_zeros(self.have.shape)
            self.slope = self.x.new_zeros(*self.have.shape, self.x[0].numel())
        self.have[rows[(points != self.points[rows]).flatten(1).any(dim=1)]] = False
        self.points[rows], self.have[rows, member] = points, True
        margin, slope, errors = models
        self.margin[rows, member], self.slope[rows, member] = margin.to(self.margin.dtype), slope
        self.errors[rows, member] = errors

    def get(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Margins [k, M], gradients [k, M, d] and verdicts [k, M]."""
        if not self.classes:
            shape = self.have[rows].shape
            return self.x.new_zeros(shape), self.x.new_zeros(*shape, self.x[:1].numel()), self.errors[rows]
        return self.margin[rows], self.slope[rows], self.errors[rows]
