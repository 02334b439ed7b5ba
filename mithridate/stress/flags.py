"""Flags of a stress test: reasons not to trust its figures. Each is explained in docs/stress.md."""

from __future__ import annotations

from mithridate.evaluation.flags import FEW_TASKS, Flag
from mithridate.evaluation.kinds import trained_kinds
from mithridate.intervals import mean_ci95
from mithridate.stress.measure import Measured
from mithridate.stress.suites import Attack, Suite
from mithridate.stress.worst import Figure, average, paired

FACTOR = 1.5
"""By which search may beat learning."""
SPENT = 0.1
"""Of the budget, at least."""
HALVES_APART = 2.0
"""Intervals; one cell of twenty is more than one apart by chance, and there are dozens."""


def stress_flags(
    suite: Suite, cells: list[tuple[Attack, float, Measured]], better: str
) -> list[Flag]:
    found = []
    if suite.tasks < FEW_TASKS:
        found.append(Flag("few-tasks", f"the suite {suite.name} has {suite.tasks} tasks only"))
    sign = 1.0 if better == "lower" else -1.0
    clean = _average(cells[0][2], sign)
    for eps in suite.eps:
        level = {attack: m for attack, at, m in cells if at == eps and attack.poisons}
        found += _about(suite, eps, {a: _average(m, sign) for a, m in level.items()}, clean)
        found += _spending(suite, eps, level)
    for attack, eps, measured in cells:
        first, second = measured.scores
        apart, ci95 = mean_ci95([a - b for a, b in zip(first, second, strict=True)])
        if abs(apart) > HALVES_APART * ci95:
            found.append(
                Flag(
                    "halves-differ",
                    f"{_at(attack.name, eps)}: the two halves of the luck differ by "
                    f"{abs(apart):.1f}, their interval is {ci95:.1f}",
                )
            )
    return found


def _average(measured: Measured, sign: float) -> Figure:
    """What the agent suffers: more is worse."""
    return average([[sign * value for value in half] for half in measured.scores])


def _at(name: str, eps: float) -> str:
    return f"{name} at eps {eps:g}" if eps else "without an attack"


def _about(suite: Suite, eps: float, suffered: dict[Attack, Figure], clean: Figure) -> list[Flag]:
    found = []
    trained = trained_kinds()
    against = {a: f for a, f in suffered.items() if a.kind in trained}
    random = [f for a, f in suffered.items() if a.kind == "random"]
    if random and against and all(_clearly(random[0], figure) for figure in against.values()):
        found.append(
            Flag(
                "random-beats-learned",
                f"at eps {eps:g} the random attack hurts more than any that learned or searched",
            )
        )
    search = [f.mean for a, f in against.items() if a.kind == "search"]
    learned = [f.mean for a, f in against.items() if a.kind != "search"]
    if search and learned and search[0] - clean.mean > FACTOR * max(max(learned) - clean.mean, 0.0):
        found.append(
            Flag(
                "search-beats-learned",
                f"at eps {eps:g} search does more than {FACTOR:g} times the harm of learned "
                "attacks: figures under learned attacks alone say little about this agent",
            )
        )
    for attack, figure in suffered.items():
        if _clearly(clean, figure):
            found.append(
                Flag("poison-helps", f"{_at(attack.name, eps)}: the agent fares better than clean")
            )
    return found


def _spending(suite: Suite, eps: float, level: dict[Attack, Measured]) -> list[Flag]:
    return [
        Flag(
            "spent-little",
            f"{_at(attack.name, eps)}: it spent {m.norm_mean:.2f} of a budget of {suite.budget:g}",
        )
        for attack, m in level.items()
        if m.norm_mean < SPENT * suite.budget
    ]


def _clearly(worse: Figure, than: Figure) -> bool:
    difference, ci95 = paired(worse, than)
    return difference > ci95


WHY = {
    "ignores-rewards": "Poison changes rewards alone, so nothing was tested.",
    "not-repeatable": "Draw luck from the streams that the agent is given, or from Python's, "
    "NumPy's or PyTorch's own generators, which are seeded here.",
    "few-tasks": "Intervals are wide; quote the standard suite.",
    "random-beats-learned": "Attacks that learn did not learn: this agent may be worse than it "
    "looks.",
    "search-beats-learned": "Published figures rest on learned attacks.",
    "spent-little": "The attack may not have found what to do.",
    "poison-helps": "An attack that helps is no attack; the agent may exploit its rule.",
    "halves-differ": "The agent's luck is wider than so few repeats show.",
}
"""By code: why it matters."""
