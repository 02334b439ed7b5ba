"""`mithridate demo`, with fewer tasks and a shorter live training."""

from mithridate import demo


def test_demo_prints_a_comparison_and_saves_a_figure(command, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "TASKS", 20)
    monkeypatch.setattr(demo, "LIVE", (*demo.LIVE, "steps=10", "optimiser.warmup_steps=1"))
    code, stdout, _ = command("demo", "--out", tmp_path / "out")
    assert code == 0
    for word in ("DPT", "TS", "UCB1.0", "paper", "live pretraining", "trained just now"):
        assert word in stdout
    assert (tmp_path / "out" / "regret.png").read_bytes().startswith(b"\x89PNG")
