"""What a case may do, and what not. The rules are those of docs/cli.md: a mistake in the input is
exit code 2, said in one line, and nothing is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mithridate
from fuzzing.decoys import CASE, LEVELS, Changes, in_case
from fuzzing.plans import Ending, Failure, Plan

FINE = (0, 1, 2, 130)
TRACEBACK = "Traceback (most recent call last)"
PACKAGE = f"{Path(mithridate.__file__).parent}/"


def judge(plan: Plan, ending: Ending, changes: Changes) -> list[Failure]:
    """Everything that is wrong with how the case ended."""
    # Where it went wrong is known for an exception only; else it is the kind of the mistake.
    what = f"{plan.driver}: {plan.group or plan.what}"
    found = _touched(plan, changes, what)
    if ending.hung:
        return [*found, Failure("hang", f"killed after {ending.seconds:.0f} s", what)]
    if ending.signal is not None:
        return [*found, Failure("crash", f"died of signal {ending.signal}", what)]
    if TRACEBACK in ending.stderr:
        return [*found, Failure("traceback", _last_line(ending.stderr), ending.frame)]
    if plan.call:
        return found + _call(plan, ending, what)
    return found + _command(plan, ending, changes, what)


def _touched(plan: Plan, changes: Changes, what: str) -> list[Failure]:
    found = []
    allowed = [*in_case(*plan.writes), *in_case(*plan.reads), "TMP"]
    if stray := changes.outside(*allowed):
        found.append(Failure("decoy touched", str(stray), what))
    if plan.reads and (read := changes.below(*in_case(*plan.reads))):
        command = plan.what.partition(":")[0]
        found.append(Failure("decoy touched", f"it should only read: {read}",
                             f"{plan.driver}: {command} writes to what it reads"))  # fmt: skip
    gone = changes.below(*in_case(*plan.keeps)).gone if plan.keeps else []
    if gone:
        found.append(Failure("decoy touched", f"it should keep {', '.join(gone[:3])}", what))
    return found


def _command(plan: Plan, ending: Ending, changes: Changes, what: str) -> list[Failure]:
    found = []
    # Warnings are not errors: what is odd may be said before what is wrong.
    lines = [x for x in ending.stderr.splitlines() if not x.startswith("warning: ")]
    if ending.code == 2 and not (len(lines) == 1 and lines[0].startswith("error: ")):
        found.append(_lines(ending.stderr))
    if plan.wrong and ending.code != 2:
        said = (ending.stderr or ending.stdout)[:200]
        found.append(Failure("silent acceptance", f"exit code {ending.code}: {said!r}", what))
    if plan.wrong and ending.code == 2:
        left = ", ".join(changes.new[:3])
        if ending.stdout or left:
            said = f"printed {ending.stdout[:100]!r}" if ending.stdout else f"left {left}"
            found.append(Failure("untidy refusal", said, what))
    if ending.code not in FINE or (ending.code == 1 and not _may_be_one(plan, lines)):
        found.append(Failure("crash", f"exit code {ending.code}: {ending.stderr[:200]!r}", what))
    if ending.code == 0 and "--json" in plan.arguments and not _is_json(ending.stdout):
        found.append(Failure("broken json", repr(ending.stdout[:200]), what))
    return found


def _may_be_one(plan: Plan, lines: list[str]) -> bool:
    """`store verify` that found damage, or a training that diverged."""
    return "verify" in plan.arguments or (len(lines) == 1 and lines[0].startswith("error: "))


def _call(plan: Plan, ending: Ending, what: str) -> list[Failure]:
    """A call in Python says itself what came of it; a word for it is in the plan's call."""
    said = ending.said
    if said.get("harm"):
        return [Failure("harm", said["harm"], what)]
    if not said:
        return [Failure("crash", f"it ended the process with {ending.code}", what)]
    if plan.wrong and said["outcome"] == "accepted":
        return [Failure("silent acceptance", said.get("value", ""), what)]
    if said["outcome"] == "refused" and len(said["message"].splitlines()) != 1:
        return [_lines(said["message"])]
    return []


def _lines(message: str) -> Failure:
    """Told apart by what the message says of itself, without what it quotes."""
    place = re.sub(r"'.*?'|[^ ]*[^ -~]+[^ ]*", "…", message, flags=re.DOTALL)[:60]
    return Failure("two-line error", repr(message[:300]), place)


def _is_json(text: str) -> bool:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def place_of(stderr: str) -> str:
    """The innermost frame of ours in a traceback, and the kind of the exception."""
    if TRACEBACK not in stderr:
        return ""
    last = stderr[stderr.rindex(TRACEBACK) :]
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', last)
    ours = [f for f in frames if f[0].startswith(PACKAGE)] or frames
    after = last[last.rindex('  File "') :] if frames else last
    kind = re.findall(r"^([A-Za-z_][\w.]*)(?::|$)", after, re.MULTILINE) or ["exception"]
    if not ours:
        return str(kind[0])
    path, line, function = ours[-1]
    return f"{kind[0].rpartition('.')[2]} in {path.removeprefix(PACKAGE)}:{line} {function}"


def _last_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def relative(path: str) -> str:
    """A path of a snapshot, for people."""
    return path.replace("/".join((*LEVELS, CASE)), "case")
