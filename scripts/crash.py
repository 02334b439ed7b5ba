"""SIGKILL at random moments: the same command, started again, ends with the same result.

python scripts/crash.py [--kills 300] [--seed 0] [--only NAME …] [--cold] [--sweep] [--json]

A trial starts a command, kills its process group a few times, lets it finish, and compares what it
made with an undisturbed run: tensors bit for bit, records and logs but for times, no file more or
less, a store that verifies. Moments are random times, random stages of progress, and (warm) the
moment before a random change to the file system. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from crashing.processes import CLAIM_SECONDS, Running, start
from crashing.scenarios import SCENARIOS, Scenario, differences
from fuzzing import jail

PATIENCE = 120.0
"""Seconds after which a command that should finish hangs."""


@dataclass
class Undisturbed:
    seconds: float
    stages: int
    events: int
    result: dict[str, Any]


@dataclass
class Tally:
    trials: int = 0
    kills: int = 0
    late: int = 0
    """Kills that came after the end."""
    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def blame(self, what: str, example: str) -> None:
        self.wrong[what] += 1
        self.examples.setdefault(what, example)


class Lab:
    """Where trials happen."""

    def __init__(self, base: Path, cold: bool) -> None:
        self.base, self.cold = base / "tree", cold
        self.model = base / "templates" / "model"
        words = ("pretrain", "bandit", "--preset", "smoke", "--out", "model")
        self._must(start(words, base / "templates", cold=False))

    def folder(self) -> Path:
        path = self.base / "trial"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        shutil.copytree(self.model, path / "model")
        return path

    def undisturbed(self, scenario: Scenario) -> Undisturbed:
        """How long it takes when nobody kills it, and what comes out."""
        folder = self.folder()
        running = start(scenario.words, folder, self.cold, None if self.cold else -1)
        self._must(running)
        seconds = time.monotonic() - running.begun
        counted = folder.with_suffix(".events")
        events = counted.stat().st_size if counted.exists() else 0
        counted.unlink(missing_ok=True)
        return Undisturbed(seconds, scenario.progress(folder), events, scenario.result(folder))

    def trial(self, scenario: Scenario, calm: Undisturbed, random: Random, tally: Tally) -> None:
        """A few kills at random moments, and the end."""
        folder = self.folder()
        moments = []
        for _ in range(random.randint(1, 4)):
            moment, killed = self._disturb(scenario, folder, calm, random)
            moments.append(moment)
            tally.kills += killed
            tally.late += not killed
            if not killed:
                break
        self._finish(scenario, calm, folder, tally, ", ".join(moments))

    def sweep(self, scenario: Scenario, calm: Undisturbed, tally: Tally) -> None:
        """One kill before each change that the command makes to the file system, and the end."""
        for number in range(1, calm.events + 1):
            folder = self.folder()
            killed = self._kill_before(scenario, folder, number)
            tally.kills += killed
            tally.late += not killed
            self._finish(scenario, calm, folder, tally, f"before change {number}")

    def _finish(
        self, scenario: Scenario, calm: Undisturbed, folder: Path, tally: Tally, history: str
    ) -> None:
        """The same command, now left alone, and what came of it all."""
        tally.trials += 1
        running = start(scenario.words, folder, self.cold)
        if not running.wait(PATIENCE):
            running.kill()
            running.end()
            return tally.blame("hangs", history)
        code, said = running.end(), running.output.read_text(errors="replace")
        if code != 0:
            last = (said.strip().splitlines() or [""])[-1]
            return tally.blame(f"exit code {code}: {_plain(last, folder)}", history)
        wrong = differences(scenario.result(folder), calm.result)
        if scenario.store:
            self._command(folder, tally, history, "verify")
            if wrong:  # `gc` is for what dead workers left behind
                time.sleep(CLAIM_SECONDS + 0.2)
                self._command(folder, tally, history, "gc")
                self._command(folder, tally, history, "gc", "--empty-trash")
                wrong = differences(scenario.result(folder), calm.result)
        for difference in wrong:
            tally.blame(_plain(difference, folder), history)

    def _disturb(
        self, scenario: Scenario, folder: Path, calm: Undisturbed, random: Random
    ) -> tuple[str, bool]:
        """Start it and kill it at a random moment; the moment in words, and whether it hit."""
        kind = random.choice(("time", "progress") if self.cold else ("time", "progress", "event"))
        if kind == "event":
            number = random.randint(1, max(1, calm.events))
            return f"before change {number}", self._kill_before(scenario, folder, number)
        running = start(scenario.words, folder, self.cold)
        if kind == "time":  # log-uniform: beginnings are short and full of files
            seconds = calm.seconds * 10 ** random.uniform(-2.5, 0)
            running.wait(seconds)
            moment = f"after {seconds:.3f} s"
        else:
            stage = random.randint(1, calm.stages)
            deadline = running.begun + 2 * calm.seconds + 5
            while not running.wait(0.0005) and scenario.progress(folder) < stage:
                if time.monotonic() > deadline:
                    break
            running.wait(random.random() * 0.01)
            moment = f"at stage {stage}"
        running.kill()
        return moment, running.end() < 0

    @staticmethod
    def _kill_before(scenario: Scenario, folder: Path, change: int) -> bool:
        running = start(scenario.words, folder, cold=False, event=change)
        if not running.wait(PATIENCE):
            running.kill()
        return running.end() < 0

    def _command(self, folder: Path, tally: Tally, history: str, *words: str) -> None:
        running = start(("store", *words, "--store", "store"), folder, cold=False)
        if running.end() != 0:
            tally.blame(f"store {' '.join(words)} fails", history)

    @staticmethod
    def _must(running: Running) -> None:
        if not running.wait(PATIENCE):
            running.kill()
        if running.end() != 0:
            raise SystemExit(f"error: an undisturbed run fails: {running.output.read_text()}")


def _plain(text: str, folder: Path) -> str:
    """Without what is different every time."""
    text = text.replace(str(folder), "@")
    text = re.sub(r"(\.[\w.-]+\.)\w{8}$", r"\1XXXXXXXX", text)
    return re.sub(r"[0-9a-f]{12,}", "#", text)[:160]


def work(chosen: argparse.Namespace) -> int:
    """Inside the jail."""
    base = jail.check_inside()
    _warm_up()
    lab = Lab(base, chosen.cold)
    names = chosen.only or list(SCENARIOS)
    total = sum(SCENARIOS[name].weight for name in names)
    tallies = {}
    for name in names:
        scenario, tally = SCENARIOS[name], Tally()
        calm = lab.undisturbed(scenario)
        if chosen.sweep:
            lab.sweep(scenario, calm, tally)
        number = 0
        while not chosen.sweep and tally.kills < max(
            1, round(chosen.kills * scenario.weight / total)
        ):
            lab.trial(scenario, calm, Random(f"{chosen.seed}/{name}/{number}"), tally)
            number += 1
        tallies[name] = tally
        print(f"{name}: {tally.kills} kills, {sum(tally.wrong.values())} wrong", file=sys.stderr)
    _drop_semaphores()
    print(_json(tallies) if chosen.json else _table(tallies))
    return int(any(tally.wrong for tally in tallies.values()))


def _warm_up() -> None:
    """Import everything once. No gradients: autograd does not survive a fork."""
    import torch

    from mithridate.cli import run

    os.environ.update({"OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    with contextlib.redirect_stdout(io.StringIO()):
        run(["evaluate", "bandit", "--agents", "ts", "--preset", "smoke"])


def _drop_semaphores() -> None:
    """Killed pools of processes leave theirs behind. In the jail, whatever is nobody's is ours."""
    for path in Path("/dev/shm").glob("sem.mp-*") if os.geteuid() == jail.NOBODY else ():
        with contextlib.suppress(OSError):
            path.unlink()


def _json(tallies: dict[str, Tally]) -> str:
    return json.dumps({name: vars(tally) for name, tally in tallies.items()}, indent=1)


def _table(tallies: dict[str, Tally]) -> str:
    lines = [f"{'command':12}{'trials':>8}{'kills':>8}{'too late':>10}{'wrong':>8}"]
    for name, tally in tallies.items():
        lines.append(f"{name:12}{tally.trials:8}{tally.kills:8}{tally.late:10}"
                     f"{sum(tally.wrong.values()):8}")  # fmt: skip
    for name, tally in tallies.items():
        for what, count in tally.wrong.most_common():
            lines.append(f"{count:5} × {name}: {what}\n        killed {tally.examples[what]}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300, help="in all commands together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=sorted(SCENARIOS), help="repeatable")
    parser.add_argument("--cold", action="store_true", help="a new interpreter every time")
    parser.add_argument("--sweep", action="store_true", help="one kill before each change to files")
    parser.add_argument("--json", action="store_true", help="print one document")
    chosen = parser.parse_args(arguments)
    if chosen.cold and chosen.sweep:
        parser.error("--sweep counts changes from inside the process: it cannot be --cold")
    if jail.inside():
        return work(chosen)
    if reason := jail.reason_not_to_run():
        print(f"error: {reason}", file=sys.stderr)
        return 3
    with jail.throw_away_tree() as base:
        return jail.run_inside(base, Path(__file__).resolve(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
