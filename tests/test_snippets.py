"""Every snippet of the README and the documentation is executed.

- **Python** runs for real, a file's snippets one after the other as a reader would run them, with
  small settings (tests/run_snippets.py, and `SMALLER` here) and with the names that the text
  leaves to the reader (`READERS`).
- **Shell** is executed by bash, which does the quoting, comments and loops, with a stand-in for
  every program; a program that has none fails. What the stand-ins were called with is checked:
  `mithridate` by its own command line's parser, then agents, attackers, environments, recipes and
  every `--set` by the functions that the commands themselves ask; `pip install` and `make` against
  extras and targets that there are; scripts against the options that they have.
- **Commands within a sentence** (`mithridate …` in backticks) are checked like shell.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import typer

import mithridate as mi
from mithridate.cli import app
from mithridate.errors import UserError
from mithridate.evaluation.kinds import ITSELF, fitting, named, trained_kinds
from mithridate.evaluation.victims import split_names
from mithridate.experiments.recipes import RECIPES
from mithridate.model.weights import zoo_names
from mithridate.registry import parse_call
from mithridate.settings import resolve
from mithridate.stage_config import (
    AdversarialConfig,
    AttackConfig,
    DistillConfig,
    EvaluateConfig,
    PretrainConfig,
)

ROOT = Path(__file__).parent.parent
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "results/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NO_PROGRAMS = {"text", "bibtex", "json", "toml"}
"""Blocks that are no programs say so; one that says nothing is a shell's."""

READERS = {
    "README.md": """
import random
def pull(arm):
    return random.gauss(0.1 * arm, 0.3)
class MyAgent:
    def reset(self, n_actions):
        self.n = n_actions
    def act(self, obs):
        return random.randrange(self.n)
    def observe(self, obs, action, reward, next_obs):
        pass
""",
    "docs/miniworld.md": """
import torch
import mithridate as mi
""",
    "docs/stress.md": """
import sys, types
class MAB:  # a stand-in with MABWiser's signatures: the library is none of our dependencies
    def __init__(self, arms, learning_policy, seed=0):
        self.arms = arms
class LearningPolicy:
    @staticmethod
    def EpsilonGreedy(epsilon):
        return epsilon
sys.modules["mabwiser"] = types.ModuleType("mabwiser")
sys.modules["mabwiser.mab"] = types.SimpleNamespace(MAB=MAB, LearningPolicy=LearningPolicy)
""",
}
"""What the text leaves to the reader."""
SMALLER = {
    "docs/train.md": [
        ('preset = "laptop"', 'preset = "smoke"'),
        ("arms=10, horizon=200", "arms=3, horizon=20"),
    ],
    "docs/miniworld.md": [
        ("layouts=300", "layouts=1, walks=1, horizon=4"),
        ("look(poses)", "poses = env.reset(env.sample_tasks(2, mi.Rng(0)))\nlook(poses)"),
        (
            "batch = contexts.banked()",
            "tasks = env.sample_tasks(2, mi.Rng(0))\n"
            "contexts = env.sample_contexts(tasks, 4, mi.Rng(1))\nbatch = contexts.banked()",
        ),
    ],
}
"""Replacements, each of which must be of use."""
STAND_INS = (
    "mithridate", "pip", "make", "python", "apt-get", "srun", "ray", "sleep", "scontrol", "head",
    "git", "duckdb", "cp", "mkdir",
)  # fmt: skip


def blocks(path: Path) -> list[tuple[str, int, str]]:
    """(language, line, code) of each fenced block."""
    found, text = [], path.read_text()
    for match in re.finditer(r"^( *)```([^\n`]*)\n(.*?)^ *```\s*$", text, flags=re.S | re.M):
        indent, language, code = match.groups()
        if language.startswith("{"):
            continue
        line = text[: match.start(3)].count("\n") + 1
        code = "".join(row.removeprefix(indent) for row in code.splitlines(True))
        found.append((language, line, code))
    return found


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_block_says_what_it_is():
    known = {"", "python", "bash", "sh", *NO_PROGRAMS}
    said = {(name_of(path), language) for path in FILES for language, _, _ in blocks(path)}
    assert not [pair for pair in said if pair[1] not in known]
    assert sum(language == "python" for _, language in said) >= 8


def run_python(jobs: dict, folder: Path) -> dict[str, str]:
    """What goes wrong, by place."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "run_snippets.py"], input=json.dumps(jobs), cwd=folder,
        capture_output=True, text=True, timeout=280,
        env={**os.environ, "MITHRIDATE_CACHE": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_python(tmp_path):
    jobs = {}
    for path in FILES:
        name = name_of(path)
        mine = [(line, code) for language, line, code in blocks(path) if language == "python"]
        for old, new in SMALLER.get(name, ()):
            assert any(old in code for _, code in mine), f"{name} no longer has {old!r}"
            mine = [(line, code.replace(old, new)) for line, code in mine]
        if mine and not (name == "docs/miniworld.md" and not frames()):
            jobs[name] = [(1, READERS.get(name, "")), *mine]
    # One that fails, so that we know that those that do not fail were run.
    jobs["the last"] = [(1, "import mithridate as mi"), (7, "\nmi.evaluate('bandit', ['tss'])")]
    wrong = run_python(jobs, tmp_path)
    last = wrong.pop("the last, line 7")
    assert "line 8" in last and "UserError: unknown agent 'tss'" in last
    assert not wrong, "\n".join(wrong.values())


def frames() -> bool:
    """Whether Miniworld's frames can be drawn here."""
    try:
        env = mi.make_env("miniworld", layouts=1)
        env.spec.observation.look(env.reset(env.sample_tasks(1, mi.Rng(0))))
    except UserError:
        return False
    return True


# Shell --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """bash(script) are the calls of stand-ins: (program, arguments …)."""
    folder = tmp_path_factory.mktemp("stand-ins")
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("needs bash")
    for name in STAND_INS:
        stand_in = folder / name
        stand_in.write_text(
            f"#!{shell}\nIFS=$'\\x1f'; printf '%s\\x1e' \"{name}\x1f$*\" >> $CALLS\n"
        )
        stand_in.chmod(0o755)
    (folder / "work" / ".venv" / "bin").mkdir(parents=True)
    (folder / "work" / ".venv" / "bin" / "activate").touch()

    def run(script: str) -> list[list[str]]:
        calls = folder / "calls"
        calls.write_text("")
        done = subprocess.run(
            [shell, "-e", "-c", script], capture_output=True, text=True, cwd=folder / "work",
            env={"PATH": str(folder), "CALLS": str(calls), "SLURM_JOB_NUM_NODES": "2",
                 "SHARED": "shared"}, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0 and not done.stderr, f"{script}\n{done.stderr}"
        return [call.split("\x1f") for call in calls.read_text().split("\x1e")[:-1]]

    return run


def commands_in_sentences(text: str) -> list[str]:
    """`mithridate COMMAND …` and `python scripts/…` in backticks, outside of fenced blocks."""
    prose = re.sub(r"^ *```.*?^ *```\s*$", "", text, flags=re.S | re.M)
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))
    return [s for s in spans if re.match(r"(mithridate [a-z-]|python scripts/)", s)]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_shell(path, bash, monkeypatch):
    scripts = [code for language, _, code in blocks(path) if language in ("", "bash", "sh")]
    said = commands_in_sentences(path.read_text())
    scripts += [re.sub(r" --set \S*…", "", command) for command in said]
    monkeypatch.setattr(
        OWN, "names", re.findall(r'(?:KINDS.register\(|RECIPES\[)"(\w+)"', path.read_text())
    )
    for script in scripts:
        calls = bash(script)
        assert calls, f"nothing is called in {script!r}"
        for program, *arguments in calls:
            CHECKS.get(program, lambda arguments: None)(arguments)


def test_those_checks_would_notice(bash):
    for bad in (
        "mithridate --versoin",
        "mithridate evaluat bandit --agents ts",
        "mithridate evaluate bandit --agents ts --attacker swap",
        "mithridate evaluate bandit --agents tss",
        "mithridate evaluate bandito --agents ts",
        "mithridate evaluate bandit --agents ts --attackers learnd",
        "mithridate evaluate darkroom2 --agents npg --attackers 'paper(npg)'",
        "mithridate pretrain bandit --set env.arm=3",
        "mithridate reproduce bandit_mai",
        "pip install 'mithridate[dox]'",
        "make instal",
        "python scripts/leaderboards.py",
        "python scripts/golden.py --chek",
    ):
        [[program, *arguments]] = bash(bad)
        try:
            CHECKS[program](arguments)
        except Exception:  # whichever: typer's, a UserError, or an assertion
            continue
        pytest.fail(f"{bad} passes")
    with pytest.raises(AssertionError):
        bash("no_such_program")
    with pytest.raises(AssertionError):
        bash("mithridate evaluate 'bandit")


def check_mithridate(arguments: list[str]) -> None:
    command = typer.main.get_command(app)
    if arguments[0].startswith("--"):
        options = {word for option in command.params for word in option.opts} | {"--help"}
        assert len(arguments) == 1 and arguments[0] in options, f"there is no {arguments[0]}"
        return
    name, rest = arguments[0], arguments[1:]
    while hasattr(command, "commands"):
        if name == "COMMAND":
            return
        assert name in command.commands, f"there is no command {' '.join(arguments)}"
        command = command.commands[name]
        if hasattr(command, "commands") and rest:
            name, rest = rest[0], rest[1:]
        elif hasattr(command, "commands"):
            return
    if not rest or rest == ["--help"]:
        return  # the name of a command
    if (
        name in ENVIRONMENTAL
        and [*rest, ""][0] != "ENV"
        and not set(rest) & {"--agent", "--agents", "--target", "--source", "--from"}
        and name not in ("pretrain", "leaderboard")
    ):
        assert rest[0] in mi.ENVS.names()  # `mithridate evaluate bandit`, of which more is said
        return
    context = command.make_context(name, list(rest))
    check_values(name, context.params)


ENVIRONMENTAL = ("pretrain", "train", "distill", "attack", "evaluate", "stress", "picture")
STAGES = {
    "pretrain": (PretrainConfig, {}), "train": (AdversarialConfig, {"start": "dpt-bandit-s0"}),
    "distill": (DistillConfig, {"source": "ts"}), "attack": (AttackConfig, {"target": "ts"}),
    "evaluate": (EvaluateConfig, {}),
}  # fmt: skip


class OWN:
    names: ClassVar[list[str]] = []
    """Attack kinds and recipes that the file itself makes."""


def is_placeholder(word: str) -> bool:
    """ENV, AGENT, NAME, and $recipe outside of its loop."""
    return not word or "…" in word or (word.isupper() and word not in ("TS", "DPT"))


def check_values(command: str, given: dict) -> None:
    env = given.get("env")
    if env is not None and not is_placeholder(env):
        if command in STAGES:
            config, needed = STAGES[command]
            direct = {k: given.get(k) for k in ("eps", "budget", "seed") if k in given}
            resolve(config, command, env, given["preset"], given["sets"] or (), **needed, **direct)
        else:
            mi.ENVS.get(env)
        spec = mi.make_env(env).spec
        words = [given.get(option) or "" for option in ("agents", "agent", "target", "source")]
        labels = set()
        for text in words:
            for word in split_names(text) if text else ():
                labels.add(check_agent(word))
        for option in ("attackers", "attacker"):
            for word in split_names(given.get(option) or "none", "--attackers"):
                check_attacker(word, spec, labels)
    recipe = given.get("recipe")
    if recipe and not is_placeholder(recipe) and recipe not in ("all", *OWN.names):
        assert recipe in RECIPES, recipe


def check_agent(word: str) -> str:
    """Whether there is such an agent; its label."""
    label, _, agent = word.partition("=") if re.match(r"[\w-]+=", word) else ("", "", word)
    name, parameters = parse_call(agent or word)
    prefix = name.rstrip("*")
    made_by_reader = "/" in name or ":" in name or name.endswith(".safetensors")
    if not made_by_reader and not is_placeholder(name):
        if name.endswith("*"):
            assert any(model.startswith(prefix) for model in zoo_names()), word
        elif name not in zoo_names():
            mi.AGENTS.create(name, **parameters)
    return label or word


def check_attacker(word: str, spec, labels: set[str]) -> None:
    name, _ = parse_call(word, "attacker") if "=" in word else (word.partition("(")[0], None)
    if "/" in word or is_placeholder(word) or name in ("none", *OWN.names):
        return
    if name in trained_kinds():
        fitting(name, spec)
        of = named(word).of
        bases = {label.partition("(")[0] for label in labels}
        assert "(" not in word or of in labels | bases | {ITSELF, "AGENT", "MODEL"}, word
    else:
        mi.ATTACKERS.make(word)


def check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    extras = re.search(r"^\[project.optional-dependencies\]\n(.*?)^\[", PYPROJECT, re.S | re.M)[1]
    for word in arguments[1:]:
        if match := re.search(r"\[(.*)\]", word):
            for extra in match[1].split(","):
                assert re.search(rf"^{extra} = ", extras, re.M), f"there is no extra {extra}"


def check_make(arguments: list[str]) -> None:
    for word in arguments:
        if "=" not in word:
            assert re.search(rf"^{word}:", MAKEFILE, re.M), f"there is no target {word}"


def check_python(arguments: list[str]) -> None:
    if arguments[0] in ("-m", "-c"):
        return
    script = ROOT / arguments[0]
    assert script.is_file(), f"there is no {arguments[0]}"
    text = script.read_text()
    for word in arguments[1:]:
        if word.startswith("--"):
            assert f'"{word.partition("=")[0]}"' in text, f"{arguments[0]} has no {word}"


PYPROJECT = (ROOT / "pyproject.toml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
CHECKS = {
    "mithridate": check_mithridate, "pip": check_pip, "make": check_make, "python": check_python,
}  # fmt: skip
