"""Fuzzing: hostile command lines, files, stores and calls, in a jail.

python scripts/fuzz.py [--cases 10000] [--seed 0] [--only DRIVER] [--minutes N] [--json]
python scripts/fuzz.py --replay DRIVER:SEED:NUMBER, a saved case, or a folder of them

A failure is a traceback, a hang, a crash, a known mistake that is not refused, a refusal of more
than one line or that leaves something behind, or anything touched outside the case's own files.
Failures are saved in tests/fuzz_corpus/found; those worth keeping are moved one level up, where
tests/test_fuzz.py does them again. Exit code 1 if there are failures, 3 if it cannot run here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from fuzzing import jail
from fuzzing.summary import Summary

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "fuzz_corpus"
DRIVERS = ("arguments", "models", "attackers", "runs", "stores", "api", "text", "bandits")


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, help="in all drivers together (default 10000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=DRIVERS)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--hang", type=float, default=60.0, help="seconds after which a case hangs")
    parser.add_argument("--replay", action="append", help="a case's name, file, or folder of files")
    parser.add_argument("--json", action="store_true", help="print one document")
    parser.add_argument("--no-save", action="store_true", help="do not save failures")
    chosen = parser.parse_args(arguments)
    if chosen.cases is None:
        chosen.cases = 0 if chosen.replay else 10_000
    return chosen


def main(arguments: list[str]) -> int:
    chosen = options(arguments)
    if jail.inside():
        from fuzzing.session import work

        return work(chosen)
    if reason := jail.reason_not_to_run():
        print(f"error: {reason}", file=sys.stderr)
        return 3
    if os.geteuid() != 0:
        print("not root: working in a throw-away directory, with your own rights", file=sys.stderr)
    words = [str(Path(w).resolve()) if Path(w).exists() else w for w in arguments]
    with jail.throw_away_tree() as base, tempfile.TemporaryFile("w+") as results:
        code, stopped = None, False
        try:
            code = jail.run_inside(base, Path(__file__).resolve(), words, results.fileno())
        except KeyboardInterrupt:  # what was found so far counts
            stopped = True
        results.seek(0)
        summary = Summary.read(results)
    if not summary.finished and not stopped:
        print(f"error: the fuzzer itself failed (exit code {code})", file=sys.stderr)
        return 4
    if not chosen.no_save and chosen.cases:
        summary.save(CORPUS / "found")
    print(summary.as_json() if chosen.json else summary.as_table())
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
