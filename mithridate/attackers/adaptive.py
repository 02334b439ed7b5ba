"""The adaptive attacker (paper, section 4): a transformer that watches the episode.

It reads the actions and *true* rewards so far, the current ones included, and puts out the
distribution N(μ, σ²) of the offset of this reward. One network, with the victim's architecture and
no pretraining, is shared by all tasks. It learns by REINFORCE on the true rewards. What the paper
leaves open:

- The budget B bounds, per task, the norm over arms of an arm's mean offset μ in the episode so
  far. It holds at every step: μ is cut to what the steps before have left. A single |μ| is at most
  `reach`·B, and a single σ at most B_σ/√A, so that the norm of the spreads is at most B_σ. The soft
  penalty is charged for what the network would have done without the cut.
- So that it can plan with its budget, it also reads the mean offset that the pulled arm has had so
  far, and the largest that it may come to.
- A step's score is weighted by the discounted true rewards that follow, less the task's mean
  reward, less what is usual at that step over all tasks, less a third output's prediction of the
  rest. The task's mean cancels an attack that works from the first step to the last; with several
  `episodes` of a task in a round, what is taken off is what follows the same step of the others.
- A round makes several passes over the same trajectories, in small batches; the ratio of a step's
  new to its old density is clipped (as in PPO), because the second pass is no longer on-policy.
- It begins with a guess: μ = `tilt`·(reward − what an arm yields on average), the slope being a
  weight like any other. At −2 poisoned rewards are the mirror image of the true ones, which no
  single step gives away. From nothing, REINFORCE does not find this in hundreds of rounds.
- The learning rate is two hundred times the paper's 3e-5 by default, for a tenth of its rounds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import model_validator
from torch import Tensor, nn

from mithridate.attackers.arm_offsets import arm_means
from mithridate.budget import Account, excess, norm
from mithridate.capabilities import Added
from mithridate.config import (
    Config,
    Fraction,
    ModelConfig,
    NonNegativeFloat,
    Number,
    OptimiserConfig,
    Positive,
    PositiveFloat,
    Seed,
)
from mithridate.errors import UserError
from mithridate.model.cache import KVCache
from mithridate.model.optimiser import Optimiser
from mithridate.model.threads import left_to_kernels
from mithridate.model.transformer import Transformer
from mithridate.registry import ATTACKERS
from mithridate.returns import less_than_the_others, returns_after
from mithridate.rng import Rng, TaskStreams
from mithridate.tensor_files import misfit, part, prefixed
from mithridate.types import EnvSpec, Step, Tasks, Trajectory


class AdaptiveConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm over arms of the mean offsets."""
    reach: PositiveFloat = 1.0
    """The largest single mean offset, in budgets."""
    spread_budget: PositiveFloat = 1.0
    """Bound B_σ on the norm over arms of the spreads."""
    tilt: Number = -2.0
    """The slope of the mean offset in the true reward that it begins with."""
    penalty: NonNegativeFloat = 1.0
    """The price of a norm that would exceed the budget. (The paper's λ = 10 goes with gains that
    are not divided by their standard deviation.)"""
    layers: Positive = 4
    """Of the transformer."""
    heads: Positive = 4
    """Of each layer."""
    width: Positive = 32
    """Of the transformer."""
    learning_rate: PositiveFloat = 6e-3
    """Of AdamW."""
    passes: Positive = 8
    """Over the trajectories of a round."""
    batch: Positive = 50
    """Tasks in an update."""
    clip: PositiveFloat = 0.3
    """How far the ratio of new to old densities may move from 1."""
    discount: Fraction = 0.97
    """Of the rewards that follow an offset."""
    episodes: Positive = 1
    """Of each task in a round. Several are compared with each other, step by step, instead of with
    the episode's own mean."""
    rounds: Positive | None = None
    """With several episodes: over which the learning rate falls to a tenth; null for the run's."""
    seed: Seed = 0
    """Of the initial weights."""

    @model_validator(mode="after")
    def _is_a_model(self) -> AdaptiveConfig:
        self.model()
        return self

    def model(self) -> ModelConfig:
        return ModelConfig(layers=self.layers, heads=self.heads, width=self.width)


class AttackModel(nn.Module):
    """Actions, true rewards and the state of the budget in; for each step the mean offset, its
    spread, and a prediction of what follows."""

    def __init__(self, config: AdaptiveConfig, n_actions: int, horizon: int) -> None:
        super().__init__()
        self.n_actions = n_actions
        self.reach = config.reach * config.budget
        self.widest = config.spread_budget / math.sqrt(n_actions)
        self.encoder = nn.Linear(n_actions + 3, config.width)
        self.transformer = Transformer(config.model(), positions=horizon)
        self.head = nn.Linear(config.width, 3)
        self.tilt = nn.Parameter(torch.zeros(2))
        """Slope and intercept of the mean offset in the true reward, in units of the reach."""

    @property
    def in_kernels(self) -> bool:
        return self.transformer.in_kernels

    def encode(self, actions: Tensor, inputs: Tensor) -> Tensor:
        """Tokens (..., D) of actions (...) and true reward, spent and limit, (..., 3)."""
        # Row by row, and not by a product: no token depends on the others, not even in rounding.
        columns = self.encoder.weight.T  # (A + 3, D)
        tokens = F.embedding(actions, columns[: self.n_actions]) + self.encoder.bias
        for i in range(3):
            tokens = tokens + inputs[..., i : i + 1] * columns[self.n_actions + i]
        return tokens

    def forward(self, actions: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T) each: means, spreads, values; inputs (B, T, 3)."""
        return self.read(self.head(self.transformer(self.encode(actions, inputs))), inputs)

    def step(
        self, actions: Tensor, inputs: Tensor, cache: KVCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B,) each: the same for the next step."""
        hidden = self.transformer.step(self.encode(actions, inputs), cache)  # (B, D)
        return self.read((hidden[:, None] * self.head.weight).sum(2) + self.head.bias, inputs)

    def read(self, out: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread, value = out.unbind(-1)
        mean = mean + self.tilt[0] * inputs[..., 0] + self.tilt[1]
        return self.reach * mean.tanh(), self.widest * (0.5 + 0.5 * (spread + 1).sigmoid()), value

    @torch.no_grad()
    def initialise(self, generator: torch.Generator, tilt: float, centre: Tensor) -> None:
        self.transformer.initialise(generator)
        self.encoder.weight.normal_(0.0, self.encoder.in_features**-0.5, generator=generator)
        self.head.weight.normal_(0.0, 0.1 * self.head.in_features**-0.5, generator=generator)
        for layer in (self.encoder, self.head):
            layer.bias.zero_()
        if self.reach > 0:
            self.tilt.copy_(torch.stack([torch.ones(()), -centre]) * tilt / self.reach)


class Trace(NamedTuple):
    """What `update` needs to know of each step: (B,), and (B, T) once they are stacked."""

    inputs: Tensor
    """(…, 3): true reward, the arm's mean offset so far, the largest that it may come to."""
    mean: Tensor
    spread: Tensor
    low: Tensor
    high: Tensor


@ATTACKERS.register("adaptive")
class AdaptiveAttacker:
    Config = AdaptiveConfig

    def __init__(self, config: AdaptiveConfig | None = None) -> None:
        self.config = config or AdaptiveConfig()
        self.model: AttackModel | None = None
        self.updates = 0
        self.learning = False
        """Nothing depends on it: the budget holds at every step in any case."""
        if self.config.episodes > 1:
            self.episodes, self.together = self.config.episodes, True

    @property
    def blind(self) -> bool:
        """Only its first guess is about the arms."""
        return self.model is not None

    # Acting ----------------------------------------------------------------------------------

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        means = arm_means(spec, tasks, "adaptive")
        if self.model is None:
            self._make(spec.n_actions, spec.horizon)
            assert self.model is not None
            generator = Rng(self.config.seed).child("adaptive").torch_generator()
            centre = means.mean().cpu()
            self.model.initialise(generator, self.config.tilt, centre)
        if (known := (self.model.n_actions, len(self.model.transformer.positions))) != (
            spec.n_actions, spec.horizon,
        ):  # fmt: skip
            raise UserError(
                f"this attacker was trained for {known[0]} arms and {known[1]} steps; "
                f"the environment has {spec.n_actions} and {spec.horizon}"
            )
        self.model.to(tasks.device)
        self._rng = rng
        self._cache = self.model.transformer.new_cache(len(tasks))
        self._rows = torch.arange(len(tasks), device=tasks.device)
        shape = (len(tasks), spec.n_actions)
        self._account = Account(*shape, self.config.budget, tasks.device)
        self.offsets, self.spreads = torch.zeros(2, *shape, device=tasks.device)
        """(B, A): for the arm pulled last, what was just proposed."""
        self._trace: list[Trace] = []

    def _make(self, n_actions: int, horizon: int) -> None:
        self.model = AttackModel(self.config, n_actions, horizon)
        final = 0.1 if self.config.episodes > 1 else 1.0
        rate = OptimiserConfig(
            learning_rate=self.config.learning_rate, warmup_steps=0, final_fraction=final
        )
        self._optimiser = Optimiser(self.model, rate, steps=1)

    @torch.no_grad()
    def poison(self, step: Step) -> Tensor:
        assert self.model is not None
        arm = (self._rows, step.actions)
        spent, limit = self._account.state(step.actions)
        inputs = torch.stack([step.true_rewards, spent, limit], 1)
        mean, spread, _ = self.model.step(step.actions, inputs, self._cache)
        low, high = self._account.bounds(step.actions, limit)
        mean = mean.clamp(low, high)
        self._account.charge(step.actions, mean)
        self.offsets[arm], self.spreads[arm] = mean, spread
        self._trace.append(Trace(inputs, mean, spread, low, high))
        proposed: Tensor = step.true_rewards + mean + spread * self._rng.normal().squeeze(1)
        return proposed

    def adds(self) -> Added:
        return Added(self.offsets[:, None], self.spreads[:, None])

    def cost(self) -> Tensor:
        return norm(self._account.means())

    # Learning --------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Of the episode so far, stacked along the second axis."""
        return Trace(*(torch.stack(x, 1) for x in zip(*self._trace, strict=True)))

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learn from the rollout that the last `reset` began. Returns what to log."""
        assert self.model is not None
        with left_to_kernels(self.model.in_kernels):
            return self._update(trajectory)

    def _update(self, trajectory: Trajectory) -> dict[str, float]:
        assert self.model is not None
        c, before = self.config, self.trace()
        shift = trajectory.proposed_rewards - trajectory.true_rewards
        old = _log_density(shift, before.mean, before.spread)
        if c.episodes > 1:
            gain = less_than_the_others(trajectory.true_rewards, c.discount, c.episodes)
            self._optimiser.steps = c.passes * -(-len(gain) // c.batch) * (c.rounds or 1)
        else:
            gain = gains(trajectory.true_rewards, c.discount)
        order = Rng(c.seed).child("adaptive", "batches", self.updates).generator()
        errors = []
        for _ in range(c.passes):
            shuffled = torch.from_numpy(order.permutation(len(gain)))
            for rows in torch.split(shuffled, c.batch):
                actions, poisoned = trajectory.actions[rows], trajectory.poisoned[rows]
                mean, spread, value = self.model(actions, before.inputs[rows])
                used = mean.clamp(before.low[rows], before.high[rows])
                ratio = (_log_density(shift[rows], used, spread) - old[rows]).exp()[poisoned]
                advantage = (gain[rows] - value.detach())[poisoned]
                norms = excess(_by_arm(mean, actions, self.model.n_actions), c.budget)
                error = F.mse_loss(value, gain[rows])
                loss = 0.5 * error + c.penalty * norms.mean()
                if len(ratio) > 1:  # without contaminated steps there is nothing to learn
                    loss = loss - _clipped(ratio, _normalised(advantage), c.clip).mean()
                self._optimiser.step(loss, self.updates)
                self.updates += 1
                errors.append(error.item())
        cost = self.cost()
        return {
            "norm_mean": cost.mean().item(), "norm_max": cost.max().item(),
            "spread_mean": before.spread.mean().item(), "value_error": sum(errors) / len(errors),
        }  # fmt: skip

    # Keeping ---------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything that `update` changes."""
        if self.model is None:
            return {}
        tensors = prefixed("model.", self.model.state_dict())
        tensors |= prefixed("optimiser.", self._optimiser.tensors())
        return tensors | {"updates": torch.tensor(self.updates)}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        if not tensors:
            return
        model = part(tensors, "model.")
        self._make(model["encoder.weight"].shape[1] - 3, len(model["transformer.positions"]))
        assert self.model is not None
        if (difference := misfit(model, self.model.state_dict())) is not None:
            raise ValueError(difference)
        self.model.load_state_dict(model)
        if optimiser := part(tensors, "optimiser."):
            self._optimiser.load_tensors(optimiser)
        self.updates = int(tensors["updates"])


def gains(true_rewards: Tensor, discount: float) -> Tensor:
    """(B, T): how much less than usual the victim earned after each step, in standard deviations.
    Usual is the task's mean reward, plus what all tasks have on average at that step."""
    after = returns_after(true_rewards.mean(1, keepdim=True) - true_rewards, discount)
    return _normalised(after - after.mean(0))


def _normalised(x: Tensor) -> Tensor:
    return (x - x.mean()) / x.std(correction=0).clamp(min=1e-6)


def _log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Of a normal distribution, up to a constant."""
    return -0.5 * ((x - mean) / std) ** 2 - std.log()


def _clipped(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The pessimistic one of the objective and its clipped form (Schulman et al., 2017)."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def _by_arm(values: Tensor, actions: Tensor, arms: int) -> Tensor:
    """(B, A): an arm's mean of values (B, T)."""
    zeros = values.new_zeros(len(values), arms)
    sums = zeros.scatter_add(1, actions, values)
    return sums / zeros.scatter_add(1, actions, torch.ones_like(values)).clamp(min=1)
