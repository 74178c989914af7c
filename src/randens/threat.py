"""The perturbation set S = {δ : ‖δ‖_p ≤ ε, x + δ in the box} of the adversary."""

from __future__ import annotations

import copy
import math
import numbers
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from randens.core.errors import InputError, RandensWarning, number, unknown
from randens.core.tensors import norms

__all__ = ["Region", "Threat", "grid", "norm_name", "number"]

_MOST_RADII = 1000
_FAR = 3e38  # times a slope: beyond every bound
_NORMS = {"linf": (math.inf, 1.0), "l2": (2.0, 2.0), "l1": (1.0, math.inf)}
_SPELLINGS = {
    "inf": "linf",
    "infinity": "linf",
    "max": "linf",
    "2": "l2",
    "euclidean": "l2",
    "1": "l1",
}


def norm_name(norm: object) -> str:
    """The name that `Threat` uses for a norm, from its usual spellings; anything else comes back in small letters.

    >>> norm_name("Linf"), norm_name(float("inf")), norm_name("L_2"), norm_name(2)
    ('linf', 'linf', 'l2', 'l2')
    """
    if isinstance(norm, numbers.Real) and not isinstance(norm, bool):
        value = float(norm)
        text = "inf" if value == math.inf else f"{value:g}"
    else:
        text = str(norm).strip().lower()
        for sign in "_- ∞":
            text = text.replace(sign, "inf" if sign == "∞" else "")
    plain = text[1:] if text.startswith("l") and text[1:] in _SPELLINGS else text
    return _SPELLINGS.get(plain, text)


def grid(name: str, value: object) -> tuple[float, ...]:
    """Radii in increasing order, without repeats: from ``"first:last:count"``, or from numbers and fractions in a list
    or between commas. `name` is what to call them in an error.

    >>> grid("eps", "0:8/255:3") == (0.0, 4 / 255, 8 / 255)
    True
    >>> grid("eps", ["8/255", 0])[0]
    0.0
    """
    if isinstance(value, str) and ":" in value:
        ends = value.split(":")
        if len(ends) != 3 or not 2 <= number(name, ends[2]) <= _MOST_RADII:
            raise InputError(
                f"{name} is {value!r}; it must be first:last:count, count from 2 to {_MOST_RADII}, e.g. 0:16/255:9"
            )
        first, last, count = number(name, ends[0]), number(name, ends[1]), int(number(name, ends[2]))
        if not first < last:
            raise InputError(f"{name} is {value!r}; the first radius must be below the last")
        found = [first + (last - first) * i / (count - 1) for i in range(count)]
    else:
        try:
            parts = value.split(",") if isinstance(value, str) else list(value)  # type: ignore[call-overload]
        except TypeError:  # a number, or an array without dimensions
            parts = [value]
        found = [number(name, part) for part in parts]
    if not found or min(found) < 0 or not all(map(math.isfinite, found)):
        raise InputError(f"{name} is {value!r}; radii must be finite numbers ≥ 0, e.g. 0:16/255:9")
    return tuple(sorted(set(found)))


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
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise InputError(f"eps is {self.eps:g}; it must be finite and > 0, e.g. 8/255")
        if self.bounds is not None:
            try:
                low, high = (float(b) for b in self.bounds)
            except (TypeError, ValueError):
                raise InputError(f"bounds is {self.bounds!r}; give (lowest, highest) or None") from None
            if not low < high:
                raise InputError(f"bounds is {self.bounds!r}; the first value must be below the second")
            object.__setattr__(self, "bounds", (low, high))
            if self.norm == "linf":
                self._check_radius(low, high)

    def _check_radius(self, low: float, high: float) -> None:
        """Check for an ε in 0..255 for inputs in [0, 1], a common mistake that makes every classifier look broken."""
        if self.eps > (high - low) * (1 + 1e-9):
            raise InputError(
                f"eps is {self.eps:g}; inputs lie in [{low:g}, {high:g}], so that every input could become any other: "
                f"did you mean {self.eps:g}/255?"
            )
        if self.eps > (high - low) / 2:
            warnings.warn(
                f"eps is {self.eps:g}, more than half the width of the inputs' range [{low:g}, {high:g}]; every pixel "
                "can become gray",
                RandensWarning,
                stacklevel=4,
            )

    @property
    def p(self) -> float:
        """The norm's exponent: inf, 2 or 1."""
        return _NORMS[self.norm][0]

    @property
    def q(self) -> float:
        """The dual exponent, 1/p + 1/q = 1: 1, 2 or inf."""
        return _NORMS[self.norm][1]

    def l2_radius(self, dimension: int) -> float:
        """The largest l2 norm of a perturbation of `dimension` coordinates (before the box)."""
        return self.eps * math.sqrt(dimension) if self.norm == "linf" else self.eps

    def scaled(self, factor: float) -> Threat:
        """The same threat with `factor` times the radius."""
        return self.with_radius(self.eps * factor)

    def with_radius(self, eps: float) -> Threat:
        """The same threat with another radius; a derived radius is not checked for being in 0..255."""
        other = copy.copy(self)
        object.__setattr__(other, "eps", float(eps))
        return other

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The smallest radius [n] with which the set holds each perturbed input, in float64 and before the box."""
        if not x[:1].numel():
            return torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return norms((x_adv.double() - x.double()).flatten(1), self.p)

    def contains(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Bool [n]: which perturbed inputs are legal, in float64 and without tolerance."""
        legal = self.distance(x_adv, x) <= self.eps
        if self.bounds is not None:
            low, high = self.bounds
            flat = x_adv.flatten(1)
            legal &= ((flat >= low) & (flat <= high)).all(dim=1)
        return legal

    def check(self, x: Tensor) -> None:
        """Refuse inputs that are not floating point, not finite, or outside the box."""
        if not x.is_floating_point():
            raise InputError(
                f"x has dtype {x.dtype}; inputs must be floating point, e.g. x.float() / 255 for images in 0..255"
            )
        if not bool(torch.isfinite(x).all()):
            raise InputError("x holds NaN or infinite values; inputs must be finite")
        if self.bounds is not None and x.numel():
            low, high = self.bounds
            smallest, largest = float(x.min()), float(x.max())
            if smallest < low or largest > high:
                raise InputError(
                    f"x ranges over [{smallest:g}, {largest:g}]; the threat's bounds are [{low:g}, {high:g}]"
                    " (scale the inputs, or give Threat(bounds=...))"
                )

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """A legal point near `x_adv`: inside ball and box to the last float, for every input.

        linf and l1: the nearest legal point. l2: scaled back onto the ball, then clipped to the box, which
        moves each coordinate towards x and so never leaves the ball again.
        """
        if self.norm == "linf":
            return torch.clamp(x_adv, *self.interval(x))
        if self.norm == "l1":
            x_adv = self._nearest_l1(x_adv, x)
        return self._drawn_in(x_adv, x)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest value each coordinate may take (for l2 and l1, in the enclosing cube)."""
        # In float64, as ε itself is no float32; x ± ε then rounds to the nearest float, which may lie outside
        # the ball: step back inside.
        exact = x.double()
        low, high = (exact - self.eps).to(x.dtype), (exact + self.eps).to(x.dtype)
        inward = torch.full_like(x, math.inf)
        low = torch.where(exact - low.double() > self.eps, torch.nextafter(low, inward), low)
        high = torch.where(high.double() - exact > self.eps, torch.nextafter(high, -inward), high)
        if self.bounds is not None:
            low, high = low.clamp(min=self.bounds[0]), high.clamp(max=self.bounds[1])
        return low, high

    def _nearest_l1(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Return the nearest point of ball ∩ box for points outside, in float64 and then rounded."""
        outside = ~self.contains(x_adv, x)
        if not bool(outside.any()):
            return x_adv
        center = x[outside].double().flatten(1)
        low, high = torch.full_like(center, -math.inf), torch.full_like(center, math.inf)
        if self.bounds is not None:
            low, high = self.bounds[0] - center, self.bounds[1] - center
        delta = x_adv[outside].double().flatten(1) - center
        near = Region(low, high, self.eps, 1.0).project(delta)
        point = x_adv.clone()
        point[outside] = (center + near).to(x.dtype).reshape(x[outside].shape)
        return point

    def _drawn_in(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Scale towards x until the stored point is legal: completely for l2, by the rounding error for l1."""
        point = self._boxed(x_adv)
        if not x.numel():
            return point
        # x + δ is rounded when it is stored, by at most this much in total: aim a little inside where needed.
        flat = x.detach().flatten(1)
        half_ulp = (flat.abs().amax(dim=1).double() + self.eps) * torch.finfo(x.dtype).eps / 2
        rounding = half_ulp * flat.shape[1] ** (1 / self.p)
        for inward in (0.0, 0.1, 0.5, 2.0):
            # The norm of the stored point, in float64.
            norm = torch.linalg.vector_norm((point.double() - x.double()).flatten(1), self.p, dim=1)
            # A sum of d terms may come out smaller than it is by this much.
            outside = norm > self.eps * (1 - flat.shape[1] * 2.0**-52 * (self.norm == "l1"))
            if not bool(outside.any()):
                return point
            limit = (self.eps - inward * rounding).clamp_min(0)
            scale = _per_input(torch.where(outside, limit / norm, torch.ones_like(norm)).to(x.dtype), x)
            point = torch.where(_per_input(outside, x), self._boxed(x + (point - x) * scale), point)
        return torch.where(_per_input(self.contains(point, x), x), point, x)

    def _boxed(self, x: Tensor) -> Tensor:
        return x if self.bounds is None else x.clamp(*self.bounds)

    def random(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A random legal point for each input, uniform in the ball before the box is applied."""
        return self.project(self.noisy(x, generator), x)

    def noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A random point of the ball around each input, which the box does not cut off yet."""
        noise = torch.empty(x.shape, dtype=x.dtype)
        if self.norm == "linf":
            noise.uniform_(-self.eps, self.eps, generator=generator)
        elif self.norm == "l1":
            # Shares of exponential variables are uniform on the simplex; the one left over makes the ball full.
            noise.exponential_(generator=generator)
            total = noise.flatten(1).sum(dim=1) + torch.empty(len(x)).exponential_(generator=generator)
            signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
            noise = noise * signs * _per_input(self.eps / total, x)
        else:
            noise.normal_(generator=generator)
            dimension = max(1, x[0].numel()) if len(x) else 1
            radius = torch.rand(len(x), generator=generator, dtype=x.dtype) ** (1.0 / dimension) * self.eps
            norms = torch.linalg.vector_norm(noise.flatten(1), dim=1).clamp_min(1e-12)
            noise = noise * _per_input(radius / norms, x)
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
        norms = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
        safe = torch.where(norms > 0, norms, torch.ones_like(norms))
        return gradient / _per_input(safe, gradient)

    def step(self, point: Tensor, gradient: Tensor, length: float | Tensor) -> Tensor:
        """point + the step of norm `length` along which a linear function with this gradient rises fastest.

        For l1 that is in the intersection with the box: a coordinate takes no more than its room, and the next best
        one takes the rest. length: a number, or one for every input [n].
        """
        size = _per_input(length, point) if isinstance(length, Tensor) else length
        if self.norm != "l1" or self.bounds is None:
            return point + size * self.steepest(gradient)
        flat, slope = point.flatten(1), gradient.flatten(1)
        room = torch.where(slope > 0, self.bounds[1] - flat, flat - self.bounds[0]).clamp_min(0.0)
        budget = length.reshape(-1, 1) if isinstance(length, Tensor) else length
        used = _filled(slope.abs(), room * (slope != 0), budget)
        return point + (slope.sign() * used).reshape(point.shape)

    def dual_norm(self, gradient: Tensor) -> Tensor:
        """‖g‖_q per input: how much a linear function with gradient g changes per unit of ε."""
        return norms(gradient.flatten(1), self.q)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, read back by `from_dict`."""
        return {"norm": self.norm, "eps": self.eps, "bounds": list(self.bounds) if self.bounds else None}

    @staticmethod
    def from_dict(value: Mapping[str, Any]) -> Threat:
        """Inverse of `to_dict`."""
        bounds = value.get("bounds")
        found = Threat(value["norm"], 1e-9, tuple(bounds) if bounds is not None else None)
        eps = number("eps", value["eps"])
        if not (math.isfinite(eps) and eps > 0):
            raise InputError(f"eps is {eps:g}; it must be finite and > 0, e.g. 8/255")
        return found.with_radius(eps)


@dataclass(frozen=True)
class Region:
    """The perturbation sets of n inputs in coordinates of δ: low ≤ δ ≤ high [n, d], and ‖δ‖_p ≤ radius if there is one.

    p is 2 or 1. This class computes the smallest value of a linear function over ball ∩ box.
    """

    low: Tensor
    high: Tensor
    radius: float | None = None
    p: float = 2.0

    @staticmethod
    def around(x: Tensor, threat: Threat) -> Region:
        """The perturbation sets of `threat` at inputs x [n, ...], in the precision of x."""
        flat = x.flatten(1)
        low, high = torch.full_like(flat, -threat.eps), torch.full_like(flat, threat.eps)
        if threat.bounds is not None:
            low = torch.maximum(low, threat.bounds[0] - flat).clamp(max=0.0)
            high = torch.minimum(high, threat.bounds[1] - flat).clamp(min=0.0)
        return Region(low, high, None if threat.norm == "linf" else threat.eps, threat.p)

    def __getitem__(self, rows: Tensor | slice) -> Region:
        """The sets of some of the inputs; a row may be taken several times."""
        return Region(self.low[rows], self.high[rows], self.radius, self.p)

    def near(self, delta: Tensor, reach: float | Tensor) -> Region:
        """Return the region restricted to points within `reach` of `delta` [n, d] in every coordinate."""
        low, high = torch.maximum(self.low, delta - reach), torch.minimum(self.high, delta + reach)
        return Region(low, high, self.radius, self.p)

    def project(self, delta: Tensor) -> Tensor:
        """The nearest point for linf and l1; scaled onto the ball and clipped for l2; [..., d]."""
        if self.radius is not None and self.p == 1:
            return self._project_l1(delta)
        if self.radius is not None:
            norm = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
            delta = delta * (self.radius / norm.clamp_min(self.radius))
        return self._clip(delta)

    def lowest(self, slope: Tensor, start: Tensor | None = None) -> Tensor:
        """The δ [n, d] at which slope·δ is smallest; slope [n, d]. Where the slope is 0, it is `start` [n, d], or 0.

        With a ball it is clip(−s·slope) for the s that uses up the radius: coordinates that hit the box leave their
        share of the radius to the others. s is found by bisection. With an l1 ball the steepest coordinates are filled
        one after another.
        """
        start = torch.zeros_like(slope) if start is None else start
        if self.radius is None:
            return self._clip(torch.add(start, slope, alpha=-_FAR))
        if self.p == 1:
            found = -slope.sign() * _filled(slope.abs(), self._room(slope), self.radius)
        else:
            found = self._clip(-self._stretch(slope) * _unit(slope))
        return torch.where(slope == 0, start, found)

    def minimum(self, slope: Tensor) -> Tensor:
        """A lower bound [n] on min slope·δ that never exceeds it: the minimum itself for linf, up to rounding for l2.

        Every multiplier μ ≥ 0 of the ball gives a valid bound, min over the box of slope·δ + μ/2·(‖δ‖² − radius²);
        the μ that belongs to `lowest` gives the best one.
        """
        cheap = self.floor(slope)
        if self.radius is None:
            return cheap
        if self.p == 1:
            # Valid for every μ ≥ 0: min over the box of slope·δ + μ(‖δ‖₁ − radius). Best: where `lowest` stops.
            size, room = slope.abs(), self._room(slope)
            order = size.argsort(dim=1, descending=True)
            spent = room.gather(1, order).cumsum(dim=1)
            stop = (spent < self.radius).sum(dim=1, keepdim=True)
            ordered = torch.cat([size.gather(1, order), torch.zeros_like(size[:, :1])], dim=1)
            mu = ordered.gather(1, stop)
            part = torch.where(size > mu, (size - mu) * room, torch.zeros_like(size))
            return torch.maximum(cheap, -part.sum(dim=1) - mu.squeeze(1) * self.radius)
        stretch = self._stretch(slope)
        delta = self._clip(-stretch * _unit(slope))
        mu = torch.linalg.vector_norm(slope, dim=1) / stretch.squeeze(1)
        dual = (slope * delta).sum(dim=1) + mu / 2 * (delta.square().sum(dim=1) - self.radius**2)
        return torch.maximum(cheap, dual)

    def floor(self, slope: Tensor) -> Tensor:
        """A cheap lower bound [...] on min slope·δ, slope [..., d], over the box or the ball alone; exact for linf."""
        in_box = torch.minimum(slope * self.low, slope * self.high).sum(dim=-1)
        if self.radius is None:
            return in_box
        dual = math.inf if self.p == 1 else 2.0
        return torch.maximum(in_box, -self.radius * norms(slope, dual))

    def _stretch(self, slope: Tensor) -> Tensor:
        """The largest s [n, 1], to rounding, with ‖clip(−s·unit slope)‖ ≤ radius."""
        assert self.radius is not None
        unit = _unit(slope)
        short = torch.full_like(unit[:, :1], self.radius)
        long = short / unit.abs().masked_fill(unit == 0, torch.inf).amin(dim=1, keepdim=True).clamp(1e-6, 1.0)
        for _ in range(40):
            middle = (short * long).sqrt()
            inside = torch.linalg.vector_norm(self._clip(-middle * unit), dim=1, keepdim=True) <= self.radius
            short, long = torch.where(inside, middle, short), torch.where(inside, long, middle)
        return short

    def _room(self, slope: Tensor) -> Tensor:
        """How far each coordinate may go against the slope [n, d]."""
        return torch.where(slope > 0, -self.low, self.high).clamp_min(0.0) * (slope != 0)

    def _project_l1(self, delta: Tensor) -> Tensor:
        """The nearest point of l1 ball ∩ box: every |δ_i| loses the same λ, between 0 and its room.

        What is left, Σ_i clip(|δ_i| − λ, 0, room_i), is piecewise linear in λ; its kinks are sorted, and the piece in
        which it equals the radius is solved.
        """
        assert self.radius is not None
        size = delta.abs()
        room = torch.where(delta > 0, self.high, -self.low).clamp_min(0.0)
        begin = (size - room).clamp_min(0.0)
        whole = torch.minimum(size, room).sum(dim=-1, keepdim=True)
        kinks = torch.cat([begin, size], dim=-1)
        order = kinks.argsort(dim=-1)
        places = kinks.gather(-1, order)
        slopes = torch.where(order < size.shape[-1], -1.0, 1.0).to(size.dtype).cumsum(dim=-1)
        ahead = torch.diff(places, dim=-1)
        left = torch.cat([whole, whole + (slopes[..., :-1] * ahead).cumsum(dim=-1)], dim=-1)
        # The last kink at which there is still too much; where there is none, nothing is taken.
        index = ((left > self.radius).sum(dim=-1, keepdim=True) - 1).clamp_min(0)
        slope = slopes.gather(-1, index).clamp(max=-1.0)
        cut = places.gather(-1, index) + (left.gather(-1, index) - self.radius) / -slope
        cut = torch.where(whole > self.radius, cut, torch.zeros_like(cut))
        return delta.sign() * torch.minimum((size - cut).clamp_min(0.0), room)

    def _clip(self, delta: Tensor) -> Tensor:
        return torch.clamp(delta, self.low, self.high)


def _filled(gain: Tensor, room: Tensor, budget: float | Tensor) -> Tensor:
    """Distribute a budget over the coordinates, [n, d]: the largest gains first, each up to its limit."""
    order = gain.argsort(dim=1, descending=True)
    wanted = room.gather(1, order)
    before = wanted.cumsum(dim=1) - wanted
    taken = torch.minimum(wanted, (budget - before).clamp_min(0.0))
    return torch.zeros_like(room).scatter_(1, order, taken)


def _unit(slope: Tensor) -> Tensor:
    return slope / torch.linalg.vector_norm(slope, dim=1, keepdim=True).clamp_min(1e-30)
