"""How members are run while gradients are taken: float32 or bfloat16, BatchNorm folded where that is possible.

Verdicts never come from a lower precision: with bfloat16 gradients, `exact` is false and the search judges
promising points again in float32.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from randens.errors import ModelError, unknown
from randens.models.precision import bfloat16_pays, probe

__all__ = ["GradientMembers", "folded"]

_PRECISIONS = ("auto", "float32", "bfloat16")


class GradientMembers:
    """Callable as ``members(index, inputs) -> logits`` in float32, with a gradient for the inputs."""

    def __init__(
        self, members: Sequence[nn.Module], precision: str = "float32", *, fold: bool = True
    ) -> None:
        if precision not in _PRECISIONS:
            unknown("precision", precision, _PRECISIONS)
        convolutional = any(isinstance(m, nn.Conv2d) for member in members for m in member.modules())
        first = next((p for m in members for p in m.parameters()), None)
        self.device = first.device.type if first is not None else "cpu"
        if precision == "auto":
            precision = "bfloat16" if convolutional and bfloat16_pays(self.device) else "float32"
        elif precision == "bfloat16" and self.device == "cpu" and probe().bfloat16 is None:
            # Some machines end the whole process at the first such instruction.
            raise ModelError(
                f"precision is 'bfloat16', which does not work on this machine: {probe().reason}"
            )
        self.precision = precision
        self.exact = precision == "float32"
        self._members = [folded(m) if fold and convolutional else m for m in members]
        self._originals = list(members)
        self._checked = all(a is b for a, b in zip(self._members, members, strict=True))

    def verify(self, x: Tensor) -> None:
        """Compare folded members with the originals on a few inputs, once; keep only those that agree."""
        if self._checked or not len(x):
            return
        self._checked = True
        with torch.no_grad():
            for index, original in enumerate(self._originals):
                try:
                    folded, z = self._members[index](x[:4]), original(x[:4])
                    agrees = bool((folded - z).abs().max() <= 1e-5 * z.abs().max())
                except RuntimeError:
                    agrees = False
                if not agrees:
                    self._members[index] = original

    def __call__(self, index: int, inputs: Tensor) -> Tensor:
        member = self._members[index]
        with torch.autocast(self.device, torch.bfloat16, enabled=not self.exact):
            z: Tensor = member(inputs)
        return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z


def folded(member: nn.Module) -> nn.Module:
    """A frozen copy with BatchNorm folded into convolutions, or the member itself where that is not possible."""
    if not getattr(member, "foldable", True) or not any(isinstance(m, nn.BatchNorm2d) for m in member.modules()):
        return member
    folded = _fold(copy.deepcopy(member).eval())
    folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return folded.requires_grad_(False)


def _fold(module: nn.Module) -> nn.Module:
    """Fold the largest parts that can be traced; control flow that depends on the data stays as it is."""
    if not any(isinstance(m, nn.BatchNorm2d) for m in module.modules()):
        return module
    with contextlib.suppress(Exception):
        return fuse(module, inplace=True)  # of our own copy
    for name, child in module.named_children():
        setattr(module, name, _fold(child))
    return module
