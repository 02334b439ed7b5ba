"""What `mixture_ts(prior=searched)` takes for probable: attacks like those that searches find.

Whoever searches knows which arm is best: it is lowered and the others are raised, so that all of
them pass for what they are not. So offsets have one distribution if an arm is the best one, and
another if it is not; both depend on the arm's mean. The attacks are sorted into a few kinds by how
far the best arm is lowered. Which kind it is, or whether the offsets have nothing to do with the
means at all, is learned from all arms, like the scale of the offsets without this prior.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from mithridate.agents.mixture_grid import Grid
from mithridate.searched import Searched

UNRELATED = 0.3
"""How probable it is that offsets have nothing to do with the means."""
KINDS = 3
ALIKE = 0.25
"""Standard deviation between the means of arms that are attacked in a similar way."""
BLUR = 0.15
"""Of what is added to a found offset."""
ANYTHING = 1e-3
"""Weight of a broad distribution beside each found offset's."""


def with_searched(grid: Grid, found: Searched) -> Grid:
    """The same grid with another prior, for attacks like these."""
    means, offsets = found.means, found.offsets  # (N, A), the best arm last
    lowered = offsets[:, -1]
    cuts = lowered.quantile(torch.linspace(0, 1, KINDS + 1))
    best, rival = [grid.share * UNRELATED / len(grid.share)], [grid.share]
    for low, high in pairwise(cuts):
        kind = (lowered >= low) & (lowered <= high)
        probable = (1 - UNRELATED) * kind.float().mean()
        best.append(probable * _density(grid, means[kind, -1:], offsets[kind, -1:])[None])
        rival.append(_density(grid, means[kind, :-1], offsets[kind, :-1])[None])
    return replace(grid, share=torch.cat(best), rivals=torch.cat(rival))


def _density(grid: Grid, means: Tensor, offsets: Tensor) -> Tensor:
    """(O, G): of the grid's offsets for each of its means, from those of other arms."""
    alike = _bell((grid.means[:, None] - means.flatten().to(grid.means)) / ALIKE)  # (G, N)
    near = _bell((grid.offsets[:, None] - offsets.flatten().to(grid.means)) / BLUR)  # (O, N)
    density = near @ alike.T + ANYTHING * _bell(grid.offsets)[:, None]
    return density / density.sum(0)


def _bell(distance: Tensor) -> Tensor:
    return (-0.5 * distance.square()).exp()
