"""The script that says what matters in adversarial training."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMALL = (
    "--only", "as narrow as its start", "--rounds", "1", "--set", "tasks=40", "--set",
    "iterations=1", "--set", "final_tasks=4", "--set", "evaluate_tasks=4", "--tasks", "2",
    "--generations", "1",
)  # fmt: skip


def run(*words):
    command = [sys.executable, str(ROOT / "scripts" / "ablation.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_row_is_trained_once_and_written_into_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- ablation: begin (scripts/ablation.py) -->\n"
        "stale\n<!-- ablation: end -->\nend\n"
    )
    done = run(*SMALL, "--out", tmp_path / "out", "--page", page)
    assert done.returncode == 0, done.stderr
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert table[-1] == done.stdout.strip() and table[-1].startswith("| as narrow as its start | ")
    assert {line.count("|") for line in table} == {8}
    assert "stale" not in page.read_text() and page.read_text().endswith("ablation: end -->\nend\n")
    weights = tmp_path / "out" / "as-narrow-as-its-start" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = run(*SMALL, "--out", tmp_path / "out")
    assert again.stdout == done.stdout and weights.stat().st_mtime_ns == before


def test_a_page_without_a_place_for_it_is_refused(tmp_path):
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from marked import written
    finally:
        sys.path.pop(0)
    with pytest.raises(SystemExit, match="ablation: begin"):
        written("nothing", {"ablation": "table"}, "ablation.py")
