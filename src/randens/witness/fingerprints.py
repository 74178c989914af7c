"""Content addresses of inputs, members and ensembles: equal content has an equal key, whatever it is called."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import torch
from torch import Tensor, nn

from randens.core.devices import tensor_checksum
from randens.ensemble import RandomizedEnsemble

__all__ = ["digest", "fingerprint", "input_keys", "member_key"]

_PROCESS = secrets.token_hex(8)


def digest(*parts: bytes) -> bytes:
    """A content address of some bytes."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.digest()


def input_keys(x: Tensor, y: Tensor) -> list[bytes]:
    """Content addresses [n] of inputs: values, precision, shape and label."""
    rows = x.detach().cpu().contiguous()
    kind = f"{rows.dtype} {tuple(rows.shape[1:])}".encode()
    pairs = zip(rows.numpy(), y.tolist(), strict=True)
    return [digest(kind, str(label).encode(), row.tobytes()) for row, label in pairs]


def member_key(member: nn.Module) -> bytes:
    """Content address of a classifier: the types and plain attributes of its modules, its weights and buffers."""
    described = []
    for name, module in member.named_modules():
        plain = {k: v for k, v in sorted(vars(module).items()) if k != "training" and _is_plain(v)}
        code = getattr(module, "code", "")  # of TorchScript
        described.append(f"{name} {type(module).__module__}.{type(module).__qualname__} {plain!r} {code}")
    tensors = {f"{name}.{k}": v for name, module in member.named_modules() for k, v in vars(module).items()}
    tensors.update({**member.state_dict(), **dict(member.named_buffers())})
    weights = {k: v for k, v in tensors.items() if isinstance(v, Tensor)}
    if (not weights or _has_packed(member)) and not hasattr(member, "sha256"):
        # Nothing tells it from another one: it is known in this process only.
        described.append(f"{_PROCESS} {id(member)}")
    return digest("\n".join(described).encode(), tensor_checksum(weights).encode())


def fingerprint(rec: RandomizedEnsemble) -> str:
    """SHA-256 over the members' weights: what documents say about the ensemble they belong to."""
    made = hashlib.sha256()
    for index, member in enumerate(rec.members):
        state = member.state_dict()
        if not state or _has_packed(member):  # an ONNX file has no weights that torch knows
            made.update(member_key(member))
            continue
        for key, value in state.items():
            made.update(f"{index} {key} {tuple(value.shape)} {value.dtype}\n".encode())
            made.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def _has_packed(member: nn.Module) -> bool:
    """Whether a part of its state is no tensor, like the packed weights of a quantized network."""
    return not all(isinstance(value, Tensor) for value in member.state_dict().values())


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str, bytes))
