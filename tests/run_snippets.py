"""Runs the Python snippets of Markdown files, for tests/test_snippets.py: in a process of its own,
because snippets register classes. Standard input: {file: [[line, code], …]}. Standard output: a
JSON object of what went wrong. What takes long is made small: evaluations have four tasks and one
round of attack, stress tests the suite `smoke-v0`."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import sys
import tempfile
import traceback
import warnings


def small(name: str, function):
    def call(*arguments, **settings):
        if name == "stress_test":
            settings["suite"] = "smoke-v0"
        else:
            settings["tasks"] = min(4, settings.get("tasks", 4))
            settings.setdefault("rounds", 1)
        return function(*arguments, **settings)

    return call


def main() -> None:
    import torch

    import mithridate as mi

    torch.set_num_threads(1)
    evaluate, stress_test = mi.evaluate, mi.stress_test
    mi.evaluate, mi.stress_test = small("evaluate", evaluate), small("stress_test", stress_test)
    warnings.simplefilter("ignore")
    wrong = {}
    for file, blocks in json.load(sys.stdin).items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            sys.path.insert(0, folder)
            namespace = {"__name__": "__main__"}
            for line, code in blocks:
                name = f"{file}, line {line}"
                linecache.cache[name] = (len(code), None, code.splitlines(True), name)
                try:
                    with contextlib.redirect_stdout(sys.stderr):
                        exec(compile("\n" * (line - 1) + code, file, "exec"), namespace)
                except BaseException:
                    wrong[name] = traceback.format_exc()
                    break
            sys.path.remove(folder)
            os.chdir("/")
    json.dump(wrong, sys.stdout)


if __name__ == "__main__":
    main()
