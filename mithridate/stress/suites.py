"""The suites: frozen sets of attacks, each with a version of its own.

Everything that a figure depends on is here, in one place: environment, levels, budget, tasks, seed,
repeats, attacks and how long they learn. No argument changes it. A change makes a new version; the
digest of each suite's content, the settings of its attackers included, is written down below, and a
test compares. (Attackers that kinds.py names are taken from there; the digest covers them. When one
changes there, write the old one out here for the versions that have it.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mithridate.attackers import make_attacker
from mithridate.config import EnvConfig
from mithridate.envs import env_of
from mithridate.errors import UserError, shown, unknown
from mithridate.evaluation.kinds import trained_kinds
from mithridate.registry import ENVS
from mithridate.rng import Rng
from mithridate.settings import parse
from mithridate.types import Env, Tasks

SEED = 2026
"""Root of all random streams of the suites here."""


@dataclass(frozen=True)
class Attack:
    """An attack, at every level of a suite."""

    kind: str
    """See kinds.py."""
    attacker: str
    rounds: int | None = None
    """How long it learns against the agent; None if it learns nothing."""
    after: str | None = None
    """The attack, learned before at the same level, that it begins with."""

    @property
    def name(self) -> str:
        return self.attacker if self.rounds is None else self.kind

    @property
    def poisons(self) -> bool:
        return self.kind != "clean"


CLEAN = Attack("clean", "none")


@dataclass(frozen=True)
class Suite:
    name: str
    env: str
    budget: float
    attacks: tuple[Attack, ...]
    eps: tuple[float, ...] = (0.1, 0.2, 0.4)
    """Levels: the share of poisoned steps."""
    tasks: int = 200
    repeats: int = 4
    """Episodes of each task in each half of the luck."""
    seed: int = SEED
    threads: int = 2
    """Sums over threads are not bit-equal across counts."""
    block: int = 400
    """Episodes that are rolled out at once."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the environment, where they are not its defaults."""
    ranked: bool = True
    """Whether a leaderboard takes its entries."""

    @property
    def hardest(self) -> float:
        """The level that agents are ranked by."""
        return max(self.eps)

    def cells(self) -> list[tuple[Attack, float]]:
        """What is measured: each attack at each level, and once without any."""
        levels = [(attack, eps) for eps in self.eps for attack in self.attacks]
        return [(CLEAN, 0.0), *levels]

    def env_config(self) -> EnvConfig:
        config: EnvConfig = parse(ENVS.get(self.env).Config, self.settings, f"suite {self.name}")
        return config

    def sample_tasks(self, env: Env) -> Tasks:
        """The tasks, which are those that `AttackTraining` has for this seed."""
        return env.sample_tasks(self.tasks, Rng(self.seed).child("attack", "tasks"))

    def make(self, attacker: str) -> Any:
        """An attacker within the budget."""
        return make_attacker(attacker, self.budget, self.env_config().facts())

    def content(self) -> dict[str, Any]:
        """Everything that figures depend on."""
        said = asdict(self)
        said["settings"] = self.env_config().to_json()
        for attack in said["attacks"]:
            if attack["after"] is None:
                del attack["after"]
            attack["settings"] = self.make(attack["attacker"]).config.to_json()
        return said

    def sha256(self) -> str:
        text = json.dumps(self.content(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _fixed(kind: str, *attackers: str) -> tuple[Attack, ...]:
    return tuple(Attack(kind, attacker) for attacker in attackers)


def _trained(
    kind: str, rounds: int, attacker: str | None = None, after: str | None = None
) -> Attack:
    attacker = attacker or trained_kinds()[kind].attacker
    assert attacker is not None
    return Attack(kind, attacker, rounds, after)


ARMS = (
    *_fixed("random", "uniform"),
    *_fixed("structured", "raise_worst", "lower_best", "swap", "mirror", "few_arms"),
    *_fixed("literature", "jun_oracle", "ace"),
    _trained("learned", 20, "gaussian"),
    _trained("steady", 15),
    _trained("search", 15, after="steady"),
)
ROOMS = (
    *_fixed("random", "uniform"),
    *_fixed("structured", "hide_best", "raise_lesser", "swap_goals", "fake_goal", "decoys"),
    _trained("learned", 60, "tabular"),
    _trained("steady", 60, "tabular(episodes=16,learning_rate=0.05,discount=0.99)"),
    _trained("search", 15),
)
ADAPTIVE = _trained("adaptive", 40)
QUICK = (
    *_fixed("random", "uniform"),
    *_fixed("structured", "raise_worst", "lower_best", "swap", "mirror"),
    _trained("search", 6),
)
QUICK_ROOMS = (
    *_fixed("random", "uniform"),
    *_fixed("structured", "hide_best", "swap_goals", "decoys"),
    _trained("search", 4),
)
SMOKE = (*_fixed("random", "uniform"), *_fixed("structured", "mirror"), _trained("search", 2))

_SUITES: dict[tuple[str, str], Suite] = {}


def register(suite: Suite) -> Suite:
    """Make it known under its name. What has a name keeps its content."""
    if _SUITES.get((suite.env, suite.name), suite) != suite:
        raise UserError(
            f"suite {shown(suite.name)} of {shown(suite.env)} is there already: choose another name"
        )
    return _SUITES.setdefault((suite.env, suite.name), suite)


for name in ("bandit", "linear_bandit"):
    register(Suite("standard-v0", name, 3.0, ARMS))
    register(Suite("plus-v0", name, 3.0, (*ARMS, ADAPTIVE)))
    register(
        Suite("quick-v0", name, 3.0, QUICK, eps=(0.4,), tasks=40, repeats=2, ranked=False)
    )  # fmt: skip
    register(
        Suite(
            "smoke-v0", name, 3.0, SMOKE, eps=(0.4,), tasks=10, repeats=2, threads=1,
            settings={"horizon": 50}, ranked=False,
        )
    )  # fmt: skip
register(Suite("standard-v0", "darkroom2", 10.0, ROOMS, tasks=100))
register(
    Suite(
        "quick-v0", "darkroom2", 10.0, QUICK_ROOMS, eps=(0.4,), tasks=20, repeats=2, ranked=False
    )
)  # fmt: skip

FROZEN: dict[str, str] = {
    "bandit/plus-v0": "9c843d6f2e2d6dd71155280e03ea6a12c62492e87488c8d7b3e88c540c877dfa",
    "bandit/quick-v0": "a340b5a32e8e8f79fa86b5110ec463c6ad722e835bf2ce08238e4dc170f68d21",
    "bandit/smoke-v0": "6c0ecba0bd5dcb3b8602fa4d1b9db1ad9438f7eda98423a80a003a860c08aae8",
    "bandit/standard-v0": "0e0ea080f4d162736a29501def1a79f764c02708e39a8bbee953adba90cdd986",
    "darkroom2/quick-v0": "86a952bf5476b9d35d8d454d179e026277e01bf667dea4dadb03fc6c377edcd7",
    "darkroom2/standard-v0": "242efb421e84ef70c037cc2195ada5c98a9d450af3a0f1563b64c79881ebb021",
    "linear_bandit/plus-v0": "5910a47b6f061785f262d390452dc5a29e42bd73801b67776f0441938709238f",
    "linear_bandit/quick-v0": "e8ecbdb3bf215b09fcb895d63081013db6218d230b64ca9716e85bd0e9241642",
    "linear_bandit/smoke-v0": "0453ce84622af112d9a365fc6578335c572502d020c777370d0c3de3860a17cc",
    "linear_bandit/standard-v0": "78bb3094bd4110b9408f13be310afae26b70f5ecd72b366045da8a14340a38d5",
}
"""The digest of each suite's content, by environment and name. A line here never changes."""


def suite_names(env: str) -> list[str]:
    return sorted(name for of, name in _SUITES if of == env)


def find_suite(name: str, env: str) -> Suite:
    """The suite of this name; a name without a version is the newest one's."""
    if not isinstance(env, str):
        raise UserError(f"environment: a suite belongs to a name, not to {shown(env, 40)}")
    if not isinstance(name, str):
        raise UserError(f"suite: a name is needed, not {shown(name, 40)}: what it has is fixed")
    env = ENVS.get(env).registered_name
    names = suite_names(env)
    if not names:
        have = ", ".join(sorted({of for of, _ in _SUITES}))
        raise UserError(f"there is no suite for '{env}'; there are for: {have}")
    versions = [known for known in names if known.rpartition("-v")[0] == name]
    if name not in names and not versions:
        raise unknown(f"suite of {env}", name, names)
    newest = max(versions, key=lambda known: int(known.rpartition("-v")[2]), default=name)
    return _SUITES[env, name if name in names else newest]


def left_out(suite: Suite) -> list[str]:
    """What the standard suite has and this one has not, in words."""
    version = suite.name.rpartition("-")[2]
    whole = _SUITES.get((suite.env, f"standard-{version}"))
    if whole is None or whole == suite:
        return []
    mine = {attack.name: attack for attack in suite.attacks}
    said = [
        _lacks("attacks", [a.name for a in whole.attacks if a.name not in mine]),
        _lacks("levels", [f"eps {eps:g}" for eps in whole.eps if eps not in suite.eps]),
    ]
    for name in ("tasks", "repeats"):
        if getattr(suite, name) < getattr(whole, name):
            said.append(f"{name}: {getattr(suite, name)} instead of {getattr(whole, name)}")
    for attack in whole.attacks:
        rounds = mine[attack.name].rounds if attack.name in mine else None
        if rounds is not None and attack.rounds is not None and rounds < attack.rounds:
            said.append(f"rounds of {attack.name}: {rounds} instead of {attack.rounds}")
    if suite.settings != whole.settings:
        said.append("the environment's size: " + ", ".join(sorted(suite.settings)))
    return [text for text in said if text]


def _lacks(what: str, missing: Sequence[str]) -> str:
    return f"{what}: {', '.join(missing)}" if missing else ""


def suite_env(suite: Suite) -> Env:
    return env_of(suite.env_config())
