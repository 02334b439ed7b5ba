"""One stress test as one JSON file: an entry of a leaderboard, and all that its page shows.

An entry may come from anybody. It is read strictly: a bounded size, no unknown keys, finite
numbers, texts of bounded length, the attacks of the very suite that it names, and figures that
follow from its scores. Nothing in it is ever run, and nothing becomes a link."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from mithridate.config import Config
from mithridate.errors import UserError, shown
from mithridate.evaluation.flags import Flag
from mithridate.files import parse_json, read_text, write_atomic
from mithridate.stress.measure import HALVES, Measured, points
from mithridate.stress.suites import CLEAN, Attack, Suite, find_suite, suite_env
from mithridate.stress.worst import Figure, Scores, average, single_worst, worst_case

FORMAT = 1
DIGITS = 2
"""Decimals of scores in an entry. Figures are computed from what is written."""
LIMIT = 4 * 2**20
"""Bytes of an entry."""
LARGEST = 1e7
MOST_TASKS = 10_000
NAME, TEXT = 80, 400
"""Letters."""


def _is_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it has letters that cannot be printed")
    return text


def printable(text: str, limit: int) -> str:
    """As an entry may have it."""
    return "".join(c if c.isprintable() else "?" for c in text)[:limit]


Name = Annotated[str, Field(min_length=1, max_length=NAME), AfterValidator(_is_printable)]
Text = Annotated[str, Field(max_length=TEXT), AfterValidator(_is_printable)]
Real = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Reals = Annotated[list[Real], Field(max_length=MOST_TASKS)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class AttackEntry(Config):
    """The agent under one attack at one level."""

    name: Name
    """Of the attack in its suite."""
    kind: Name
    """Of attack (mithridate/evaluation/kinds.py)."""
    eps: Real
    """Share of poisoned steps."""
    norm_mean: Real
    """What the attack spent, mean over episodes."""
    norm_max: Real
    """The largest that it spent in any."""
    scores: Annotated[list[Reals], Field(min_length=HALVES, max_length=HALVES)]
    """The metric in each half of the luck on each task."""
    curve: Annotated[list[Real], Field(max_length=100)]
    """The cumulative metric over time."""
    offsets: Annotated[list[Real], Field(max_length=1000)]
    """What is added to the reward of the best action, of the second best, …; mean over tasks."""
    spreads: Annotated[list[Real], Field(max_length=1000)]
    """Its standard deviation over tasks."""


class FigureEntry(Config):
    """What is worst at one level."""

    eps: Real
    """The level."""
    worst_attack: Name
    """The attack whose mean is worst."""
    single: Real
    """The metric under the worst single attack."""
    single_ci95: Real
    """2 × SEM over tasks."""
    case: Real
    """The metric if each task has the attack that is worst for it."""
    case_ci95: Real
    """2 × SEM over tasks."""


class FlagEntry(Config):
    code: Name
    """One word; docs/stress.md explains each."""
    text: Text
    """What was found."""


class Reported(Config):
    """A claim of the agent's authors, or a stronger attack that others have found."""

    value: Real
    """Of the metric."""
    eps: Real
    """At this level."""
    what: Text
    """Under which attack, measured how."""
    source: Text
    """Where it is published."""


class Entry(Config):
    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    """Of this file."""
    agent: Name
    """What tables call it."""
    made_of: Text
    """The name, model or module:Class that was measured."""
    sha256: Digest | None = None
    """Of a model's weights, or of the file that defines module:Class."""
    environment: Name
    """Its registered name."""
    suite: Name
    """Its name, with the version."""
    suite_sha256: Digest
    """Of the suite's content."""
    metric: Name
    """What scores are."""
    better: Annotated[str, Field(pattern="^(lower|higher)$")]
    """Whether lower or higher scores are better."""
    clean: Real
    """The metric without an attack."""
    clean_ci95: Real
    """2 × SEM over tasks."""
    figures: Annotated[list[FigureEntry], Field(min_length=1, max_length=20)]
    """By level."""
    flags: Annotated[list[FlagEntry], Field(max_length=200)]
    """Reasons not to trust, or not to compare, these figures."""
    attacks: Annotated[list[AttackEntry], Field(min_length=1, max_length=500)]
    """Everything that was measured."""
    reported: Annotated[list[Reported], Field(max_length=20)] = Field(default_factory=list)
    """What the agent's authors report, beside what was measured here."""
    external: Annotated[list[Reported], Field(max_length=20)] = Field(default_factory=list)
    """Stronger attacks that others have found."""
    versions: Annotated[dict[Name, Name], Field(max_length=20)]
    """Of the packages that computed it."""

    def known_suite(self) -> Suite:
        """The suite, which must be the one that has this name here."""
        suite = find_suite(self.suite, self.environment)
        if suite.name != self.suite or suite.sha256() != self.suite_sha256:
            raise UserError(
                f"suite {shown(self.suite, 40)} is another one here: compute the entry again with "
                "this version"
            )
        return suite

    def scores(self, eps: float) -> Scores:
        """At one level, and without an attack, which an attacker may choose, too."""
        return {a.name: a.scores for a in self.attacks if a.eps == eps or a.name == CLEAN.name}

    def worst(self, eps: float) -> tuple[str, Figure, dict[str, float], Figure]:
        """The worst attack, its figure, each attack's share of the tasks, the worst case."""
        name, single = single_worst(self.scores(eps), self.better)
        shares, case = worst_case(self.scores(eps), self.better)
        return name, single, shares, case

    def under(self, name: str, eps: float) -> AttackEntry:
        return next(a for a in self.attacks if a.name == name and a.eps in (eps, 0.0))


def make_entry(
    suite: Suite,
    cells: list[tuple[Attack, float, Measured]],
    flags: list[Flag],
    metric: tuple[str, str],
    **said: Any,
) -> Entry:
    """`said`: agent, made_of, sha256, versions."""
    attacks = [_attack(*cell) for cell in cells]
    known = {
        "environment": suite.env, "suite": suite.name, "suite_sha256": suite.sha256(),
        "metric": metric[0], "better": metric[1], "attacks": attacks,
        "flags": [FlagEntry(code=f.code, text=printable(f.text, TEXT)) for f in flags], **said,
    }  # fmt: skip
    bare = Entry.model_construct(**known)
    return Entry.model_validate({**known, **_figures(bare, suite)})


def _attack(attack: Attack, eps: float, m: Measured) -> AttackEntry:
    return AttackEntry(
        name=attack.name, kind=attack.kind, eps=eps,
        norm_mean=round(m.norm_mean, 4), norm_max=round(m.norm_max, 4),
        scores=[_rounded(half) for half in m.scores], curve=_rounded(m.curve),
        offsets=_rounded(m.offsets, 4), spreads=_rounded(m.spreads, 4),
    )  # fmt: skip


def _rounded(values: list[float], digits: int = DIGITS) -> list[float]:
    return [round(value, digits) + 0.0 for value in values]


def _figures(entry: Entry, suite: Suite) -> dict[str, Any]:
    """What follows from the scores."""
    clean = average(entry.under(CLEAN.name, 0.0).scores)
    found = []
    for eps in suite.eps:
        name, single, _, case = entry.worst(eps)
        found.append(
            FigureEntry(
                eps=eps, worst_attack=name, single=round(single.mean, 4),
                single_ci95=round(single.ci95, 4), case=round(case.mean, 4),
                case_ci95=round(case.ci95, 4),
            )
        )  # fmt: skip
    return {"clean": round(clean.mean, 4), "clean_ci95": round(clean.ci95, 4), "figures": found}


def entry_text(entry: Entry) -> str:
    """As it is written: the same entry is the same file."""
    data = entry.to_json()
    rows = [json.dumps(row, allow_nan=False) for row in data.pop("attacks")]
    head = json.dumps(data, indent=1, allow_nan=False)
    return f'{head[:-2]},\n "attacks": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def write_entry(path: Path, entry: Entry) -> None:
    write_atomic(path, entry_text(entry))


def read_entry(path: Path) -> Entry:
    """A UserError in one line if anything is wrong with it."""
    text = read_text(path, "entry", LIMIT)
    try:
        entry = Entry.model_validate(parse_json(text))
        check_entry(entry)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(f"entry {shown(path)}: '{shown(place, 80)}': {first['msg']}") from None
    except (UserError, ValueError) as error:
        raise UserError(f"entry {shown(path)}: {error}") from None
    return entry


def check_entry(entry: Entry) -> None:
    """Raise a UserError unless it has what its suite asks for, and its figures follow from it."""
    suite = entry.known_suite()
    spec = suite_env(suite).spec
    if (entry.metric, entry.better) != (spec.metric.name, spec.metric.better):
        raise UserError(f"its metric is not that of {suite.env}")
    found = [(attack.name, attack.kind, attack.eps) for attack in entry.attacks]
    if found != [(attack.name, attack.kind, eps) for attack, eps in suite.cells()]:
        raise UserError(f"its attacks are not those of {suite.name}")
    ranks = spec.n_actions
    for attack in entry.attacks:
        lengths = {len(half) for half in attack.scores}
        if lengths != {suite.tasks} or len(attack.curve) != len(points(spec.horizon)):
            raise UserError(f"{attack.name} has not the scores of {suite.tasks} tasks")
        if len(attack.offsets) != ranks or len(attack.spreads) != ranks:
            raise UserError(f"{attack.name} has not {ranks} offsets")
        if attack.norm_max > suite.budget * 1.001 or attack.norm_mean > attack.norm_max * 1.001:
            raise UserError(f"{attack.name} spent more than the budget of {suite.budget:g}")
    said = {name: getattr(entry, name) for name in ("clean", "clean_ci95", "figures")}
    if not _same(said, _figures(entry, suite)):
        raise UserError("its figures do not follow from its scores")


def _same(said: dict[str, Any], follows: dict[str, Any]) -> bool:
    def near(a: float, b: float) -> bool:
        return abs(a - b) <= 1e-3

    if len(said["figures"]) != len(follows["figures"]):
        return False
    pairs = zip(said["figures"], follows["figures"], strict=True)
    return (
        near(said["clean"], follows["clean"])
        and near(said["clean_ci95"], follows["clean_ci95"])
        and all(
            a.worst_attack == b.worst_attack
            and all(near(getattr(a, n), getattr(b, n))
                    for n in ("eps", "single", "single_ci95", "case", "case_ci95"))
            for a, b in pairs
        )
    )  # fmt: skip
