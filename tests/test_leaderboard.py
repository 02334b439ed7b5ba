"""Pages of stress tests and the leaderboard: pure functions of entries, whoever wrote them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from mithridate.agents.named import make_agent
from mithridate.errors import UserError
from mithridate.stress.entry import Entry, FlagEntry, Reported, read_entry, write_entry
from mithridate.stress.leaderboard import (
    SCHEMA,
    boards,
    read_entries,
    render_leaderboard,
    schema_text,
    write_leaderboard,
)
from mithridate.stress.measure import measure
from mithridate.stress.page import bars, render_entry
from mithridate.stress.run import stress_test
from mithridate.stress.suites import _SUITES, find_suite, register, suite_env

OURS = Path(__file__).parent.parent / "results" / "leaderboard"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def ranked():
    """A suite of seconds that leaderboards take."""
    smoke = find_suite("smoke-v0", "bandit")
    yield register(dataclasses.replace(smoke, name="ranked-v0", ranked=True))
    del _SUITES["bandit", "ranked-v0"]


@pytest.fixture(scope="module")
def folder(ranked, tmp_path_factory):
    place = tmp_path_factory.mktemp("leaderboard")
    for agent in ("ts", "ucb1", "uniform"):
        test = stress_test(agent, suite=ranked.name, out=tmp_path_factory.mktemp("runs") / agent)
        write_entry(place / f"{agent}.json", test.entry)
    return place


def _hostile(entry: Entry) -> Entry:
    claim = Reported(value=1.0, eps=0.4, what=HOSTILE, source=f"javascript:{HOSTILE}")
    return entry.model_copy(
        update={
            "agent": HOSTILE, "made_of": f"{HOSTILE}; rm -rf /", "reported": [claim],
            "external": [claim], "flags": [FlagEntry(code=HOSTILE, text=HOSTILE)],
            "versions": {HOSTILE: HOSTILE, "mithridate": HOSTILE},
        }
    )  # fmt: skip


def _is_harmless(page: str) -> None:
    assert "<script>alert" not in page and "<img" not in page
    assert "&lt;script&gt;alert(1)" in page, "shown, as text"
    assert "href=" not in page.replace('href="data:,"', "").replace('href="#figures"', "")
    assert len(re.findall("<script>", page)) == 1, "the page's own"
    assert "http" not in page.replace("https://arxiv", "")


def test_a_hostile_entry_is_shown_escaped(folder, tmp_path):
    entry = _hostile(read_entry(folder / "ts.json"))
    write_entry(tmp_path / "entry.json", entry)
    again = read_entry(tmp_path / "entry.json")
    assert again.agent == HOSTILE
    _is_harmless(render_entry(again))
    _is_harmless(render_leaderboard([again]))


def test_the_command_on_a_page_cannot_be_broken_out_of(folder):
    page = render_entry(_hostile(read_entry(folder / "ts.json")))
    command = re.search("<pre>(.*?)</pre>", page, re.S)[1]
    assert "--agent &#39;" in command and "; rm -rf /&#39; --suite" in command


def test_agents_are_ranked_by_their_worst_case(folder):
    (board,) = boards(read_entries(folder))
    cases = [standing.hardest.case for standing in board.standings]
    assert cases == sorted(cases) and [s.rank for s in board.standings] == [1, 2, 3]
    assert board.standings[0].behind is None
    for standing in board.standings[1:]:
        difference, ci95 = standing.behind
        assert difference == pytest.approx(standing.hardest.case - cases[0], abs=0.01)
        assert 0 < ci95 < 50
    assert board.standings[-1].share == 0.0 and board.standings[0].share == 1.0


def test_the_page_is_a_function_of_the_files(folder, tmp_path, command):
    code, stdout, _ = command("leaderboard", folder, "--out", tmp_path / "a.html")
    assert code == 0 and stdout.strip() == str(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == render_leaderboard(read_entries(folder))
    code, stdout, _ = command("leaderboard", folder, "--out", tmp_path / "b.html", "--json")
    assert json.loads(stdout)["boards"][0]["agents"][-1] in ("ts", "ucb1", "uniform")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_what_is_not_sound_is_refused_and_nothing_written(folder, ranked, tmp_path, command):
    def refused(said: str) -> None:
        code, stdout, stderr = command("leaderboard", tmp_path)
        assert code == 2 and stdout == "" and stderr.count("\n") == 1
        assert said in stderr
        assert not (tmp_path / "index.html").exists()

    refused("has no entries")
    entry = read_entry(folder / "ts.json")
    (tmp_path / "a.json").write_text("{")
    refused("not JSON")
    data = entry.to_json() | {"suite": "my-suite-v1"}
    (tmp_path / "a.json").write_text(json.dumps(data))
    refused("unknown suite")
    data = entry.to_json()
    data["figures"][0]["case"] = 1.0
    (tmp_path / "a.json").write_text(json.dumps(data))
    refused("do not follow from its scores")
    write_entry(tmp_path / "a.json", entry)
    write_entry(tmp_path / "b.json", entry)
    refused("already; give it a label")
    (tmp_path / "b.json").unlink()
    (tmp_path / "a.json").unlink()
    (tmp_path / "a.json").symlink_to("/dev/zero")
    refused("regular file")
    (tmp_path / "a.json").unlink()
    quick = dataclasses.replace(find_suite("smoke", "bandit"))
    small = entry.model_copy(update={"suite": quick.name, "suite_sha256": quick.sha256()})
    write_entry(tmp_path / "a.json", small)
    refused("not for leaderboards")
    code, _, stderr = command("leaderboard", tmp_path / "nowhere")
    assert code == 2 and "cannot read leaderboard" in stderr


@pytest.mark.parametrize("means", [[0.0] * 3, [1e-9, -1e6, 3.0], [2.0]])
def test_bars_of_extreme_values(means):
    drawn = bars(means, [abs(mean) for mean in means], "<b>")
    assert "nan" not in drawn and "<b>" not in drawn and drawn.count("<rect") == len(means)


@pytest.mark.browser
def test_the_pages_in_a_real_browser(folder, browser, tmp_path):
    entry = _hostile(read_entry(folder / "ts.json"))
    (tmp_path / "report.html").write_text(render_entry(entry))
    write_entry(tmp_path / "e.json", entry)
    write_entry(tmp_path / "f.json", read_entry(folder / "ucb1.json"))
    write_leaderboard(tmp_path)
    for page in ("report.html", "index.html"):
        browser.set_window_size(1200, 900)
        browser.get("about:blank")
        browser.get_log("performance")
        browser.get_log("browser")
        browser.get((tmp_path / page).as_uri())
        assert "<script>alert(1)</script>" in browser.find_element("css selector", "main").text
        button = browser.find_element("css selector", ".sortable thead th:nth-child(3) button")
        button.click()
        browser.set_window_size(390, 844)  # a phone: the page itself must not scroll sideways
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= browser.execute_script("return window.innerWidth")
        assert [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
        requests = [
            message["params"]["request"]["url"]
            for log in browser.get_log("performance")
            if (message := json.loads(log["message"])["message"])["method"]
            == "Network.requestWillBeSent"
        ]
        own = (tmp_path / page).as_uri()
        assert [url for url in requests if url != own and not url.startswith("data:")] == []


# Our own leaderboard -----------------------------------------------------------------------------


def test_our_leaderboard_is_made_of_its_entries():
    assert (OURS / "index.html").read_text() == render_leaderboard(read_entries(OURS))
    assert (OURS / SCHEMA).read_text() == schema_text()


def test_a_part_of_our_own_entry_computed_again():
    """Thompson sampling on some of the tasks, under attacks that need no training."""
    entry = read_entry(OURS / "bandit-standard-v0-ts.json")
    suite = entry.known_suite()
    env = suite_env(suite)
    tasks = suite.sample_tasks(env).select(slice(20, 32))
    agent = make_agent("ts")[1]
    for name, eps in (("none", 0.0), ("swap", 0.2)):
        attacker = None if name == "none" else suite.make(name)
        found = measure(suite, env, tasks, agent, attacker, eps)
        for half, scores in enumerate(found.scores):
            assert scores == pytest.approx(entry.under(name, eps).scores[half][20:32], abs=0.006)


def test_an_entry_never_runs_code(folder, tmp_path, monkeypatch):
    """It names a module; nobody imports it."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('ran', 'w')")
    entry = read_entry(folder / "ts.json").model_copy(update={"made_of": "evil:Agent"})
    write_entry(tmp_path / "entry.json", entry)
    write_leaderboard(tmp_path)
    render_entry(read_entry(tmp_path / "entry.json"))
    assert not Path("ran").exists()
    with pytest.raises(UserError):
        make_agent("evil:Agent")
    assert Path("ran").exists(), "this is what importing would have done"
