"""The attackers of an evaluation: what a user says, and who it is in each replication."""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mithridate.agents.resolve import Victim, make_victims, parse_call
from mithridate.config import AttackConfig, EvaluateConfig, parse
from mithridate.errors import UserError, unknown
from mithridate.registry import ATTACKERS
from mithridate.types import Attacker, Tasks

if TYPE_CHECKING:
    from mithridate.training.attack import LearnedAttack
    from mithridate.training.loop import Watcher


@dataclass(frozen=True)
class Column:
    """One attacker, or one for each replication."""

    attacker: str
    target: str | None = None
    static: Attacker | None = None
    learned: tuple[LearnedAttack, ...] = ()

    def meet(self, replication: int) -> tuple[Attacker | None, Tasks | None]:
        """The attacker that victim number `replication` meets, and its tasks if it has its own."""
        if not self.learned:
            return self.static, None
        other = self.learned[(replication + 1) % len(self.learned)]
        return other.attacker, other.tasks


def make_columns(
    config: EvaluateConfig,
    victims: Sequence[Victim],
    watch: Callable[[str, int], list[Watcher]] | None = None,
    directory: Path = Path("runs"),
) -> list[Column]:
    """The columns that `config.attackers` names. `watch(target, replication)`: who looks on while
    attackers are trained; `directory`: where they are kept."""
    for text in config.attackers:
        _check(text)
    train = partial(_trained, config=config, watch=watch, directory=directory)
    return [
        column for text in config.attackers for column in _columns(text, config, victims, train)
    ]


def _check(text: str) -> None:
    """A wrong name should not cost the time of the ones before it."""
    name = parse_call(text, "attacker")[0]
    if name == "none" or re.fullmatch(r"learned(\(.*\))?", text):
        return
    if name in ATTACKERS.names() or _files(text):
        return
    if "/" in text or text.endswith(".safetensors"):
        raise UserError(f"attacker '{text}': no such file")
    raise unknown("attacker", name, ["none", "learned(TARGET)", *ATTACKERS.names()])


def _columns(
    text: str,
    config: EvaluateConfig,
    victims: Sequence[Victim],
    train: Callable[[Victim], Column],
) -> list[Column]:
    if text == "none":
        return [Column("none")]
    if text == "learned":
        return [train(victim) for victim in victims if not victim.privileged]
    if match := re.fullmatch(r"learned\((.*)\)", text):
        known = {victim.label: victim for victim in victims}
        target = known.get(match[1]) or make_victims([match[1]])[0]
        return [train(target)]
    name, parameters = parse_call(text, "attacker")
    if name in ATTACKERS.names():
        parameters.setdefault("budget", config.budget)
        attacker = ATTACKERS.create(name, **parameters)
        if hasattr(attacker, "update"):
            raise UserError(f"attacker '{name}' must be trained first: learned(TARGET)")
        return [Column(text, static=attacker)]
    return [_from_files(text, config)]


def _trained(
    victim: Victim,
    *,
    config: EvaluateConfig,
    watch: Callable[[str, int], list[Watcher]] | None,
    directory: Path,
) -> Column:
    """Train attackers against each replication of `victim`, or take those of an earlier run."""
    from mithridate.training.attack import LearnedAttack, attack, run_name

    if victim.privileged:
        raise UserError(f"'{victim.label}' knows the attack; there is nothing to learn against it")
    found = []
    for replication in range(config.replications):
        attack_config = parse(
            AttackConfig,
            {
                "env": config.env, "target": victim.source(replication) or victim.label,
                "seed": config.seed + replication, "threads": config.threads, "eps": config.eps,
                "budget": config.budget, "tasks": config.tasks, "rounds": config.rounds,
            },
            where="attack",
        )  # fmt: skip
        watchers = watch(victim.label, replication) if watch else []
        if victim.source(replication):
            path = attack(attack_config, directory / run_name(attack_config), watchers)
            found.append(LearnedAttack(path))
        else:  # an object of the user's: nothing says whether it is the one of an earlier run
            with tempfile.TemporaryDirectory() as temporary:
                agent = victim.replication(replication)
                path = attack(attack_config, Path(temporary) / "run", watchers, target=agent)
                found.append(LearnedAttack(path))
    return Column(found[0].config.attacker, target=victim.label, learned=tuple(found))


def _files(text: str) -> list[Path]:
    paths = [Path(found) for found in sorted(glob.glob(text))]
    paths = [path / "attackers.safetensors" if path.is_dir() else path for path in paths]
    return [path for path in paths if path.is_file()]


def _from_files(text: str, config: EvaluateConfig) -> Column:
    from mithridate.training.attack import LearnedAttack

    found = [LearnedAttack(path) for path in _files(text)]
    learned = tuple(sorted(found, key=lambda one: one.config.seed))
    for one in learned:
        if one.env.config != config.env:
            raise UserError(f"attackers {one.path} were trained in another environment")
        if one.config.budget > config.budget:
            raise UserError(
                f"attackers {one.path} have budget {one.config.budget:g}, "
                f"the evaluation allows {config.budget:g}"
            )
    return Column(learned[0].config.attacker, target=learned[0].config.target, learned=learned)
