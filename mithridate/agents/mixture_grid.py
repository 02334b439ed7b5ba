"""What `mixture_ts` knows of its arms, on a grid: in PyTorch, and the same in the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mithridate.agents.sampling import sample
from mithridate.model.player import Played, run
from mithridate.model.threads import kernel_threads
from mithridate.native import ALIGNMENT, kernels
from mithridate.tables import AttackTables, WorldTables

POINTS = 51
"""Values of an arm's mean that are told apart, 0 to 1."""
EVERY = 6
"""Offsets are told apart in so many steps of the grid of means: 0.12."""
FARTHEST = 26
"""The largest offset, in these units: 3.12."""
OFFSETS = 2 * FARTHEST + 1
TINY = 1e-20


@dataclass(frozen=True)
class Grid:
    """What is the same for all tasks: E shares ε, R spreads, W scales, G means, O offsets."""

    arms: int
    noise: float
    eps: Tensor
    """(E,)"""
    widths: Tensor
    """(R,): standard deviations of poisoned rewards."""
    means: Tensor
    """(G,)"""
    offsets: Tensor
    """(O,)"""
    places: Tensor
    """Every mean + offset."""
    share: Tensor
    """(W, O, G): how probable an offset is, of an arm with such a mean."""
    rivals: Tensor | None = None
    """The same of arms that are not the best one, if it is another."""

    @property
    def kinds(self) -> int:
        """Pairs of ε and w: a scale of the offsets, or another kind of attack."""
        return len(self.eps) * len(self.share)

    def table(self) -> int:
        """Numbers of one arm's table."""
        return len(self.eps) * len(self.widths) * POINTS * OFFSETS


def make_grid(
    arms: int, noise: float, eps: Sequence[float], untouched: float, scales: Sequence[float],
    spreads: Sequence[float], device: torch.device,
) -> Grid:  # fmt: skip
    step = 1 / (POINTS - 1)
    places = torch.arange(-EVERY * FARTHEST, POINTS + EVERY * FARTHEST, device=device)
    offsets = EVERY * step * torch.arange(-FARTHEST, FARTHEST + 1, device=device)  # (O,)
    slab = (-0.5 * (offsets / torch.tensor(scales, device=device)[:, None]) ** 2).softmax(1)
    share = untouched * (offsets == 0).float() + (1 - untouched) * slab  # (W, O)
    return Grid(
        arms=arms,
        noise=noise,
        eps=torch.tensor(eps, device=device),
        widths=(torch.tensor(spreads, device=device).square() + noise**2).sqrt(),
        means=step * torch.arange(POINTS, device=device),
        offsets=offsets,
        places=step * places,
        share=share[:, :, None].repeat(1, 1, POINTS),
    )


class Posterior(Protocol):
    """Of B tasks."""

    beliefs: Tensor
    """(B, A, E·W, at least G): of each arm's mean, given ε and w."""
    evidence: Tensor
    """(B, A, E·W): of ε and w, by arm; logarithms, up to a number for each arm."""
    lead: Tensor | None
    """(B, A, E·W): to be added to it, if the arm is the best one. None without rivals."""

    def observe(self, actions: Tensor, rewards: Tensor) -> None:
        """One reward of one arm of each task, (B,) each."""
        ...

    def best(self) -> Tensor:
        """(B, A): how probable it is that each arm is the best one."""
        ...

    def draw(self, uniforms: Tensor, temperature: float) -> Tensor:
        """(B,): arms, drawn with these probabilities, sharpened, by uniforms (B, 1)."""
        ...


def make_posterior(grid: Grid, batch: int) -> Posterior:
    if grid.means.device.type == "cpu" and kernels() is not None:
        return NativePosterior(grid, batch)
    return ReferencePosterior(grid, batch)


class ReferencePosterior:
    def __init__(self, grid: Grid, batch: int) -> None:
        device = grid.means.device
        self._grid, self._rows = grid, torch.arange(batch, device=device)
        size = (batch, grid.arms, len(grid.eps), len(grid.widths), POINTS, OFFSETS)
        self._tables = torch.ones(size, device=device)
        """(B, A, E, R, G, O): likelihoods, up to a factor for each task and arm."""
        self.beliefs = torch.ones(batch, grid.arms, grid.kinds, POINTS, device=device) / POINTS
        """(B, A, E·W, G): of each arm's mean, given ε and w."""
        self._below = _below(self.beliefs)
        """The same, added up: how probable it is that the mean is less."""
        self.evidence = torch.zeros(batch, grid.arms, grid.kinds, device=device)
        self.lead = None if grid.rivals is None else torch.zeros_like(self.evidence)

    def table(self, arm: int) -> Tensor:
        """(E, R, G, O): likelihoods of an arm of the first task, up to a factor."""
        return self._tables[0, arm]

    def observe(self, actions: Tensor, rewards: Tensor) -> None:
        arm, grid = (self._rows, actions), self._grid
        clean = _density(rewards, grid.means, grid.widths.new_tensor([grid.noise]))
        moved = _density(rewards, grid.places, grid.widths)  # (B, R, mean + offset)
        # Of the mean g and the offset o, the value at g + EVERY · o: a view, and no copy.
        strides = (moved.stride(0), moved.stride(1), moved.stride(2), EVERY * moved.stride(2))
        shape = (len(rewards), moved.shape[1], POINTS, OFFSETS)
        moved = moved.as_strided(shape, strides)[:, None]  # (B, 1, R, G, O)
        eps = grid.eps[:, None, None, None]
        table = self._tables[arm] * ((1 - eps) * clean[:, None, :, :, None] + (eps * moved + TINY))
        most = table.flatten(1).amax(1)
        table = table / most[:, None, None, None, None]
        self._tables[arm] = table
        likely = table.sum(2)  # (B, E, G, O)
        # The factors are the same for all ε and w, and so is what they add here.
        self.beliefs[arm], self.evidence[arm] = _expected(likely, grid.share)
        if self.lead is None or grid.rivals is None:
            self._below[arm] = _below(self.beliefs[arm])
            return
        rival, evidence = _expected(likely, grid.rivals)
        self._below[arm] = _below(rival)
        self.lead[arm] = self.evidence[arm] - evidence
        self.evidence[arm] = evidence

    def best(self) -> Tensor:
        logs = self._below.log()
        others = (logs.sum(1, keepdim=True) - logs).exp()
        wins = (self.beliefs * others).sum(3)  # (B, A, E·W)
        if self.lead is not None:
            evidence = self.evidence.sum(1, keepdim=True) + self.lead + (wins + TINY).log()
            return evidence.flatten(1).softmax(1).view(wins.shape).sum(2)
        weights = self.evidence.sum(1).softmax(1)  # (B, E·W)
        # What has been ruled out altogether has no wins to share out.
        wins = wins / wins.sum(1, keepdim=True).clamp(min=TINY)
        return (wins * weights[:, None]).sum(2)

    def draw(self, uniforms: Tensor, temperature: float) -> Tensor:
        return sample(self.best().clamp(min=TINY).log() / temperature, uniforms)


def _expected(likely: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Of likelihoods (B, E, G, O), with offsets so probable: beliefs (B, E·W, G), and their
    evidence (B, E·W)."""
    belief = torch.einsum("bego,wog->bewg", likely, share).flatten(1, 2)
    total = belief.sum(2).clamp(min=TINY)
    return belief / total[..., None], total.log()


def _below(belief: Tensor) -> Tensor:
    return (belief.cumsum(-1) - 0.5 * belief).clamp(min=TINY)


def _density(rewards: Tensor, values: Tensor, widths: Tensor) -> Tensor:
    """(B, widths, values): of the rewards, up to a factor."""
    away = (rewards[:, None, None] - values) / widths[:, None]
    density: Tensor = (-0.5 * away.square()).exp() / widths[:, None]
    return density


class NativePosterior:
    """The table of an arm is (E, O, R, G) here, and a belief's row has zeros after its G points.
    By default a task of 5 arms takes 170 kB. Where whole episodes are played, each thread has one
    task at a time."""

    def __init__(self, grid: Grid, batch: int) -> None:
        self._mixture = kernels().ArmMixture(
            grid.arms, EVERY, grid.noise, grid.eps, grid.widths, grid.means, grid.places,
            grid.share, grid.rivals,
        )  # fmt: skip
        self._tables = torch.ones(()).expand(batch, grid.arms, grid.table())  # room when needed
        self._most = torch.ones(batch, grid.arms)
        room = -(-POINTS // ALIGNMENT) * ALIGNMENT
        self.beliefs = torch.zeros(batch, grid.arms, grid.kinds, room)
        self.beliefs[..., :POINTS] = torch.ones(POINTS) / POINTS
        self._below = torch.zeros_like(self.beliefs)
        self._below[..., :POINTS] = (torch.arange(POINTS) + 0.5) / POINTS
        self.evidence = torch.zeros(batch, grid.arms, grid.kinds)
        self.lead = None if grid.rivals is None else torch.zeros_like(self.evidence)

    def _known(self) -> tuple[Tensor | None, ...]:
        return self._most, self.beliefs, self._below, self.evidence, self.lead

    def observe(self, actions: Tensor, rewards: Tensor) -> None:
        rewards = rewards.float().contiguous()
        self._tables = self._tables.contiguous()
        self._mixture.observe(
            self._tables, *self._known(), actions.contiguous(), rewards, kernel_threads()
        )

    def best(self) -> Tensor:
        found = torch.empty_like(self._most)
        self._mixture.best(*self._known(), found, kernel_threads())
        return found

    def draw(self, uniforms: Tensor, temperature: float) -> Tensor:
        actions = torch.empty(len(uniforms), dtype=torch.int64)
        uniforms = uniforms.contiguous()
        self._mixture.act(*self._known(), uniforms, temperature, actions, kernel_threads())
        return actions

    def alone(self) -> tuple[Any, Any, tuple[Any, ...]]:
        """The kernels, the tables and the rest of what they work on, as NumPy arrays of the same
        memory: the kernels take these in a tenth of the time, which counts for a single task."""
        self._tables = self._tables.contiguous()
        return (
            self._mixture,
            self._tables.numpy(),
            tuple(x if x is None else x.numpy() for x in self._known()),
        )

    def player(self) -> MixturePlayer:
        return MixturePlayer(self._mixture)


class MixturePlayer:
    """Plays whole episodes in the kernels, and knows nothing at the beginning of each."""

    def __init__(self, mixture: Any) -> None:
        self._mixture = mixture

    def play(
        self, world: WorldTables, noise: Tensor | None, hit: Tensor, attack: AttackTables | None,
        uniforms: Tensor, temperature: float,
    ) -> Played:  # fmt: skip
        """See `NativePlayer.play`."""
        luck = uniforms.contiguous()
        play = self._mixture.play
        return run(play, world, noise, hit, attack, luck=luck, temperature=temperature)[0]


def is_sound(player: object) -> bool:
    """Whether it is this player, and what it plays with is the kernels'."""
    ours = type(player) is MixturePlayer and vars(player).keys() == {"_mixture"}
    return ours and type(vars(player)["_mixture"]) is kernels().ArmMixture
