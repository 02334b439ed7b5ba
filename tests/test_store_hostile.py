"""Stores from strangers: whatever their files say, nothing outside of them is touched, nothing is
changed by reading, and what is wrong is one line."""

import json
import os
import shutil
import stat

import pytest

from mithridate.errors import UserError
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES
from mithridate.experiments.stages import perform
from mithridate.experiments.store import OUT, Store
from mithridate.experiments.upkeep import collect, empty_trash, garbage, verify
from mithridate.report.html import render, write_report
from tests.test_store import RECORD, ask_for, put

DEPTH = "a/b/c"
"""Where a store is below the temporary directory: every `../` of a test lands on a decoy."""
OUTWARDS = [
    "../decoy", "../../decoy", "../../../decoy", "../../../../decoy", "..", ".", "", "a/b",
    "evaluate-1/../../../decoy", "evaluate-1\n", "evaluate-1\0", "EVALUATE-1", "evaluate-", "-1",
    "evaluate-1/", "evaluate-xyz", "evaluate-" + 65 * "0",
]  # fmt: skip


def snapshot(root):
    """Names, kinds, contents and times of everything below."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = None
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path)] = (status.st_mode, status.st_mtime_ns, content)
    return found


@pytest.fixture
def world(tmp_path):
    """A store three levels deep, and a decoy beside it at every level."""
    place = tmp_path / DEPTH
    place.mkdir(parents=True)
    for level in (tmp_path, *(tmp_path / p for p in ("a", "a/b", "a/b/c"))):
        decoy = level / "decoy"
        decoy.mkdir()
        (decoy / "manifest.json").write_text("{}")
        (decoy / "precious.txt").write_text("precious")
        (level / "precious.txt").write_text("precious")
    store = Store.open(place / "store")
    put(store, "evaluate-1")
    ask_for(store, "evaluate-1")
    return store


def decoys(store):
    """What is outside of the store."""
    top = store.root.parents[len(DEPTH.split("/"))]
    return {
        path: seen for path, seen in snapshot(top).items()
        if not path.startswith((str(store.root), str(top / "out")))
        and path not in map(str, store.root.parents)
    }  # fmt: skip


def absolute(store, text):
    return text.replace("DECOY", str(store.root.parent / "decoy"))


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def in_one_line(attempt, *arguments):
    """Does it, or gets one line that says why not."""
    try:
        attempt(*arguments)
    except UserError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said


def use_everything(store):
    """All that reads a store, and gc; user errors are fine."""
    for attempt in (
        lambda s: [s.get(name) for name in s.names()],
        verify, render, garbage, collect, empty_trash,
        lambda s: write_report(s, s.root.parents[3] / "out" / "report.html"),
    ):  # fmt: skip
        in_one_line(attempt, Store(store.root))


@pytest.mark.parametrize("name", [*OUTWARDS, "DECOY"])
@pytest.mark.parametrize("where", ["stages", "cells", "trainings", "pictures", "inputs", "plan"])
def test_names_in_graphs_lead_nowhere(world, name, where):
    name = absolute(world, name)
    graph = world.root / "graphs" / "r.json"

    def change(data):
        if where == "stages":
            data["stages"][0]["name"] = name
        elif where == "inputs":
            data["stages"][0]["inputs"] = {"victim": name}
        elif where == "plan":
            data["name"] = name
        else:
            data[where] = [name]

    edit(graph, change)
    before, inner = decoys(world), snapshot(world.root)
    with pytest.raises(UserError, match="r.json is damaged") as caught:
        render(Store(world.root))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="r.json is damaged"):
        collect(Store(world.root))
    assert snapshot(world.root) == inner, "not even gc"
    assert "graphs/r.json" in verify(world)
    use_everything(world)
    assert decoys(world) == before


@pytest.mark.parametrize("name", [*OUTWARDS, "DECOY"])
def test_no_name_leads_out(world, name):
    name = absolute(world, name)
    before, inner = decoys(world), snapshot(world.root)
    for attempt in (
        world.get, world.work, world.claimed, world.claims.take,
        lambda n: world.publish(n, {"kind": "evaluate", "config": {}, "inputs": {}}, 1.0),
        lambda n: world.remember(n, {"name": n}),
    ):  # fmt: skip
        with pytest.raises(UserError):
            attempt(name)
    assert (decoys(world), snapshot(world.root)) == (before, inner)


@pytest.mark.parametrize("field", ["name", "inputs", "file"])
@pytest.mark.parametrize(
    "name", ["../decoy", "../../../precious.txt", "DECOY/precious.txt", "..", "a/b", ""]
)
def test_names_in_manifests_lead_nowhere(world, field, name):
    name = absolute(world, name)

    def change(data):
        if field == "name":
            data["name"] = name
        elif field == "inputs":
            data["inputs"] = {"victim": name}
        else:
            data["files"][name] = next(iter(data["files"].values()))

    edit(world.root / "artifacts" / "evaluate-1" / "manifest.json", change)
    before = decoys(world)
    fresh = Store(world.root)
    assert fresh.get("evaluate-1") is None
    assert "manifest is missing or damaged" in verify(world)["evaluate-1"]
    use_everything(world)
    assert decoys(world) == before


@pytest.mark.parametrize("folder", ["artifacts", "work", "claims", "graphs", "damaged", "trash"])
def test_a_folder_of_the_store_that_is_a_link_is_not_followed(world, folder):
    decoy = world.root.parent / "decoy"
    shutil.rmtree(world.root / folder, ignore_errors=True)
    for name in ("evaluate-1", "evaluate-2-00000000"):
        (decoy / name).mkdir()
        (decoy / name / "x").write_text("x")
    (decoy / "evaluate-1.0").write_text("claim")
    (world.root / folder).symlink_to(decoy)
    before = decoys(world)
    use_everything(world)
    if folder != "trash":
        with pytest.raises(UserError, match="not a folder of the store's own"):
            Store.open(world.root)
    for attempt in (lambda: world.work("evaluate-3"), lambda: world.claims.take("evaluate-3"),
                    lambda: ask_for(world, "evaluate-2"), lambda: put(world, "evaluate-4"),
                    lambda: empty_trash(world), lambda: collect(world)):  # fmt: skip
        in_one_line(attempt)
    assert decoys(world) == before


@pytest.mark.parametrize(
    "place",
    ["artifacts/evaluate-1", "artifacts/evaluate-1/records.jsonl",
     "artifacts/evaluate-1/manifest.json", "artifacts/evaluate-2", "work/evaluate-1",
     "work/train-2", "damaged/evaluate-1-00000000", "graphs/r.json", "claims/evaluate-1.0",
     "trash", "trash/link", "store.json"],
)  # fmt: skip
def test_links_out_of_the_store_are_not_followed(world, place):
    path, decoy = world.root / place, world.root.parent / "decoy"
    (decoy / "r.json").write_text((world.root / "graphs" / "r.json").read_text())
    for name in ("records.jsonl", "manifest.json"):
        shutil.copy(world.root / "artifacts" / "evaluate-1" / name, decoy / name)
    target = decoy / path.name if (decoy / path.name).exists() else decoy
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    before = decoys(world)
    use_everything(world)
    if place.startswith("artifacts"):
        assert Store(world.root).get(path.relative_to(world.root).parts[1]) is None
    in_one_line(put, Store(world.root), "evaluate-1")
    use_everything(world)
    assert decoys(world) == before


def test_who_computes_again_moves_the_link_and_not_what_it_points_to(world):
    path, decoy = world.root / "artifacts" / "evaluate-1", world.root.parent / "decoy"
    shutil.rmtree(path)
    path.symlink_to(decoy)
    before = decoys(world)
    put(Store(world.root), "evaluate-1")
    (aside,) = (world.root / "damaged").iterdir()
    assert aside.is_symlink() and Store(world.root).get("evaluate-1") is not None
    collect(world)
    empty_trash(world)
    assert not any((world.root / "damaged").iterdir())
    assert decoys(world) == before


@pytest.mark.parametrize("link", ["run", "out", "run/.lock", "run/log.jsonl", "out/records.jsonl"])
def test_nothing_is_written_through_links_in_unfinished_work(world, link):
    """A stage goes on in what was left in `work`; a link there would lead its writing outside."""
    stage = next(s for s in plan(RECIPES["bandit_main"], "smoke", 1).stages() if not s.inputs)
    path = world.root / "work" / stage.name / link
    path.parent.mkdir(parents=True)
    decoy = world.root.parent / "decoy"
    path.symlink_to(decoy if link in ("run", "out") else decoy / "precious.txt")
    before = decoys(world)
    assert perform(stage, world) == "computed"
    assert decoys(world) == before
    assert Store(world.root).get(stage.name) is not None


@pytest.mark.parametrize("text", ["[]", '{"step": 1, "seconds": 1e300}', "\\ud800", '"x"'])
def test_somebody_elses_log_in_unfinished_work(world, text):
    stages = plan(RECIPES["bandit_main"], "laptop", 1).stages()
    stage = next(s for s in stages if s.kind == "pretrain")
    path = world.root / "work" / stage.name / "run" / "log.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (path.parent.parent / "inputs.json").write_text("{")
    assert perform(stage, world, shipped=True) == "computed"
    assert Store(world.root).get(stage.name).seconds < 1000


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket to nowhere"])
@pytest.mark.parametrize(
    "place",
    ["artifacts/evaluate-1/records.jsonl", "artifacts/evaluate-1/manifest.json",
     "artifacts/evaluate-1", "graphs/r.json", "claims/evaluate-1.0", "store.json"],
)  # fmt: skip
def test_something_else_in_the_place_of_a_file(world, place, kind):
    path = world.root / place
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    use_everything(world)
    if place == "store.json":
        with pytest.raises(UserError):
            Store.find(world.root)
    elif place.startswith("artifacts"):
        assert "evaluate-1" in verify(world)
    else:
        assert place in verify(world)
        with pytest.raises(UserError):
            collect(Store(world.root))


# What the files say ------------------------------------------------------------------------------


DEEP = 5000 * "[" + 5000 * "]"
NONSENSE = [
    b"", b"\xff\xfe", b"null", b"[]", b"3", b'"x"', b"{", DEEP.encode(), b'{"x": NaN}',
    b'{"a":' * 300 + b"1" + b"}" * 300, b"9" * 5000, b"\0",
]  # fmt: skip


@pytest.mark.parametrize("data", NONSENSE)
def test_files_that_are_not_what_they_should_be(world, data):
    for place in ("artifacts/evaluate-1/manifest.json", "graphs/r.json", "store.json"):
        path = world.root / place
        good = path.read_bytes()
        path.write_bytes(data)
        use_everything(world)
        if place.startswith("art"):
            assert "evaluate-1" in verify(world)
        elif place.startswith("graphs"):
            with pytest.raises(UserError, match=r"r\.json"):
                collect(Store(world.root))
        else:
            with pytest.raises(UserError, match=r"store\.json"):
                Store.find(world.root)
        path.write_bytes(good)
    assert verify(world) == {}


def rewritten(store, file, text):
    """The artifact with another file in it, and a manifest that says so."""
    out = store.work("evaluate-1") / OUT
    data = {
        "records.jsonl": json.dumps(RECORD) + "\n",
        "curve.json": '{"step": [1], "mean": [1.0]}',
        file: text,
    }
    for name, content in data.items():
        (out / name).write_text(content)
    shutil.rmtree(store.root / "artifacts" / "evaluate-1")
    with pytest.raises(UserError, match="damaged while it was written"):
        store.publish("evaluate-1", {"kind": "evaluate", "config": {}, "inputs": {}}, 1.0)


BOXES = {
    "form": "boxes", "boxes": [[1.0, 1.0]] * 4, "goal": 0, "path": [[3.0, 3.0]] * 3,
    "headings": [0, 1, 2], "offsets": [[0.0] * 4] * 16, "title": "t", "score": 1,
    "frames": [{"step": 0, "image": "A" * 2500, "seen": None, "true": None}],
}  # fmt: skip
FRAME = {"step": 2, "image": "A" * 2500, "seen": 1.0, "true": 0.0}
ROOM = {"rewards": [0.0] * 4, "offsets": [[0.0] * 5] * 4, "path": [0, 1], "title": "t", "score": 1}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("records.jsonl", json.dumps({**RECORD, **wrong})) for wrong in (
            {"mean": "10"}, {"mean": None}, {"mean": 1e300}, {"replication": 1001},
            {"replication": -1}, {"replication": True}, {"agent": 3}, {"agent": "a\x1b[31m"},
            {"agent": "x" * 1000}, {"tasks": 1.5}, {"attacker": "((", "target": "TS"},
            {"ci95": "wide"}, {"agent": "\ud800"},
        )),
        *(("records.jsonl", json.dumps({k: v for k, v in RECORD.items() if k != key}))
          for key in ("agent", "mean", "level", "target", "norm")),
        ("records.jsonl", ""), ("records.jsonl", "[1]"), ("records.jsonl", '{"mean": NaN}'),
        ("records.jsonl", DEEP),
        ("curve.json", '{"step": [1, 2], "mean": [1.0]}'), ("curve.json", '{"step": "12"}'),
        ("curve.json", '{"step": [1], "mean": [NaN]}'), ("curve.json", "{}"),
        ("curve.json", '{"step": [1], "mean": [1e999]}'),
        *(("room.json", json.dumps({**ROOM, **wrong})) for wrong in (
            {"path": [4]}, {"path": []}, {"path": [-1]}, {"path": [10**18]}, {"rewards": [0.0] * 3},
            {"offsets": [[0.0] * 4] * 4}, {"title": 3}, {"rewards": []},
        )),
        *(("room.json", json.dumps({**BOXES, **wrong})) for wrong in (
            {"form": "other"}, {"form": None}, {"form": []}, {"goal": 4}, {"goal": -1},
            {"goal": 1.0}, {"boxes": [[1.0, 1.0]] * 5}, {"boxes": [[1.0, 6.1]] * 4}, {"path": []},
            {"boxes": [[1.0]] * 4}, {"path": [[0.0, -0.1]] * 3}, {"path": [[1.0, 1.0, 1.0]] * 3},
            {"path": [[1.0, 1.0]] * 4}, {"headings": [0, 1, 24]}, {"headings": [0, 1]},
            {"headings": [0, 1, True]}, {"path": [[1.0, 1.0]] * 100_001, "headings": [0] * 100_001},
            {"offsets": [[0.0] * 4] * 15}, {"offsets": [[0.0] * 5] * 16}, {"title": "a\nb"},
            {"offsets": [["0"] * 4] * 16}, {"frames": []}, {"frames": [FRAME] * 2},
            {"frames": [{**FRAME, "step": i} for i in range(11)]}, {"frames": [BOXES]},
            {"frames": None},
            *({"frames": [{**FRAME, **bad}]} for bad in (
                {"step": 3}, {"step": -1}, {"step": 1.5}, {"image": "A" * 2499},
                {"image": "A" * 2504}, {"image": "A" * 2499 + "="}, {"image": "A" * 2499 + "<"},
                {"image": "A" * 2500 + "\n"}, {"image": [0] * 1875}, {"seen": None},
                {"seen": "1"}, {"true": 1e300},
            )),
        )),
        ("room.json", json.dumps({k: v for k, v in BOXES.items() if k != "form"})),
        ("log.jsonl", '{"step": "1"}'), ("log.jsonl", '{"score_mean": 1}'), ("log.jsonl", "[]"),
        ("log.jsonl", '{"step": 1, "score_mean": "x"}'), ("log.jsonl", '{"step": 1, "x": [1]}'),
    ],
)  # fmt: skip
def test_results_that_do_not_parse_are_damage(world, file, text):
    rewritten(world, file, text)
    fresh = Store(world.root)
    assert fresh.get("evaluate-1") is None
    assert file in fresh.problems["evaluate-1"] and "\n" not in fresh.problems["evaluate-1"]
    assert list(verify(world)) == ["evaluate-1"]


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": "1"}, {"seconds": -1}, {"seconds": 1e300}, {"config": []}, {"inputs": ["x"]},
     {"kind": 3}, {"files": []}, {"files": {}}, {"label": "a\nb"}, {"label": 3}, {"shipped": "no"},
     {"files": {"records.jsonl": {"sha256": "x", "bytes": 1}}},
     {"files": {"records.jsonl": {"sha256": 64 * "0", "bytes": 10**15}}}, {"kind": "../x"}],
)  # fmt: skip
def test_manifests_that_do_not_parse_are_damage(world, wrong):
    edit(world.root / "artifacts" / "evaluate-1" / "manifest.json", lambda data: data.update(wrong))
    problems = verify(world)
    assert list(problems) == ["evaluate-1"] and "\n" not in problems["evaluate-1"]
    use_everything(world)


@pytest.mark.parametrize(
    "wrong",
    [{"replications": 10**9}, {"replications": "1"}, {"seed": -1}, {"preset": "huge"},
     {"stages": []}, {"stages": {}}, {"sets": "x"}, {"sets": [1]}, {"recipe": None},
     {"cells": None}, {"cells": ["evaluate-2"]}],
)  # fmt: skip
def test_graphs_that_do_not_parse_stop_reports_and_gc(world, wrong, command):
    edit(world.root / "graphs" / "r.json", lambda data: data.update(wrong))
    inner = snapshot(world.root)
    for arguments in (["report", "--out", world.root.parent / "r.html"], ["store", "gc"]):
        code, stdout, stderr = command(*arguments, "--store", world.root)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1) and "r.json is damaged" in stderr
    code, stdout, _ = command("store", "verify", "--store", world.root)
    assert code == 1 and "damaged: graphs/r.json" in stdout
    assert snapshot(world.root) == inner and not (world.root.parent / "r.html").exists()


def test_an_estimate_imports_nobodys_code(world, tmp_path, monkeypatch, command):
    """The name of an agent in a manifest is a word, not a module to be run."""
    (tmp_path / "evil.py").write_text("open('was_here', 'w')\nclass Agent: pass\n")
    monkeypatch.chdir(tmp_path)
    cell = {"victim": "evil:Agent", "attacker": "none", "label": "x", "replication": 0}
    config = {"env": {"name": "bandit", "horizon": 20}, "tasks": 20, "cell": cell}
    edit(
        world.root / "artifacts" / "evaluate-1" / "manifest.json",
        lambda data: data.update(config=config),
    )
    assert Store(world.root).get("evaluate-1") is not None
    arguments = ("reproduce", "bandit_main", "--preset", "smoke", "--dry-run")
    assert command(*arguments, "--store", world.root)[0] == 0
    assert not (tmp_path / "was_here").exists()


@pytest.mark.parametrize(
    "config",
    [{}, {"env": 3}, {"env": {"name": "nope"}}, {"env": {"name": "bandit"}, "tasks": "x" * 100},
     {"env": {"name": "bandit"}, "cell": []}, {"env": {"name": "bandit"}, "cell": {"victim": 3}},
     {"env": {"name": "bandit", "horizon": 10**18}, "tasks": 10**18,
      "cell": {"victim": "ts(", "attacker": "none"}}],
)  # fmt: skip
def test_a_manifest_that_says_nonsense_is_no_witness(world, config, command):
    path = world.root / "artifacts" / "evaluate-1" / "manifest.json"
    for kind in ("evaluate", "unheard_of"):
        edit(path, lambda data, kind=kind: data.update(config=config, kind=kind))
        arguments = ("reproduce", "bandit_main", "--preset", "smoke", "--dry-run")
        code, _, stderr = command(*arguments, "--store", world.root)
        assert (code, stderr) == (0, "")


def test_what_files_say_is_text_on_the_page(finished, tmp_path):
    """Labels are shown as they are: no markup, no formulas, no styles."""
    evil = """</script><img src=x onerror="alert(1)"> $\\frac{ [/bold] [red]"'"""
    store = Store(shutil.copytree(finished.root, tmp_path / "store"))
    (graph,) = (store.root / "graphs").iterdir()

    def change(data):
        for stage in data["stages"]:
            stage["label"] = f"{stage['label']} {evil}"
        data["sets"] = [evil]

    edit(graph, change)
    name = json.loads(graph.read_text())["cells"][0]
    old = store.get(name)
    out = store.work(name) / OUT
    (out / "records.jsonl").write_text(json.dumps({**old.records()[0], "agent": evil}))
    shutil.copy(old.path / "curve.json", out / "curve.json")
    description = {"kind": "evaluate", "label": evil, "config": {}, "inputs": {}}
    shutil.rmtree(old.path)
    store.publish(name, description, 1.0)
    write_report(Store(store.root), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<img src=x" not in page and page.count("</script>") == 1
    assert "onerror=&#34;alert" in page or "onerror=&quot;alert" in page


def test_a_label_is_no_markup_in_the_terminal(world, command):
    path = world.root / "artifacts" / "evaluate-1" / "manifest.json"
    edit(path, lambda data: data.update(label="AD [ts] [/bold] [red]x"))
    code, stdout, _ = command("store", "ls", "--store", world.root)
    assert code == 0 and "AD [ts] [/bold] [red]x" in stdout


# Reading ------------------------------------------------------------------------------------------


def test_reading_changes_nothing(finished, tmp_path, command):
    """Not even a damaged store, and not even the time of a folder."""
    root = shutil.copytree(finished.root, tmp_path / "a" / "b" / "store")
    names = Store(root).names()
    (root / "artifacts" / names[0] / "manifest.json").write_text("{")
    (root / "artifacts" / names[1] / "extra").write_text("not in the manifest")
    (root / "claims" / f"{names[0]}.0").write_text("somebody")
    for folder in ("damaged", "work"):
        shutil.rmtree(root / folder)
    before = snapshot(root)
    arguments = ("bandit_main", "--preset", "smoke", "--replications", "1", "--dry-run")
    for words, wanted, said in (
        (["store", "ls"], 0, "1 damaged artifact left out"),
        (["store", "verify"], 1, ""),
        (["store", "gc", "--dry-run"], 0, ""),
        (["store", "gc", "--dry-run", "--empty-trash"], 0, ""),
        (["reproduce", *arguments], 0, "1 damaged artifact left out"),
        (["report", "--out", tmp_path / "report.html"], 0, "1 artifact is damaged and left out"),
    ):
        code, stdout, stderr = command(*words, "--store", root)
        assert code == wanted and said in stderr, (words, stdout, stderr)
    assert "1 artifact is damaged and left out" in (tmp_path / "report.html").read_text()
    assert snapshot(root) == before


def test_a_damaged_artifact_is_set_aside_by_who_computes_it(finished, tmp_path):
    store = Store(shutil.copytree(finished.root, tmp_path / "store"))
    stages = plan(RECIPES["bandit_main"], "smoke", 1).stages()
    name = next(s.name for s in stages if s.kind == "evaluate")
    before = set(os.listdir(store.root / "damaged"))  # of a store that other tests use, too
    (store.root / "artifacts" / name / "manifest.json").write_text("{")
    run_graph(stages, store)
    assert verify(store) == {}
    set_aside = set(os.listdir(store.root / "damaged")) - before
    assert [n.startswith(name) for n in set_aside] == [True]


# gc -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["claims/notes.txt", "claims/x-1.abc", "graphs/r.json.bak"])
def test_gc_stops_at_what_it_does_not_know(world, trouble, command):
    put(world, "evaluate-2")
    (world.root / trouble).write_text("{}")
    inner = snapshot(world.root)
    for more in ([], ["--dry-run"]):
        code, stdout, stderr = command("store", "gc", "--store", world.root, *more)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert snapshot(world.root) == inner
    assert command("store", "verify", "--store", world.root)[0] == 1


def test_gc_leaves_the_living_alone(world):
    put(world, "evaluate-2")
    world.work("train-2")
    world.work("train-3")
    (world.root / "claims" / "attack-1.0").write_text("dead")
    os.utime(world.root / "claims" / "attack-1.0", (0, 0))
    with world.claim("evaluate-2"), world.claim("train-2"):
        assert {p.name for p in garbage(world)} == {"train-3", "attack-1.0"}
        collect(Store(world.root))
    assert world.names() == ["evaluate-1", "evaluate-2"]


def test_the_trash_in_steps(world, command):
    put(world, "evaluate-2")
    where = ("--store", world.root)
    assert "1 would be moved to the trash" in command("store", "gc", *where, "--dry-run")[1]
    assert "artifacts/evaluate-2" in command("store", "gc", *where)[1]
    code, stdout, _ = command("store", "gc", *where, "--empty-trash", "--dry-run")
    assert code == 0 and "1 would be removed for good" in stdout and "evaluate-2" in stdout
    assert command("store", "gc", *where, "--empty-trash")[0] == 0
    assert "0 would be" in command("store", "gc", *where, "--empty-trash", "--dry-run")[1]
    assert not any((world.root / "trash").iterdir()) and world.names() == ["evaluate-1"]


def test_a_claim_from_the_future_is_dead(world):
    path = world.root / "claims" / "evaluate-2.0"
    path.write_text("hostile")
    os.utime(path, (4e9, 4e9))
    assert not world.claimed("evaluate-2")
    with world.claim("evaluate-2") as mine:
        assert mine
