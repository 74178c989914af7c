"""Attack throughput and strength: ratios measured in one run, on one machine, on the same inputs.

ARC-R and the saddle climber against a textbook ARC-R (channels first, float32, every member re-evaluated after
every step and again after every iteration, G + 1 backward passes per member, nothing dropped); PGD-20 on one
model against Foolbox, torchattacks and ART, where they are installed; every attack against the bare cost of its
passes; the suite's cost per preset. ResNet-20, 128 images, linf. Every repeat takes another seed, and accuracies on
the ensemble are means over them.

    python -m benchmarks.attacks                     # members of the zoo, or trained once by members.toml
    python -m benchmarks.attacks --ensemble runs/x/ensemble --quick --json attacks.json
    OMP_NUM_THREADS=1 python -m benchmarks.attacks --images 32   # on a busy machine: processor time
"""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import randens
from benchmarks import harness, machine, members
from benchmarks.harness import (
    Goal,
    Row,
    Settings,
    Side,
    Timed,
    Timing,
    as_fast,
    interleaved,
    left_out,
    of_cost,
)
from randens import RandomizedEnsemble, Threat
from randens.attacks import Found
from randens.attacks.compiled import passes
from randens.attacks.members import GradientMembers

STEPS = 20
SADDLES: dict[str, dict[str, int]] = {
    "saddle, orders=1": {"orders": 1, "restarts": 1},
    "saddle, orders=1 restarts=2 relinearisations=3": {"orders": 1, "restarts": 2, "relinearisations": 3},
    "saddle, orders=1 restarts=2": {"orders": 1, "restarts": 2},
    "saddle (default)": {},
}
"""From cheap to strong: the first that reaches the textbook's robust accuracy is what it is compared by."""
PEERS = {"foolbox": "Foolbox", "torchattacks": "torchattacks", "art": "ART"}
_DISTRIBUTION = {"art": "adversarial-robustness-toolbox"}

FASTER_ARC = Goal(at_least=12, accuracy_not_higher=True)
FASTER_SADDLE = Goal(at_least=40, accuracy_not_higher=True)
FASTER_PGD = Goal(at_least=1.5, accuracy_not_higher=True)
NEAR_BARE = Goal(at_most=1.08)
NEAR_BARE_SADDLE = Goal(at_most=1.2)
NEAR_BARE_SUITE = {"standard": Goal(at_most=1.25), "thorough": Goal(at_most=1.35)}

IN_A_ROW = {"forward": 10, "both": 10, "confirmation": 10}
"""Bare passes are timed for about as long as an attack takes: a single one may fall into a quieter moment."""


def one_thread() -> bool:
    """With one thread, processor time is what the process itself needs, whatever else the machine does."""
    return torch.get_num_threads() == 1


def clock() -> Callable[[], float]:
    return time.process_time if one_thread() else time.perf_counter


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


@dataclass(frozen=True)
class Subject:
    """What is attacked: members, a batch, the threat, the textbook's copies of the members."""

    rec: RandomizedEnsemble
    x: Tensor
    y: Tensor
    threat: Threat
    plain: list[nn.Module]

    def attack(self, name: str, **options: Any) -> Found:
        return randens.attacks.create(name, self.threat, **options)(self.rec, self.x, self.y)

    def seeded(self, name: str, seed: int, **options: Any) -> Found:
        return self.attack(name, seed=seed, **options)

    def part(self, count: int) -> Subject:
        return Subject(self.rec, self.x[:count], self.y[:count], self.threat, self.plain)


class Bare:
    """Passes of one prepared member on one batch and nothing else: the limit.

    As the attack makes them: `compiled` where it takes gradients of margins or, in float32, of the cross-entropy;
    otherwise torch's.
    """

    def __init__(
        self, member: nn.Module, x: Tensor, y: Tensor, precision: str = "float32", *, compiled: bool = True
    ) -> None:
        self.member, self.members = member, GradientMembers([member], precision)
        self.y = y
        if compiled:
            self.members.verify(x)
        self.compiled = self.members.compiled(0)
        self.x = x.contiguous(
            memory_format=torch.channels_last if self.compiled is None else torch.contiguous_format
        )
        classes = 0 if self.compiled is None else self.compiled.classes
        self.right = nn.functional.one_hot(y, classes).float() if classes else None

    def forward(self) -> None:
        if self.compiled is not None:
            with self.members.one_thread():
                self.compiled.logits(self.x)
            return
        # A forward pass without a gradient is for a verdict, which is never computed in lower precision.
        self.members.judge(0, self.x)

    def both(self) -> None:
        if self.compiled is not None and self.right is not None:
            with self.members.one_thread():
                passes([self.compiled.planes(self.x, self.right, 1)], self.members.threads)
            return
        inputs = self.x.detach().requires_grad_(True)
        torch.autograd.grad(nn.functional.cross_entropy(self.members(0, inputs), self.y), inputs)

    def confirm(self, inputs: int) -> None:
        """A pass of the member as it was given, over so many inputs."""
        with torch.no_grad():
            self.member(self.x[:inputs].contiguous(memory_format=torch.channels_last))

    def spend(self, forwards: int, backwards: int) -> None:
        for _ in range(backwards):
            self.both()
        for _ in range(forwards - backwards):
            self.forward()


@dataclass(frozen=True)
class Passes:
    """What passes cost bare: seconds per input of a forward pass, of one with a gradient, and of a confirmation.

    Attacks confirm the verdicts that they report with the members as they were given, whose passes take longer than
    those of compiled members. Each is (best, median).
    """

    forward: tuple[float, float]
    both: tuple[float, float]
    confirmation: tuple[float, float] | None = None

    @classmethod
    def of(cls, measured: dict[str, Timed[Any]], batch: int, confirmed: int = 0) -> Passes:
        """From times of passes over `batch` inputs, and of a confirmation of `confirmed` inputs."""

        def each(name: str, inputs: int) -> tuple[float, float]:
            timing = measured[name].timing
            return timing.best / inputs, timing.median / inputs

        last = each("confirmation", confirmed) if "confirmation" in measured else None
        return cls(each("forward", batch), each("both", batch), last)


def perturbed(found: Found, x: Tensor) -> int:
    """Inputs whose verdicts are confirmed at the end of an attack: those whose worst case is not the input itself."""
    return int((found.x_adv != x).flatten(1).any(dim=1).sum())


def limit(found: Sequence[Found], x: Tensor, cost: Passes) -> Side:
    """What the passes of attacks on x cost bare, as their mean."""

    def total(which: int) -> float:
        seconds = 0.0
        for each in found:
            forward, backward = cost.forward[which], cost.both[which] - cost.forward[which]
            seconds += each.cost.forwards * forward + each.cost.backwards * backward
            if cost.confirmation is not None:
                confirmations = perturbed(each, x) * each.errors.shape[1]
                seconds += confirmations * (cost.confirmation[which] - forward)
        return seconds / len(found)

    return Side("its passes, bare", Timing(total(0), total(1), len(found)))


class Seeded:
    """Every call takes the next seed: where one verdict is a quarter of a point, one order of members is chance."""

    def __init__(self, call: Callable[[int], Found | Tensor]) -> None:
        self.call = call
        self.values: list[Found | Tensor] = []

    def __call__(self) -> list[Found | Tensor]:
        self.values.append(self.call(len(self.values)))
        return self.values


def side(name: str, measured: Timed[Any], subject: Subject) -> Side:
    """Accuracy and passes, as means over seeds: our attacks report them, those of others are computed here."""
    value = measured.value
    found = value if isinstance(value, list) else [value]
    accuracy = sum(_accuracy(each, subject) for each in found) / len(found)
    ours = [each for each in found if isinstance(each, Found)]
    count = max(1, len(subject.x)) * max(1, len(ours))
    spent = sum(each.cost.forwards for each in ours), sum(each.cost.backwards for each in ours)
    passes = f"{spent[0] / count:.1f} f {spent[1] / count:.1f} b" if ours else ""
    return Side(name, measured.timing, accuracy, passes)


def _accuracy(value: Found | Tensor, subject: Subject) -> float:
    if isinstance(value, Found):
        return value.robust_accuracy
    return 1.0 - float(subject.rec.risk(value, subject.y).mean())


def foolbox_pgd(member: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    from foolbox.attacks import LinfPGD
    from foolbox.models.pytorch import PyTorchModel

    model = PyTorchModel(member, bounds=(0, 1), device="cpu")
    attack = LinfPGD(rel_stepsize=0.25, steps=STEPS, random_start=False)
    clipped: Tensor = attack(model, x, y, epsilons=eps)[1]
    return clipped


def torchattacks_pgd(member: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    import torchattacks

    attack = torchattacks.PGD(member, eps=eps, alpha=eps / 4, steps=STEPS, random_start=False)
    adversarial: Tensor = attack(x, y)
    return adversarial


def art_pgd(member: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    with torch.no_grad():
        classes = member(x[:1]).shape[1]
    classifier = PyTorchClassifier(
        member,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    attack = ProjectedGradientDescentPyTorch(
        classifier, eps=eps, eps_step=eps / 4, max_iter=STEPS, batch_size=len(x), verbose=False
    )
    return torch.from_numpy(attack.generate(x.numpy(), y.numpy()))


_PGD = {"foolbox": foolbox_pgd, "torchattacks": torchattacks_pgd, "art": art_pgd}


def ensemble_rows(subject: Subject, which: str, precision: str, repeats: int) -> Iterator[Row]:
    """ARC-R and the saddle climber against the textbook, and each against its own bare passes."""
    bare = Bare(subject.rec.members[0], subject.x, subject.y, precision)
    contiguous = subject.x.contiguous()
    names: dict[str, tuple[str, dict[str, Any]]] = {"ARC-R": ("arc-r", {})}
    names |= {name: ("saddle", options) for name, options in SADDLES.items()}
    cases: dict[str, Callable[[], Any]] = {
        "textbook": Seeded(
            partial(textbook_arc_r, subject.plain, contiguous, subject.y, subject.threat.eps, STEPS, 2)
        )
    }
    for name, (kind, options) in names.items():
        cases[name] = Seeded(partial(subject.seeded, kind, precision=precision, **options))
    # The limit is measured right beside what it limits.
    confirmed = max(1, perturbed(subject.attack("saddle", precision=precision), subject.x))
    cases |= {
        "forward": bare.forward,
        "both": bare.both,
        "confirmation": partial(bare.confirm, confirmed),
    }
    bare.both()
    measured = interleaved(cases, repeats, calls=IN_A_ROW, seconds=260, clock=clock())
    textbook = side("textbook ARC-R", measured["textbook"], subject)
    sides = {name: side(f"{name}, {precision}", measured[name], subject) for name in names}
    yield as_fast(f"ARC-R, {precision}", sides["ARC-R"], textbook, FASTER_ARC, note=which)
    assert textbook.accuracy is not None
    reaching = [n for n in SADDLES if (sides[n].accuracy or 0.0) <= textbook.accuracy + 1e-9]
    quickest = reaching[0] if reaching else list(SADDLES)[-1]
    yield as_fast(
        f"saddle to the textbook's accuracy, {precision}",
        sides[quickest],
        textbook,
        FASTER_SADDLE,
        note=quickest if reaching else f"{quickest} does not reach it",
    )
    for name in SADDLES:
        if name != quickest:
            yield as_fast(f"{name}, {precision}", sides[name], textbook)
    cost = Passes.of(measured, len(subject.x), confirmed)
    for name in names:
        goal = NEAR_BARE_SADDLE if name in SADDLES else None
        bare_side = limit(measured[name].value, subject.x, cost)
        yield of_cost(f"{name}, {precision}", sides[name], bare_side, goal)


def single_rows(subject: Subject, precision: str, repeats: int) -> Iterator[Row]:
    """PGD-20 on one model against other libraries, and against the bare cost of its passes."""
    member, plain, x, y = subject.rec.members[0], subject.plain[0], subject.x, subject.y
    alone = Subject(RandomizedEnsemble([member]), x, y, subject.threat, [plain])
    bare = Bare(member, x, y, precision, compiled=precision == "float32")
    # On one model the loss-level adaptive attack is PGD; it drops nothing when told so, and its passes are full.
    undropped = partial(alone.attack, "adaptive-pgd-l", precision=precision, drop_finished=False)
    made = undropped().cost
    spent = made.forwards // len(x), made.backwards // len(x)
    cases: dict[str, Callable[[], Any]] = {
        "PGD-20": partial(alone.attack, "pgd", precision=precision),
        "nothing dropped": undropped,
        "its passes": partial(bare.spend, *spent),
        "forward": bare.forward,
        "both": bare.both,
    }
    for package, attack in _PGD.items():
        if importlib.util.find_spec(package):
            cases[package] = partial(attack, plain, x.contiguous(), y, subject.threat.eps)
    measured = interleaved(cases, repeats, calls=IN_A_ROW, seconds=80, clock=clock())
    ours = side(f"PGD-20, {precision}", measured["PGD-20"], alone)
    for package, label in PEERS.items():
        goal = None if package == "art" else FASTER_PGD
        if package not in cases:
            yield left_out(f"PGD-20, {precision}", label, f"{label} is not installed: left out", goal)
            continue
        version = machine.installed(_DISTRIBUTION.get(package, package)) or ""
        theirs = side(f"{label} {version}".strip(), measured[package], alone)
        yield as_fast(f"PGD-20, {precision}", ours, theirs, goal)
    whole = side(f"PGD-20, nothing dropped, {precision}", measured["nothing dropped"], alone)
    yield of_cost(
        f"PGD-20, nothing dropped, {precision}",
        whole,
        Side("its passes, bare", measured["its passes"].timing, passes=f"{spent[0]} f {spent[1]} b"),
        NEAR_BARE,
    )
    cost = Passes.of(measured, len(x))
    yield of_cost(f"PGD-20, {precision}", ours, limit([measured["PGD-20"].value], x, cost))


def suite_rows(subject: Subject, images: dict[str, int], repeats: int) -> Iterator[Row]:
    """What each preset spends, against the bare cost of its passes; fewer images for the dear ones."""
    for preset, count in images.items():
        part = subject.part(count)
        bare = Bare(part.rec.members[0], part.x, part.y)
        confirmed = max(1, perturbed(part.attack("saddle", precision="float32"), part.x))
        cases: dict[str, Callable[[], Any]] = {
            preset: partial(part.attack, "suite", preset=preset, precision="float32"),
            "forward": bare.forward,
            "both": bare.both,
            "confirmation": partial(bare.confirm, confirmed),
        }
        measured = interleaved(cases, repeats if preset == "fast" else 1, calls=IN_A_ROW, clock=clock())
        ours = side(f"suite {preset}", measured[preset], part)
        per_image = measured[preset].timing.best / count
        yield of_cost(
            f"suite {preset}, float32",
            ours,
            limit([measured[preset].value], part.x, Passes.of(measured, count, confirmed)),
            NEAR_BARE_SUITE.get(preset),
            note=f"{count} images, {per_image:.2g} s each",
            facts={"images": float(count), "seconds_per_image": per_image},
        )


def rows(settings: Settings) -> Iterator[Row]:
    rec, which = members.locate(settings.ensemble)
    images, repeats = (8, 2) if settings.quick else (settings.images or 128, 3)
    which = f"{which}; {images} images{', one thread, processor time' if one_thread() else ''}"
    x, y = randens.data.load("cifar10", "validation")[torch.arange(images)]
    threat = rec.threat or Threat("linf", 8 / 255)
    subject = Subject(rec, x, y, threat, [channels_first(m) for m in rec.members])
    yield from ensemble_rows(subject, which, "float32", repeats)
    yield from single_rows(subject, "float32", repeats)
    presets = (
        {"fast": 8, "standard": 4}
        if settings.quick
        else {
            "fast": images,
            "standard": images,
            "thorough": min(images, 32),
        }
    )
    yield from suite_rows(subject, presets, repeats)


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
