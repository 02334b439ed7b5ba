"""The Gymnasium interface: our environments in anybody's loop, our attackers around anybody's
environment. Importing it registers `mithridate/Bandit-v0` and the others (docs/gym.md)."""

from __future__ import annotations

from mithridate.errors import UserError

try:
    import gymnasium
except ImportError:
    raise UserError(
        "mithridate.gym needs the gymnasium package: pip install 'mithridate[gym]'"
    ) from None

from mithridate.gym.poison import OURS
from mithridate.gym.poison import PoisonReward as PoisonReward
from mithridate.gym.poison import PoisonRewardVector as PoisonRewardVector
from mithridate.gym.tasks import TaskEnv as TaskEnv
from mithridate.gym.tasks import TaskVectorEnv as TaskVectorEnv

IDS = {
    "mithridate/Bandit-v0": "bandit",
    "mithridate/LinearBandit-v0": "linear_bandit",
    "mithridate/Darkroom2-v0": "darkroom2",
    "mithridate/Miniworld-v0": "miniworld",
}
"""Registered names, and whose environment each is."""

# No max_episode_steps: the horizon is a setting of the environment, which ends its episodes itself.
for _id, _name in IDS.items():
    gymnasium.register(
        id=_id,
        entry_point=OURS,
        vector_entry_point="mithridate.gym.tasks:TaskVectorEnv",
        kwargs={"environment": _name},
    )
