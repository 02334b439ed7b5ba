"""Attacks on bandits from the literature: somebody wants a target arm K to be pulled, and lowers
the rewards of the others. The victim sees r − α; [x]₊ is max(0, x).

- `jun_oracle`, `jun_ucb`, `jun_egreedy`: Jun, Li, Ma and Zhu, "Adversarial Attacks on Stochastic
  Bandits", NeurIPS 2018 (arXiv:1810.12188).
- `ace`: Liu and Shroff, "Data Poisoning Attacks on Stochastic Bandits", ICML 2019
  (arXiv:1905.06494).

What differs from the papers, because the threat does:

- There every reward may be replaced, and the sum of all α is what an attack costs. Here a reward is
  replaced with probability eps, so that on average arm i looks worse by eps·α only. The papers'
  guarantee, that all but a logarithmic number of pulls are of the target, holds at eps = 1; below,
  the target looks best only if α is above the gap divided by eps. For that `jun_oracle` needs
  a larger margin, and the budget for it.
- The budget bounds the norm over arms of the mean offsets. The table of `jun_oracle` is scaled
  down to it. The others watch the episode, and the rule of `adaptive` holds: at every step, the
  norm over arms of an arm's mean offset so far is within the budget; what would exceed it is cut.
- Nobody tells the attacker which of its rewards were shown. "After attack" means: as if all were.
- Until the target has been pulled nothing is known of it, and nothing is attacked. (In the papers
  every arm is pulled once before anything else.)
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from mithridate.attackers.arm_offsets import ArmOffsets, arm_means
from mithridate.budget import Account, norm, project
from mithridate.capabilities import Added
from mithridate.config import SMALL, Config, NonNegative, NonNegativeFloat, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Step, Tasks


def _an_arm(target: Any) -> Any:
    number = isinstance(target, int) and not isinstance(target, bool) and 0 <= target < 2**31
    if not number and target not in ("worst", "second"):
        raise ValueError("must be 'worst', 'second' or the number of an arm")
    return target


Target = Annotated[Literal["worst", "second"] | NonNegative, BeforeValidator(_an_arm)]


class TargetConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm over arms of the mean offsets."""
    target: Target = "worst"
    """The arm that is to be pulled: each task's worst or second best, or the number of an arm."""


class OracleConfig(TargetConfig):
    margin: NonNegativeFloat = 0.1
    """By how much the target is to look better than every other arm."""


class WatchingConfig(TargetConfig):
    delta: Annotated[float, Field(ge=SMALL, lt=0.5, allow_inf_nan=False)] = 0.05
    """The probability that an estimate is further from the truth than β."""
    sigma: PositiveFloat = 0.3
    """Standard deviation of the reward noise; unless given, the environment's."""


class JunUcbConfig(WatchingConfig):
    margin: NonNegativeFloat = 0.1
    """The Δ₀ by which other arms are pushed below the target."""


def target_arms(means: Tensor, target: Target, attacker: str) -> Tensor:
    """(B,) int64: the target of each task, with means (B, A)."""
    arms = means.shape[1]
    if target == "worst":
        return means.argmin(1)
    if target == "second":
        return means.argsort(dim=1, descending=True, stable=True)[:, min(1, arms - 1)]
    if target >= arms:
        raise UserError(f"attacker '{attacker}': target {target} is not an arm in 0…{arms - 1}")
    return means.new_full((len(means),), target, dtype=torch.int64)


@ATTACKERS.register("jun_oracle")
class JunOracle(ArmOffsets):
    """The oracle attack of Jun et al. (2018), which knows the means: α = [μ_i − μ_K + margin]₊ for
    i ≠ K, the same at every pull."""

    Config = OracleConfig

    def __init__(self, config: OracleConfig | None = None) -> None:
        super().__init__()
        self.config = config or OracleConfig()

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, None]:
        means = arm_means(spec, tasks, "jun_oracle")
        targets = target_arms(means, self.config.target, "jun_oracle")[:, None]
        alpha = (means - means.gather(1, targets) + self.config.margin).clamp(min=0.0)
        return project(-alpha.scatter(1, targets, 0.0), self.config.budget), None


class History(NamedTuple):
    """(B,) each: what is known of the arm that is pulled, i, and of the target, K; this pull is
    part of it."""

    pulls: Tensor
    mean: Tensor
    """Of the true rewards."""
    lowered: Tensor
    """Sum of the arm's past α."""
    target_pulls: Tensor
    target_mean: Tensor
    """Before and after attack: the target is never attacked."""


class WatchingAttacker:
    """Attacks that know no means but estimate them from the true rewards so far. Subclasses say
    what α is."""

    registered_name: str
    follows: ClassVar[Follows] = {"sigma": "noise_std"}

    def __init__(self, config: WatchingConfig) -> None:
        self.config = config

    @property
    def blind(self) -> bool:
        """It need not know the arms if it is told which one is the target."""
        return isinstance(self.config.target, int)

    def alpha(self, seen: History) -> Tensor:
        """(B,): what to take from the reward, before it is made non-negative."""
        raise NotImplementedError

    def beta(self, pulls: Tensor) -> Tensor:
        """√(2σ²/n · ln(π²·A·n²/(3δ))): how far the mean of n true rewards may be from the truth."""
        log = (math.pi**2 * self._arms / (3 * self.config.delta) * pulls**2).log()
        return self.config.sigma * (2 * log / pulls).sqrt()

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        means = arm_means(spec, tasks, self.registered_name)
        self.targets = target_arms(means, self.config.target, self.registered_name)
        self._arms = spec.n_actions
        self._rows = torch.arange(len(tasks), device=tasks.device)
        self._account = Account(len(tasks), spec.n_actions, self.config.budget, tasks.device)
        self._pulls, self._sums, self._lowered = torch.zeros(3, *means.shape, device=tasks.device)
        self.offsets = torch.zeros_like(self._sums)
        """(B, A): for the arm pulled last, what was just proposed."""

    def poison(self, step: Step) -> Tensor:
        arm, target = (self._rows, step.actions), (self._rows, self.targets)
        self._pulls[arm] += 1
        self._sums[arm] += step.true_rewards
        known = self._pulls[target].clamp(min=1)
        seen = History(
            self._pulls[arm], self._sums[arm] / self._pulls[arm], self._lowered[arm],
            known, self._sums[target] / known,
        )  # fmt: skip
        attacked = (step.actions != self.targets) & (self._pulls[target] > 0)
        wanted = torch.where(attacked, self.alpha(seen).clamp(min=0.0), 0.0)
        _, limit = self._account.state(step.actions)
        offset = (-wanted).clamp(*self._account.bounds(step.actions, limit))
        self._account.charge(step.actions, offset)
        self._lowered[arm] -= offset
        self.offsets[arm] = offset
        return step.true_rewards + offset

    def adds(self) -> Added:
        return Added(self.offsets[:, None], None)

    def cost(self) -> Tensor:
        return norm(self._account.means())


@ATTACKERS.register("ace")
class Ace(WatchingAttacker):
    """Adaptive attack by constant estimation (Liu and Shroff, 2019), for any victim:
    α = [mean_i − mean_K + β(N_i) + β(N_K)]₊ for i ≠ K, with means of the true rewards. The
    oracle's α with estimates in its place, on the safe side."""

    Config = WatchingConfig

    def __init__(self, config: WatchingConfig | None = None) -> None:
        super().__init__(config or WatchingConfig())

    def alpha(self, seen: History) -> Tensor:
        doubt = self.beta(seen.pulls) + self.beta(seen.target_pulls)
        return seen.mean - seen.target_mean + doubt


@ATTACKERS.register("jun_egreedy")
class JunEgreedy(WatchingAttacker):
    """The attack of Jun et al. (2018) on ε-greedy: α = [mean'_i(before)·N_i(before) + r −
    (mean'_K − 2β(N_K))·N_i]₊ for i ≠ K, with means' after attack. It puts the arm's mean as seen
    down to the target's less 2β, at once, and keeps it there."""

    Config = WatchingConfig

    def __init__(self, config: WatchingConfig | None = None) -> None:
        super().__init__(config or WatchingConfig())

    def alpha(self, seen: History) -> Tensor:
        # Rewards after attack, this one as it is, are the true ones less past α.
        total = seen.pulls * seen.mean - seen.lowered
        return total - seen.pulls * (seen.target_mean - 2 * self.beta(seen.target_pulls))


@ATTACKERS.register("jun_ucb")
class JunUcb(WatchingAttacker):
    """The attack of Jun et al. (2018) on UCB: α = [N_i·mean_i − sum of past α_i − N_i·(mean'_K −
    2β(N_K) − margin)]₊ for i ≠ K, with mean_i of the true rewards. As `jun_egreedy`, and lower by
    the margin Δ₀, which UCB's own exploration must not make up for."""

    Config = JunUcbConfig
    config: JunUcbConfig

    def __init__(self, config: JunUcbConfig | None = None) -> None:
        super().__init__(config or JunUcbConfig())

    def alpha(self, seen: History) -> Tensor:
        level = seen.target_mean - 2 * self.beta(seen.target_pulls) - self.config.margin
        return seen.pulls * seen.mean - seen.lowered - seen.pulls * level
