"""Kinds of attacks: what stands at the head of a column.

Everything that the rest of the library knows about a kind is said here once: what it trains, how
long, what its columns are called, where they stand, what the paper calls them, what it costs. A
new kind is a class and a decorator, in this package or outside it (CONTRIBUTING.md):

    @KINDS.register("patient")
    class Patient(Kind):
        attacker = "gaussian(learning_rate=0.01)"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mithridate.envs import env_of
from mithridate.errors import UserError, unknown
from mithridate.registry import KINDS

if TYPE_CHECKING:
    from mithridate.stage_config import EvaluateConfig
    from mithridate.types import EnvSpec


class Kind:
    """A kind of attack. What it does not say itself is as here. `of` is the label of the target if
    the kind is trained, else the attacker."""

    trained = True
    """Whether its attackers are trained, each against a target."""
    with_model = False
    """Whether they are those that the target was trained along with: then nothing is trained for
    its columns."""
    attacker: str | None = None
    """The attacker that it trains; None for the one of the attack preset, or else the environment's
    `learned_attack`. Of a kind that is not trained: the attacker that it is."""
    members: tuple[str, ...] = ()
    """Of a kind that is not trained and stands for several attackers: their names."""
    order = 55
    """Its place in tables, from left to right."""
    phrase: str | None = None
    """How titles of its columns begin; None for its name."""
    brief: str | None = None
    """The same where there is little room; None for its name, "" for nothing at all."""
    curves = True
    """Whether its rounds of training are drawn."""
    passes = 0.0
    """For estimates: how often a network of its own learns from a round's episodes; 0 if the
    attackers are tables."""
    episodes = 1.0
    """For estimates: how many episodes of a task a round has."""
    scale = (40.0, 100.0)
    """From where to where the paper's colours go, in the bandit."""
    where = ""
    """In which environments it makes sense, for help texts; nothing for all."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __init_subclass__(cls) -> None:
        """What resembles something that a kind has, and is not it, is a slip of the pen."""
        for name in vars(cls):
            close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.75)
            if not name.startswith("_") and name not in dir(Kind) and close:
                raise UserError(
                    f"attack kind {cls.__name__}: did you mean '{close[0]}' by '{name}'?"
                )
        if not isinstance(cls.order, int):
            raise UserError(f"attack kind {cls.__name__}: 'order' must be a whole number")

    def column(self, of: str) -> str:
        """What a column is called: what a user writes to get it."""
        return f"{self.name}({of})" if self.trained else of

    def title(self, of: str) -> str:
        """What stands above a column of a report."""
        return f"{self._words(self.phrase)}: {of}"

    def line(self, of: str) -> str:
        """What a curve, or a column of a narrow table, is called."""
        words = self._words(self.brief)
        return f"{words}: {of}" if words else of

    def _words(self, said: str | None) -> str:
        return self.name.replace("_", " ") if said is None else said

    def rounds(self, config: EvaluateConfig) -> int | None:
        """How long its attackers learn; None for as long as the attack preset says."""
        return config.rounds

    def fits(self, spec: EnvSpec) -> bool:
        """Whether it makes sense in an environment."""
        return True

    def attacker_in(self, spec: EnvSpec) -> str | None:
        """The attacker that it trains in an environment, if environments differ in it."""
        return self.attacker

    def paper(self, of: str, table: str | None) -> str:
        """What the paper calls a column in one of its tables; nothing if it has none. `of` is
        already the paper's name."""
        return ""


ITSELF = "itself"
"""Instead of a target: each victim meets the attackers that were trained against it."""

KNOWN = tuple(name for name in vars(Kind) if not name.startswith("_"))
"""What a kind may say of itself."""


@KINDS.register("adaptive")
class Adaptive(Kind):
    """Networks that see the episode so far; they begin with a guess."""

    attacker = "adaptive"
    order = 10
    passes = 2.0
    where = "with arms"

    def rounds(self, config: EvaluateConfig) -> int | None:
        return config.adaptive_rounds

    def fits(self, spec: EnvSpec) -> bool:
        return spec.n_attack_keys == 1


@KINDS.register("from_nothing")
class FromNothing(Adaptive):
    """Adaptive ones that begin from nothing, as the paper's do."""

    attacker = "adaptive(tilt=0)"
    order = 20
    phrase = "adaptive, from nothing"

    def paper(self, of: str, table: str | None) -> str:
        # In its adaptive tables the target of both kinds is called AT-DPT.
        if table is None or "adaptive" not in table:
            return ""
        return f"adaptive:{'AT-DPT' if of == 'AT-DPT (A)' else of}"


@KINDS.register("learned")
class Learned(Kind):
    """The environment's learned attack."""

    order = 30
    brief = ""

    def paper(self, of: str, table: str | None) -> str:
        if table is None or "adaptive" not in table:
            return of
        return f"non-adaptive:{'AT-DPT' if of == 'AT-DPT (n-A)' else of}"


@KINDS.register("cotrained")
class Cotrained(Kind):
    """Those that a model was trained along with, as they were in the last round (the paper's
    Algorithm 1). In the paper's tables these are the ones whose target is AT-DPT."""

    with_model = True
    order = 25
    phrase = "trained along with"

    def paper(self, of: str, table: str | None) -> str:
        if table is None or "adaptive" not in table:
            return of
        adapts = {"AT-DPT (A)": "adaptive", "AT-DPT (n-A)": "non-adaptive"}
        return f"{adapts[of]}:AT-DPT" if of in adapts else ""


@KINDS.register("kept")
class Kept(Kind):
    """Learned ones, used as they were when they hurt most."""

    attacker = "gaussian(keep=best)"
    order = 40
    phrase = "learned, best kept"
    brief = "best kept"
    curves = False  # they learn as learned ones do
    where = "with arms"

    def fits(self, spec: EnvSpec) -> bool:
        return spec.n_attack_keys == 1


@KINDS.register("pooled")
class Pooled(Kind):
    """Attackers that learn from all tasks together."""

    attacker = "pooled"
    order = 50
    where = "in rooms"

    def fits(self, spec: EnvSpec) -> bool:
        return spec.n_attack_keys > 1


TABLES = "tabular(episodes=16,learning_rate=0.05,discount=0.99)"
"""Of strong attackers in rooms."""


def _rounds(config: EvaluateConfig, with_arms: int, in_rooms: int) -> int:
    if config.preset == "smoke":
        return 2
    return with_arms if env_of(config.env).spec.n_attack_keys == 1 else in_rooms


@KINDS.register("steady")
class Steady(Kind):
    """Learned ones that compare several episodes of a task with each other. With arms they explore
    in their parameters, drawn once per episode; in rooms step by step."""

    attacker = "gaussian(explore=episode,episodes=16,learning_rate=2,noise=0.6,initial_spread=0.05)"
    in_rooms = TABLES
    order = 42
    phrase = "learned by episodes"
    brief = "by episodes"
    episodes = 16.0

    def attacker_in(self, spec: EnvSpec) -> str | None:
        return self.attacker if spec.n_attack_keys == 1 else self.in_rooms

    def rounds(self, config: EvaluateConfig) -> int | None:
        return _rounds(config, with_arms=15, in_rooms=100)


@KINDS.register("paper")
class AsThePaper(Kind):
    """Learned ones that come closest to what the paper's own attackers do to DPT, Thompson sampling
    and LinUCB (docs/attacks.md): for columns beside the paper's. They are far from the worst. In
    rooms `steady` ones come closest."""

    attacker = "gaussian(learning_rate=0.01)"
    with_features = (
        "gaussian(explore=episode,episodes=16,learning_rate=0.5,noise=0.4,initial_spread=0.05)"
    )
    order = 28
    phrase = "learned, as the paper's"
    brief = "as the paper's"
    episodes = 16.0
    where = "with arms"

    def attacker_in(self, spec: EnvSpec) -> str | None:
        return self.attacker if spec.features is None else self.with_features

    def rounds(self, config: EvaluateConfig) -> int | None:
        return 2 if config.preset == "smoke" else 10

    def fits(self, spec: EnvSpec) -> bool:
        return spec.n_attack_keys == 1

    def paper(self, of: str, table: str | None) -> str:
        return "" if table is not None and "adaptive" in table else of


@KINDS.register("search")
class Search(Kind):
    """The worst attack on each task that a black-box search finds."""

    attacker = "search"
    order = 45
    phrase = "search"
    episodes = 16.0

    def rounds(self, config: EvaluateConfig) -> int | None:
        return _rounds(config, with_arms=15, in_rooms=15)


@KINDS.register("random")
class Random(Kind):
    """The paper's random attack."""

    trained = False
    attacker = "uniform"
    order = 60
    scale = (10.0, 70.0)

    def title(self, of: str) -> str:
        return of.replace("uniform", "uniform random", 1)

    line = title

    def paper(self, of: str, table: str | None) -> str:
        return "unif. random" if of == self.attacker else ""


@KINDS.register("literature")
class Literature(Kind):
    """Published attacks on bandits."""

    trained = False
    members = ("ace", "jun_egreedy", "jun_oracle", "jun_ucb")
    order = 65

    def title(self, of: str) -> str:
        return f"literature: {self.line(of)}"

    def line(self, of: str) -> str:
        return of.replace("_", " ")


@KINDS.register("structured")
class Structured(Kind):
    """Every other attack that needs no training."""

    trained = False
    order = 70

    def title(self, of: str) -> str:
        return of.replace("_", " ")

    line = title


@KINDS.register("clean")
class Clean(Kind):
    """No attack."""

    trained = False
    attacker = "none"
    order = 80
    scale = (10.0, 50.0)

    def title(self, of: str) -> str:
        return "clean"

    line = title

    def paper(self, of: str, table: str | None) -> str:
        return "clean"


@dataclass(frozen=True)
class Heading:
    """What stands at the head of a column."""

    kind: str
    of: str
    """The label of the target if the kind is trained, else the attacker."""

    @property
    def described(self) -> Kind:
        """Also for a kind that nobody here has registered: a store may come from anywhere."""
        return (KINDS.get(self.kind) if self.kind in KINDS.names() else Kind)(self.kind)

    @property
    def title(self) -> str:
        return self.described.title(self.of)

    @property
    def order(self) -> int:
        return self.described.order

    def __str__(self) -> str:
        return self.described.column(self.of)


def all_kinds() -> list[Kind]:
    """In the order of tables."""
    return sorted((KINDS.get(name)(name) for name in KINDS.names()), key=lambda kind: kind.order)


def trained_kinds() -> dict[str, Kind]:
    """By name."""
    return {kind.name: kind for kind in all_kinds() if kind.trained}


def fitting(name: str, spec: EnvSpec) -> Kind:
    """The trained kind of this name, or a UserError if there is none, or it makes no sense here."""
    kinds = trained_kinds()
    if name not in kinds:
        raise unknown("attack kind", name, kinds)
    if not kinds[name].fits(spec):
        others = ", ".join(kind.name for kind in kinds.values() if kind.fits(spec))
        raise UserError(f"attackers '{name}' make no sense in '{spec.name}'; here are: {others}")
    return kinds[name]


def untrained(attacker: str) -> str:
    """The name of the kind that an attacker without training is."""
    name = attacker.partition("(")[0]
    found = (k.name for k in all_kinds() if not k.trained and name in (k.attacker, *k.members))
    return next(found, "structured")


def trained_as(attacker: str, spec: EnvSpec) -> str:
    """The name of the kind that trains this very attacker; learned if there is no such kind."""
    found = (kind.name for kind in trained_kinds().values() if kind.attacker_in(spec) == attacker)
    return next(found, "learned")


def named(column: str) -> Heading:
    """The heading that a user's word, KIND(TARGET) or an attacker, stands for."""
    match = re.fullmatch(r"(\w+)\((.*)\)", column)
    if match and match[1] in trained_kinds():
        return Heading(match[1], match[2])
    return Heading(untrained(column), column)


def heading_of(record: Mapping[str, Any]) -> Heading:
    """Of the column that a record belongs to."""
    target = record["target"]
    return Heading(record["kind"], record["attacker"] if target is None else target)


def spoken() -> str:
    """All that are trained for a column, as help texts list them: 'learned(AGENT), in rooms
    pooled(AGENT) …'."""
    by_place: dict[str, list[str]] = {}
    now = (kind for kind in trained_kinds().values() if not kind.with_model)
    for kind in sorted(now, key=lambda kind: kind.where):
        by_place.setdefault(kind.where, []).append(f"{kind.name}(AGENT)")
    return "; ".join(f"{place} {', '.join(some)}".strip() for place, some in by_place.items())
