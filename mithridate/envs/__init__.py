"""Distributions of tasks. Importing this package registers all of them."""

from mithridate.config import EnvConfig
from mithridate.envs import bandit as bandit
from mithridate.envs import darkroom as darkroom
from mithridate.envs import linear_bandit as linear_bandit
from mithridate.envs import many_bandits as many_bandits
from mithridate.envs import miniworld as miniworld
from mithridate.registry import ENVS
from mithridate.types import Env


def env_of(config: EnvConfig) -> Env:
    """The environment that `config` describes."""
    env: Env = ENVS.get(config.name)(config)
    return env


def make_env(name: str, /, **parameters: object) -> Env:
    """A registered environment, e.g. make_env("bandit", arms=10, horizon=200)."""
    env: Env = ENVS.create(name, **parameters)
    return env
