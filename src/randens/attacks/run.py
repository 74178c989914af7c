"""An attack on a whole data set: batch after batch, on one process or several."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from randens.attacks.members import fast_members
from randens.attacks.result import AttackResult
from randens.attacks.search import Search
from randens.core.devices import settled
from randens.core.errors import InputError, shown
from randens.core.progress import Progress
from randens.ensemble import RandomizedEnsemble, frozen
from randens.witness import WitnessPool
from randens.witness.pool import as_rows

if TYPE_CHECKING:
    from randens.attacks.base import Attack


@contextlib.contextmanager
def attacking(rec: RandomizedEnsemble) -> Iterator[None]:
    """Members in eval mode and without gradients of parameters while they are attacked; restored afterwards."""
    with settled(), frozen(rec):
        yield


def run_batches(
    attack: Attack,
    rec: RandomizedEnsemble,
    data: Any,
    rows: ArrayLike | None = None,
    start: WitnessPool | None = None,
    progress: Progress | None = None,
    shared: bool = True,
) -> Iterator[tuple[NDArray[np.int64], AttackResult]]:
    """Yield each batch's rows and result; processes share a round's batches, unless the data are one's own."""
    size = len(data[1]) if isinstance(data, tuple) else len(data)
    chosen = np.arange(size) if rows is None else as_rows("rows", rows, size)
    if len(np.unique(chosen)) < len(chosen):
        raise InputError(f"rows is {shown(chosen)}; all must be different")
    if start is not None:
        _check_start(start, size, len(rec))
    parts = [chosen[i : i + attack.batch_size] for i in range(0, len(chosen), attack.batch_size)]
    processes, rank = (dist.get_world_size(), dist.get_rank()) if shared and dist.is_initialized() else (1, 0)
    members = None
    done = 0
    for first in range(0, len(parts), processes):
        group = parts[first : first + processes]
        found: list[AttackResult | None] = [None] * processes
        if rank < len(group):
            mine = group[rank]
            x, y = _batch(data, mine)
            with attacking(rec):
                members = members or fast_members(list(rec.members), x[:4].to(rec.device))
                own = {"seed": attack.seed, "index": mine.tolist(), "source": attack.name, "members": members}
                known = None if start is None else start.take(mine)
                s = Search(rec, x, y, attack.threat, **own, known=known)
                attack.search(s)
                found[rank] = s.result()
        if processes > 1:
            gathered: list[Any] = [None] * processes
            dist.all_gather_object(gathered, found[rank])
            found = gathered
        for part, result in zip(group, found, strict=False):
            assert result is not None
            done += len(part)
            if progress is not None:
                progress(attack.name, done, len(chosen))
            yield part, result


def _check_start(start: WitnessPool, size: int, members: int) -> None:
    if (start.n, start.members) != (size, members):
        raise InputError(
            f"start holds witnesses of {start.n} inputs and {start.members} members; there are {size} inputs and "
            f"{members} members"
        )
    if len(start) and start.x_adv is None:
        raise InputError("start holds witnesses without their perturbed inputs; give a pool that has them")


def _batch(data: Any, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Inputs and labels of some rows."""
    if isinstance(data, tuple):
        index = torch.from_numpy(rows)
        x, y = (part[index.to(part.device)] for part in data)
    else:
        x, y = data[rows]
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InputError(f"data gives {type(x).__name__} and {type(y).__name__}; it must give tensors (x, y)")
    if x.dim() < 2:
        raise InputError(f"x has shape {tuple(x.shape)}; it must be [n, ...], one row per input")
    # A tensor of inference mode cannot take part in autograd; its copy can.
    return (x.clone() if x.is_inference() else x), y
