"""`RobustBandit`: a bandit algorithm for one task, whose rewards may be poisoned.

It is `mixture_ts` (mixture_arms.py) for any number of arms, range of rewards and number of pulls,
in a loop of the user's; and it says of each reward how probable it is that it was poisoned. Clicks,
0 or 1, are another model (click_arms.py). docs/robust_bandit.md says what can be promised.

A bandit is what it has seen: a file has the settings and the history, and whoever loads it learns
it anew, arm by arm, to the same bits.
"""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from mithridate.agents.click_arms import ClickPosterior
from mithridate.agents.mixture_arms import EPS, MixtureTSConfig
from mithridate.agents.mixture_grid import OFFSETS, POINTS
from mithridate.agents.refined_arms import Floats
from mithridate.agents.refined_bandit import ArmsPosterior
from mithridate.agents.single_task import checked_action, checked_reward
from mithridate.config import LARGE, SMALL
from mithridate.errors import UserError, shown, unknown
from mithridate.files import read_bytes
from mithridate.rng import Rng
from mithridate.tensor_files import sealed, unpacked, write_sealed

Feedback = Literal["rewards", "clicks"]
MOST_ARMS = 10_000
MOST_BYTES = 2**30
"""Of the tables of all arms."""
LEAST_NOISE = 0.03
"""In units of the range of rewards: less is taken for this, so that offsets can be told apart."""
FAR = 100.0
"""A reward that is so many ranges away is a mistake and not an attack."""
FORMAT, VERSION = "mithridate.RobustBandit", 1
LARGEST_FILE = 2**30
MOST_DRAWS, BLOCK = 2**27, 2**20
MIXTURE = MixtureTSConfig()


class RobustBandit:
    """
    bandit = RobustBandit(n_arms=5, reward_range=(0, 1), noise=0.3, corruption=0.4)
    arm = bandit.act()
    suspicion = bandit.observe(arm, reward)

    - `reward_range`: where the arms' true means are. Poisoned rewards may lie outside.
    - `noise`: the standard deviation of rewards around an arm's mean; by default 0.3 of the range.
    - `corruption`: the share of poisoned rewards, below one half; None to infer it.
    - `feedback`: "clicks" if rewards are 0 or 1. Noise and range do not matter then.

    What makes no sense is a UserError, and the bandit is as it was before.
    """

    def __init__(
        self,
        n_arms: int,
        reward_range: tuple[float, float] = (0.0, 1.0),
        noise: float | None = None,
        corruption: float | None = MIXTURE.eps,
        feedback: Feedback = "rewards",
        seed: int = 0,
    ) -> None:
        self.n_arms = _whole("n_arms", n_arms, 1, MOST_ARMS)
        low, high = _range(reward_range)
        self.reward_range = (low, high)
        self.noise = _number("noise", noise, SMALL, LARGE) if noise is not None else None
        self.corruption = corruption
        if corruption is not None:
            self.corruption = _number("corruption", corruption, 0.0, 0.5)
            if self.corruption >= 0.5:
                raise UserError(
                    "corruption: it must be below 0.5: nobody can learn from rewards most of "
                    f"which are poisoned; not {shown(corruption, 40)}"
                )
        if feedback not in get_args(Feedback):
            raise unknown("feedback", str(feedback), get_args(Feedback))
        self.feedback: Feedback = feedback
        self.seed = _whole("seed", seed, 0, 2**63 - 1)
        self._arms, self._rewards, self._draws = array("i"), array("d"), 0
        self._luck = Rng(self.seed).child("robust_bandit").generator()
        shares = EPS if self.corruption is None else (self.corruption,)
        self._posterior: ArmsPosterior | ClickPosterior
        if feedback == "clicks":
            if (low, high) != (0.0, 1.0):
                raise UserError("reward_range: clicks are 0 or 1; leave it out")
            self._posterior = ClickPosterior(self.n_arms, shares)
            return
        each = 4 * len(shares) * len(MIXTURE.spreads) * POINTS * OFFSETS
        if self.n_arms * each > MOST_BYTES:
            raise UserError(f"n_arms: with these settings at most {MOST_BYTES // each} arms fit")
        scaled = max(LEAST_NOISE, MIXTURE.noise_std if noise is None else self.noise_of_range())
        c = MIXTURE
        self._posterior = ArmsPosterior(
            self.n_arms, scaled, shares, c.untouched, c.scales, c.spreads, c.temperature
        )
        self._scaled_noise = scaled

    def noise_of_range(self) -> float:
        """The noise in units of the range of rewards."""
        low, high = self.reward_range
        return MIXTURE.noise_std if self.noise is None else self.noise / (high - low)

    def __len__(self) -> int:
        """How many rewards it has seen."""
        return len(self._arms)

    @property
    def history(self) -> tuple[np.ndarray[Any, Any], Floats]:
        """The arms that were pulled, and what they were said to pay."""
        return np.array(self._arms, dtype=np.int64), np.array(self._rewards)

    # In a loop ---------------------------------------------------------------------------------

    def act(self) -> int:
        """An arm to pull."""
        self._draws += 1
        if isinstance(self._posterior, ClickPosterior):
            luck = Rng(self.seed).child("robust_bandit", self._draws).generator()
            return self._posterior.draw(luck)
        return self._posterior.draw(float(self._luck.random(dtype=np.float32)))

    def draw(self, uniform: float) -> int:
        """An arm by a uniform number of yours, in [0, 1): for those who bring their own luck."""
        if isinstance(self._posterior, ClickPosterior):
            raise UserError("draw(): it takes a bandit of rewards; with clicks, call act()")
        return self._posterior.draw(_number("uniform", uniform, 0.0, 1.0))

    def observe(self, arm: int, reward: float) -> float:
        """Learn from a reward. How probable it is that it was poisoned, given what was known up to
        now; `poisoned` judges it again by what came later."""
        arm, paid = self._checked(arm, reward)
        suspicion = self._posterior.suspicion(arm, self._scaled(paid))
        self._learn(arm, paid)
        return suspicion

    def learn(self, arm: int, reward: float) -> None:
        """The same without asking, in half the time."""
        self._learn(*self._checked(arm, reward))

    def best(self) -> Floats:
        """(n_arms,): how probable it is that each arm is the best one."""
        return self._posterior.best()

    def poisoned(self) -> Floats:
        """Of each reward so far, how probable it is that it was poisoned, given all of them."""
        arms = np.array(self._arms)
        found = np.empty(len(arms))
        for arm in np.unique(arms).tolist():
            found[arms == arm] = self._posterior.suspicions(arm)
        return found

    def _learn(self, arm: int, paid: float) -> None:
        self._posterior.observe(arm, self._scaled(paid))
        self._arms.append(arm)
        self._rewards.append(paid)

    def _scaled(self, paid: float) -> float:
        low, high = self.reward_range
        return (paid - low) / (high - low)

    def _checked(self, arm: Any, reward: Any) -> tuple[int, float]:
        chosen = checked_action(arm, self.n_arms, "arm: it must be")
        return chosen, self._believable(checked_reward(reward))

    def _believable(self, paid: float) -> float:
        if self.feedback == "clicks":
            if paid not in (0.0, 1.0):
                raise UserError(f"reward: a click is 0 or 1, not {shown(paid, 40)}")
            return paid
        if abs(self._scaled(paid) - 0.5) > FAR + 10 * self._scaled_noise:
            low, high = self.reward_range
            raise UserError(
                f"reward: {paid:g} is more than {FAR:g} times the range away from reward_range "
                f"({low:g}, {high:g}); correct one of them, or clip your rewards"
            )
        return paid

    # Files -------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bandit to a file, as a whole or not at all."""
        settings = {
            "n_arms": self.n_arms, "reward_range": list(self.reward_range), "noise": self.noise,
            "corruption": self.corruption, "feedback": self.feedback, "seed": self.seed,
        }  # fmt: skip
        meta = {"format": FORMAT, "version": VERSION, "settings": settings, "draws": self._draws}
        seen = {
            "arms": torch.from_numpy(np.array(self._arms, dtype=np.int32)),
            "rewards": torch.from_numpy(np.array(self._rewards, dtype=np.float64)),
        }
        write_sealed(Path(path), seen, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RobustBandit:
        """The bandit of a file, which goes on as the saved one would, bit for bit on the same
        machine. It learns its history anew, which takes a part of the time that it took."""
        name = f"bandit {shown(path)}"
        tensors, metadata = unpacked(read_bytes(Path(path), "bandit", LARGEST_FILE), name)
        meta = sealed(tensors, metadata)
        if meta is None or meta.get("format") != FORMAT:
            raise UserError(f"{name} is damaged, or no file of RobustBandit.save()")
        if meta.get("version") != VERSION:
            raise UserError(
                f"{name} has version {shown(meta.get('version'), 40)} of the format, this is "
                f"version {VERSION}: load it with the mithridate that saved it"
            )
        try:
            bandit = cls(**_settings(meta))
            bandit._draws = _whole("draws", meta.get("draws"), 0, MOST_DRAWS)
            for left in range(bandit._draws, 0, -BLOCK):
                bandit._luck.random(min(left, BLOCK), dtype=np.float32)
            bandit._replay(*_history(tensors))
        except UserError as error:
            raise UserError(f"{name} is damaged: {error}") from None
        return bandit

    def _replay(self, arms: np.ndarray[Any, Any], rewards: Floats) -> None:
        if len(arms) and not 0 <= arms.min() <= arms.max() < self.n_arms:
            raise UserError(f"it has arms beyond its {self.n_arms}")
        for paid in np.unique(rewards).tolist():
            self._believable(checked_reward(paid))
        low, high = self.reward_range
        scaled = (rewards - low) / (high - low)
        order = np.argsort(arms, kind="stable")
        ends = np.bincount(arms, minlength=self.n_arms).cumsum()[:-1]
        self._posterior.replay([part.tolist() for part in np.split(scaled[order], ends)])
        self._arms.extend(arms.tolist())
        self._rewards.extend(rewards.tolist())


def _settings(meta: dict[str, Any]) -> dict[str, Any]:
    found = meta.get("settings")
    known = {"n_arms", "reward_range", "noise", "corruption", "feedback", "seed"}
    if not isinstance(found, dict) or found.keys() != known:
        raise UserError(f"its settings must be {', '.join(sorted(known))}")
    return found


def _history(tensors: dict[str, torch.Tensor]) -> tuple[np.ndarray[Any, Any], Floats]:
    arms, rewards = tensors.get("arms"), tensors.get("rewards")
    if tensors.keys() != {"arms", "rewards"} or arms is None or rewards is None:
        raise UserError("it must have arms and rewards, and nothing else")
    kinds = (arms.dtype, rewards.dtype) == (torch.int32, torch.float64)
    if not kinds or arms.dim() != 1 or arms.shape != rewards.shape:
        raise UserError("its arms and rewards do not fit together")
    return arms.numpy().astype(np.int64), rewards.numpy()


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UserError(f"{name}: it must be a whole number, not {shown(value, 40)}")
    if not least <= value <= most:
        raise UserError(f"{name}: it must be in {least}…{most}, not {shown(value, 40)}")
    return int(value)


def _number(name: str, value: Any, least: float, most: float) -> float:
    """Between these, `least` and `most` included."""
    real = isinstance(value, int | float | np.integer | np.floating)
    if isinstance(value, bool) or not real or not least <= value <= most:
        raise UserError(
            f"{name}: it must be a number in {least:g}…{most:g}, not {shown(value, 40)}"
        )
    return float(value)


def _range(value: Any) -> tuple[float, float]:
    pair = list(value) if isinstance(value, tuple | list | np.ndarray) else []
    if len(pair) == 2:
        low, high = (_number("reward_range", one, -LARGE, LARGE) for one in pair)
        if high - low >= SMALL:
            return low, high
    raise UserError(
        f"reward_range: it must be two numbers, the smaller one first, not {shown(value, 60)}"
    )
