"""Arrays of the theory: sets of fooled members as masks, bit i for member i, and checks of probabilities and risks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, number, shown, whole

MAX_MEMBERS = 64
"""A mask is one 64-bit word."""

Masks = NDArray[np.uint64]

_ROUNDING = 1e-12  # of sums of probabilities
_SHARE_ROUNDING = 1e-9  # sums of shares end at 1 + 2e-16 at times
_SUM_TOLERANCE = 1e-6  # probabilities typed by hand or stored as float32 rarely sum to exactly 1
_EXACT = 1e-11
_BYTE_BITS = ((np.arange(256)[:, None] >> np.arange(8)) & 1).astype(np.int64)


def pack(fooled: NDArray[np.bool_]) -> Masks:
    """Masks [k] of the rows of a boolean matrix [k, M]."""
    count, members = fooled.shape
    if members > MAX_MEMBERS:
        raise InputError(f"an ensemble may have at most {MAX_MEMBERS} members, got {members}")
    padded = np.zeros((count, 8), dtype=np.uint8)
    packed = np.packbits(fooled, axis=1, bitorder="little")
    padded[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(padded).view("<u8").reshape(count).astype(np.uint64)


def unpack(masks: Masks, members: int) -> NDArray[np.bool_]:
    """Boolean matrix [k, M] of masks [k]: the inverse of `pack`."""
    octets = np.ascontiguousarray(masks, dtype="<u8").view(np.uint8).reshape(-1, 8)
    return np.unpackbits(octets, axis=1, count=members, bitorder="little").astype(np.bool_)


def weigh(masks: Masks, values: NDArray[Any]) -> NDArray[Any]:
    """u·values for every mask, in the type of `values`: a look-up in 256 partial sums per eight members."""
    total = np.zeros(masks.shape, dtype=values.dtype)
    for first in range(0, len(values), 8):
        part = values[first : first + 8]
        table = _BYTE_BITS[:, : len(part)].astype(values.dtype) @ part
        total += table[(masks >> np.uint64(first)) & np.uint64(255)]
    return total


def segment_argmax(values: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first row of every segment values[starts[k]:starts[k+1]] that has its largest value."""
    best = np.maximum.reduceat(values, starts[:-1])
    rows = np.flatnonzero(values == np.repeat(best, np.diff(starts)))
    return rows[np.searchsorted(rows, starts[:-1])]


def maximal_rows(points: NDArray[np.int64], bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Rows, ascending, of the sets [k, W] (eight members a byte) that no other of their point contains; never empty."""
    sizes = _BYTE_BITS.sum(axis=1)[bits].sum(axis=1)
    order = np.lexsort((-sizes, points))
    order = order[sizes[order] > 0]
    kept = []
    while len(order):
        mine, sets = points[order], bits[order]
        leads = np.concatenate([[True], mine[1:] != mine[:-1]])
        kept.append(order[leads])
        leader = sets[leads][np.cumsum(leads) - 1]
        order = order[((sets & leader) != sets).any(axis=1)]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)


def maximal(points: NDArray[np.int64], masks: Masks, n: int) -> tuple[NDArray[np.int64], Masks]:
    """Per point, the sets that no other contains, sorted by point and mask; without any, the empty one."""
    octets = np.ascontiguousarray(masks, dtype="<u8").view(np.uint8).reshape(-1, 8)
    rows = maximal_rows(points, octets)
    left_out = np.setdiff1d(np.arange(n, dtype=np.int64), points[rows])
    points = np.concatenate([points[rows], left_out])
    masks = np.concatenate([masks[rows], np.zeros(len(left_out), dtype=np.uint64)])
    order = np.lexsort((masks, points))
    return points[order], masks[order]


def group(
    points: NDArray[np.int64], masks: Masks, weights: NDArray[np.float64]
) -> tuple[Masks, NDArray[np.int64], NDArray[np.float64]]:
    """Merge points with identical sets, sorted: masks, segment starts [K+1], summed weights [K], in canonical order."""
    n = len(weights)
    lengths = np.bincount(points, minlength=n)
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    all_masks, all_lengths, all_weights = [], [], []
    for length in np.unique(lengths):
        mine = np.flatnonzero(lengths == length)
        rows = masks[firsts[mine][:, None] + np.arange(length)]
        order = np.lexsort(rows.T[::-1])
        rows = rows[order]
        new = np.concatenate([[True], (rows[1:] != rows[:-1]).any(axis=1)])
        all_masks.append(rows[new].ravel())
        all_lengths.append(np.full(int(new.sum()), length, dtype=np.int64))
        all_weights.append(np.bincount(np.cumsum(new) - 1, weights=weights[mine][order]))
    starts = np.concatenate([[0], np.cumsum(np.concatenate(all_lengths))]).astype(np.int64)
    return np.concatenate(all_masks), starts, np.concatenate(all_weights)


def coverage(
    masks: Masks, starts: NDArray[np.int64], values: NDArray[np.float64], most: int | float
) -> NDArray[np.float64]:
    """For every segment, the largest value [K] of a union of at most `most` of its masks."""
    lengths = np.diff(starts)
    best = weigh(np.bitwise_or.reduceat(masks, starts[:-1]), values)
    for k in np.flatnonzero(lengths > most):
        best[k] = _largest_union(masks[starts[k] : starts[k + 1]], values, int(most))
    return best


def _largest_union(masks: Masks, values: NDArray[np.float64], most: int) -> float:
    """Maximum coverage by exhaustive search; what masks add to a union is at most the sum of what each adds alone."""
    union, best = np.uint64(0), 0.0
    for _ in range(most):  # the greedy choice is a good union to begin with
        union = union | masks[int(np.argmax(weigh(masks & ~union, values)))]
    best = float(weigh(np.array([union]), values)[0])
    unions = np.unique(masks)
    for left in range(most - 1, 0, -1):
        added = np.sort(weigh(masks & ~unions[:, None], values), axis=1)[:, -left:].sum(axis=1)
        unions = unions[weigh(unions, values) + added > best + _ROUNDING]
        if not len(unions):
            break
        unions = np.unique(unions[:, None] | masks)
        best = max(best, float(weigh(unions, values).max()))
    return best


def to_words(fooled: NDArray[np.bool_]) -> list[str]:
    """One string of zeros and ones per row of [k, M], member 0 first: sets as text for JSON."""
    text, members = (fooled.astype(np.uint8) + ord("0")).tobytes().decode("ascii"), fooled.shape[1]
    return [text[i : i + members] for i in range(0, len(text), members)]


def from_words(document: str, words: Sequence[object], members: int) -> NDArray[np.bool_]:
    """Boolean matrix [k, M] of the strings; `document` is named if one of them is not a set."""
    for word in words:
        if not isinstance(word, str) or len(word) != members or not set(word) <= {"0", "1"}:
            raise InputError(f"{document} holds the set {word!r}; a set is {members} characters, each 0 or 1")
    text = "".join(str(word) for word in words).encode("ascii")
    bits: NDArray[np.bool_] = np.frombuffer(text, dtype=np.uint8) == ord("1")
    return bits.reshape(len(words), members)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Make the array read-only and return it, because value objects must not change."""
    array.setflags(write=False)
    return array


def as_vector(
    name: str, value: ArrayLike, length: int | None = None, of: str = "member"
) -> NDArray[np.float64]:
    """A fresh one-dimensional, non-empty float vector, with one value for each of `length` members."""
    try:
        vector = np.array(np.asarray(value), dtype=np.float64)  # tensors warn if copied at once
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(f"{name} must be a list of numbers, got {shown(value)}") from error
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(f"{name} must be a non-empty list of numbers, got {shown(value)}")
    if length is not None and len(vector) != length:
        raise InputError(f"{name} has {len(vector)} values; expected one for each {of}, {length}")
    return vector


def as_risks(name: str, value: ArrayLike, members: int | None = None) -> NDArray[np.float64]:
    """Risks, one per member, each in [0, 1] up to rounding."""
    risks = as_vector(name, value, members)
    for i, risk in enumerate(risks):
        if not -_SHARE_ROUNDING <= risk <= 1.0 + _SHARE_ROUNDING:
            raise InputError(f"{name}[{i}] is {risk:.12g}; a risk must lie in [0, 1]")
    return risks.clip(0.0, 1.0)


def as_probs(
    value: ArrayLike, length: int | None = None, name: str = "probs", of: str = "member"
) -> NDArray[np.float64]:
    """A point of the simplex: non-negative, summing to 1 within 1e-6; sums off by more than rounding are scaled."""
    probs = as_vector(name, value, length, of)
    for i, p in enumerate(probs):
        if not 0 <= p <= 1 + _SUM_TOLERANCE:
            raise InputError(f"{name}[{i}] is {p:g}; it must lie in [0, 1]")
    total = math.fsum(probs.tolist())
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise InputError(f"{name} has the sum {total:.9g}; it must be 1")
    # Others are kept bit by bit, so that they survive a round trip through JSON.
    return probs / total if abs(total - 1.0) > _EXACT else probs


def as_attempts(value: Any) -> int | float:
    """How often an attacker may try: a whole number of at least 1, or inf."""
    if isinstance(value, float) and value == math.inf:
        return value
    return whole("attempts", value, why=", or inf")


def as_number(name: str, value: object, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number strictly between `low` and `high`."""
    found = number(name, value)
    if not low < found < high:
        limits = f"above {low:g}" + (f" and below {high:g}" if high < math.inf else "")
        raise InputError(f"{name} is {shown(value)}; it must be a number {limits}")
    return found
