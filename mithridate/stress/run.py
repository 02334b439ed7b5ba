"""Stress-testing an agent: every attack of a suite, one cell after the other, each kept when it is
done. A run that was stopped or killed goes on where it was and ends with the same bits."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from mithridate.agents.named import AgentLike, fingerprint, make_agent, told
from mithridate.capabilities import is_privileged
from mithridate.config import Config
from mithridate.errors import Interrupted, UserError, shown
from mithridate.evaluation.flags import Flag
from mithridate.files import make_directory, read_bytes, read_json_object, write_atomic
from mithridate.settings import parse
from mithridate.stage_config import AttackConfig
from mithridate.stress.entry import (
    NAME,
    TEXT,
    Entry,
    FigureEntry,
    make_entry,
    printable,
    write_entry,
)
from mithridate.stress.flags import stress_flags
from mithridate.stress.luck import is_theirs, seeded, untouched
from mithridate.stress.measure import Measured, measure
from mithridate.stress.page import render_entry
from mithridate.stress.self_test import self_test
from mithridate.stress.suites import CLEAN, Attack, Suite, find_suite, left_out, suite_env
from mithridate.stress.worst import paired
from mithridate.training.attack import AttackTraining, LearnedAttack, attack
from mithridate.training.fitness import try_out
from mithridate.training.loop import Watcher
from mithridate.training.run_directory import RunDirectory
from mithridate.types import Agent, Attacker
from mithridate.versions import STAGES, versions

ENTRY, PAGE = "entry.json", "report.html"
CODE = 1
"""Of this package: raised when a change of the code changes results."""


class Onlooker(Protocol):
    """Somebody who looks on: a progress bar."""

    def planned(self, total: int) -> None: ...

    def began(self, name: str, steps: int) -> None:
        """A cell of so many batched steps; 0 if it is there already."""
        ...

    def stepped(self) -> None: ...

    def training(self, name: str) -> list[Watcher]: ...

    def finished(self) -> None: ...


class StressConfig(Config):
    """What a run is: it belongs to one agent and one suite."""

    agent: str
    """What was named, or the class of an object."""
    agent_sha256: str | None
    """Of its weights or source code, if anything tells."""
    environment: str
    """The suite's."""
    suite: str
    """Its name."""
    suite_sha256: str
    """Of its content."""
    code: dict[str, int]
    """Versions of the code that results depend on."""


@dataclass(frozen=True)
class StressTest:
    """What came out."""

    entry: Entry
    directory: Path | None
    """Where it is kept; None if nowhere."""

    @property
    def suite(self) -> Suite:
        return self.entry.known_suite()

    @property
    def left_out(self) -> list[str]:
        """What the standard suite has and this one has not."""
        return left_out(self.suite)

    @property
    def worst_attack(self) -> tuple[str, float, float]:
        """At the hardest level, the attack whose mean is worst, and that figure ± 2 SEM."""
        last = self._hardest()
        return last.worst_attack, last.single, last.single_ci95

    @property
    def worst_case(self) -> tuple[float, float]:
        """At the hardest level, each task under the attack that is worst for it, ± 2 SEM."""
        return self._hardest().case, self._hardest().case_ci95

    @property
    def flags(self) -> list[Flag]:
        return [Flag(flag.code, flag.text) for flag in self.entry.flags]

    def compared(self, other: StressTest) -> tuple[float, float]:
        """How much this agent's worst case at the hardest level is above the other's: mean ± 2 SEM
        over tasks, which are the same, with the same luck."""
        if other.entry.suite_sha256 != self.entry.suite_sha256:
            raise UserError(
                f"{self.entry.suite} and {other.entry.suite} are not the same suite: agents are "
                "compared on the same tasks"
            )
        eps = self._hardest().eps
        return paired(self.entry.worst(eps)[3], other.entry.worst(eps)[3])

    def html(self) -> str:
        """The page."""
        return render_entry(self.entry)

    def _hardest(self) -> FigureEntry:
        return max(self.entry.figures, key=lambda figure: figure.eps)


def stress_test(
    agent: AgentLike,
    env: str = "bandit",
    suite: str = "standard-v0",
    *,
    label: str | None = None,
    out: Path | str | None = None,
    onlooker: Onlooker | None = None,
) -> StressTest:
    """Measure an agent under every attack of a suite, those that learn and search against it
    included.

    `agent`: as in `evaluate`: a name, a shipped model, 'module:Class', a class or an object.
    `suite`: standard-v0, plus-v0 (with adaptive attackers) or quick-v0 (a minute); what it holds is
    fixed. `label`: what tables call the agent. `out`: the directory of the run, by default
    runs/stress-…; the same call goes on where another stopped. Nothing tells whether an object is
    the one of an earlier run: it has a directory only if you name one, and you vouch for it.
    """
    found = find_suite(suite, env)
    if label is not None and not (isinstance(label, str) and 0 < len(label) <= NAME):
        raise UserError(f"label: a text of up to {NAME} letters, not {shown(label, 40)}")
    run = _Run(found, agent, label, onlooker)
    with untouched():
        if out is None and not isinstance(agent, str):
            with tempfile.TemporaryDirectory() as temporary:
                return StressTest(run.go(Path(temporary) / "run"), None)
        directory = Path(out) if out is not None else Path("runs") / run.name
        return StressTest(run.go(directory), directory)


class _Run:
    """One agent and one suite. What does not fit is found when it is made."""

    def __init__(
        self, suite: Suite, agent: AgentLike, label: str | None, onlooker: Onlooker | None
    ) -> None:
        self.suite, self.onlooker = suite, onlooker
        torch.set_num_threads(suite.threads)
        self.env = suite_env(suite)
        self.tasks = suite.sample_tasks(self.env)
        self.named = ""
        # An agent does not know the level it is in: who asks is told the hardest.
        hardest = self._attack_config(CLEAN, suite.hardest)
        name, made = make_agent(agent, told(hardest))
        if is_privileged(made):
            raise UserError(
                f"agent '{shown(name, 80)}' is told the attack (reveal): a stress test is for "
                "agents that see only what they are shown"
            )
        try_out(self.env, [made], [])
        self.named = agent if isinstance(agent, str) else name
        self.label, self._slug = printable(label or name, NAME), slug(name)
        self.sha256 = _sha256(self.named, made) if isinstance(agent, str) else fingerprint("", made)
        self.agent: Agent = seeded(made)
        self.config = StressConfig(
            agent=self.named, agent_sha256=self.sha256, environment=suite.env, suite=suite.name,
            suite_sha256=suite.sha256(),
            code={"stress": CODE, **{k: STAGES[k] for k in ("attack", "evaluate")}},
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Of the run's directory, unless told; whatever tables call the agent."""
        return f"stress-{self.suite.env}-{self._slug}-{self.config.hash()}"

    def go(self, path: Path) -> Entry:
        flags = self_test(self.suite, self.env, self.tasks, self.agent)
        directory = RunDirectory(path, self.config)
        try:
            return self._go(path, flags)
        except KeyboardInterrupt:
            raise Interrupted("what is measured so far is kept") from None
        finally:
            directory.close()

    def _go(self, path: Path, flags: list[Flag]) -> Entry:
        make_directory(path / "cells")
        for leftover in (path / "cells").glob(".*"):
            with suppress(OSError):
                leftover.unlink()
        plan = self.suite.cells()
        if self.onlooker:
            self.onlooker.planned(len(plan))
        cells = []
        for attack_, eps in plan:
            cells.append((attack_, eps, self._cell(path, attack_, eps)))
            if self.onlooker:
                self.onlooker.finished()
        metric = self.env.spec.metric
        entry = make_entry(
            self.suite, cells, [*flags, *stress_flags(self.suite, cells, metric.better)],
            (metric.name, metric.better), agent=self.label, made_of=printable(self.named, TEXT),
            sha256=self.sha256, versions=versions(),
        )  # fmt: skip
        write_entry(path / ENTRY, entry)
        write_atomic(path / PAGE, render_entry(entry))
        return entry

    def _cell(self, path: Path, attack_: Attack, eps: float) -> Measured:
        name = _name(attack_, eps)
        file = path / "cells" / f"{slug(name)}.json"
        known = _read(file)
        steps = 0 if known else self._steps()
        if known is None:
            attacker = self._attacker(attack_, eps, path / "attackers")
        if self.onlooker:
            self.onlooker.began(name, steps)
        if known is not None:
            return known
        on_step: Callable[[], None] | None = self.onlooker.stepped if self.onlooker else None
        found = measure(self.suite, self.env, self.tasks, self.agent, attacker, eps, on_step)
        _write(file, found)
        return found

    def _steps(self) -> int:
        at_once = max(1, self.suite.block // self.suite.repeats)
        learning = getattr(self.agent, "learning_episodes", 0)
        blocks = 2 * -(-self.suite.tasks // at_once)
        return int(blocks * self.env.spec.horizon * (1 + learning))

    def _attacker(self, attack_: Attack, eps: float, path: Path) -> Attacker | None:
        """`path`: where those that learn are kept."""
        if not attack_.poisons:
            return None
        if attack_.rounds is None:
            attacker: Attacker = self.suite.make(attack_.attacker)
            return attacker
        return self._learned(attack_, eps, path).attacker

    def _learned(self, attack_: Attack, eps: float, path: Path) -> LearnedAttack:
        before = [other for other in self.suite.attacks if other.name == attack_.after]
        start = self._learned(before[0], eps, path) if before else None
        config, name = self._attack_config(attack_, eps), _name(attack_, eps)
        training = AttackTraining(config, agent=self.agent, start=start)
        watchers = self.onlooker.training(name) if self.onlooker else []
        learned = LearnedAttack(attack(training, path / slug(name), watchers))
        theirs = learned.tasks.tensors()
        assert all(torch.equal(theirs[k], t) for k, t in self.tasks.tensors().items())
        return learned

    def _attack_config(self, attack_: Attack, eps: float) -> AttackConfig:
        suite = self.suite
        return parse(AttackConfig, {
            "env": self.env.config, "target": self.named, "seed": suite.seed,
            "threads": suite.threads, "attacker": attack_.attacker, "eps": eps,
            "budget": suite.budget, "tasks": suite.tasks, "rounds": attack_.rounds or 1,
        })  # fmt: skip


def _sha256(name: str, agent: Agent) -> str | None:
    """See `fingerprint`; of a class that a user has registered, its file counts, too."""
    found = fingerprint(name, agent)
    if found is not None or not is_theirs(agent):
        return found
    try:
        path = inspect.getfile(type(getattr(agent, "wraps", agent)))
    except (TypeError, OSError):
        return None
    return hashlib.sha256(read_bytes(Path(path), "source")).hexdigest()


def _name(attack_: Attack, eps: float) -> str:
    """Of a cell."""
    return f"{attack_.name}-eps{eps:g}" if attack_.poisons else "clean"


def slug(text: str) -> str:
    """As part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60] or "agent"


def _write(path: Path, measured: Measured) -> None:
    data = asdict(measured)
    write_atomic(path, json.dumps({"sha256": _digest(data), **data}) + "\n")


def _read(path: Path) -> Measured | None:
    """What an earlier run has measured; None if it is not there, or damaged: then it is measured
    again."""
    if not path.is_file():
        return None
    try:
        data = read_json_object(path, "cell")
        sound = data.pop("sha256", None) == _digest(data)
        return Measured(**data) if sound else None
    except (UserError, TypeError):
        return None


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
