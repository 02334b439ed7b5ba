"""Results are what they were: a part of the golden records, computed anew (scripts/golden.py)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_golden_records(name):
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    assert len(golden) == len(plan(RECIPES[name], "smoke", 2).cells)


def test_a_part_of_the_golden_records_comes_out_again(tmp_path):
    parts = ("bandit_main", "linear_main", "darkroom2_main")
    script = [sys.executable, str(ROOT / "scripts" / "golden.py"), "--store", str(tmp_path / "s")]
    done = subprocess.run(
        [*script, "--check", "--every", "97", *parts], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("cells") == len(parts)


def test_only_the_last_digit_may_differ(monkeypatch):
    monkeypatch.setenv("MITHRIDATE_KERNELS", "reference")  # the script sets it; undone afterwards
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from golden import _differ

    assert not _differ([5.0, 0.6630206108093262], [5.0, 0.663020670413971])
    for other in (5.000005, 4.99, float("nan"), 0.0):
        assert _differ([other, 1.0], [5.0, 1.0])
