"""Episodes of our environments, a step at a time: what the single and the vector environment have
in common. Dynamics, rewards and scores are those of `mithridate/envs`, streams those of the
rollout.

An episode has two numbers, its task's and its own. `rollout(env, tasks, agent, rng=RNG)` with tasks
of these numbers has the same task and the same luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate.agents.single_task import checked_action
from mithridate.envs import make_env
from mithridate.errors import UserError, shown, unknown
from mithridate.observations import own
from mithridate.rng import Rng
from mithridate.scores import score
from mithridate.training.fitness import check_views
from mithridate.types import COPIES, Env, State, Tasks, Trajectory

RNG = Rng(0)
"""Task 7 is the same one everywhere. Luck is selected by the numbers of task and episode."""
MOST_TASKS = 2**31
MOST_EPISODES = 2**63 // COPIES
OPTIONS = ("task", "same_task")

Array = np.ndarray[Any, Any]
Numbers = list[int]


class Episodes:
    """B of them side by side, which begin and end together."""

    tasks: Tasks
    """Of this moment, once the first have begun."""
    state: State

    def __init__(
        self,
        environment: str,
        batch: int,
        task: int | Sequence[int] | None,
        resample: bool,
        settings: Mapping[str, Any],
    ) -> None:
        if not isinstance(resample, bool):
            raise UserError(f"resample: it must be true or false, not {shown(resample, 40)}")
        self.env: Env = make_env(environment, **settings)
        check_views(self.env)
        self.batch = batch
        self.resample = resample
        self.began = 0
        """How many times episodes have begun."""
        self.moved = 0
        """In how many of these with new tasks."""
        self._pool: Tasks | None = None
        self._task = None if task is None else self._numbers(task)
        self._now: Numbers | None = None
        self._steps = 0

    @property
    def over(self) -> bool:
        return self._steps >= self.env.spec.horizon

    @property
    def told(self) -> bool:
        """Whether somebody has said which tasks there are."""
        return self._pool is not None

    def example(self) -> Tasks:
        """A batch of tasks, to try things out."""
        return self._tasks(self._task or [0] * self.batch)

    def draw_from(self, tasks: Tasks) -> None:
        """From now on tasks are some of these, numbered from 0."""
        self._pool, self._now = tasks.copy(), None
        if self._task is not None:
            self._numbers(self._task)  # or it says that there are not so many

    # Beginning -----------------------------------------------------------------------------------

    def begin(
        self,
        draws: Sequence[np.random.Generator],
        options: Mapping[str, Any] | None,
        seeded: bool = False,
    ) -> dict[str, Array]:
        """New episodes, with the luck of `draws`, one for each. Returns what to say of them."""
        wanted = self._wanted(options or {}, seeded)
        if wanted is None:
            most = MOST_TASKS if self._pool is None else len(self._pool)
            wanted = [int(draw.integers(most)) for draw in draws]
        episodes = [int(draw.integers(MOST_EPISODES)) for draw in draws]
        tasks = self._tasks(wanted)
        self.tasks = replace(tasks, episodes=torch.tensor(episodes))
        self.moved += seeded or wanted != self._now
        self.began += 1
        self._now, self._steps = wanted, 0
        self._noise = RNG.child("noise").streams(self.tasks.luck)
        self.state = self.env.reset(self.tasks)
        self.observation = self.env.observe(self.state)
        return {"task": np.array(wanted), "episode_number": np.array(episodes)}

    def _wanted(self, options: Mapping[str, Any], seeded: bool) -> Numbers | None:
        """The numbers of the tasks; None if they are to be drawn."""
        for name in options:
            if name not in OPTIONS:
                raise unknown("option of reset", str(name), OPTIONS)
        if options.get("task") is not None:
            return self._numbers(options["task"])
        if options.get("same_task"):
            if self._now is None:
                raise UserError("same_task: there is no task yet; reset without it first")
            return self._now
        if self._task is not None:
            return self._task
        return None if self.resample or seeded else self._now

    def _numbers(self, task: Any) -> Numbers:
        """A number for all, or one for each."""
        several = isinstance(task, Sequence | np.ndarray) and not isinstance(task, str)
        given = list(task) if several else [task] * self.batch
        if len(given) != self.batch:
            raise UserError(f"task: it must be one number, or {self.batch}, not {len(given)}")
        most = COPIES if self._pool is None else len(self._pool)
        return [checked_action(number, most, "task: it must be") for number in given]

    def _tasks(self, numbers: Numbers) -> Tasks:
        if self._pool is not None:
            return self._pool.select(torch.tensor(numbers))
        rng = RNG.child("tasks")
        found = {n: self.env.sample_tasks(1, rng, first=n) for n in dict.fromkeys(numbers)}
        return type(found[numbers[0]]).cat([found[n] for n in numbers])

    # Steps ---------------------------------------------------------------------------------------

    def actions(self, given: Sequence[Any]) -> Tensor:
        """(B,), or an error that says what is wrong."""
        if len(given) != self.batch:
            raise UserError(f"actions: there must be {self.batch}, not {len(given)}")
        count = self.env.spec.n_actions
        return torch.tensor([checked_action(a, count, "action: it must be") for a in given])

    def key(self) -> Tensor:
        """(B,): the situation, as attackers tell them apart."""
        if self.env.spec.n_attack_keys == 1:
            return torch.zeros(self.batch, dtype=torch.int64)
        return self.env.attack_key(self.tasks, self.state)

    @torch.no_grad()
    def step(self, given: Sequence[Any]) -> dict[str, Array]:
        """Returns what to say of the step: the true rewards, the scores, the best actions."""
        if self.began == 0:
            raise UserError("there is no episode yet: reset the environment")
        if self.over:
            raise UserError("the episode is over: reset the environment")
        actions = self.actions(given)
        optimal = self.env.optimal_action(self.tasks, self.state)
        before, key = own(self.observation), self.key()
        noise = self._noise.normal(self.env.spec.noise_size)
        self.state, paid = self.env.step(self.tasks, self.state, actions, noise)
        self.observation = self.env.observe(self.state)
        self._steps += 1
        column = paid.to(torch.float32)[:, None]
        happened = Trajectory(
            observations=before, actions=actions[:, None], true_rewards=column,
            proposed_rewards=column, observed_rewards=column,
            poisoned=torch.zeros_like(column, dtype=torch.bool), optimal_actions=optimal[:, None],
            optimal_after=optimal, keys=key[:, None],
        )  # fmt: skip
        return {
            "true_reward": paid.to(torch.float64).numpy(),
            "score": score(self.env, self.tasks, happened)[:, 0].to(torch.float64).numpy(),
            "optimal_action": optimal.numpy().copy(),
        }
