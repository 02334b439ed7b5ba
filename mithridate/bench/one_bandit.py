"""Steps of `RobustBandit` in a loop of one's own: to choose an arm, to learn, and to say how
suspicious the reward was. Beside it, others in the same loop, by `Solo`, who say no such thing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mithridate.agents.any_bandit import RobustBandit
from mithridate.agents.mixture_grid import OFFSETS, POINTS
from mithridate.agents.single_task import Solo
from mithridate.envs import make_env
from mithridate.registry import AGENTS
from mithridate.rng import Rng

ARMS = 20
PEERS = ("mixture_ts", "ts")
SPREADS = 3
PULLED = 1500
"""Pulls of each of two arms, after which these are finer than the grid of `mixture_ts`."""
Work = Callable[[], None]


def steps(length: int, fine: bool, most: int = PULLED) -> tuple[Work, dict[str, Work], float]:
    """Ours, the peers', and the multiply-adds × 2 of ours in units of 1e9, for so many steps;
    `fine`: ours has seen much of two of its arms."""
    draw = Rng(0).child("bench", "one_bandit").generator()
    means = draw.random(ARMS)
    noise = 0.3 * draw.standard_normal(length)
    seen = 0.3 * draw.standard_normal((most, 2)) if fine else draw.standard_normal((0, 2))
    leaders = means.argsort()[-2:].tolist()
    bandit = RobustBandit(ARMS)
    for row in seen:
        for arm, luck in zip(leaders, row.tolist(), strict=True):
            bandit.learn(arm, means[arm] + luck)

    def play(act: Callable[[], int], observe: Callable[[int, float], Any]) -> None:
        for luck in noise.tolist():
            arm = act()
            observe(arm, means[arm] + luck)

    def anew() -> None:
        one = RobustBandit(ARMS)
        play(one.act, one.observe)

    ours = partial(play, bandit.act, bandit.observe) if fine else anew
    env = make_env("bandit", arms=ARMS, horizon=length)
    peers: dict[str, Work] = {}
    for name in PEERS:
        solo = Solo(AGENTS.create(name), env.spec)
        peers[name] = partial(play, solo.act, solo.observe)
    return ours, peers, length * 2 * 2 * SPREADS * POINTS * OFFSETS / 1e9
