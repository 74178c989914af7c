"""A `Search` takes the points that an attack proposes: it projects, classifies and records them.

`Search` owns one batch under attack. Its ledger keeps the best perturbation per input, pools every maximal
fooled set and drops inputs whose risk cannot increase. Its oracle projects every proposal onto the threat,
computes its exact verdicts and counts member passes. So an attack's own file holds only its algorithm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from randens.attacks.found import Cost
from randens.attacks.members import GradientMembers
from randens.attacks.oracle import Linearisation, Oracle
from randens.ensemble import RandomizedEnsemble, frozen
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = ["Cost", "Linearisation", "Search", "attacking"]


class Search(Oracle):
    """One batch of inputs under attack by one ensemble's adversary: ledger, oracle, restarts and random numbers.

    An attack that searches several points per input side by side makes no pass of more than `width` points.

    Everything random comes from `generator`, and draws are made for the whole batch, so that dropping inputs does not
    change the rest.

    Parameters
    ----------
    rec : RandomizedEnsemble
        The ensemble under attack.
    x, y : Tensor [n, ...] and [n]
        Inputs and labels.
    threat : Threat
        What the adversary may do.
    seed : int
        Determines every random number.
    source : str
        The name under which witnesses are noted.
    gradient_members : GradientMembers, optional
        Copies of the members that compute gradients faster; the members themselves by default.
    drop_finished : bool
        Leave out inputs whose risk cannot increase.
    pool : WitnessPool, optional
        Known witnesses of these inputs.
    clean : bool Tensor [n, M], optional
        Verdicts on the unperturbed inputs, if known.
    safe : bool Tensor [n, M], optional
        Members that no perturbation fools, where a certificate says so; no pass is spent on fooling them.

    Examples
    --------
    >>> import torch, randens
    >>> rec = randens.RandomizedEnsemble([torch.nn.Linear(4, 3)])
    >>> s = Search(rec, torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1]), randens.Threat("linf", 0.1))
    >>> s.begin(0)
    >>> torch.equal(s.start(), s.x)
    True
    """

    def __init__(
        self,
        rec: RandomizedEnsemble,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        seed: int = 0,
        source: str = "",
        gradient_members: GradientMembers | None = None,
        drop_finished: bool = True,
        pool: WitnessPool | None = None,
        clean: Tensor | None = None,
        safe: Tensor | None = None,
    ) -> None:
        self.seed, self.width = seed, max(1, len(x))
        super().__init__(
            rec,
            x,
            y,
            threat,
            source=source,
            gradient_members=gradient_members,
            drop_finished=drop_finished,
            pool=pool,
            clean=clean,
            safe=safe,
        )
        self.begin(0)

    def begin(self, restart: int, stream: int = 0, together: int = 1) -> None:
        """Begin restart number `restart`, or `together` restarts from that number on, which are searched at once.

        The random numbers of a restart depend on the seed, the stream and its number only. `owner` [together·n] is
        the input that each of the points `start()` belongs to, and `numbers` [together·n] its restart.
        """
        self.restart, self.together = restart, together
        self.owner = torch.arange(self.n, device=self.device).repeat(together)
        numbers = torch.arange(restart, restart + together, device=self.device)
        self.numbers = numbers.repeat_interleave(self.n)
        self._generators, self._shufflers = [], []
        for number in range(restart, restart + together):
            seed = (self.seed * 1_000_003 + stream * 15_485_863 + number * 7919 + 1) % (2**63)
            self._generators.append(torch.Generator().manual_seed(seed))
            self._shufflers.append(torch.Generator().manual_seed(seed ^ 0x5DEECE66D))
        self.generator = self._generators[0]

    def start(self) -> Tensor:
        """Starting points [together·n, ...] for the whole batch: first the clean inputs, later random points."""
        if self.restart == 0:
            return self.x.clone()
        return torch.cat([self._random(each) for each in self._generators])

    def random_start(self) -> Tensor:
        """Random points of the ball, for the whole batch."""
        return self._random(self.generator)

    def _random(self, generator: torch.Generator) -> Tensor:
        everyone = torch.arange(self.n, device=self.device)
        return self.project(everyone, self.threat.noisy(self.x, generator))

    def uniform(self, *shape: int) -> Tensor:
        """Uniform random numbers [n, *shape] from the search's generator."""
        return torch.rand(self.n, *shape, generator=self.generator).to(self.device)

    def ranks(self) -> Tensor:
        """Uniform random numbers [together·n, M] to order the members by.

        They have a generator of their own, so that the random points do not depend on the number of members
        and M copies of one member give the same result as one.
        """
        drawn = [torch.rand(self.n, self.members, generator=each) for each in self._shufflers]
        return torch.cat(drawn).to(self.device)

    def order(self) -> list[int]:
        """A random order of the members, the same for the whole batch."""
        return torch.randperm(self.members, generator=self._shufflers[0]).tolist()


@contextlib.contextmanager
def attacking(rec: nn.Module) -> Iterator[None]:
    """Members in eval mode without parameter gradients while they are attacked; restored afterwards."""
    with frozen(rec), torch.enable_grad():
        yield
