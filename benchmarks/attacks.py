"""Attack throughput and strength: ratios measured in one run, on one machine, on the same inputs.

ARC-R and the saddle climber against a textbook ARC-R (channels first, float32, every member re-evaluated after
every step and again after every iteration, G + 1 backward passes per member, nothing dropped); PGD-20 on one
model against Foolbox and torchattacks, where they are installed, and against the bare cost of its passes.

    python benchmarks/attacks.py                     # trains three ResNet-20s by members.toml, once
    python benchmarks/attacks.py --ensemble runs/x/ensemble --quick --json attacks.json
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor, nn

import randens
from randens import RandomizedEnsemble, Threat
from randens.attacks.members import GradientMembers
from randens.files import write_json

Row = dict[str, Any]


def textbook_arc_r(
    members: list[nn.Module], x: Tensor, y: Tensor, eps: float, steps: int, planes: int, seed: int
) -> Tensor:
    """ARC-R as its algorithm box reads, for equal weights and linf: perturbed inputs."""
    generator = torch.Generator().manual_seed(seed)
    rho, b = 0.05 * eps, eps
    rows = torch.arange(len(x))

    def risk(points: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.stack([(f(points).argmax(1) != y).float() for f in members]).mean(dim=0)

    def clip(points: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(points, x - eps), x + eps).clamp(0, 1)

    point, best = x.clone(), risk(x)
    for _ in range(steps):
        local, local_best = torch.zeros_like(x), best.clone()
        for position, index in enumerate(torch.randperm(len(members), generator=generator).tolist()):
            inputs = clip(point + local).requires_grad_(True)
            z = members[index](inputs)
            label = z.gather(1, y.unsqueeze(1))
            order = z.detach().scatter(1, y.unsqueeze(1), -torch.inf).topk(planes, dim=1).indices
            (own,) = torch.autograd.grad(label.sum(), inputs, retain_graph=True)
            gaps, normals = [], []
            for g in range(planes):
                other = z.gather(1, order[:, g : g + 1])
                (theirs,) = torch.autograd.grad(other.sum(), inputs, retain_graph=g < planes - 1)
                gaps.append((label - other).detach().squeeze(1))
                normals.append(own - theirs)
            w = torch.stack(normals, dim=1)
            norms = w.flatten(2).abs().sum(dim=2).clamp_min(1e-20)
            distance, nearest = (torch.stack(gaps, dim=1).abs() / norms).min(dim=1)
            chosen = w[rows, nearest]
            beta = torch.full_like(distance, b)
            if position:
                inner = (chosen * local).flatten(1).sum(dim=1) / norms[rows, nearest]
                zeta = distance - inner
                beta = torch.where(zeta < b, b / (b - zeta).clamp_min(1e-6) * distance + rho, beta)
            pulled = local - beta.clamp(max=1e3 * eps).reshape(-1, 1, 1, 1) * chosen.sign()
            pulled = b * pulled / pulled.flatten(1).abs().amax(dim=1).clamp_min(1e-20).reshape(-1, 1, 1, 1)
            reached = risk(clip(point + pulled))
            accept = reached >= local_best
            local = torch.where(accept.reshape(-1, 1, 1, 1), pulled, local)
            local_best = torch.where(accept, reached, local_best)
        candidate = clip(point + local)
        reached = risk(candidate)
        accept = reached >= best
        point = torch.where(accept.reshape(-1, 1, 1, 1), candidate, point)
        best = torch.where(accept, reached, best)
    return point


def channels_first(member: nn.Module) -> nn.Module:
    """A frozen copy in torch's default layout, as other libraries would run it."""
    twin = copy.deepcopy(member).eval().requires_grad_(False)
    for parameter in twin.parameters():
        parameter.data = parameter.data.contiguous()
    return twin


def bare_passes(member: nn.Module, x: Tensor, y: Tensor, steps: int) -> Callable[[], None]:
    """`steps` forward and backward passes of one prepared member and nothing else."""
    prepared = GradientMembers([member])

    def run() -> None:
        inputs = x.clone()
        for _ in range(steps):
            inputs = inputs.detach().requires_grad_(True)
            loss = nn.functional.cross_entropy(prepared(0, inputs), y)
            torch.autograd.grad(loss, inputs)

    return run


def foolbox_pgd(member: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    from foolbox.attacks import LinfPGD
    from foolbox.models.pytorch import PyTorchModel

    model = PyTorchModel(member, bounds=(0, 1), device="cpu")
    attack = LinfPGD(rel_stepsize=0.25, steps=20, random_start=False)
    clipped: Tensor = attack(model, x, y, epsilons=eps)[1]
    return clipped


def torchattacks_pgd(member: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    import torchattacks

    adversarial: Tensor = torchattacks.PGD(member, eps=eps, alpha=eps / 4, steps=20, random_start=False)(x, y)
    return adversarial


def interleaved(cases: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float, Any]]:
    """Best and median seconds and the last value of every case, repeats taken in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    values: dict[str, Any] = {}
    for _ in range(repeats):
        for name, call in cases.items():
            start = time.perf_counter()
            values[name] = call()
            seconds[name].append(time.perf_counter() - start)
    return {n: (min(s), sorted(s)[len(s) // 2], values[n]) for n, s in seconds.items()}


def trained() -> Path:
    """The benchmark's own ensemble, trained on first use and kept in the user's cache."""
    folder = Path(platformdirs.user_cache_dir("randens")) / "benchmark-members"
    if not (folder / "ensemble").exists():
        print(f"training three ResNet-20s into {folder}; an interrupted run continues")
        recipe = randens.training.load_recipe(Path(__file__).with_name("members.toml"))
        randens.training.train(recipe, folder)
    return folder / "ensemble"


def ensemble_rows(rec: RandomizedEnsemble, x: Tensor, y: Tensor, threat: Threat, repeats: int) -> list[Row]:
    plain = [channels_first(m) for m in rec.members]
    contiguous = x.contiguous()
    create = randens.attacks.create
    cases: dict[str, Callable[[], Any]] = {
        "textbook ARC-R": lambda: textbook_arc_r(plain, contiguous, y, threat.eps, 20, 2, seed=0),
        "ARC-R": lambda: create("arc-r", threat)(rec, x, y),
        "saddle, 1 order, 1 restart": lambda: create("saddle", threat, orders=1, restarts=1)(rec, x, y),
        "saddle (default)": lambda: create("saddle", threat)(rec, x, y),
        "suite fast": lambda: create("suite", threat, preset="fast")(rec, x, y),
    }
    measured = interleaved(cases, repeats)
    rows = []
    reference = measured["textbook ARC-R"][0]
    for name, (best, median, value) in measured.items():
        if isinstance(value, Tensor):
            accuracy, passes = 1.0 - float(rec.risk(value, y).mean()), {}
        else:
            accuracy = value.robust_accuracy
            passes = {"forwards": value.cost.forwards / len(x), "backwards": value.cost.backwards / len(x)}
        rows.append(
            {"what": name, "seconds": best, "median": median, "times_as_fast": reference / best}
            | {"robust_accuracy": accuracy, **passes}
        )
    return rows


def single_rows(member: nn.Module, x: Tensor, y: Tensor, threat: Threat, repeats: int) -> list[Row]:
    plain = channels_first(member)
    contiguous = x.contiguous()
    create = randens.attacks.create
    cases: dict[str, Callable[[], Any]] = {
        "PGD-20": lambda: create("pgd", threat)(member, x, y),
        "PGD-20, nothing dropped": lambda: create("apgd-l", threat, drop_finished=False)(member, x, y),
        "bare passes of PGD-20": bare_passes(member, x.contiguous(memory_format=torch.channels_last), y, 20),
    }
    for package, run in (("foolbox", foolbox_pgd), ("torchattacks", torchattacks_pgd)):
        if importlib.util.find_spec(package):
            cases[f"{package} PGD-20"] = partial(run, plain, contiguous, y, threat.eps)
        else:
            print(f"{package} is not installed: left out")
    measured = interleaved(cases, repeats)
    own = measured["PGD-20"][0]
    rows = []
    for name, (best, median, value) in measured.items():
        row: Row = {"what": name, "seconds": best, "median": median, "ours_times_as_fast": best / own}
        if isinstance(value, Tensor):
            with torch.no_grad():
                row["robust_accuracy"] = float((plain(value).argmax(1) == y).double().mean())
        elif value is not None:
            row["robust_accuracy"] = value.robust_accuracy
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ensemble", type=Path, help="an ensemble folder; default: trained once by members.toml")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="32 images, one repeat")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    images, repeats = (32, 1) if options.quick else (options.images, options.repeats)
    rec = randens.load(options.ensemble or trained())
    x, y = randens.data.load(options.data, "validation")[torch.arange(images)]
    threat = rec.threat or Threat("linf", 8 / 255)
    rows = ensemble_rows(rec, x, y, threat, repeats)
    rows += single_rows(rec.members[0], x, y, threat, repeats)
    for row in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v:32}" for k, v in row.items()))
    if options.json:
        write_json(options.json, {"threads": torch.get_num_threads(), "images": images, "rows": rows})


if __name__ == "__main__":
    main()
