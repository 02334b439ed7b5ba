"""Recipes: each table and figure of the paper as data.

A recipe names victims (registered agents, or models that are trained for it), attackers, and
levels of contamination and budget. From these, a preset and a number of replications follow all
stages (plan.py): pretraining → adversarial training → attackers → one evaluation per victim,
attacker, level and replication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mithridate.capabilities import is_privileged
from mithridate.config import IN_ROOMS
from mithridate.envs.bandit_base import Arms
from mithridate.envs.darkroom import HELD_OUT, SEEN, Darkroom
from mithridate.envs.miniworld import Miniworld
from mithridate.errors import unknown
from mithridate.evaluation.kinds import ITSELF, Heading, untrained
from mithridate.registry import AGENTS, parse_call
from mithridate.settings import FIRST_EDITION


@dataclass(frozen=True)
class Model:
    """A model that is trained for a recipe: by which kind of stage, and what differs there from
    the preset. A training is at the level's eps and budget, unless the settings say otherwise."""

    kind: Literal["pretrain", "distill", "train"]
    settings: Mapping[str, Any] = field(default_factory=dict)
    start: str = "dpt"
    """The model, of the same replication and training level, that a training starts from."""
    rival: str | None = None
    """The one that threats call rival."""
    paper: Model | None = None
    """What it is instead in the paper preset."""
    laptop: str = "laptop"
    """The preset that it has where the recipe has the laptop preset."""


CLEAN = {"attacker": "none", "share": 0.2}
SLOW = "learning_rate=0.002,passes=4"
"""Of an adaptive attacker that the model can keep up with."""
ADAPTIVE: dict[str, Any] = {
    "threats": [
        {"attacker": f"adaptive({SLOW})", "share": 0.35},
        {"attacker": f"adaptive({SLOW},tilt=0)", "share": 0.15},
        {"attacker": "adaptive(passes=4)", "target": "crucb(alpha={eps})", "share": 0.15},
        {"attacker": "adaptive(passes=4)", "target": "rival", "share": 0.15},
        CLEAN,
    ],
    "synthetic": {"rounds": 50, "share": 0.4, "switching": 0.7},
    "rounds": 110,
}
PAPER_ADAPTIVE: dict[str, Any] = {
    "threats": [{"attacker": "adaptive(learning_rate=3e-5)"}],
    "rounds": 400,
}
MODELS: dict[str, Model] = {
    "dpt": Model("pretrain"),
    "at-dpt": Model("train"),
    "at-dpt-printed": Model("train", laptop="paper"),
    "at-dpt-v1": Model("train", laptop=FIRST_EDITION),
    **{
        f"at-dpt-sub{n}": Model("train", {"suboptimal": n / 100}, laptop=FIRST_EDITION)
        for n in (10, 20, 30)
    },
    # The paper's variant knows nothing but the random attack, so there is nothing synthetic here.
    "at-dpt-random": Model(
        "train",
        {
            "threats": [{"attacker": "uniform", "share": 0.8}, CLEAN],
            "synthetic": {"rounds": 0, "share": 0.0},
        },
        paper=Model("train", {"threats": [{"attacker": "uniform"}]}),
        laptop=FIRST_EDITION,
    ),
    "at-dpt-b1": Model("train", {"budget": 1.0}, laptop=FIRST_EDITION),
    "at-dpt-adaptive": Model(
        "train",
        ADAPTIVE,
        rival="at-dpt-v1",
        paper=Model("train", PAPER_ADAPTIVE),
        laptop=FIRST_EDITION,
    ),
    "at-dpt-mixture": Model(
        "train",
        {
            "eps": 0.4,
            "budget": 3.0,
            "tasks": 200,  # the smallest share needs 50 for a single task, also in smoke
            "threats": [
                {"attacker": f"adaptive({SLOW})", "share": 0.25},
                {"attacker": f"adaptive({SLOW},tilt=0)", "share": 0.05},
                {"attacker": "adaptive(passes=4)", "target": "start", "share": 0.1},
                {"attacker": "adaptive(passes=4)", "target": "rival", "share": 0.1},
                {"attacker": "adaptive(passes=4)", "target": "crucb(alpha={eps})", "share": 0.05},
                {"attacker": f"adaptive({SLOW})", "eps": 0.2, "share": 0.05},
                {"attacker": f"adaptive({SLOW})", "eps": 0.1, "share": 0.05},
                {"share": 0.1},
                {"target": "crucb(alpha={eps})", "share": 0.05},
                {"eps": 0.2, "share": 0.03},
                {"eps": 0.1, "share": 0.03},
                {"budget": 1.0, "share": 0.02},
                {"budget": 5.0, "share": 0.02},
                {"attacker": "none", "share": 0.1},
            ],
            "synthetic": {"rounds": 10, "share": 0.4, "switching": 0.7},
            "rounds": 110,
            "optimiser": {"learning_rate": 5e-4},
        },
        start="at-dpt-adaptive",
        rival="at-dpt-v1",
        laptop=FIRST_EDITION,
    ),
    # Trained at one level, whatever level they are tested at.
    "at-dpt-fixed": Model("train", {"eps": 0.4, "budget": 3.0}, laptop=FIRST_EDITION),
    "at-dpt-adaptive-fixed": Model(
        "train",
        {**ADAPTIVE, "eps": 0.4, "budget": 3.0},
        rival="at-dpt-v1",
        paper=Model("train", {**PAPER_ADAPTIVE, "eps": 0.4, "budget": 3.0}),
        laptop=FIRST_EDITION,
    ),
    "ad-ts": Model("distill", {"source": "ts"}),
    "ad-crucb": Model("distill", {"source": "crucb(alpha={eps})"}),
    "ad-crucb-corrupted": Model("distill", {"source": "crucb(alpha={eps})", "attacker": "uniform"}),
}


@dataclass(frozen=True)
class Row:
    """A victim: its label in the paper, and a registered agent or one of MODELS. '{eps}' and
    '{budget}' stand for those of the level."""

    label: str
    agent: str
    brief: bool = False
    """Outside the paper preset, a single replication at the recipe's last level is enough."""
    only: float | None = None
    """The one contamination level that the paper has it at."""
    attack_rounds: int | None = None
    """Rounds that attackers against it learn for, if not the preset's."""
    tasks: int | None = None
    """Outside the paper preset, the number of tasks that is enough: the first ones of each
    column."""
    meets: tuple[str, ...] = ()
    """Outside the paper preset, the kinds of attack that it meets; none for all."""
    smoke: str | None = None
    """The agent in the smoke preset, if it is another."""
    acts: str = ""
    """How a model acts, if not as it was trained to: "(temperature=1)"."""

    def agent_in(self, preset: str) -> str:
        return self.smoke if self.smoke and preset == "smoke" else self.agent

    @property
    def is_model(self) -> bool:
        return self.agent in MODELS

    @property
    def is_privileged(self) -> bool:
        """Whether it knows the attack."""
        return not self.is_model and is_privileged(AGENTS.get(parse_call(self.agent, "agent")[0]))


@dataclass(frozen=True)
class Level:
    eps: float = 0.4
    budget: float = 3.0

    def fill(self, text: str) -> str:
        return text.format(eps=f"{self.eps:g}", budget=f"{self.budget:g}")

    def __str__(self) -> str:
        return f"eps {self.eps:g}, B {self.budget:g}"


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    environment: str
    rows: tuple[Row, ...]
    static: tuple[str, ...]
    """Attackers that do not learn; none is the clean column."""
    trained: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By kind of attack, the labels of the rows that attackers are trained against, or along
    with."""
    own: tuple[str, ...] = ()
    """Kinds of attack of which each row meets those that were trained against itself, at the last
    level: the very model of the same replication, with luck that the attackers have not seen."""
    own_tasks: int | None = None
    """Outside the paper preset, the number of tasks that is enough for these: the first ones."""
    only_at: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By kind, the contamination levels of its columns, if not all."""
    table: str | None = None
    """The paper's table that this answers."""
    pictures: tuple[tuple[str, str], ...] = ()
    """Rows and columns of which an episode is drawn, at the last level."""
    levels: tuple[Level, ...] = (Level(),)
    replications: Mapping[str, int] = field(
        default_factory=lambda: {"smoke": 2, "laptop": 3, "paper": 10}
    )
    training_env: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the environment that models are trained in, where they are not the preset's."""
    testing_env: Mapping[str, Any] = field(default_factory=dict)
    """The same of the one that attackers are trained in, and everybody is measured in."""

    def __post_init__(self) -> None:
        labels = {row.label for row in self.rows}
        drawn = (row for row, _ in self.pictures)
        targets = (target for some in self.trained.values() for target in some)
        missing = {*targets, *drawn} - labels
        if missing:
            raise ValueError(f"recipe {self.name}: targets {missing} are not among the rows")

    def victims(self, level: Level, preset: str, count: int) -> Iterator[tuple[Row, int]]:
        """The rows of the table at a level, each with its replications."""
        for row in self.rows:
            if row.only in (None, level.eps):
                if not row.brief or preset == "paper":
                    yield from ((row, r) for r in range(count))
                elif level == self.levels[-1]:
                    yield row, 0

    def columns(self, level: Level) -> list[Heading]:
        """The attackers that everybody meets at a level."""
        trained = [
            Heading(kind, target)
            for kind, targets in self.trained.items()
            if level.eps in self.only_at.get(kind, (level.eps,))
            for target in targets
        ]
        if level == self.levels[-1]:
            trained += [Heading(kind, ITSELF) for kind in self.own]
        return [*(Heading(untrained(name), name) for name in self.static), *trained]

    def cells(self, level: Level, preset: str, count: int) -> Iterator[tuple[Row, Heading, int]]:
        """Who meets whom at a level, in which replication. Who knows the attack has none of its
        own."""
        for column in self.columns(level):
            for row, replication in self.victims(level, preset, count):
                met = preset == "paper" or not row.meets or column.kind in row.meets
                if met and (column.of != ITSELF or not row.is_privileged):
                    yield row, column, replication


TUNED_Q = (
    "q_learning(learning_rate=0.3,discount=0.9,exploration=0.2,exploration_after=0,initial=20)"
)
TUNED_NPG = "npg(learning_rate=0.1,discount=0.9)"
AT_DPT = Row("AT-DPT", "at-dpt")
AT_DPT_V1 = Row("AT-DPT", "at-dpt-v1")
"""Of the first edition, where that is what results/ has."""
AT_DPT_HOT = Row("AT-DPT (T = 1)", "at-dpt", acts="(temperature=1)")
DPT_COLD = Row("DPT (T = 0.35)", "dpt", acts="(temperature=0.35)")
PRINTED = Row("AT-DPT (as printed)", "at-dpt-printed")
DPT = Row("DPT", "dpt")
CLASSICAL = (
    Row("TS", "ts"),
    Row("RTS", "rts"),
    Row("UCB1.0", "ucb1"),
    Row("crUCB", "crucb(alpha={eps})"),
)
MIXTURE_TS = Row("mixture TS", "mixture_ts(eps={eps})")
SEARCHED_TS = Row("mixture TS (searched)", "mixture_ts(eps={eps},prior=searched,temperature=0.35)")
ORACLE = Row("posterior oracle", "posterior_oracle")
ROOM_ROWS = (
    AT_DPT_V1,
    *(Row(f"AT-DPT (sub. {n}%)", f"at-dpt-sub{n}", brief=True) for n in (10, 20, 30)),
    DPT,
    Row("NPG", "npg", attack_rounds=5),
    Row("NPG (tuned)", TUNED_NPG, attack_rounds=5),
    Row("Q-learning", "q_learning(exploration={eps})", attack_rounds=5),
    Row("Q-learning (tuned)", TUNED_Q, attack_rounds=5),
    Row("oracle", "oracle"),
)
MIXTURE_ROOM = Row("mixture room", "mixture_room(eps={eps})")
ROOM_ATTACKS = ("none", *Darkroom.attacks)
ROOM_TARGETS = ("AT-DPT", "DPT", "NPG", "Q-learning")
# 100 episodes of every task come before the one that counts; the paper has these columns of it.
PPO = Row(
    "PPO", "ppo", brief=True, tasks=40, meets=("clean", "random", "learned"),
    smoke="ppo(episodes=2)",
)  # fmt: skip
VIEW_ATTACKS = ("none", *Miniworld.attacks)
ARM_ATTACKS = ("none", *Arms.attacks)
MAIN = ("AT-DPT", "DPT", "TS", "RTS", "UCB1.0", "crUCB")
LINUCB = Row("LinUCB", "linucb")
CRLINUCB = "crlinucb(eps={eps},budget={budget})"
LIN_TS = Row("LinTS", "lin_ts")
MIXTURES = (
    Row("mixture LinUCB", "mixture_linucb(eps={eps})"),
    Row("mixture LinTS", "mixture_lin_ts(eps={eps},temperature=0.7)"),
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="bandit_main",
            title="Bandit: cumulative regret under attack, eps = 0.4",
            environment="bandit",
            rows=(
                AT_DPT,
                AT_DPT_HOT,
                PRINTED,
                DPT,
                DPT_COLD,
                MIXTURE_TS,
                SEARCHED_TS,
                *CLASSICAL,
                ORACLE,
            ),
            static=(*ARM_ATTACKS, "ace"),
            trained={"paper": MAIN, "cotrained": ("AT-DPT (as printed)",)},
            own=("search",),
            table="bandit_main",
        ),
        Recipe(
            name="bandit_training",
            title="Bandit: regret per round of adversarial training, eps = 0.4",
            environment="bandit",
            rows=(AT_DPT_V1, PRINTED),
            static=("none",),
        ),
        Recipe(
            name="bandit_budget_training",
            title="Bandit: regret per round of adversarial training at B = 1, 3, 5",
            environment="bandit",
            rows=(AT_DPT_V1,),
            static=("none",),
            levels=tuple(Level(budget=b) for b in (1.0, 3.0, 5.0)),
            replications={"smoke": 2, "laptop": 1, "paper": 10},
        ),
        Recipe(
            name="bandit_full",
            title="Bandit: all contamination levels and variants",
            environment="bandit",
            rows=(
                AT_DPT_V1,
                *(Row(f"AT-DPT (sub. {n}%)", f"at-dpt-sub{n}", brief=True) for n in (10, 20, 30)),
                Row("AT-DPT (rand.)", "at-dpt-random", brief=True),
                DPT,
                Row("AD [crUCB (m.)]", "ad-crucb", brief=True, only=0.4),
                Row("AD [crUCB (m.) c.]", "ad-crucb-corrupted", brief=True, only=0.4),
                Row("AD [TS]", "ad-ts", brief=True, only=0.4),
                Row("TS", "ts"),
                Row("RTS (C tuned)", "rts"),
                Row("RTS (C unk.)", "rts(level=unknown)"),
                Row("RTS (C known)", "rts(level=known,eps={eps},budget={budget})"),
                Row("UCB1.0", "ucb1"),
                Row("crUCB (orig.)", "crucb(variant=original,alpha={eps})"),
                Row("crUCB (low sigma0)", "crucb(variant=low,alpha={eps})"),
                Row("crUCB (mod.)", "crucb(alpha={eps})"),
                ORACLE,
            ),
            static=ARM_ATTACKS,
            trained={
                "learned": (
                    "AT-DPT",
                    "DPT",
                    "TS",
                    "RTS (C tuned)",
                    "UCB1.0",
                    "crUCB (orig.)",
                    "crUCB (low sigma0)",
                    "crUCB (mod.)",
                ),
            },
            table="bandit_full",
            levels=tuple(Level(eps) for eps in (0.1, 0.2, 0.4)),
        ),
        Recipe(
            name="bandit_budgets",
            title="Bandit: trained at B = 1, tested at B = 1, 3, 5",
            environment="bandit",
            rows=(Row("AT-DPT", "at-dpt-b1"), DPT, *CLASSICAL, ORACLE),
            static=ARM_ATTACKS,
            trained={"learned": MAIN},
            table="bandit_budgets",
            levels=tuple(Level(budget=b) for b in (1.0, 3.0, 5.0)),
            replications={"smoke": 2, "laptop": 1, "paper": 10},
        ),
        *(
            Recipe(
                name=name,
                title=f"Bandit: adaptive and non-adaptive attackers{where}",
                environment="bandit",
                rows=(
                    Row("AT-DPT (A)", "at-dpt-adaptive"),
                    Row("AT-DPT (n-A)", "at-dpt-v1"),
                    DPT,
                    *CLASSICAL,
                    ORACLE,
                ),
                static=ARM_ATTACKS,
                trained={
                    "learned": ("AT-DPT (n-A)", "TS"),
                    "adaptive": ("AT-DPT (A)", "AT-DPT (n-A)", "TS"),
                    "from_nothing": ("AT-DPT (A)", "AT-DPT (n-A)", "TS"),
                },
                table=table,
                levels=tuple(Level(eps) for eps in levels),
                replications={"smoke": 2, "laptop": 1, "paper": 10},
            )
            for name, where, table, levels in (
                ("bandit_adaptive", ", eps = 0.4", "bandit_adaptive_main", (0.4,)),
                ("bandit_adaptive_full", "", "bandit_adaptive_full", (0.1, 0.2, 0.4)),
            )
        ),
        Recipe(
            name="bandit_mixture",
            title="Bandit: one model for many attacks",
            environment="bandit",
            rows=(
                Row("AT-DPT (mixture)", "at-dpt-mixture"),
                Row("AT-DPT", "at-dpt-fixed"),
                Row("AT-DPT (A)", "at-dpt-adaptive-fixed"),
                DPT,
                Row("TS", "ts"),
                ORACLE,
            ),
            static=ARM_ATTACKS,
            trained={
                "learned": ("AT-DPT (mixture)", "AT-DPT", "AT-DPT (A)", "DPT", "TS"),
                "adaptive": ("AT-DPT (mixture)", "AT-DPT", "AT-DPT (A)"),
            },
            only_at={"adaptive": (0.4,)},
            levels=tuple(Level(eps) for eps in (0.1, 0.2, 0.4)),
            replications={"smoke": 2, "laptop": 1, "paper": 10},
        ),
        Recipe(
            name="linear_main",
            title="Linear bandit: cumulative regret under attack, eps = 0.4",
            environment="linear_bandit",
            rows=(
                AT_DPT,
                PRINTED,
                DPT,
                LINUCB,
                Row("CRLinUCB", CRLINUCB),
                LIN_TS,
                *MIXTURES,
                ORACLE,
            ),
            static=ARM_ATTACKS,
            trained={
                "paper": ("AT-DPT", "DPT", "LinUCB", "CRLinUCB", "LinTS"),
                "cotrained": ("AT-DPT (as printed)",),
            },
            own=("search",),
            table="linear_main",
            replications={"smoke": 2, "laptop": 2, "paper": 10},
        ),
        Recipe(
            name="linear_full",
            title="Linear bandit: all contamination levels",
            environment="linear_bandit",
            rows=(
                AT_DPT,
                DPT,
                LINUCB,
                Row("CRLinUCBv1", "crlinucb(variant=v1,eps={eps},budget={budget})"),
                Row("CRLinUCBv2", CRLINUCB),
                Row("CRLinUCBv3", "crlinucb(variant=v3,eps={eps},budget={budget})"),
                LIN_TS,
                *MIXTURES,
                ORACLE,
            ),
            static=ARM_ATTACKS,
            trained={
                "learned": (
                    "AT-DPT",
                    "DPT",
                    "LinUCB",
                    "CRLinUCBv1",
                    "CRLinUCBv2",
                    "CRLinUCBv3",
                    "LinTS",
                ),
                "kept": ("AT-DPT", "DPT", "LinUCB"),
            },
            table="linear_full",
            levels=tuple(Level(eps) for eps in (0.1, 0.2, 0.4)),
            replications={"smoke": 2, "laptop": 2, "paper": 10},
        ),
        Recipe(
            name="darkroom2_main",
            title="Darkroom2: episode reward under attack, eps = 0.4",
            environment="darkroom2",
            rows=(
                AT_DPT,
                PRINTED,
                DPT,
                MIXTURE_ROOM,
                # 100 episodes of learning, for each of the 16 of a round: that would take hours.
                *(
                    replace(row, meets=("clean", "random", "structured", "learned", "pooled"))
                    for row in ROOM_ROWS
                    if not row.is_model
                ),
            ),
            static=ROOM_ATTACKS,
            trained={"learned": ROOM_TARGETS, "pooled": ROOM_TARGETS},
            own=("steady",),
            own_tasks=100,
            table="darkroom2_main",
            training_env=SEEN,
            testing_env=HELD_OUT,
            pictures=(
                ("AT-DPT", "pooled(AT-DPT)"),
                ("DPT", "pooled(DPT)"),
                ("DPT", "learned(DPT)"),
                ("Q-learning", "pooled(Q-learning)"),
            ),
            levels=(Level(budget=IN_ROOMS),),
            replications={"smoke": 2, "laptop": 2, "paper": 10},
        ),
        Recipe(
            name="darkroom2_full",
            title="Darkroom2: all contamination levels",
            environment="darkroom2",
            rows=ROOM_ROWS,
            static=ROOM_ATTACKS,
            trained={"learned": ROOM_TARGETS, "pooled": ROOM_TARGETS},
            table="darkroom2_full",
            levels=tuple(Level(eps, IN_ROOMS) for eps in (0.1, 0.2, 0.4)),
            replications={"smoke": 2, "laptop": 1, "paper": 10},
        ),
        Recipe(
            name="miniworld_main",
            title="Miniworld: episode reward under attack, eps = 0.4",
            environment="miniworld",
            rows=(AT_DPT, DPT, PPO, Row("oracle", "oracle")),
            static=VIEW_ATTACKS,
            trained={"learned": ("AT-DPT", "DPT")},
            own=("search",),  # among tables by kinds of entries, as pooled attackers have them
            own_tasks=60,  # an episode costs ten times one of Darkroom2
            table="miniworld_main",
            pictures=(
                ("AT-DPT", "learned(AT-DPT)"),
                ("DPT", "learned(DPT)"),
                ("AT-DPT", "all_decoys"),
                ("DPT", "all_decoys"),
            ),
            levels=(Level(budget=Miniworld.budget),),
            replications={"smoke": 2, "laptop": 2, "paper": 10},
        ),
        Recipe(
            name="miniworld_full",
            title="Miniworld: all contamination levels",
            environment="miniworld",
            rows=(AT_DPT, DPT, replace(PPO, meets=("clean", "random")), Row("oracle", "oracle")),
            static=VIEW_ATTACKS,
            trained={"learned": ("AT-DPT", "DPT")},
            table="miniworld_full",
            levels=tuple(Level(eps, Miniworld.budget) for eps in (0.1, 0.2, 0.4)),
            replications={"smoke": 2, "laptop": 1, "paper": 10},
        ),
    )
}


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown("recipe", name, [*RECIPES, "all"])
    return RECIPES[name]
