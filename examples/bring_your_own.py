"""Attack an ensemble of your own: a module whose output is that of Hugging Face, a plain one, a TorchScript and an ONNX
file.

Trains four small classifiers of the digits in a few seconds and makes a randomized ensemble of three of them.
Two attacks find witnesses, perturbations with the members they fool: `saddle`, and Foolbox's PGD if it is
installed. Their pool gives the risk for all sampling probabilities, so the best ones are computed from it.
The ONNX file has no gradients: the ensemble that holds it is attacked by random search.

    python examples/bring_your_own.py
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import randens
from randens.core.errors import RandensError
from randens.data import Data

MEAN, STD = (0.3,), (0.4,)


@dataclass
class Output:
    """What `transformers` classifiers return: the logits are one of several fields."""

    logits: torch.Tensor


class LikeHuggingFace(nn.Module):
    """Replaces `AutoModelForImageClassification.from_pretrained(...)` here; a timm model is adapted likewise.

    It expects normalised images, so `adapt` is told the mean and standard deviation of its preprocessing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 10))

    def forward(self, pixel_values: torch.Tensor) -> Output:
        return Output(self.layers(pixel_values))


class Mine(nn.Module):
    """Any module that returns logits is a member as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 24, 3, padding=1)
        self.linear = nn.Linear(24 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(nn.functional.max_pool2d(self.conv(x).relu(), 2).flatten(1))
        return logits


def train(model: nn.Module, images: Data, epochs: int = 10) -> nn.Module:
    """Plain training; see `randens.training` for robust training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for x, y in images.batches(64, generator=generator):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


def as_torchscript(model: nn.Module, path: Path) -> nn.Module:
    torch.jit.save(torch.jit.trace(model, torch.rand(2, 1, 8, 8)), path)  # type: ignore[no-untyped-call]
    return randens.models.torchscript(path)


def as_onnx(model: nn.Module, path: Path) -> nn.Module:
    batch = ({0: torch.export.Dim("n")},)
    torch.onnx.export(
        model, (torch.rand(2, 1, 8, 8),), path, dynamo=True, dynamic_shapes=batch, verbose=False
    )
    return randens.models.onnx(path)


def attacked(
    rec: randens.RandomizedEnsemble, x: torch.Tensor, y: torch.Tensor, threat: randens.Threat
) -> randens.WitnessPool:
    """Witnesses of two attacks, ours and another library's, in one pool."""
    print(f"natural accuracy               {rec.accuracy(x, y):.3f}")
    found = randens.attacks.create("saddle", threat)(rec, x, y)
    print(f"under the saddle climber       {found.robust_accuracy:.3f}")
    try:
        import foolbox
    except ImportError:
        print("(Foolbox is not installed: pip install foolbox)")
        return found.pool
    theirs = randens.interop.from_foolbox(foolbox.attacks.LinfPGD(steps=40), threat)(rec, x, y)
    print(f"under Foolbox's PGD            {theirs.robust_accuracy:.3f}")
    pool = found.pool.merge(theirs.pool)
    print(f"under the worst of both        {1 - pool.risk(rec.probs.numpy()):.3f}")
    return pool


def report(rec: randens.RandomizedEnsemble, pool: randens.WitnessPool) -> None:
    """What the pool says about the sampling probabilities."""
    profile = pool.profile()
    best = randens.risk.optimal_sampling(profile)
    alone = ", ".join(f"{1 - risk:.3f}" for risk in profile.member_risks)
    print(f"each member alone              {alone}")
    print(
        f"drawing at its best            {1 - best.risk:.3f} with {[round(p, 3) for p in best.probs.tolist()]}"
    )
    print(
        f"randomising gains              {profile.gain(rec.probs.numpy()):.3f} over the mean member when uniform"
    )


def main() -> None:
    torch.manual_seed(0)
    digits = randens.data.load("digits", "train")
    # The sampling probabilities are chosen on these, so they are not test images.
    x, y = randens.data.load("digits", "validation")[:100]

    adapted = train(randens.models.adapt(LikeHuggingFace(), mean=MEAN, std=STD), digits)
    mine = train(Mine(), digits)
    ours = [randens.models.create("convnet", classes=10, input_shape=(1, 8, 8), seed=seed) for seed in (0, 1)]
    for model in ours:
        train(model, digits)

    threat = randens.Threat("linf", eps=0.1)
    with tempfile.TemporaryDirectory() as folder:
        differentiable = [adapted, mine, as_torchscript(ours[0], Path(folder) / "member.pt")]
        rec = randens.RandomizedEnsemble(differentiable)
        report(rec, attacked(rec, x, y, threat))

        try:
            exported = as_onnx(ours[1], Path(folder) / "member.onnx")
        except (ImportError, RandensError) as error:
            print(f"without ONNX: {error}")
            return
        rec = randens.RandomizedEnsemble([*differentiable, exported])
        found = randens.attacks.create("random", threat)(rec, x, y)
        robust = 1 - found.risk.mean()
        print(
            f"with an ONNX file: natural accuracy {rec.accuracy(x, y):.3f}, under random search {robust:.3f}"
        )
        blind = randens.attacks.create("pgd", threat, steps=10)(rec, x, y).flags["zero_gradient"]
        print(f"PGD finds no gradients of it at {blind[-1]:.0%} of the inputs")


if __name__ == "__main__":
    main()
