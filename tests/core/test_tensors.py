"""Norms are torch's; a checksum covers everything that a tensor file holds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from randens.core.tensors import norms, tensor_checksum

_TENSORS = {
    "a": torch.tensor([1, 2, 3, 4], dtype=torch.int32),
    "b": torch.tensor([[True, False]]),
    "empty": torch.zeros(0, 3),
    "one": torch.tensor(1.5),
}


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_norms_are_those_of_torch_and_pass_on_what_is_not_finite(p: float) -> None:
    values = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(0))
    for dim in (-1, 1):
        torch.testing.assert_close(norms(values, p, dim), torch.linalg.vector_norm(values, p, dim=dim))
    values[1, 2, 0], values[2, 0, 0] = math.nan, -math.inf
    assert torch.isfinite(norms(values.flatten(1), p)).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    "changed",
    [
        {"a": _TENSORS["a"].view(torch.float32)},
        {"a": _TENSORS["a"].reshape(2, 2)},
        {"a": _TENSORS["a"].flip(0)},
        {"a": _TENSORS["a"].view(torch.int64)},
        {"b": _TENSORS["b"].view(torch.uint8)},
        {"empty": torch.zeros(3, 0)},
        {"one": torch.tensor([1.5])},
        {"more": torch.zeros(0)},
        {"a": _TENSORS["b"], "b": _TENSORS["a"]},
    ],
)
def test_a_tensor_checksum_covers_names_dtypes_shapes_and_bytes(changed: dict[str, Tensor]) -> None:
    before = tensor_checksum(_TENSORS, {"format": "f"})
    assert tensor_checksum(dict(reversed(_TENSORS.items())), {"format": "f"}) == before
    assert tensor_checksum({**_TENSORS, **changed}, {"format": "f"}) != before
    assert tensor_checksum(_TENSORS, {"format": "g"}) != before
    table = torch.arange(6.0).reshape(2, 3)
    assert tensor_checksum({"t": table.T}) == tensor_checksum({"t": table.T.contiguous().requires_grad_()})
