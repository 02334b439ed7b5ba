"""A small part of the fuzzer, the cases that once went wrong, and the fuzzer's own judgement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORPUS = Path(__file__).parent / "fuzz_corpus"
sys.path.insert(0, str(ROOT / "scripts"))

from fuzzing import decoys, jail  # noqa: E402
from fuzzing.decoys import Changes, Place  # noqa: E402
from fuzzing.drivers import SHARES, plan_for  # noqa: E402
from fuzzing.judge import judge  # noqa: E402
from fuzzing.plans import Ending, Plan  # noqa: E402
from fuzzing.templates import Templates  # noqa: E402

NEEDS_JAIL = pytest.mark.skipif(
    jail.reason_not_to_run() is not None, reason=str(jail.reason_not_to_run())
)
SAVED = sorted(path.stem for path in CORPUS.glob("*.json"))


@pytest.fixture(scope="module")
def found():
    """One run for all: the corpus, and some cases of each driver."""
    words = ["--cases", "150", "--seed", "0", "--replay", str(CORPUS), "--hang", "15", "--json"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fuzz.py"), *words, "--no-save"],
        capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return json.loads(done.stdout)


@NEEDS_JAIL
@pytest.mark.parametrize("driver", SHARES)
def test_hostile_input_is_refused_in_one_line(found, driver):
    failed = {k: v for k, v in found["failed"].items() if k.startswith(f"{driver}:")}
    assert found["drivers"][driver]["cases"] > 0
    assert failed == {}


@NEEDS_JAIL
@pytest.mark.parametrize("name", SAVED)
def test_what_once_went_wrong(found, name):
    assert found["failed"].get(name, []) == []


@NEEDS_JAIL
def test_no_saved_case_is_void(found):
    assert sum(driver["void"] for driver in found["drivers"].values()) == 0


# The fuzzer itself ------------------------------------------------------------------------------


def ending(code=0, stdout="", stderr="", **more):
    return Ending(code, more.pop("signal", None), more.pop("hung", False), 0.1, stdout, stderr,
                  **more)  # fmt: skip


def kinds(plan, ended, changes=None):
    return [failure.kind for failure in judge(plan, ended, changes or Changes([], [], []))]


WRONG = Plan("arguments", "a test", wrong=True, arguments=["doctor"])
PERHAPS = Plan("arguments", "a test", arguments=["doctor", "--json"], writes=["out"])
REFUSED = ending(2, stderr="error: no\n")
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: no\n'


@pytest.mark.parametrize(
    ("plan", "ended", "expected"),
    [
        (WRONG, REFUSED, []),
        (WRONG, ending(0), ["silent acceptance"]),
        (WRONG, ending(2, stderr="error: a\nb\n"), ["two-line error"]),
        (WRONG, ending(2, stderr="error: a\rb\n"), ["two-line error"]),
        (WRONG, ending(2, stderr="no\n"), ["two-line error"]),
        (WRONG, ending(2, "hello\n", "error: no\n"), ["untidy refusal"]),
        (WRONG, ending(1, stderr=TRACE), ["traceback"]),
        (WRONG, ending(None, hung=True, signal=9), ["hang"]),
        (PERHAPS, ending(None, signal=11), ["crash"]),
        (PERHAPS, ending(0, "{}"), []),
        (PERHAPS, ending(0, '{"a": NaN}'), ["broken json"]),
        (PERHAPS, ending(77), ["crash"]),
        (PERHAPS, REFUSED, []),
    ],
)
def test_the_judge(plan, ended, expected):
    assert kinds(plan, ended) == expected


def test_the_judge_looks_at_files():
    def at(name):
        return decoys.in_case(name)

    assert kinds(WRONG, REFUSED, Changes(at("out"), [], [])) == ["decoy touched", "untidy refusal"]
    assert kinds(PERHAPS, ending(0, "{}"), Changes(at("out/x"), [], [])) == []
    assert kinds(PERHAPS, ending(0, "{}"), Changes([], ["precious"], [])) == ["decoy touched"]
    reads = Plan("stores", "ls: a test", arguments=["doctor"], reads=["store"])
    assert kinds(reads, ending(0), Changes(at("store/x"), [], [])) == ["decoy touched"]
    keeps = Plan("stores", "gc: a test", arguments=["doctor"], writes=["store"], keeps=["store"])
    assert kinds(keeps, ending(0), Changes([], at("store/x"), [])) == ["decoy touched"]


def test_no_touch_of_a_decoy_goes_unnoticed(tmp_path):
    place = Place(tmp_path / "tree", tmp_path / "tmp")
    place.scratch.mkdir()
    touches = {
        "changed": lambda: (place.root / "keep.txt").write_text("other\n"),
        "mode": lambda: (place.root / "one" / "precious").chmod(0o700),
        "time": lambda: os.utime(place.root / "one" / "keep.txt", (1, 1)),
        "gone": lambda: (place.case / "precious" / "letter.txt").unlink(),
        "moved": lambda: (place.root / "one" / "precious").rename(place.root / "elsewhere"),
        "new": lambda: (place.case.parent / "new").write_text(""),
        "temporary": lambda: (place.scratch / "left").write_text(""),
    }
    for touch in touches.values():
        decoys.build(place)
        decoys.fresh_case(place)
        before = decoys.snapshot(place)
        assert not decoys.compare(before, decoys.snapshot(place))
        touch()
        assert decoys.compare(before, decoys.snapshot(place))


@pytest.mark.parametrize("driver", ["arguments", "api", "text"])
def test_a_case_depends_on_seed_driver_and_number_only(driver, tmp_path):
    templates = Templates(tmp_path)
    numbers = (0, 7, 101)
    first = [plan_for(driver, i, 3, templates).to_json() for i in numbers]
    again = [plan_for(driver, i, 3, templates).to_json() for i in reversed(numbers)]
    assert first == again[::-1]
    assert first == json.loads(json.dumps(first))
    assert first != [plan_for(driver, i, 4, templates).to_json() for i in numbers]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user keeps the user's own rights")
@NEEDS_JAIL
def test_the_jail_lets_nothing_out(tmp_path):
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    (target / "file").write_text("sound")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, sys\n"
        f"target = pathlib.Path({str(target)!r})\n"
        "for attempt in (lambda: (target / 'new').write_text('x'),\n"
        "                lambda: (target / 'file').write_text('x'),\n"
        "                lambda: os.rename(target, os.environ['TMPDIR'] + '/stolen'),\n"
        "                lambda: os.setuid(0)):\n"
        "    try:\n"
        "        attempt()\n"
        "    except OSError:\n"
        "        continue\n"
        "    sys.exit(5)\n"
        "assert (target / 'file').read_text() == 'sound'\n"
        "pathlib.Path(os.environ['TMPDIR'], 'mine').write_text('x')\n"
    )
    with jail.throw_away_tree() as base:
        assert jail.run_inside(base, script, []) == 0
    assert not base.exists()
    assert (target / "file").read_text() == "sound"
