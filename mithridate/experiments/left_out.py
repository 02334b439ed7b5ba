"""Columns that a plan cannot have: of attackers that were trained along with a model, where they
were not kept. A shipped model may have none beside it, nor has a training of an earlier version."""

from __future__ import annotations

from dataclasses import replace

from mithridate.evaluation.kinds import Heading
from mithridate.experiments.plan import Plan
from mithridate.experiments.stages import Stage, keeps_attackers
from mithridate.experiments.store import Store

Place = tuple[Heading, float, float]
"""A column of a table: its heading, eps and budget."""


def left_out(planned: Plan, store: Store | None, shipped: bool) -> tuple[Plan, list[str]]:
    """The plan without such columns, and a line about each."""
    sources: dict[Place, dict[str, Stage]] = {}
    for cell in (*planned.cells, *planned.pictures):
        source = cell.inputs.get("attack")
        if source is not None and source.kind == "train":
            sources.setdefault(_place(cell), {})[source.name] = source
    missing: dict[Place, Stage] = {}
    for place, trainings in sources.items():
        without = (s for s in trainings.values() if not keeps_attackers(s, store, shipped))
        if (first := next(without, None)) is not None:
            missing[place] = first

    def there(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        return tuple(stage for stage in stages if _place(stage) not in missing)

    found = replace(planned, cells=there(planned.cells), pictures=there(planned.pictures))
    said = [
        f"{planned.recipe.name}: column {heading} at eps {eps:g}, B {budget:g} is left out: no "
        f"attackers are kept with '{source.label}', which is shipped or of an earlier version; "
        "another --store, without --shipped, has them"
        for (heading, eps, budget), source in missing.items()
    ]
    return found, said


def _place(cell: Stage) -> Place:
    assert cell.about is not None
    assert cell.about.kind is not None
    return Heading(cell.about.kind, cell.about.who), cell.about.eps, cell.about.budget
