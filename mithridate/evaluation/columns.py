"""The attackers of an evaluation: what a user says, and who it is in each replication."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mithridate.agents.in_context import InContextAgent
from mithridate.agents.named import told
from mithridate.attackers import make_attacker
from mithridate.capabilities import learns
from mithridate.envs import env_of
from mithridate.errors import UserError, shown, unknown
from mithridate.evaluation.kinds import (
    Heading,
    Kind,
    fitting,
    named,
    trained_as,
    trained_kinds,
    untrained,
)
from mithridate.evaluation.victims import Victim, make_victims
from mithridate.model.weights import find
from mithridate.registry import ATTACKERS, parse_call
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig, EvaluateConfig
from mithridate.training.attack import AttackTraining, attack
from mithridate.training.attack_files import KEPT, LearnedAttack, beside, cotrained
from mithridate.training.fitness import try_out
from mithridate.training.loop import Watcher
from mithridate.types import Attacker, Tasks


def attack_config(
    kind: Kind,
    config: EvaluateConfig,
    target: str,
    seed: int,
    *,
    rounds: int | None = None,
    sets: Sequence[str] = (),
) -> AttackConfig:
    """How attackers of a kind are trained for an evaluation: as the attack preset says, with the
    evaluation's own level, tasks and rounds. `rounds`: those for this target; `sets`: what
    overrides everything."""
    return resolve(
        AttackConfig, "attack", config.env, config.preset, sets,
        target=target, seed=seed, threads=config.threads, eps=config.eps, budget=config.budget,
        tasks=config.tasks, rounds=kind.rounds(config) if rounds is None else rounds,
        attacker=kind.attacker_in(env_of(config.env).spec),
    )  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One attacker, or one for each replication."""

    kind: str
    attacker: str
    target: str | None = None
    static: Attacker | None = None
    learned: tuple[LearnedAttack, ...] = ()

    @property
    def name(self) -> str:
        return str(Heading(self.kind, self.attacker if self.target is None else self.target))

    def meet(self, replication: int) -> tuple[Attacker | None, Tasks | None]:
        """The attacker that victim number `replication` meets, and its tasks if it has its own."""
        if not self.learned:
            return self.static, None
        other = self.learned[(replication + 1) % len(self.learned)]
        return other.attacker, other.tasks


@dataclass(frozen=True)
class _Wanted:
    """Attackers of a kind that are to be trained against a victim."""

    kind: Kind
    victim: Victim

    @property
    def name(self) -> str:
        return self.kind.column(self.victim.label)


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
        return [Column("clean", "none")]
    kinds = trained_kinds()
    if text in kinds:
        kind = fitting(text, env_of(config.env).spec)
        targets = [victim for victim in victims if not victim.privileged]
        if not targets:
            raise UserError(
                f"attackers '{text}': every agent here knows the attack; there is nothing to learn "
                f"against them: name a target, {text}(AGENT)"
            )
        if kind.with_model:
            return [_kept(kind, victim, config) for victim in _with_attackers(targets, text)]
        return [_Wanted(kind, victim) for victim in targets]
    if (meant := named(text)).kind in kinds:
        labels = {victim.label: victim for victim in victims}
        target = labels.get(meant.of) or make_victims([meant.of], told(config))[0]
        if target.privileged:
            raise UserError(
                f"'{target.label}' knows the attack; there is nothing to learn against it"
            )
        kind = fitting(meant.kind, env_of(config.env).spec)
        return [_kept(kind, target, config) if kind.with_model else _Wanted(kind, target)]
    if paths := _files(text):
        return [_from_files(text, paths, config)]
    if "/" in text or text.endswith(".safetensors"):
        raise UserError(f"attacker '{shown(text)}': no such file")
    name, _ = parse_call(text, "attacker")
    known = ATTACKERS.known(name)
    if known is None:
        choices = ["none", *(f"{kind}(TARGET)" for kind in kinds), *ATTACKERS.names()]
        raise unknown("attacker", name, choices)
    text = known + text[len(name) :]  # whatever its case was
    attacker = make_attacker(text, config.budget, config.env.facts())
    if learns(attacker):
        raise UserError(f"attacker '{known}' must be trained first: learned(TARGET)")
    try_out(env_of(config.env), (), [attacker])
    return [Column(untrained(text), text, static=attacker)]


def _trained(
    wanted: _Wanted,
    config: EvaluateConfig,
    watch: Callable[[str, int], list[Watcher]] | None,
    directory: Path,
) -> Column:
    """Train attackers against each replication of a victim, or take those of an earlier run."""
    victim = wanted.victim
    found = []
    for replication in range(config.replications):
        source, agent = victim.source(replication), victim.replication(replication)
        settings = attack_config(
            wanted.kind, config, source or victim.label, config.seed + replication
        )
        watchers = watch(victim.label, replication) if watch else []
        if source:
            training = AttackTraining(settings, agent=agent)
            found.append(LearnedAttack(attack(training, directory / training.name, watchers)))
        else:  # an object of the user's: nothing says whether it is the one of an earlier run
            with tempfile.TemporaryDirectory() as temporary:
                path = attack(settings, Path(temporary) / "run", watchers, target=agent)
                found.append(LearnedAttack(path))
    attacker = found[0].config.attacker
    return Column(wanted.kind.name, attacker, target=victim.label, learned=tuple(found))


def _with_attackers(victims: Sequence[Victim], kind: str) -> list[Victim]:
    """The models among them whose attackers were kept."""
    found = [v for v in victims if (path := _weights(v, 0)) and beside(path).exists()]
    if not found:
        raise UserError(f"attackers '{kind}': no agent here has attackers that it was trained with")
    return found


def _weights(victim: Victim, replication: int) -> Path | None:
    """Of a victim that is a model."""
    if not isinstance(victim.replication(replication), InContextAgent):
        return None
    source = victim.source(replication)
    return None if source is None else find(parse_call(source)[0])


def _kept(kind: Kind, victim: Victim, config: EvaluateConfig) -> Column:
    """The attackers that each replication of a victim was trained along with."""
    if victim.count < config.replications:
        raise UserError(
            f"attackers '{kind.column(victim.label)}': {config.replications} replications need as "
            f"many models, each with attackers of its own; there is {victim.count}"
        )
    found = []
    for replication in range(config.replications):
        weights = _weights(victim, replication)
        if weights is None:
            raise UserError(
                f"attackers '{kind.column(victim.label)}': '{victim.label}' is not a model that "
                "was trained along with attackers"
            )
        found.append(cotrained(weights, (config.eps, config.budget)))
        check_level(found[-1], config)
    attackers = sorted({one.config.attacker for one in found})
    if len(attackers) > 1:
        raise UserError(
            f"attackers '{kind.column(victim.label)}' are of several kinds: {', '.join(attackers)}"
        )
    return Column(kind.name, attackers[0], target=victim.label, learned=tuple(found))


def check_level(learned: LearnedAttack, config: EvaluateConfig) -> None:
    """Raise a UserError if attackers are not of the environment, eps and budget asked for."""
    if learned.env.config != config.env:
        raise UserError(f"attackers {learned.path} were trained in another environment")
    if (learned.config.budget, learned.config.eps) != (config.budget, config.eps):
        raise UserError(
            f"attackers {learned.path} have budget {learned.config.budget:g} and eps "
            f"{learned.config.eps:g}; evaluate them with the same --budget and --eps"
        )


def _files(text: str) -> list[Path]:
    paths = [Path(found) for found in sorted(glob.glob(text))]
    paths = [path / KEPT if path.is_dir() else path for path in paths]
    return [path for path in paths if path.is_file()]


def _from_files(text: str, paths: Sequence[Path], config: EvaluateConfig) -> Column:
    """Attackers from files: one kind of attack, one file for each replication. A file says which
    attacker was trained, and the kind is the one that trains it."""
    level = (config.eps, config.budget)
    learned = [LearnedAttack(path, level) for path in paths]
    learned.sort(key=lambda one: one.config.seed)
    for one in learned:
        check_level(one, config)
    kinds = sorted({one.config.attacker for one in learned})
    if len(kinds) > 1:
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
    kind = kind_of(learned[0])
    return Column(kind, kinds[0], target=targets[0], learned=tuple(learned))


def kind_of(learned: LearnedAttack) -> str:
    """The name of the kind that attackers from a file are."""
    if learned.training is not None:
        return "cotrained"
    return trained_as(learned.config.attacker, learned.env.spec)
