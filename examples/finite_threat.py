"""A finite set of perturbations: every statement of the theory, exactly, about trained networks.

Three small networks learn digits, each with five or six of eight shifts. Against all shifts by one pixel, two contrasts
and a patch, all perturbations of every image are tried, so nothing depends on how strong an attack is.

    python examples/finite_threat.py
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import randens
from randens import risk
from randens.evaluation import Evaluation


def shifted(x: Tensor, down: int, right: int) -> Tensor:
    """Images [n, 1, 8, 8] moved by up to a pixel, with zeros behind them."""
    return F.pad(x, (1, 1, 1, 1))[..., 1 - down : 9 - down, 1 - right : 9 - right]


def faded(x: Tensor) -> Tensor:
    return 0.6 * x


def inked(x: Tensor) -> Tensor:
    return (1.6 * x).clamp(0, 1)


def patched(x: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(x[..., :1, :]), x[..., 1:, :]], dim=-2)


SHIFTS = {
    f"down {i} right {j}": functools.partial(shifted, down=i, right=j)
    for i, j in itertools.product((-1, 0, 1), repeat=2)
    if i or j
}


def trained(seed: int, known: Sequence[Callable[[Tensor], Tensor]]) -> nn.Module:
    """A network that has seen the training images, and what the functions `known` make of them."""
    x, y = randens.data.load("digits", "train")[:]
    x, y = torch.cat([x, *(transform(x) for transform in known)]), y.repeat(1 + len(known))
    net = randens.models.create("mlp", classes=10, input_shape=(1, 8, 8), seed=seed, width=64, depth=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        for rows in torch.split(torch.randperm(len(x), generator=generator), 64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return net.eval()


def main() -> None:
    shifts = list(SHIFTS.values())
    nets = [trained(seed, [one for k, one in enumerate(shifts) if k % 3 != seed]) for seed in range(3)]
    threat = randens.FiniteThreat([*shifts, faded, inked, patched])
    best = randens.optimize_sampling(nets, "digits", threat=threat)
    print(f"α* on validation images: {best.probs.round(4).tolist()}, risk {best.risk:.4f}, {best.claim}")

    found = randens.evaluate(nets, "digits", threat=threat, probs=best.probs, split="test")
    assert isinstance(found, Evaluation)
    profile = found.profile
    print(f"\n{found.n} test images, {len(threat.names)} perturbations each\n{found.table().text()}")
    print(f"risk of α* {profile.risk(best.probs):.4f}, uniform {profile.risk([1 / 3] * 3):.4f}")

    print("\nTheorem 1: sampling from two beats both exactly if P(R₁) is above the difference of their risks")
    for pair in found.pairs:
        both = profile.restrict((pair.i, pair.j))
        grid = min(both.risk([w / 100, 1 - w / 100]) for w in range(1, 100))
        helps = grid < both.member_risks.min() - 1e-12
        print(
            f"  {pair.i}+{pair.j}: P(R₁) {pair.conflict:.4f}, difference {pair.difference:.4f}; sampling helps: {helps}"
        )
        assert helps == pair.helps

    candidates = risk.optimal_sampling(profile, "candidates")
    exact = risk.optimal_sampling(profile, "exact")
    print(
        f"Theorem 2: the best of ten candidates has the risk {candidates.risk:.6f}, the optimum {exact.risk:.6f}"
    )
    assert abs(candidates.risk - exact.risk) < 1e-9

    limits = risk.bounds(profile.member_risks)
    print(f"Theorem 3: {limits.floor:.4f} ≤ {exact.risk:.4f} ≤ {limits.ceiling:.4f}")
    assert limits.floor - 1e-12 <= exact.risk <= limits.ceiling + 1e-12

    steps = risk.optimal_sampling(profile, "subgradient", iterations=100)
    assert steps.theorem4_bound is not None
    above = max(0.0, steps.risk - exact.risk)
    print(f"Theorem 4: Algorithm 1 ends {above:.4f} above the optimum, at most {steps.theorem4_bound:.4f}")
    assert above <= steps.theorem4_bound


if __name__ == "__main__":
    main()
