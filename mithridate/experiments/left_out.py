"""Columns that a plan cannot have: of attackers that were trained along with a model, where there
are none at the column's level, or they were not kept. A shipped model may have none beside it, nor
has a training of an earlier version."""

from __future__ import annotations

from dataclasses import replace

from mithridate.evaluation.kinds import Heading
from mithridate.experiments.plan import Plan
from mithridate.experiments.stages import Stage, keeps_attackers, parsed_config
from mithridate.experiments.store import Store
from mithridate.stage_config import AdversarialConfig
from mithridate.training.threats import chasing_at

Place = tuple[Heading, float, float]
"""A column of a table: its heading, eps and budget."""


def left_out(planned: Plan, store: Store | None, shipped: bool) -> tuple[Plan, list[str]]:
    """The plan without such columns, and a line about each."""
    sources: dict[Place, dict[str, Stage]] = {}
    for cell in (*planned.cells, *planned.pictures):
        source = cell.inputs.get("attack")
        if source is not None and source.kind == "train":
            sources.setdefault(_place(cell), {})[source.name] = source
    missing: dict[Place, str] = {}
    for place, trainings in sources.items():
        reasons = (_reason(place, stage, store, shipped) for stage in trainings.values())
        if (first := next(filter(None, reasons), None)) is not None:
            missing[place] = first

    def there(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        return tuple(stage for stage in stages if _place(stage) not in missing)

    found = replace(planned, cells=there(planned.cells), pictures=there(planned.pictures))
    said = [
        f"{planned.recipe.name}: column {heading} at eps {eps:g}, B {budget:g} is left out: {why}"
        for (heading, eps, budget), why in missing.items()
    ]
    return found, said


def _reason(place: Place, stage: Stage, store: Store | None, shipped: bool) -> str | None:
    """Why a training has no attackers for a column, if it has none."""
    config = parsed_config(stage)
    assert isinstance(config, AdversarialConfig)
    if chasing_at(config, *place[1:]) is None:
        return f"in '{stage.label}' no attackers of this level learn against the model"
    if keeps_attackers(stage, store, shipped):
        return None
    return (
        f"no attackers are kept with '{stage.label}', which is shipped or of an earlier version; "
        "another --store, without --shipped, has them"
    )


def _place(cell: Stage) -> Place:
    assert cell.about is not None
    assert cell.about.kind is not None
    return Heading(cell.about.kind, cell.about.who), cell.about.eps, cell.about.budget
