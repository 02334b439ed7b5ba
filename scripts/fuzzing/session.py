"""The work inside the jail: templates, then case after case, and a line for those outside."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from fuzzing import jail, templates
from fuzzing.drivers import apportion, plan_for
from fuzzing.plans import Ending, Failure, Plan
from fuzzing.runner import Runner

Named = tuple[str, Plan]


def work(chosen: argparse.Namespace) -> int:
    """Do what was asked for; what was found goes to the open file that the jailer passed."""
    base = jail.check_inside()
    os.umask(0o022)
    results = open(int(os.environ[jail.RESULTS]), "w", closefd=False)  # noqa: SIM115
    _warm_up()
    templates.build(base / "templates")
    with contextlib.redirect_stdout(io.StringIO()):  # fonts, templates and writers of figures
        _run(["report", "--store", str(base / "templates" / "store"), "--out", "warm.html"])
    found = templates.Templates(base / "templates")
    runner = Runner(base, chosen.hang)
    failed = False
    for name, plan in chain(_replayed(chosen, found), _generated(chosen, found)):
        line: dict[str, Any] = {"name": name, "driver": plan.driver, "what": plan.what}
        if (done := runner.run(plan)) is None:
            line |= {"seconds": 0.0, "outcome": "void", "failures": []}
        else:
            ending, failures = done
            failed |= bool(failures)
            line |= {
                "seconds": ending.seconds, "outcome": _outcome(ending),
                "failures": [f.to_json() for f in failures],
                "plan": plan.to_json() if failures else None,
            }  # fmt: skip
            _tell(name, plan, ending, failures, chosen)
        results.write(json.dumps(line) + "\n")
        results.flush()
    results.write(json.dumps({"finished": True}) + "\n")
    results.flush()
    return int(failed)


def _generated(chosen: argparse.Namespace, found: templates.Templates) -> Iterator[Named]:
    """All drivers in turn, so that a run cut short has something of each."""
    counts = apportion(chosen.cases, chosen.only)
    places = [((i + 0.5) / count, driver, i) for driver, count in counts.items()
              for i in range(count)]  # fmt: skip
    begun = time.monotonic()
    for _, driver, i in sorted(places):
        if chosen.minutes is not None and time.monotonic() - begun > 60 * chosen.minutes:
            return
        yield f"{driver}:{chosen.seed}:{i}", plan_for(driver, i, chosen.seed, found)


def _replayed(chosen: argparse.Namespace, found: templates.Templates) -> Iterator[Named]:
    for word in chosen.replay or ():
        path = Path(word)
        if path.is_dir() or path.is_file():
            for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
                yield file.stem, Plan.from_json(json.loads(file.read_text())["plan"])
        else:
            driver, root, number = word.split(":")
            yield word, plan_for(driver, int(number), int(root), found)


def _warm_up() -> None:
    """Import everything once, before the forks. No gradients: autograd does not survive a fork."""
    import torch

    import fuzzing.calls  # noqa: F401
    from mithridate.experiments import estimate

    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # imports a whole compiler
    # How fast the machine is, is no business of ours, and measuring it takes gradients.
    estimate.machine_factor = lambda: 1.0  # type: ignore[assignment]
    os.chdir(jail.check_inside() / "out")
    with contextlib.redirect_stdout(io.StringIO()):
        _run(templates.evaluate("--agents", "ts", "--attackers", "none,swap"))
        _run(["doctor"])
        _run(templates.reproduce("--dry-run"))


def _run(words: list[str]) -> None:
    from mithridate.cli import run

    if run(words) != 0:
        raise SystemExit(f"error: {' '.join(words)} fails; is the library sound?")


def _outcome(ending: Ending) -> str:
    if ending.said:
        return str(ending.said["outcome"])
    return "refused" if ending.code == 2 else "accepted"


def _tell(
    name: str, plan: Plan, ending: Ending, failures: list[Failure], chosen: argparse.Namespace
) -> None:
    """On standard error: each new fault as it is found; for a replay, everything."""
    if chosen.replay and not chosen.cases and not Path(chosen.replay[0]).is_dir():
        document: dict[str, Any] = {"plan": plan.to_json(), "ending": vars(ending)}
        print(json.dumps(document, indent=1)[:6000], file=sys.stderr)
    for failure in failures:
        key = (failure.kind, failure.place)
        again = name if ":" in name else f"tests/fuzz_corpus/{name}.json"
        if key not in _SEEN:
            _SEEN.add(key)
            print(f"{failure.kind}: {failure.place}: {failure.detail[:160]!r}\n"
                  f"  python scripts/fuzz.py --replay {again}", file=sys.stderr)  # fmt: skip


_SEEN: set[tuple[str, str]] = set()
