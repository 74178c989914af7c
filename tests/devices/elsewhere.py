"""A device that is not the CPU, for tests: its tensors hold real numbers but refuse to be mixed with others.

torch's `meta` device has no numbers, and no GPU is needed here: a tensor "on meta" wraps an ordinary one. Every
operation on wrapped tensors runs on the CPU underneath and is wrapped again. As on a GPU, an operation that takes
tensors of both kinds is an error, unless the other one is a single number, or indexes; NumPy cannot read them; and
`.cpu()` or `.item()` brings them back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

__all__ = ["AWAY", "Elsewhere", "Mixed"]

AWAY = torch.device("meta")
_aten = torch.ops.aten
_MOVES = {_aten._to_copy.default, _aten.copy_.default}
_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__}
_INDEXING = {
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
}


class Mixed(AssertionError):
    """An operation took tensors of both devices."""


class Wrapped(Tensor):
    """A tensor that says it is on `AWAY` and holds its numbers on the CPU."""

    held: Tensor
    is_meta = False  # has its numbers, as torch's tensors on this device do not

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=AWAY,
            requires_grad=inner.requires_grad,
        )
        made.held = inner.detach()
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Wrapped({self.held!r})"

    def tolist(self) -> Any:
        """As a GPU's tensors do; torch has no way for subclasses."""
        return self.held.tolist()

    def __getitem__(self, key: Any) -> Tensor:
        return super().__getitem__(_indices(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_indices(key), value)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        # torch ends these two by reshaping a tensor in place, which a wrapper cannot follow.
        if func in _PRODUCTS and args[0].dim() == 1 and args[1].dim() == 2:
            return (args[0].unsqueeze(0) @ args[1]).squeeze(0)
        if func is torch.einsum and args[0] == "m,mnc->nc":
            return (args[1].reshape(-1, 1, 1) * args[2]).sum(dim=0)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        return _run(func, args, kwargs or {})


def _indices(key: Any) -> Any:
    """Lists among indices as tensors: torch would make them on `meta` itself, where there are no numbers."""
    if isinstance(key, list):
        return torch.tensor(key, dtype=torch.bool if key and isinstance(key[0], bool) else torch.int64)
    return tuple(map(_indices, key)) if isinstance(key, tuple) else key


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
    there = [t for t in tensors if isinstance(t, Wrapped)]
    target = kwargs.get("device")
    if func in _MOVES:
        home = target is not None and torch.device(target) != AWAY
        away = isinstance(args[0], Wrapped) if func is _aten.copy_.default or target is None else not home
    else:
        here = [t for t in tensors if not isinstance(t, Wrapped) and t.dim() > 0]
        if func in _INDEXING and isinstance(args[0], Wrapped):
            here = []  # a GPU tensor may be indexed by a CPU tensor
        if there and here:
            raise Mixed(
                f"{func} mixes devices: {[tuple(t.shape) for t in there]} and {[tuple(t.shape) for t in here]}"
            )
        away = bool(there) if target is None else torch.device(target) == AWAY
    if target is not None and torch.device(target) == AWAY:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map(_unwrap, (args, kwargs))
    found = func(*plain_args, **plain_kwargs)
    if func._schema.name.endswith("_") and isinstance(args[0], Wrapped):
        return args[0]  # in place: the numbers underneath have changed
    if not away:
        return found
    return tree_map(lambda t: Wrapped(t) if isinstance(t, Tensor) else t, found)


def _unwrap(value: Any) -> Any:
    return value.held if isinstance(value, Wrapped) else value


class _Factories(TorchFunctionMode):
    """`torch.tensor(numbers, device=AWAY)` would make a tensor without numbers; it is made here and moved."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        given = dict(kwargs or {})
        if func is torch.tensor and given.get("device") is not None and torch.device(given["device"]) == AWAY:
            del given["device"]
            return torch.tensor(*args, **given).to(AWAY)
        return func(*args, **given)


class Elsewhere(TorchDispatchMode):
    """While entered, `device="meta"` means a device with numbers on it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Elsewhere:
        self.factories = _Factories()
        self.factories.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.factories.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _run(func, args, kwargs or {})
