"""The perturbation sets of the adversary: balls S = {δ : ‖δ‖_p ≤ ε, x + δ in the box}, and finite sets."""

from __future__ import annotations

import copy
import hashlib
import math
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from randens.core.devices import is_dense
from randens.core.errors import InputError, RandensWarning, number, shown, typed, unknown
from randens.data import check_range
from randens.region import Region, filled, norms

__all__ = ["FiniteThreat", "Threat", "grid", "norm_name", "number"]

_MOST_RADII = 1000
_FAR = 3e38  # values beyond it are infinite
_EVERYWHERE = -math.inf, math.inf
_NORMS = {"linf": (math.inf, 1.0), "l2": (2.0, 2.0), "l1": (1.0, math.inf)}
_SPELLINGS = {"∞": "linf", "inf": "linf", "infinity": "linf", "max": "linf"}
_SPELLINGS |= {"2": "l2", "2.0": "l2", "euclidean": "l2", "1": "l1", "1.0": "l1"}


def norm_name(norm: object) -> str:
    """The name that `Threat` uses for a norm, from its usual spellings; anything else comes back in small letters."""
    text = re.sub(r"[_\s-]", "", (norm if isinstance(norm, str) else shown(norm)).lower())
    return _SPELLINGS.get(text.removeprefix("l"), text)


def grid(name: str, value: Any) -> tuple[float, ...]:
    """Radii, increasing and without repeats: ``"0:8/255:5"`` (from, to, how many), ``"2/255,8/255"``, or a list."""
    example = "a range is first:last:count, e.g. 0:16/255:9"
    is_range = isinstance(value, str) and ":" in value
    found = value.split(":" if is_range else ",") if isinstance(value, str) else np.atleast_1d(value).tolist()
    try:
        radii = [number(name, one) for one in found]
    except InputError as error:
        raise InputError(f"{error}; {example}") from None
    if is_range:
        first, last, count = radii if len(radii) == 3 else (0, 0, 0)
        if not (first < last and 2 <= count <= _MOST_RADII):
            raise InputError(f"{name} is {shown(value)}; {example}, with a count from 2 to {_MOST_RADII}")
        radii = [first + (last - first) * i / (int(count) - 1) for i in range(int(count))]
    if not radii or min(radii) < 0:
        raise InputError(f"{name} is {shown(value)}; radii must be at least 0")
    return tuple(sorted(set(radii)))


def _expect_points(*points: Tensor) -> None:
    """Refuse what is no dense floating-point tensor [n, ...]."""
    for x in points:
        if not is_dense(x) or (x.dim() < 2 and x.numel()):
            raise InputError(f"x is a {type(x).__name__}; give dense tensors of inputs [n, ...]")
        if not x.is_floating_point():
            raise InputError(f"x has dtype {x.dtype}; inputs must be floating point, e.g. x.float() / 255")


def _per_input(values: Tensor, x: Tensor) -> Tensor:
    """One value for each input [n], in a shape that multiplies with inputs x [n, ...]."""
    return values.reshape((-1,) + (1,) * (x.dim() - 1))


@dataclass(frozen=True)
class Threat:
    """An lp ball of radius `eps` around the input within the box of valid inputs.

    Parameters
    ----------
    norm : str or float
        ``"linf"``, ``"l2"`` or ``"l1"``, in any usual spelling (``"Linf"``, ``numpy.inf``, ``2``).
    eps : float or str
        The radius, also as a fraction such as ``"8/255"``. In linf, more than half the width of the box warns and
        more than its whole width is refused: that is ε in 0..255 for images in [0, 1].
    bounds : (float, float) or None
        The smallest and largest valid input value; None leaves inputs unbounded (tabular features). The default
        fits images with values in [0, 1].

    Examples
    --------
    >>> threat = Threat("Linf", "8/255")
    >>> threat.norm, threat.eps == 8 / 255, threat.bounds
    ('linf', True, (0.0, 1.0))
    """

    norm: str
    eps: float
    bounds: tuple[float, float] | None = (0.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", norm_name(self.norm))
        if self.norm not in _NORMS:
            unknown("norm", self.norm, _NORMS)
        object.__setattr__(self, "eps", number("eps", self.eps))
        if self.eps <= 0:
            raise InputError(f"eps is {self.eps:g}; it must be > 0, e.g. 8/255")
        self._set_bounds()
        if self.bounds is not None and self.norm == "linf":
            # An ε in 0..255 for inputs in [0, 1] is a common mistake that makes every classifier look broken.
            low, high = self.bounds
            width = f"the width of the inputs' range [{low:g}, {high:g}]"
            if self.eps > (high - low) * (1 + 1e-9):
                raise InputError(f"eps is {self.eps:g}, more than {width}; did you mean {self.eps:g}/255?")
            if self.eps > (high - low) / 2:
                gray = f"eps is {self.eps:g}, more than half {width}; every pixel can become gray"
                warnings.warn(gray, RandensWarning, stacklevel=3)

    def _set_bounds(self) -> None:
        if self.bounds is not None:
            try:
                low, high = (number("bounds", b) for b in self.bounds)
            except (TypeError, ValueError):
                raise InputError(f"bounds is {shown(self.bounds)}; give (lowest, highest) or None") from None
            if not -_FAR <= low < high <= _FAR:
                raise InputError(
                    f"bounds is {shown(self.bounds)}; give (lowest, highest), both within ±{_FAR:g}"
                )
            object.__setattr__(self, "bounds", (low, high))

    @property
    def p(self) -> float:
        """The norm's exponent: inf, 2 or 1."""
        return _NORMS[self.norm][0]

    @property
    def q(self) -> float:
        """The dual exponent, 1/p + 1/q = 1: 1, 2 or inf."""
        return _NORMS[self.norm][1]

    def scaled(self, factor: float) -> Threat:
        """The same threat with `factor` times the radius."""
        return self.with_radius(self.eps * number("factor", factor))

    def with_radius(self, eps: float) -> Threat:
        """The same threat with another radius; a derived radius is not checked for being in 0..255."""
        other = copy.copy(self)
        object.__setattr__(other, "eps", number("eps", eps))
        return other

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The smallest radius [n] with which the set holds each perturbed input, in float64 and before the box."""
        _expect_points(x_adv, x)
        if not x[:1].numel():
            return torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return norms((x_adv.double() - x.double()).flatten(1), self.p)

    def contains(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Bool [n]: which perturbed inputs are legal, in float64 and without tolerance."""
        _expect_points(x_adv, x)
        low, high = self.bounds or _EVERYWHERE
        in_box = ((x_adv >= low) & (x_adv <= high)).flatten(1).all(dim=1)
        return in_box & (self.distance(x_adv, x) <= self.eps)

    def check(self, x: Tensor) -> None:
        """Refuse inputs that are not floating point, not finite, or outside the box."""
        _expect_points(x)
        if not bool(torch.isfinite(x).all()):
            raise InputError("x holds NaN or infinite values; inputs must be finite")
        check_range(x, self.bounds)

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """A legal point near `x_adv`, to the last float: the nearest, or for l2 scaled onto the ball, then clipped."""
        _expect_points(x_adv, x)
        if self.norm == "linf" or not x[:1].numel():
            return torch.clamp(x_adv, *self.interval(x))
        if self.norm == "l1":
            x_adv = self._nearest_l1(x_adv, x)
        return self._drawn_in(x_adv, x)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest value each coordinate may take (for l2 and l1, in the enclosing cube)."""
        # x ± ε is a sum of two floats in float64, of which the second is what rounding took from the first. As a float
        # of x's type it may lie outside the ball: step back inside.
        _expect_points(x)
        inward = torch.full_like(x, math.inf)
        (below, lost), (above, left) = (_two_sum(x.double(), eps) for eps in (-self.eps, self.eps))
        low, high = below.to(x.dtype), above.to(x.dtype)
        low = torch.where(low.double() - below < lost, torch.nextafter(low, inward), low)
        high = torch.where(high.double() - above > left, torch.nextafter(high, -inward), high)
        lowest, highest = self.bounds or _EVERYWHERE
        return low.clamp(min=lowest), high.clamp(max=highest)

    def _nearest_l1(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Return the nearest point of ball ∩ box for points outside, in float64 and then rounded."""
        outside = ~self.contains(x_adv, x)
        center = x[outside].double().flatten(1)
        low, high = self.bounds or _EVERYWHERE
        region = Region(low - center, high - center, self.eps, 1.0)
        near = region.project(x_adv[outside].double().flatten(1) - center)
        point = x_adv.clone()
        point[outside] = (center + near).to(x.dtype).reshape(x[outside].shape)
        return point

    def _drawn_in(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Scale towards x until the stored point is legal: completely for l2, by the rounding error for l1."""
        box = self.bounds or _EVERYWHERE
        point = x_adv.clamp(*box)
        # x + δ is rounded when it is stored, by at most this much in total: aim a little inside where needed.
        flat = x.detach().flatten(1)
        half_ulp = (flat.abs().amax(dim=1).double() + self.eps) * torch.finfo(x.dtype).eps / 2
        rounding = half_ulp * flat.shape[1] ** (1 / self.p)
        # A norm of d terms may come out smaller than it is by this much.
        radius = self.eps * (1 - (flat.shape[1] + 1) * 2.0**-52)
        for inward in (0.0, 0.1, 0.5, 2.0, 1e9):
            # The norm of the stored point, in float64.
            norm = torch.linalg.vector_norm((point.double() - x.double()).flatten(1), self.p, dim=1)
            outside = norm > radius
            if not bool(outside.any()):
                return point
            limit = (radius - inward * rounding).clamp_min(0)
            scale = _per_input(torch.where(outside, limit / norm, torch.ones_like(norm)).to(x.dtype), x)
            point = torch.where(_per_input(outside, x), (x + (point - x) * scale).clamp(*box), point)
        return torch.where(_per_input(self.contains(point, x), x), point, x)

    def random(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A random legal point for each input, uniform in the ball before the box is applied."""
        return self.project(self.noisy(x, generator), x)

    def noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A random point of the ball around each input, which the box does not cut off yet."""
        _expect_points(x)
        noise = torch.empty(x.shape, dtype=x.dtype, device="cpu")
        if self.norm == "linf":
            noise.uniform_(-self.eps, self.eps, generator=generator)
        elif self.norm == "l1":
            # Shares of exponential variables are uniform on the simplex; the one left over makes the ball full.
            noise.exponential_(generator=generator)
            total = noise.flatten(1).sum(dim=1) + noise.new_empty(len(x)).exponential_(generator=generator)
            signs = torch.randint(0, 2, x.shape, generator=generator, device="cpu") * 2 - 1
            noise = noise * signs * _per_input(self.eps / total, x)
        else:
            noise.normal_(generator=generator)
            dimension = max(1, x.shape[1:].numel())
            radius = noise.new_empty(len(x)).uniform_(generator=generator) ** (1.0 / dimension) * self.eps
            noise = noise * _per_input(radius / norms(noise.flatten(1), 2).clamp_min(1e-12), x)
        return x + noise.to(x.device)

    def steepest(self, gradient: Tensor) -> Tensor:
        """μ_p(g): the unit-norm direction along which a linear function with gradient g rises fastest."""
        if self.norm == "linf":
            return gradient.sign()
        if self.norm == "l1":
            flat = gradient.flatten(1)
            largest = flat.abs().argmax(dim=1, keepdim=True)
            unit = torch.zeros_like(flat).scatter_(1, largest, flat.gather(1, largest).sign())
            return unit.reshape(gradient.shape)
        length = norms(gradient.flatten(1), 2)
        return gradient / _per_input(length.where(length > 0, 1.0), gradient)

    def step(self, point: Tensor, gradient: Tensor, length: float | Tensor) -> Tensor:
        """point + the step of norm `length` (one, or [n]) that raises a linear function most; for l1 in the box."""
        size = _per_input(length, point) if isinstance(length, Tensor) else length
        if self.norm != "l1" or self.bounds is None:
            return point + size * self.steepest(gradient)
        flat, slope = point.flatten(1), gradient.flatten(1)
        room = torch.where(slope > 0, self.bounds[1] - flat, flat - self.bounds[0]).clamp_min(0.0)
        budget = length.reshape(-1, 1) if isinstance(length, Tensor) else length
        used = filled(slope.abs(), room, budget)
        return point + (slope.sign() * used).reshape(point.shape)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, read back by `from_dict`."""
        return {"norm": self.norm, "eps": self.eps, "bounds": list(self.bounds) if self.bounds else None}

    @staticmethod
    @typed(value=Mapping)
    def from_dict(value: Mapping[str, Any]) -> Threat:
        """Inverse of `to_dict`."""
        if value.get("norm") == "finite":
            raise InputError("threat is a finite set, whose functions no file holds; evaluate it again")
        found = Threat(value.get("norm", ""), 1e-9, value.get("bounds"))
        if (eps := number("eps", value.get("eps"))) < 0:
            raise InputError(f"eps is {eps:g}; it must be ≥ 0, e.g. 8/255")
        return found.with_radius(eps)


@dataclass(frozen=True, repr=False)
class FiniteThreat(Threat):
    """A finite set of perturbations: an input stays as it is, or one of the functions transforms it.

    All of them are tried, so risks, probabilities and the theorems' conditions are exact, for any network.

    Parameters
    ----------
    transforms : sequence of callable
        Each maps inputs [n, ...] to inputs of the same shape, one by one and without chance: shifts, rotations,
        corruptions, patches. The identity is always in the set and need not be given.
    bounds : (float, float) or None
        As for `Threat`.

    Examples
    --------
    >>> threat = FiniteThreat([lambda x: x.roll(1, dims=-1), torch.zeros_like])
    >>> threat.names  # for randens.evaluate(models, data, threat=threat)
    ('identity', 'transform 0', 'zeros_like')
    """

    norm: str = field(default="finite", init=False)
    eps: float = field(default=0.0, init=False)
    bounds: tuple[float, float] | None = field(default=(0.0, 1.0), kw_only=True)
    transforms: Sequence[Callable[[Tensor], Tensor]]
    # What the functions make of the inputs; a word of its own for a set that has met none (see `on`).
    key: str = field(default_factory=secrets.token_hex, init=False, compare=False)

    def __post_init__(self) -> None:
        given = self.transforms
        if not isinstance(given, Sequence) or not given or not all(map(callable, given)):
            raise InputError(f"transforms is {given!r:.100}; give a list of functions of a tensor")
        object.__setattr__(self, "transforms", tuple(given))
        self._set_bounds()

    @property
    def names(self) -> tuple[str, ...]:
        """What to call the identity and the functions."""
        own = [getattr(transform, "__name__", "") for transform in self.transforms]
        clear = {name for name in own if name.isidentifier() and own.count(name) == 1} - {"identity"}
        return "identity", *(name if name in clear else f"transform {i}" for i, name in enumerate(own))

    def __repr__(self) -> str:
        return f"FiniteThreat({', '.join(self.names)}; bounds={self.bounds}, key={self.key})"

    def points(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What each function makes of inputs x [n, ...], with its name; the identity is left out."""
        for name, transform in zip(self.names[1:], self.transforms, strict=True):
            half = x[len(x) // 2 :]
            try:
                with torch.no_grad():
                    # Copies: a function may change its argument.
                    made, again = (transform(part.detach().clone().contiguous()) for part in (x, half))
            except Exception as error:
                reason = " ".join(str(error).split())[:160] or type(error).__name__
                raise InputError(f"transforms: {name} fails on shape {tuple(x.shape)}: {reason}") from error
            if not isinstance(made, Tensor) or made.shape != x.shape or made.dtype != x.dtype:
                kind = (
                    f"{made.dtype} {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
                )
                raise InputError(f"transforms: {name} makes {kind} of {x.dtype} {tuple(x.shape)}; keep both")
            low, high = self.bounds or (-_FAR, _FAR)
            if not bool(((made >= low) & (made <= high)).all()):
                raise InputError(
                    f"transforms: {name} leaves the bounds [{low:g}, {high:g}]; clamp what it makes"
                )
            if half.shape != again.shape or not _close(made[len(x) // 2 :], again).all():
                raise InputError(f"transforms: {name} must work without chance, and on each input for itself")
            yield name, made

    def on(self, x: Tensor) -> FiniteThreat:
        """The same set with a key that says what it makes of inputs x, which two of its functions must not agree on."""
        _expect_points(x)
        marks = {name: hashlib.sha256() for name in self.names}
        for part in torch.split(x, 256):
            for name, points in (("identity", part), *self.points(part)):
                marks[name].update(points.cpu().contiguous().numpy().tobytes())
        seen: dict[str, str] = {}
        for name, mark in marks.items():
            twin = seen.setdefault(mark.hexdigest(), name)
            if twin != name:
                raise InputError(f"transforms: {name} makes the same of every input as {twin}; leave one out")
        other = copy.copy(self)
        object.__setattr__(other, "key", hashlib.sha256("".join(seen).encode()).hexdigest())
        return other

    def with_radius(self, eps: float) -> Threat:
        """Refuse: a finite set has no radius."""
        raise InputError(f"threat is a finite set, which has no radius (here {eps:g}); evaluate it as it is")

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """0 [n] for inputs that the set holds, up to rounding, infinite for others."""
        found = _close(x_adv, x)
        for _, points in self.points(x):
            found |= _close(x_adv, points)
        return torch.where(found, 0.0, math.inf).double()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; the functions are named only, so it cannot be read back."""
        return {"norm": self.norm, "transforms": self.names, "bounds": self.bounds, "key": self.key}


def _two_sum(x: Tensor, y: float) -> tuple[Tensor, Tensor]:
    """x + y as it is rounded, and what rounding took from it, exactly (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _close(one: Tensor, two: Tensor) -> Tensor:
    """Bool [n]: which points are the same up to rounding."""
    return torch.isclose(one, two, rtol=1e-5, atol=1e-6).flatten(1).all(dim=1)
