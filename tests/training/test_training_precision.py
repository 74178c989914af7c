"""bfloat16 is used where it is asked for, and by "auto" only where the device has it natively."""

from __future__ import annotations

import pytest
import torch

from randens.core.devices import native_bfloat16
from randens.training.placement import arithmetic

CPU = torch.device("cpu")


def test_auto_means_float32_without_native_bfloat16() -> None:
    assert not native_bfloat16(CPU)
    for name, low in (("auto", False), ("float32", False), ("bfloat16", True)):
        with arithmetic(name, CPU)():
            assert torch.is_autocast_enabled("cpu") == low, name


def test_emulated_bfloat16_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not native_bfloat16(torch.device("cuda"))
