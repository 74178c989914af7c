"""A checksum covers everything that a tensor file holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from randens.core.devices import tensor_checksum

_TENSORS = {
    "a": torch.tensor([1, 2, 3, 4], dtype=torch.int32),
    "b": torch.tensor([[True, False]]),
    "empty": torch.zeros(0, 3),
    "one": torch.tensor(1.5),
}


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
