"""Randomized ensembles (the paper's REC f_α: a member sampled for every input) and deterministic ones (DEC f̄)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from randens import models, saved
from randens.core.devices import is_dense, settled
from randens.core.errors import FileError, InputError, ModelError, PathLike, number, shown, typed, whole
from randens.core.files import AnyPath
from randens.models.outputs import evaluating, switched
from randens.risk.sets import as_probs
from randens.threat import FiniteThreat, Threat

__all__ = ["DeterministicEnsemble", "RandomizedEnsemble", "evaluating", "frozen", "load"]

_MOST_SUBSETS = 64  # a set of fooled members is one 64-bit word
_CHUNK = 512  # inputs per forward pass where only verdicts are wanted: bounds the memory


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients for parameters, both restored on leaving."""
    if any(parameter.is_inference() for parameter in module.parameters()):
        raise InputError("members hold weights made in torch.inference_mode(); make or load them outside")
    off = functools.partial(module.requires_grad_, False)
    with evaluating(module), switched("requires_grad", list(module.parameters()), off):
        yield


def check_probs(probs: ArrayLike | Tensor | None, members: int) -> Tensor:
    """α as a float64 tensor [M]; ``None`` is uniform."""
    if probs is None:
        probs = np.full(members, 1.0 / members)
    plain = isinstance(probs, Tensor) and is_dense(probs)
    return torch.from_numpy(as_probs(probs.tolist() if plain else probs, members))  # type: ignore[union-attr]


class _Ensemble(nn.Module):
    """The common part of both kinds: members that give logits, and their verdicts."""

    def __init__(self, members: Sequence[nn.Module], classes: Sequence[str] | None = None) -> None:
        super().__init__()
        listed = isinstance(members, Sequence | nn.ModuleList)
        wrong = [type(m).__name__ for m in members if not isinstance(m, nn.Module)] if listed else []
        if wrong or not listed or not members:
            one = f"one {type(members).__name__}"
            said = one if not listed else f"a list of {wrong[0]}" if wrong else "empty"
            raise InputError(f"members is {said}; give a list of classifiers, [f1, f2], as torch.nn.Module")
        for index, member in enumerate(members):
            if any(is_lazy(value) or value.is_meta for value in (*member.parameters(), *member.buffers())):
                raise InputError(f"weights of member {index} have no values (lazy, or on 'meta'); load them")
        if classes is not None and (isinstance(classes, str) or not isinstance(classes, Iterable)):
            raise InputError(f"classes is {shown(classes)}; give names, e.g. ['cat', 'dog'], or nothing")
        self.members = nn.ModuleList(members)
        self._count = 0  # of logits, as soon as it is known
        self.classes = tuple(str(c) for c in classes) if classes is not None else None
        # Values do not change; convolutions run about twice as fast on CPUs in this layout.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def device(self) -> torch.device:
        """Where the first parameter lives (the CPU if there is none)."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """The networks behind all members, each once; an average counts as those it averages."""
        return networks_of(self.members)[0]

    def logits(self, x: Tensor) -> Tensor:
        """Every member's logits [M, n, C], in the current mode; a network that several members use runs once."""
        x = to_layout(x)
        networks, parts = networks_of(self.members)
        answers = [self.answer(index, network, x) for index, network in enumerate(networks)]
        outputs = []
        for member, part in zip(self.members, parts, strict=True):
            own = [answers[i] for i in part]
            outputs.append(member.average(own) if isinstance(member, DeterministicEnsemble) else own[0])
        return torch.stack(outputs)

    def answer(self, index: int, network: nn.Module, x: Tensor) -> Tensor:
        """One network's logits [n, C], unwrapped; C is the same for all networks and inputs."""
        name = f"member {index}"
        with models.undisturbed(name):
            answer = network(models.in_precision(x, network))
        z = models.logits_of(answer, len(x), name, self._count)
        self._count = z.shape[1]
        return z

    def verdicts(self, x: Tensor) -> Tensor:
        """Every member's predicted class [n, M], in eval mode, without gradients, in chunks."""
        parts = [torch.zeros(0, len(self.members), dtype=torch.int64, device=self.device)]
        with evaluating(self), settled(), torch.no_grad():
            for chunk in torch.split(to_layout(x), _CHUNK):
                z = self.logits(chunk.to(self.device))
                if not bool(torch.isfinite(z).all()):
                    bad = (~torch.isfinite(z)).flatten(1).any(dim=1).nonzero().flatten().tolist()
                    raise ModelError(f"members {bad} return NaN or infinite logits; they cannot be scored")
                parts.append(z.argmax(dim=2).T)
        return torch.cat(parts)


class RandomizedEnsemble(_Ensemble):
    """M classifiers; for each input one of them is sampled with probabilities `probs` and answers.

    Parameters
    ----------
    members : sequence of nn.Module
        Classifiers that return logits, in any form that `randens.models.logits_of` reads.
    probs : array, optional
        α; uniform by default.
    classes : sequence of str, optional
        Names.
    threat : Threat, optional
        What the ensemble is meant to resist.
    seed : int, optional
        Seed of the draws, for tests; the operating system's entropy by default.

    Examples
    --------
    >>> rec = RandomizedEnsemble([nn.Linear(2, 3), nn.Linear(2, 3)], [0.25, 0.75], seed=0)
    >>> rec(torch.zeros(5, 2)).shape, rec.errors(torch.zeros(5, 2), [0, 1, 2, 0, 1]).shape
    (torch.Size([5, 3]), torch.Size([5, 2]))
    """

    def __init__(
        self,
        members: Sequence[nn.Module],
        probs: ArrayLike | Tensor | None = None,
        *,
        classes: Sequence[str] | None = None,
        threat: Threat | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(members, classes)
        # No buffer: it stays on the CPU in float64, which not every device has.
        self.probs = check_probs(probs, len(members))
        if isinstance(threat, FiniteThreat):
            raise InputError("threat is a finite set, which no file can hold; give it to evaluate instead")
        if threat is not None and not isinstance(threat, Threat):
            raise InputError(f"threat is {shown(threat)}; give a randens.Threat, or nothing")
        self.threat = threat
        self.generator = torch.Generator()
        self.seed(seed)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def stochastic(self) -> bool:
        """Whether a member is itself random, like a `RandomizedModel`."""
        return any(getattr(type(member), "stochastic", False) is True for member in self.members)

    def extra_repr(self) -> str:
        return f"probs={self.probs.tolist()}"

    def seed(self, seed: int | None = None) -> None:
        """Restart the draws; ``None`` uses fresh entropy from the operating system."""
        drawn = secrets.randbits(63) if seed is None else whole("seed", seed, 0, 2**63 - 1)
        self.generator.manual_seed(drawn)

    def with_probs(self, probs: ArrayLike | Tensor | None) -> RandomizedEnsemble:
        """The same members (shared, not copied) with other probabilities."""
        return RandomizedEnsemble(list(self.members), probs, classes=self.classes, threat=self.threat)

    def subsets(self, k: int) -> RandomizedEnsemble:
        """k of M: average k sampled members' logits, at k networks' compute; all C(M, k) subsets are equally likely."""
        whole("k", k, 1, len(self), ", the number of members")
        whole(f"k is {k}; the number of subsets", math.comb(len(self), k), 1, _MOST_SUBSETS)
        averages = [DeterministicEnsemble(chosen) for chosen in itertools.combinations(self.members, k)]
        made = RandomizedEnsemble(averages, classes=self.classes, threat=self.threat)
        for wrapper in set(made.modules()) - set(self.modules()):  # the networks keep their modes
            wrapper.training = self.training
        return made

    def threshold_vote(self, threshold: float = 0.5) -> nn.Module:
        """For two classes: class 1 where members with more than `threshold` of the probability say so, else class 0.

        Averaged over all thresholds its risk is the ensemble's, under attack, too: so the best threshold is at least
        as robust as sampling, at the cost of all members. It gives no gradients.
        """
        if not 0 <= (value := number("threshold", threshold)) < 1:
            raise InputError(f"threshold is {value!r}; it must be at least 0 and below 1")
        return _ThresholdVote(self, value)

    def draw(self, n: int) -> Tensor:
        """Member indices [n], independent draws from `probs`; a member with probability 0 is never sampled."""
        whole("n", n, 0, 1 << 28)
        uniform = torch.rand(n, dtype=torch.float64, generator=self.generator, device="cpu")
        last = int(self.probs.nonzero().max())  # guards against a cumulative sum just below 1
        return torch.searchsorted(self.probs.cumsum(0), uniform, right=True).clamp(max=last)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, C], each row from one member sampled for it."""
        x = to_layout(x)
        drawn = self.draw(len(x)).to(x.device)
        asked = sorted(set(drawn.tolist())) or [0]  # even without inputs, for the number of classes
        rows = [(drawn == index).nonzero().flatten() for index in asked]
        answers = [self.answer(i, self.members[i], x[part]) for i, part in zip(asked, rows, strict=True)]
        return torch.cat(answers)[torch.cat(rows).argsort()]

    def errors(self, x: Tensor | ArrayLike, y: Tensor | ArrayLike) -> Tensor:
        """u for every input, bool [n, M]: which member is wrong, in eval mode and float32 (or wider)."""
        x, y = _as_pair(x, y)
        if self.stochastic:
            raise InputError("members answer at random; use randens.evaluate, or random_model.expanded(rec)")
        verdicts = self.verdicts(x)
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self._count:
            held = f"labels from {int(y.min())} to {int(y.max())}"
            raise InputError(f"y holds {held}; the members have {self._count} classes, from 0 on")
        return verdicts != y.to(self.device).unsqueeze(1)

    def risk(self, x: Tensor | ArrayLike, y: Tensor | ArrayLike) -> Tensor:
        """Expected error u·α for every input, float64 [n]: an exact sum over members, not a sample."""
        errors = self.errors(x, y)
        return errors.double() @ self.probs.to(errors.device)

    def accuracy(self, x: Tensor | ArrayLike, y: Tensor | ArrayLike) -> float:
        """1 − mean risk: the exact expected accuracy."""
        risks = self.risk(x, y)
        if not len(risks):
            raise InputError("x is empty; an accuracy needs at least one input")
        return 1.0 - float(risks.mean())

    def mixture(self, x: Tensor) -> Tensor:
        """log Σ_i α_i softmax_i(x), [n, C], by logsumexp."""
        logs = self.logits(x).log_softmax(dim=2)
        weights = self.probs.log().to(logs.dtype).to(logs.device).reshape(-1, 1, 1)
        return torch.logsumexp(logs + weights, dim=0)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the folder that `save` writes, with a model card, to the Hugging Face Hub; its address is returned."""
        from randens.interop.hub import push

        return push(self, repo_id, **options)

    @staticmethod
    def from_pretrained(
        source: AnyPath, *, members: Sequence[nn.Module] | None = None, **options: Any
    ) -> RandomizedEnsemble:
        """An ensemble from a repository of the Hugging Face Hub, or from a local folder; `members` as for `load`."""
        from randens.interop.hub import downloaded

        return load(downloaded(source, **options), members=members)

    @typed(path=PathLike)
    def save(self, path: AnyPath, *, overwrite: bool = False) -> Path:
        """Write a folder, completely or not at all: a safetensors file per network and a JSON manifest; see `load`."""
        networks, parts = networks_of(self.members)
        weights = [m.weights.tolist() if isinstance(m, DeterministicEnsemble) else None for m in self.members]
        averages = [{"of": part, "weights": own} for part, own in zip(parts, weights, strict=True)]
        about = {"classes": self.classes, "threat": None if self.threat is None else self.threat.to_dict()}
        return saved.write(path, networks, overwrite, probs=self.probs.tolist(), averages=averages, **about)


class DeterministicEnsemble(_Ensemble):
    """All members answer every input and their logits are averaged, with `weights`: M times the compute.

    >>> DeterministicEnsemble([nn.Linear(2, 3), nn.Linear(2, 3)])(torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, members: Sequence[nn.Module], weights: ArrayLike | Tensor | None = None) -> None:
        super().__init__(members)
        self.weights = check_probs(weights, len(members))
        self.passes = len(members)  # member passes that one call costs

    def forward(self, x: Tensor) -> Tensor:
        """Weighted mean of the members' logits, [n, C]."""
        return self.average(self.logits(x).unbind())

    def average(self, outputs: Sequence[Tensor]) -> Tensor:
        """The weighted mean of the members' logits, given one by one as [n, C]."""
        # Not a matrix product, which would count as FLOPs of the network.
        parts = [weight * z for weight, z in zip(self.weights.tolist(), outputs, strict=True)]
        return functools.reduce(torch.add, parts)


class _ThresholdVote(nn.Module):
    """The deterministic vote of an ensemble for two classes."""

    def __init__(self, rec: RandomizedEnsemble, threshold: float) -> None:
        super().__init__()
        self.rec, self.threshold = rec, threshold

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, 2]: the threshold, and the probability of the members that say class 1."""
        says_one = self.rec.verdicts(x) == 1
        share = says_one.double() @ self.rec.probs.to(says_one.device)
        # Sums of probabilities are equal up to rounding; equal to the threshold is not above it.
        return torch.stack([torch.full_like(share, self.threshold + 1e-9), share], dim=1)


def networks_of(members: Iterable[nn.Module]) -> tuple[tuple[nn.Module, ...], list[list[int]]]:
    """The networks behind the members, shared ones once, and which of them each member is or averages."""
    averaged = [list(m.members) if isinstance(m, DeterministicEnsemble) else [m] for m in members]
    numbers = {network: i for i, network in enumerate(dict.fromkeys(itertools.chain(*averaged)))}
    return tuple(numbers), [[numbers[network] for network in part] for part in averaged]


@typed(path=PathLike, members=Sequence | None)
def load(path: AnyPath, *, members: Sequence[nn.Module] | None = None) -> RandomizedEnsemble:
    """Read an ensemble written by `RandomizedEnsemble.save`, verifying every checksum; it is in eval mode.

    Parameters
    ----------
    path : str or path
        The folder.
    members : sequence of nn.Module, optional
        Networks of your own, which have no architecture in the manifest, to fill with weights.

    Examples
    --------
    >>> net = models.create("linear", classes=3, input_shape=(4,), seed=0)
    >>> len(load(RandomizedEnsemble([net]).save("mine")))
    1
    """
    manifest = saved.read(path)
    entries = manifest.members
    if members is None and any(entry.architecture is None for entry in entries):
        raise InputError(f"{path} holds networks of your own; pass members=[...] to fill them")
    if members is not None and len(members) != len(entries):
        raise InputError(f"members has {len(members)} modules; {path} holds {len(entries)} members")
    try:
        networks = list(members or [models.build(entry.architecture or {}) for entry in entries])
        for network, entry in zip(networks, entries, strict=True):
            saved.fill(network, Path(path) / entry.file, entry.sha256)
        modules: list[nn.Module] = [] if manifest.averages else networks
        for average in manifest.averages or ():
            chosen = [networks[i] for i in average.of]
            alone = average.weights is None
            modules.append(chosen[0] if alone else DeterministicEnsemble(chosen, average.weights))
        threat = None if manifest.threat is None else Threat.from_dict(manifest.threat.to_json())
        return RandomizedEnsemble(modules, manifest.probs, classes=manifest.classes, threat=threat).eval()
    except (InputError, ModelError, IndexError) as error:
        raise FileError(f"{Path(path) / 'ensemble.json'}: {error}") from error


def to_layout(x: Tensor) -> Tensor:
    """Images in channels_last, everything else untouched; what is no dense tensor of inputs is refused."""
    if not is_dense(x) or not x.dim():
        raise InputError(f"x is a {type(x).__name__}; give a dense tensor [n, ...], e.g. torch.as_tensor(x)")
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _as_pair(x: Tensor | ArrayLike, y: Tensor | ArrayLike) -> tuple[Tensor, Tensor]:
    """Inputs and labels from tensors, arrays or lists; NumPy's float64 becomes float32."""
    try:
        inputs, labels = (v if isinstance(v, Tensor) else torch.from_numpy(np.asarray(v)) for v in (x, y))
    except (TypeError, ValueError):
        raise InputError(f"x is {type(x).__name__}, y {type(y).__name__}; give tensors or arrays") from None
    given = f"{inputs.dtype} {list(inputs.shape)}"
    if inputs.dim() < 2 or not inputs.is_floating_point() or not is_dense(inputs):
        raise InputError(f"x is {given}; give floats [n, ...], e.g. x.float() / 255")
    numbers = is_dense(labels) and not labels.is_floating_point() and labels.dtype != torch.bool
    if not numbers or labels.shape != (len(inputs),):
        given = f"{labels.dtype} {tuple(labels.shape)}"
        raise InputError(f"y is {given}; give integers [{len(inputs)}], one label per input")
    double = not isinstance(x, Tensor) and inputs.dtype == torch.float64
    return inputs.float() if double else inputs, labels.to(torch.int64)
