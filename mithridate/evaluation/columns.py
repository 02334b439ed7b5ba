"""The attackers of an evaluation: what a user says, and who it is in each replication."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mithridate.agents.resolve import Victim, make_victims, told
from mithridate.attackers import make_attacker
from mithridate.config import AttackConfig, EvaluateConfig, parse
from mithridate.envs import env_of
from mithridate.errors import UserError, shown, unknown
from mithridate.evaluation.checks import KINDS, column_name, trained_against
from mithridate.registry import ATTACKERS, ENVS, parse_call
from mithridate.training.attack import LearnedAttack, attack, run_name
from mithridate.training.loop import Watcher
from mithridate.training.trial import try_out
from mithridate.types import Attacker, Tasks


def _kind(name: str, config: EvaluateConfig) -> str:
    """The attacker that a kind stands for."""
    attacker: str = KINDS[name] or ENVS.get(config.env.name).learned_attack
    return attacker


@dataclass(frozen=True)
class Column:
    """One attacker, or one for each replication."""

    attacker: str
    target: str | None = None
    static: Attacker | None = None
    learned: tuple[LearnedAttack, ...] = ()

    @property
    def name(self) -> str:
        return column_name(self.attacker, self.target)

    def meet(self, replication: int) -> tuple[Attacker | None, Tasks | None]:
        """The attacker that victim number `replication` meets, and its tasks if it has its own."""
        if not self.learned:
            return self.static, None
        other = self.learned[(replication + 1) % len(self.learned)]
        return other.attacker, other.tasks


@dataclass(frozen=True)
class _Wanted:
    """Attackers of a kind that are to be trained against a victim."""

    attacker: str
    victim: Victim

    @property
    def name(self) -> str:
        return column_name(self.attacker, self.victim.label)


def make_columns(
    config: EvaluateConfig,
    victims: Sequence[Victim],
    watch: Callable[[str, int], list[Watcher]] | None = None,
    directory: Path = Path("runs"),
) -> list[Column]:
    """The columns that `config.attackers` names. `watch(target, replication)`: who looks on while
    attackers are trained; `directory`: where they are kept."""
    # Everything that can be wrong is found before the first attacker is trained.
    try_out(env_of(config.env), (v.replication(r) for v in victims for r in range(v.count)), ())
    wanted = [
        one for text in dict.fromkeys(config.attackers) for one in _meant(text, config, victims)
    ]
    names = [one.name for one in wanted]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"--attackers: {twice} is there twice; a column needs a name of its own")
    return [
        one if isinstance(one, Column) else _trained(one, config, watch, directory)
        for one in wanted
    ]


def _meant(text: str, config: EvaluateConfig, victims: Sequence[Victim]) -> list[Column | _Wanted]:
    """What a user's word stands for: columns, and attackers to train."""
    if text.lower() == "none":
        return [Column("none")]
    if text in KINDS:
        kind = _kind(text, config)
        targets = [victim for victim in victims if not victim.privileged]
        if not targets:
            raise UserError(
                f"attackers '{text}': every agent here knows the attack; there is nothing to learn "
                f"against them: name a target, {text}(AGENT)"
            )
        return [_Wanted(kind, victim) for victim in targets]
    if meant := trained_against(text):
        kind, name = meant
        labels = {victim.label: victim for victim in victims}
        target = labels.get(name) or make_victims([name], told(config))[0]
        if target.privileged:
            raise UserError(
                f"'{target.label}' knows the attack; there is nothing to learn against it"
            )
        return [_Wanted(_kind(kind, config), target)]
    if paths := _files(text):
        return [_from_files(text, paths, config)]
    if "/" in text or text.endswith(".safetensors"):
        raise UserError(f"attacker '{shown(text)}': no such file")
    name, _ = parse_call(text, "attacker")
    known = ATTACKERS.known(name)
    if known is None:
        choices = ["none", *(f"{kind}(TARGET)" for kind in KINDS), *ATTACKERS.names()]
        raise unknown("attacker", name, choices)
    text = known + text[len(name) :]  # whatever its case was
    attacker = make_attacker(text, config.budget)
    if hasattr(attacker, "update"):
        raise UserError(f"attacker '{known}' must be trained first: learned(TARGET)")
    try_out(env_of(config.env), (), [attacker])
    return [Column(text, static=attacker)]


def _trained(
    wanted: _Wanted,
    config: EvaluateConfig,
    watch: Callable[[str, int], list[Watcher]] | None,
    directory: Path,
) -> Column:
    """Train attackers against each replication of a victim, or take those of an earlier run."""
    victim, adaptive = wanted.victim, wanted.attacker.startswith("adaptive")
    found = []
    for replication in range(config.replications):
        attack_config = parse(
            AttackConfig,
            {
                "env": config.env, "target": victim.source(replication) or victim.label,
                "seed": config.seed + replication, "threads": config.threads, "eps": config.eps,
                "budget": config.budget, "tasks": config.tasks,
                "rounds": config.adaptive_rounds if adaptive else config.rounds,
                "attacker": wanted.attacker,
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


def _from_files(text: str, paths: Sequence[Path], config: EvaluateConfig) -> Column:
    """Attackers from files: one kind of attack, one file for each replication."""
    learned = sorted((LearnedAttack(path) for path in paths), key=lambda one: one.config.seed)
    for one in learned:
        if one.env.config != config.env:
            raise UserError(f"attackers {one.path} were trained in another environment")
        if (one.config.budget, one.config.eps) != (config.budget, config.eps):
            raise UserError(
                f"attackers {one.path} have budget {one.config.budget:g} and eps "
                f"{one.config.eps:g}; evaluate them with the same --budget and --eps"
            )
    kinds = sorted({one.config.attacker for one in learned})
    if len({column_name(kind, "") for kind in kinds}) > 1:
        raise UserError(f"attackers '{text}' are of several kinds: {', '.join(kinds)}")
    targets = sorted({one.config.target for one in learned})
    if len(targets) > 1:
        raise UserError(f"attackers '{text}' have several targets: {', '.join(targets)}")
    seeds = {one.config.seed for one in learned}
    if len(seeds) < max(len(learned), config.replications):
        raise UserError(
            f"attackers '{text}': {config.replications} replications need as many files with "
            f"seeds of their own; found {len(seeds)}"
        )
    return Column(learned[0].config.attacker, target=targets[0], learned=tuple(learned))
