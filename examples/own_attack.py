"""An attack of your own in ten lines: PGD with momentum on the expected loss.

`Search` does the rest: it projects every proposal onto ball and box, computes the exact verdicts of all
members, keeps the worst point per input, pools the witnesses, drops finished inputs and counts passes. A
registered attack works in `attacks.create`, `attack.run`, `randens.evaluate` and everywhere else that
takes a name.

    python examples/own_attack.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import randens
from randens import attacks
from randens.attacks.losses import expected_cross_entropy


@attacks.register("momentum")
@dataclass(frozen=True)
class Momentum(attacks.Attack):
    """δ ← Π(δ + ¼ε·μ_p(v)), v ← 0.9 v + μ_p(∇ expected loss)."""

    steps: int = 20

    def search(self, s: attacks.Search) -> None:
        for restart in range(self.restarts):
            point, pull = s.start(restart), torch.zeros_like(s.x)
            for _ in range(self.steps):
                rows = s.open
                slope = s.gradient(rows, point[rows], expected_cross_entropy)
                pull[rows] = 0.9 * pull[rows] + s.threat.steepest(slope)
                point[rows] = s.project(rows, s.threat.step(point[rows], pull[rows], 0.25 * s.threat.eps))
            s.judge(s.open, point[s.open])


def main() -> None:
    """Train two small networks on the digits, attack them, and compare with the attacks of randens."""
    train, test = (
        randens.data.load("digits", "train"),
        randens.data.load("digits", "test").subset(slice(0, 100)),
    )
    members = []
    for seed in range(2):
        net = randens.models.create("convnet", classes=10, input_shape=train.shape, width=8, seed=seed)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(3):
            for x, y in train.batches(64, generator=generator):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        members.append(net.eval())
    rec = randens.RandomizedEnsemble(members)
    threat = randens.Threat("linf", eps=0.1)
    print(f"clean      {rec.accuracy(test.x, test.y):.3f}")
    for name in ("momentum", "adaptive-pgd-l", "saddle"):
        found = attacks.create(name, threat).run(rec, test)
        print(
            f"{name:10} {found.robust_accuracy:.3f}  {found.cost.backwards / len(test):.1f} backward passes each"
        )


if __name__ == "__main__":
    main()
