"""`mithridate demo`, with fewer tasks and rounds."""

from mithridate import demo


def test_demo_prints_a_matrix_and_saves_a_figure(command, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "TASKS", 4)
    monkeypatch.setattr(demo, "ROUNDS", 1)
    monkeypatch.setattr(demo, "REPLICATIONS", 1)
    monkeypatch.setattr(demo, "ATTACKERS", ("none", "swap", "learned"))
    code, stdout, _ = command("demo", "--out", tmp_path / "out")
    assert code == 0
    for word in ("AT-DPT", "DPT", "TS", "crUCB", "paper", "worst attack", "mithridate stress"):
        assert word in stdout
    assert (tmp_path / "out" / "regret.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "out" / "attackers").iterdir())) == 4
