"""Attacking a whole data set: batch by batch, resumable, over several processes, in memory that does not grow.

The data set is cut into fixed batches. A batch's random numbers depend on the seed and its number only, so the
result is the same whether the batches are attacked in one go, after an interruption, or by several processes.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from randens.attacks.search import Cost
from randens.ensemble import RandomizedEnsemble
from randens.errors import FileError, InputError
from randens.files import read_json, sha256, tensor_checksum, write_atomic, write_json
from randens.progress import Progress, silent
from randens.witness import WitnessPool

if TYPE_CHECKING:
    from randens.attacks.base import Attack, Found

__all__ = ["Survey", "batches", "place_of", "survey"]

_FORMAT = "randens-attack-1"


@dataclass(frozen=True)
class Survey:
    """What an attack found on a data set. The perturbed inputs are in `folder` if one was given, and in memory
    (`x_adv` [n, ...], and in the pool) only if that was asked for."""

    errors: Tensor
    risk: Tensor
    clean_errors: Tensor
    labels: Tensor
    pool: WitnessPool
    cost: Cost
    sources: tuple[str, ...]
    flags: dict[str, Any]
    folder: Path | None
    x_adv: Tensor | None = None

    @property
    def robust_accuracy(self) -> float:
        """1 − mean risk."""
        return 1.0 - float(self.risk.mean())

    def perturbed(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The worst perturbed inputs and their labels, batch by batch, from `folder`."""
        if self.folder is None:
            raise InputError(
                "folder is None; give attack.survey(..., folder=...) to keep the perturbed inputs"
            )
        for path in sorted(self.folder.glob("batch-*.safetensors")):
            try:
                part, _ = _Part.unpack(path.read_bytes())
            except (OSError, SafetensorError, ValueError, KeyError, AttributeError) as error:
                raise FileError(f"{path} cannot be used: {error}") from error
            yield part.tensors["x_adv"], part.tensors["y"]


def batches(data: Any, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(x, y) batches of exactly `size` inputs (the last may be smaller) from whatever holds inputs and labels.

    Takes a pair of tensors, anything with ``.batches(size)`` (the data room's sets), a torch loader, or any
    iterable of (x, y) batches.
    """
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], Tensor):
        x, y = data
        if len(x) != len(y):
            raise InputError(f"y has {len(y)} labels; there are {len(x)} inputs")
        if len(x):
            yield from zip(torch.split(x, size), torch.split(y, size), strict=True)
        return
    source: Iterable[Any] = data.batches(size) if hasattr(data, "batches") else data
    waiting: list[tuple[Tensor, Tensor]] = []
    count = 0
    for item in source:
        try:
            x, y = item
        except (TypeError, ValueError):
            raise InputError(
                f"data yields {type(item).__name__}; it must yield (inputs, labels) pairs"
            ) from None
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError("data yields a pair that is not two tensors; labels are needed to attack")
        waiting.append((x, y))
        count += len(x)
        while count >= size:
            xs, ys = torch.cat([w[0] for w in waiting]), torch.cat([w[1] for w in waiting])
            yield xs[:size], ys[:size]
            waiting, count = [(xs[size:], ys[size:])], len(xs) - size
    if count:
        yield torch.cat([w[0] for w in waiting]), torch.cat([w[1] for w in waiting])


def survey(
    attack: Attack,
    rec: RandomizedEnsemble,
    data: Any,
    run_batch: Callable[[int, Tensor, Tensor], Found],
    *,
    folder: str | os.PathLike[str] | None = None,
    inputs: bool = False,
    progress: Progress | None = None,
) -> Survey:
    """Attack every batch of `data` once, whoever does it, and put the parts together.

    With `folder`, each finished batch is a file there; a second call with the same attack, ensemble and data
    continues where the first stopped. With `inputs`, perturbed inputs stay in memory. Under torch.distributed,
    batches are dealt out to the ranks.
    """
    tell = progress or silent
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    place = Path(folder) if folder is not None else None
    fingerprint = _fingerprint(attack, rec)
    if place is not None and rank == 0:
        _claim(place, fingerprint)
    if place is not None and world > 1:
        dist.barrier()
    total = _length(data)
    parts: dict[int, _Part] = {}
    done = 0
    for number, (x, y) in enumerate(batches(data, attack.batch_size)):
        if number % world == rank:
            part = _one(place, number, x, y, run_batch)
            parts[number] = part if inputs else part.lean()
        done += len(x)
        tell(f"attack {attack.name}", done, max(total or 0, done) if total else done + 1)
    if world > 1:
        parts = _gather(parts, inputs)
    if not parts:
        raise InputError("data is empty; there is nothing to attack")
    if place is not None and (extra := place / f"batch-{max(parts) + 1:06d}.safetensors").exists():
        raise FileError(f"{extra} lies beyond the end of the data, so {place} belongs to other data")
    if done:
        tell(f"attack {attack.name}", done, done)
    return _assemble([parts[number] for number in sorted(parts)], rec, place)


@dataclass(frozen=True)
class _Part:
    """One batch's outcome as plain tensors, the form that is stored and sent."""

    tensors: dict[str, Tensor]
    sources: tuple[str, ...]
    pool_sources: tuple[str, ...]

    def pack(self, *, inputs: bool, **extra: str) -> bytes:
        tensors = {
            k: v.contiguous() for k, v in self.tensors.items() if inputs or k not in ("x_adv", "pool.x_adv")
        }
        metadata = {"format": _FORMAT, "sources": "\n".join(self.sources), **extra}
        metadata["pool_sources"] = "\n".join(self.pool_sources)
        metadata["checksum"] = tensor_checksum(tensors, metadata)
        return safetensors.torch.save(tensors, metadata)

    def lean(self) -> _Part:
        """Without the perturbed inputs, which only the file keeps: memory stays flat however many batches."""
        tensors = {k: v for k, v in self.tensors.items() if k not in ("x_adv", "pool.x_adv")}
        return _Part(tensors, self.sources, self.pool_sources)

    @staticmethod
    def unpack(content: bytes) -> tuple[_Part, dict[str, str]]:
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        # safetensors holds numbers and names only: reading it runs nothing.
        tensors = safetensors.torch.load(content)
        if metadata.get("checksum") != tensor_checksum(tensors, metadata):
            raise ValueError("the content does not match its checksum")
        return _Part(tensors, _lines(metadata["sources"]), _lines(metadata["pool_sources"])), metadata


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()


def _one(
    place: Path | None, number: int, x: Tensor, y: Tensor, run_batch: Callable[[int, Tensor, Tensor], Found]
) -> _Part:
    path = place / f"batch-{number:06d}.safetensors" if place is not None else None
    content_hash = sha256(b"".join(t.detach().cpu().contiguous().numpy().tobytes() for t in (x, y)))
    if path is not None and path.exists():
        try:
            part, metadata = _Part.unpack(path.read_bytes())
            if metadata.get("data") == content_hash:
                return part
        except (SafetensorError, ValueError, KeyError, AttributeError):
            pass  # a damaged batch is simply attacked again
        else:
            raise FileError(f"{path} belongs to other data; choose another folder")
    found = run_batch(number, x, y)
    pool = found.pool
    tensors = {
        "errors": found.errors,
        "risk": found.risk,
        "clean_errors": found.clean_errors,
        "y": y.to(torch.int64),
        "x_adv": found.x_adv,
        "pool.points": torch.from_numpy(pool.points),
        "pool.fooled": torch.from_numpy(pool.fooled),
        "cost": torch.tensor([found.cost.forwards, found.cost.backwards]),
        "zero_gradient": torch.tensor(found.flags["zero_gradient"], dtype=torch.float64),
        "nan_gradient": torch.tensor(found.flags["nan_gradient"], dtype=torch.float64),
    }
    if pool.x_adv is not None:
        tensors["pool.x_adv"] = torch.from_numpy(np.ascontiguousarray(pool.x_adv))
    part = _Part(tensors, found.sources, pool.sources)
    if path is not None:
        write_atomic(path, part.pack(inputs=True, data=content_hash))
    return part


def _assemble(parts: list[_Part], rec: RandomizedEnsemble, place: Path | None) -> Survey:
    def joined(key: str) -> Tensor:
        return torch.cat([p.tensors[key] for p in parts])

    sizes = torch.tensor([len(p.tensors["risk"]) for p in parts], dtype=torch.float64)
    cost = torch.stack([p.tensors["cost"] for p in parts]).sum(dim=0)
    pools = [
        WitnessPool(
            len(p.tensors["risk"]),
            len(rec.members),
            p.tensors["pool.points"].numpy(),
            p.tensors["pool.fooled"].numpy(),
            x_adv=p.tensors["pool.x_adv"].numpy() if "pool.x_adv" in p.tensors else None,
            sources=p.pool_sources,
        )
        for p in parts
    ]
    flags = {
        key: (torch.stack([p.tensors[key] for p in parts]) * sizes.unsqueeze(1))
        .sum(dim=0)
        .div(sizes.sum())
        .tolist()
        for key in ("zero_gradient", "nan_gradient")
    }
    return Survey(
        joined("errors"),
        joined("risk"),
        joined("clean_errors"),
        joined("y"),
        WitnessPool.concat(pools),
        Cost(int(cost[0]), int(cost[1])),
        tuple(s for p in parts for s in p.sources),
        flags,
        place,
        joined("x_adv") if all("x_adv" in p.tensors for p in parts) else None,
    )


def _fingerprint(attack: Attack, rec: RandomizedEnsemble) -> dict[str, Any]:
    """What must be the same for an interrupted attack to be continued."""
    weights = b"".join(v.detach().cpu().contiguous().numpy().tobytes() for v in rec.state_dict().values())
    fields = [f.name for f in dataclasses.fields(attack) if f.name != "threat" and f.compare]
    options = {name: getattr(attack, name) for name in fields}
    return {
        "format": _FORMAT,
        "attack": attack.name,
        "options": options,
        "threat": attack.threat.to_dict(),
        "probs": rec.probs.tolist(),
        "members": sha256(weights),
    }


def place_of(parent: Path, attack: Attack, rec: RandomizedEnsemble, data: Any) -> Path:
    """A folder name that the same attack on the same ensemble and number of inputs finds again."""
    content = {"data": [getattr(data, "name", ""), getattr(data, "split", ""), _length(data)]}
    text = json.dumps({**_fingerprint(attack, rec), **content}, sort_keys=True)
    return parent / f"{attack.name}-{sha256(text.encode())[:12]}"


def _claim(place: Path, fingerprint: dict[str, Any]) -> None:
    """Make the folder this attack's own, or check that it is."""
    path = place / "attack.json"
    if not path.exists():
        # What a killed first call may have left under a temporary name is no content.
        if place.exists() and any(not p.name.startswith(".") for p in place.iterdir()):
            raise FileError(f"{place} is not empty and holds no attack; choose another folder")
        write_json(path, fingerprint)
        return
    before = read_json(path)
    for key, value in fingerprint.items():
        if before.get(key) != value:
            raise FileError(f"{place} holds another attack: {key} was {before.get(key)!r}, now {value!r}")


def _gather(parts: dict[int, _Part], inputs: bool) -> dict[int, _Part]:
    """Everybody's parts on every rank, as bytes in tensors."""
    numbers = sorted(parts)
    payloads = [parts[n].pack(inputs=inputs, number=str(n)) for n in numbers]
    packed = b"".join(len(p).to_bytes(8, "little") + p for p in payloads)
    mine = (
        torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        if packed
        else torch.zeros(0, dtype=torch.uint8)
    )
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)]))
    longest = max(int(s) for s in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(mine)] = mine
    received = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(received, padded)
    everything: dict[int, _Part] = {}
    for size, tensor in zip(sizes, received, strict=True):
        content, start = tensor.numpy().tobytes()[: int(size)], 0
        while start < len(content):
            length = int.from_bytes(content[start : start + 8], "little")
            part, metadata = _Part.unpack(content[start + 8 : start + 8 + length])
            everything[int(metadata["number"])] = part
            start += 8 + length
    return everything


def _length(data: Any) -> int | None:
    """How many inputs there are, where that can be known beforehand."""
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], Tensor):
        return len(data[0])
    if hasattr(data, "batches") and hasattr(data, "__len__"):
        return len(data)
    dataset = getattr(data, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else None
