"""The report: right numbers, complete files, and a page that works in a real browser."""

import csv
import errno
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest

from mithridate.envs.linear_bandit import LinearBanditConfig
from mithridate.errors import UserError
from mithridate.evaluation.cells import Cells, paired_difference
from mithridate.evaluation.episode import Room
from mithridate.evaluation.flags import flags
from mithridate.evaluation.kinds import heading_of, named
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES
from mithridate.experiments.store import Store
from mithridate.report.figures import lines_figure, x_range
from mithridate.report.html import render, write_report
from mithridate.report.picture import draw_room
from mithridate.report.svg import line_chart
from mithridate.report.views import CurveView, _share, _without_outliers, summarise
from mithridate.report.watch import server


def record(agent, column, mean, replication=0, **more):
    heading = named(column)
    target = heading.of if heading.kind == "learned" else None
    return {
        "agent": agent, "kind": heading.kind, "attacker": "gaussian" if target else column,
        "target": target,
        "environment": "bandit", "metric": "cumulative regret", "eps": 0.4, "budget": 3.0,
        "norm": 2.5, "level": 0.4, "replication": replication, "mean": mean, "ci95": 1.0,
        "tasks": 200, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([4.1, 9.3, 9.7, 167.6, 10.3, 13.8, 8.9, 3.4, 4.0], (3.4, 13.8)),
        ([390.0, 385.0, 240.0, 250.0, 230.0, -900.0], (230.0, 390.0)),
        ([4.0, 5.0, 100.0], (4.0, 100.0)),
        ([7.0, 7.0, 7.0, 7.0], (7.0, 7.0)),
    ],
)
def test_a_scale_leaves_outliers_out(values, scale):
    assert _without_outliers(values) == scale


def test_one_hopeless_algorithm_does_not_make_the_others_look_alike():
    env = LinearBanditConfig(name="linear_bandit")
    regret = {"A": 4.0, "B": 9.0, "C": 10.0, "D": 14.0, "hopeless": 170.0}
    rows = [record(victim, "swap", mean, 0) for victim, mean in regret.items()]
    shares = [_share(env, Cells(rows, "lower"), "swap", mean) for mean in regret.values()]
    assert shares == pytest.approx([0.5, 0.275, 0.23, 0.05, 0.05])


# Statistics and flags ------------------------------------------------------------------------


def test_paired_differences_use_pairs():
    """Replications that differ wildly, but in parallel, give a narrow interval."""
    rows = [record("A", "none", 10.0 * r, r) for r in range(4)]
    rows += [record("B", "none", 10.0 * r + 2 + 0.1 * (r % 2), r) for r in range(4)]
    mean, ci95 = paired_difference(Cells(rows, "lower"), "A", "B", "none")
    assert mean == pytest.approx(-2.05) and ci95 < 0.1
    assert Cells(rows, "lower").cell("A", "none")[1] > 10


def test_two_replications_that_happen_to_agree_do_not_make_a_narrow_interval():
    """The intervals over tasks are 3 and 4: together √(3² + 4²) / 2. From three on they are those
    over replications."""

    def interval(*means):
        widths = (3.0, 4.0, 5.0)
        rows = [record("A", "none", m, r, ci95=widths[r]) for r, m in enumerate(means)]
        return Cells(rows, "lower").cell("A", "none")[1]

    assert interval(10.0) == 3.0
    assert interval(10.0, 10.1) == pytest.approx(2.5)
    assert interval(10.0, 20.0) == pytest.approx(10.0)
    assert interval(10.0, 10.0, 10.0) == 0.0
    unknown = [record("A", "none", m, r, ci95=None) for r, m in enumerate((10.0, 20.0))]
    assert Cells(unknown, "lower").cell("A", "none")[1] == pytest.approx(10.0)


def good(agent="A"):
    values = {"none": 10.0, "uniform": 20.0, "learned(TS)": 30.0}
    return [record(agent, c, m + 0.1 * r, r) for c, m in values.items() for r in range(3)]


def test_nothing_is_flagged_without_reason():
    assert flags(Cells(good(), "lower")) == []


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([r for r in good() if r["replication"] < 2], "few-replications"),
        ([r for r in good() if r["replication"] < 1], "not-crossed"),
        ([{**r, "tasks": 20} for r in good()], "few-tasks"),
        ([{**r, "norm": 3.1} for r in good()], "over-budget"),
        ([{**r, "mean": 5.0} if r["attacker"] == "uniform" else r for r in good()], "poison-helps"),
        ([{**r, "mean": 90.0} if r["attacker"] == "uniform" else r for r in good()],
         "random-beats-learned"),
    ],
)  # fmt: skip
def test_what_is_suspicious_is_flagged(rows, code):
    assert code in {flag.code for flag in flags(Cells(rows, "lower"))}


def test_who_has_few_tasks_is_named_unless_all_have():
    def said(rows):
        return next(f.text for f in flags(Cells(rows, "lower")) if f.code == "few-tasks")

    few = [{**r, "tasks": 40} for r in good("B")]
    assert said([*good(), *few]) == "B: replications have 40 tasks only"
    assert said(few) == "replications have 40 tasks only"


def test_every_flag_is_explained_in_the_documentation():
    from pathlib import Path

    text = (Path(__file__).parent.parent / "docs" / "statistics.md").read_text()
    for code in ("few-replications", "not-crossed", "few-tasks", "over-budget", "poison-helps",
                 "random-beats-learned"):  # fmt: skip
        assert f"`{code}`" in text


# The page ----------------------------------------------------------------------------------------


def test_an_empty_store_gives_a_useful_page(tmp_path):
    page = render(Store.open(tmp_path / "store"))
    assert "no results yet" in page and "mithridate reproduce" in page


def test_a_half_finished_store_says_so(finished, tmp_path):
    shutil.copytree(finished.root, tmp_path / "store")
    store = Store(tmp_path / "store")
    removed = [n for n in store.names() if n.startswith("evaluate")][:20]
    for name in removed:
        shutil.rmtree(store.root / "artifacts" / name)
    (section,) = summarise(store)
    assert section.total - section.done == 20
    assert "Not finished" in render(store)


def test_the_numbers_are_those_of_the_records(finished):
    (section,) = summarise(finished)
    records = {
        (r["agent"], str(heading_of(r))): r["mean"]
        for name in finished.names()
        for r in finished.get(name).records()
    }
    every = section.tables[0].cells()
    cells = [cell for cell in every if cell.mean is not None]
    assert len(cells) == len(records) == 179
    (none,) = (cell for cell in every if cell.mean is None)
    assert (none.victim, none.column) == ("posterior oracle", "search(itself)")
    for cell in cells:
        assert cell.mean == pytest.approx(records[cell.victim, cell.column])
    page = render(finished)
    for cell in cells:
        assert f'data-value="{cell.mean}"' in page


def test_the_page_needs_no_network(finished):
    page = render(finished)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']+""", page)
    assert "url(" not in page and "@import" not in page


def test_files_beside_the_page(finished, tmp_path):
    written = write_report(finished, tmp_path / "r" / "report.html")
    names = {path.name for path in written}
    stem = "bandit_main-smoke-1x-s0"
    assert {"report.html", f"{stem}-eps0.4.csv", f"{stem}-eps0.4.tex", f"{stem}.jsonl"} <= names
    folder = tmp_path / "r" / "report_files"
    rows = list(csv.DictReader((folder / "bandit_main-smoke-1x-s0-eps0.4.csv").open()))
    assert len(rows) == 180 and {"victim", "attacker", "mean", "paper_mean"} <= rows[0].keys()
    latex = (folder / "bandit_main-smoke-1x-s0-eps0.4.tex").read_text()
    assert latex.count(r"\\") == 13 and r"\cellcolor{orange!" in latex and r"raise\_worst" in latex
    assert len((folder / "bandit_main-smoke-1x-s0.jsonl").read_text().splitlines()) == 179
    assert any(n.endswith(".pdf") for n in names) and any(n.endswith(".png") for n in names)


def test_the_live_page_is_served_here_only_and_follows_the_store(tmp_path):
    store = Store.open(tmp_path / "store")
    with server(store) as serving:
        assert serving.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{serving.server_port}"

        def get(path):
            return urllib.request.urlopen(address + path, timeout=10).read().decode()

        assert "no results yet" in get("/")
        before = get("/version")
        planned = plan(RECIPES["bandit_main"], "smoke", 1)
        store.remember(planned.name, planned.describe())
        assert get("/version") != before
        assert "Not finished" in get("/") and "setInterval" in get("/")
        with pytest.raises(urllib.error.HTTPError):
            get("/etc/passwd")
        serving.shutdown()


def ask(port, host, path="/"):
    """The status and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("GET", path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.fixture
def live(tmp_path):
    """A store that is served, and the port."""
    store = Store.open(tmp_path / "store")
    with server(store) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield store, serving.server_port
        serving.shutdown()


def test_the_live_page_is_for_this_machine_by_its_own_name(live):
    """Else a page from elsewhere could read the store through the visitor's browser."""
    _, port = live
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert ask(port, f"{host}:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1:{port + 1}", "localhost", "",
                 None, f"127.0.0.1.evil.example:{port}"):  # fmt: skip
        assert ask(port, host)[0] == ask(port, host, "/version")[0] == 403


def test_a_browser_that_goes_away_is_nothing_to_talk_about(live, capfd):
    _, port = live
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
    assert ask(port, f"localhost:{port}")[0] == 200
    time.sleep(0.5)
    assert capfd.readouterr().err == ""


def test_a_store_that_is_damaged_while_it_is_watched(live):
    store, port = live
    host = f"localhost:{port}"
    before = ask(port, host, "/version")[1]
    graph = store.root / "graphs" / "x.json"
    graph.write_text("<b>{")
    status, page = ask(port, host)
    assert status == 200 and "x.json is damaged" in page and "location.reload" in page
    assert ask(port, host, "/version")[1] != before
    graph.unlink()
    assert "no results yet" in ask(port, host)[1]
    shutil.rmtree(store.root)
    assert "there is no store" in ask(port, host)[1]
    assert ask(port, host, "/version")[0] == 200


def test_interrupting_the_live_page_is_one_line(tmp_path):
    Store.open(tmp_path / "store")
    command = [sys.executable, "-m", "mithridate", "report", "--watch", "--port", "0", "--store"]
    process = subprocess.Popen(
        [*command, tmp_path / "store"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert b"http://127.0.0.1:" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1] == b"error: interrupted\n"
    assert process.returncode == 130


def test_a_port_that_is_taken_is_one_line(tmp_path, command):
    Store.open(tmp_path / "store")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = command("report", "--watch", "--port", port, "--store", tmp_path / "store")
    assert (code, out, err.count("\n")) == (2, "", 1) and f"cannot serve on port {port}" in err


def test_a_full_disk_is_one_line(finished, tmp_path, command, monkeypatch):
    lines = {"$\\frac{ [TS]": [(1.0, 2.0), (2.0, 3.0)]}
    for name in ("a.png", "a.pdf", "a.svg"):
        lines_figure(lines, tmp_path / name, "$ $", "x", "y")
    before = (tmp_path / "a.png").read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mithridate.files.os.fsync", full)
    for name in ("a.png", "b.pdf"):
        with pytest.raises(UserError, match="No space left"):
            lines_figure(lines, tmp_path / name, "t", "x", "y")
    room = Room(np.zeros(4), np.zeros((4, 5)), np.array([0, 1]), "a $\\room", 0.0)
    with pytest.raises(UserError, match="No space left"):
        draw_room(room, tmp_path / "room.svg")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pdf", "a.png", "a.svg"]
    assert (tmp_path / "a.png").read_bytes() == before, "what was there is still there"
    out = tmp_path / "report.html"
    code, stdout, stderr = command("report", "--store", finished.root, "--out", out)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1) and not out.exists()


@pytest.mark.parametrize("out", ["file/r.html", ".", "a\0b.html", 300 * "n" + ".html"])
def test_a_place_where_no_report_can_be_written(out, finished, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    code, stdout, stderr = command("report", "--store", finished.root, "--out", out)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert os.listdir(tmp_path) == ["file"]


def test_a_recipe_of_another_version_is_not_dropped_silently(finished, tmp_path, command):
    store = Store(shutil.copytree(finished.root, tmp_path / "store"))
    (path,) = (store.root / "graphs").iterdir()
    path.write_text(path.read_text().replace('"recipe": "bandit_main"', '"recipe": "tomorrow"'))
    code, _, stderr = command("report", "--store", store.root, "--out", tmp_path / "r.html")
    assert code == 0 and "recipe 'tomorrow'" in stderr
    assert "recipe &#39;tomorrow&#39;" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("y", [0.0, 1e-13, -1e-300, 1e12, 5e11])
def test_charts_of_extreme_values(y):
    view = CurveView('a"<b>', "x", "y", {"<i>": [(1.0, y), (2.0, 0.0)], "b": [(1.0, y)]})
    chart = line_chart(view, 'c"><script>')
    assert "nan" not in chart and "<script>" not in chart and "<i>" not in chart


# In a browser ------------------------------------------------------------------------------------


@pytest.mark.browser
def test_the_page_in_a_real_browser(finished, browser, tmp_path):
    write_report(finished, tmp_path / "report.html")
    browser.get("about:blank")
    browser.get_log("performance")  # what the browser did on its own account before
    browser.get((tmp_path / "report.html").as_uri())
    heading = browser.find_element("css selector", "h1").text
    assert "Mithridate" in heading

    def column(index):
        cells = browser.find_elements("css selector", f".sortable tbody tr > :nth-child({index})")
        return [cell.get_attribute("data-value") for cell in cells]

    (section,) = summarise(finished)
    table = section.tables[0]
    shown = [float(value) for value in column(2)]
    assert shown == pytest.approx([cells[0].mean for _, cells in table.rows])
    button = browser.find_element("css selector", ".sortable thead th:nth-child(2) button")
    button.click()
    assert [float(v) for v in column(2)] == sorted(shown)
    head = browser.find_element("css selector", ".sortable thead th:nth-child(2)")
    assert head.get_attribute("aria-sort") == "ascending"
    button.send_keys("\n")  # by keyboard
    assert [float(v) for v in column(2)] == sorted(shown, reverse=True)

    chart = browser.find_element("css selector", "svg.chart")
    whole = chart.get_dom_attribute("viewBox")
    chart.send_keys("+")
    assert chart.get_dom_attribute("viewBox") != whole
    chart.send_keys("0")
    assert chart.get_dom_attribute("viewBox") == whole

    browser.set_window_size(390, 844)  # a phone: the page itself must not scroll sideways
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= browser.execute_script("return window.innerWidth")

    assert [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
    requests = [
        message["params"]["request"]["url"]
        for entry in browser.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"]
        == "Network.requestWillBeSent"
    ]
    own = (tmp_path / "report.html").as_uri()
    assert [url for url in requests if url != own and not url.startswith("data:")] == []


def test_lines_that_begin_late_are_shown_from_where_they_begin():
    late = {"AT-DPT": [(91.0, 14.0), (160.0, 22.0)], "TS": [(101.0, 70.0)], "none": []}
    assert x_range(late) == (91.0, 160.0)
    assert x_range({"TS": [(1.0, 9.0), (20.0, 120.0)]}) == (0.0, 20.0)
    chart = line_chart(CurveView("t", "round", "regret", late), "c")
    assert ">100<" in chart and ">0<" in chart and ">20<" in chart, "0 and 20 are regrets"
    first = re.search(r'polyline class="c0" points="([\d.]+),', chart)
    assert first and float(first[1]) < 150, "near the left edge"
