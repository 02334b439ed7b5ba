"""What a run of the fuzzer found: a table, a document, and the cases to keep."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fuzzing.plans import KINDS

SHOWN = 60


@dataclass
class Fault:
    """Failures of one kind at one place."""

    kind: str
    place: str
    detail: str
    name: str
    """The first case that showed it."""
    plan: dict[str, Any]
    count: int = 1


@dataclass
class Summary:
    cases: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By driver and kind."""
    seconds: Counter[str] = field(default_factory=Counter)
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """What is wrong with each case that failed."""
    finished: bool = False

    @classmethod
    def read(cls, lines: IO[str]) -> Summary:
        summary = cls()
        for text in lines:
            if not text.endswith("\n"):  # it was stopped while it wrote
                break
            line = json.loads(text)
            if "finished" in line:
                summary.finished = True
            else:
                summary._add(line)
        return summary

    def _add(self, line: dict[str, Any]) -> None:
        driver = line["driver"]
        self.cases[driver] += 1
        self.outcomes[driver, line["outcome"]] += 1
        self.seconds[driver] += line["seconds"]
        for failure in line["failures"]:
            said = f"{failure['kind']}: {failure['place']}: {failure['detail'][:200]}"
            self.names.setdefault(line["name"], []).append(said)
            self.failures[driver, failure["kind"]] += 1
            key = failure["kind"], failure["place"]
            if key in self.faults:
                self.faults[key].count += 1
            else:
                self.faults[key] = Fault(*key, failure["detail"], line["name"], line["plan"])

    def save(self, folder: Path) -> None:
        """One file for each fault."""
        if not self.faults:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for fault in self.faults.values():
            digest = hashlib.sha256(f"{fault.kind}/{fault.place}".encode()).hexdigest()[:10]
            driver = fault.name.partition(":")[0]
            document = {"found": f"{fault.kind}: {fault.place}", "name": fault.name,
                        "plan": fault.plan}  # fmt: skip
            text = json.dumps(document, indent=1) + "\n"
            (folder / f"{driver}-{digest}.json").write_text(text)

    def as_json(self) -> str:
        drivers = {
            driver: {
                "cases": count, "seconds": round(self.seconds[driver], 1),
                "refused": self.outcomes[driver, "refused"],
                "accepted": self.outcomes[driver, "accepted"],
                "void": self.outcomes[driver, "void"],
                "failures": {k: n for k in KINDS if (n := self.failures[driver, k])},
            }
            for driver, count in self.cases.items()
        }  # fmt: skip
        faults = [vars(fault) for fault in self._sorted()]
        document = {"drivers": drivers, "faults": faults, "failed": self.names}
        return json.dumps(document, indent=1)

    def as_table(self) -> str:
        kinds = [kind for kind in KINDS if any(self.failures[d, kind] for d in self.cases)]
        header = ["driver", "cases", "refused", "accepted", "void", "per second", *kinds]
        rows = [
            [driver, count, self.outcomes[driver, "refused"], self.outcomes[driver, "accepted"],
             self.outcomes[driver, "void"], f"{count / max(1e-9, self.seconds[driver]):.1f}",
             *(self.failures[driver, kind] for kind in kinds)]
            for driver, count in self.cases.items()
        ]  # fmt: skip
        text = [_columns([header, *rows])]
        for fault in self._sorted()[:SHOWN]:
            text.append(f"{fault.count:5} × {fault.kind}: {fault.place}\n"
                        f"        {fault.detail[:150]!r}  --replay {fault.name}")  # fmt: skip
        if len(self.faults) > SHOWN:
            text.append(f"… and {len(self.faults) - SHOWN} more; --json has all")
        total = sum(self.failures.values())
        text.append(
            f"{sum(self.cases.values())} cases, {total} failures, {len(self.faults)} faults"
        )
        return "\n".join(text)

    def _sorted(self) -> list[Fault]:
        return sorted(self.faults.values(), key=lambda f: (KINDS.index(f.kind), -f.count))


def _columns(rows: list[list[Any]]) -> str:
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(str(value).rjust(width) if i else str(value).ljust(width)
                  for i, (value, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )  # fmt: skip
