"""The store: artifacts appear whole or not at all, claims exclude and expire, damage is found."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest

from mithridate.errors import UserError
from mithridate.experiments import claims
from mithridate.experiments.store import OUT, Store
from mithridate.experiments.upkeep import collect, empty_trash, garbage, trash, verify


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(tmp_path / "store")


RECORD = {
    "agent": "TS", "kind": "clean", "attacker": "none", "target": None, "environment": "bandit",
    "metric": "cumulative regret", "eps": 0.0, "budget": 0.0, "norm": 0.0, "level": 0.4,
    "level_budget": 3.0, "replication": 0, "mean": 10.0, "ci95": None, "tasks": 20,
}  # fmt: skip


def put(store, name="evaluate-1", agent="hello"):
    out = store.work(name) / OUT
    (out / "records.jsonl").write_text(json.dumps({**RECORD, "agent": agent}) + "\n")
    (out / "curve.json").write_text(json.dumps({"step": [1, 2], "mean": [0.5, 1.0]}))
    return store.publish(name, {"kind": "evaluate", "config": {}, "inputs": {}}, 1.0)


def ask_for(store, *names):
    """A graph that has these stages."""
    config = {"env": {"name": "bandit", "arms": 3, "horizon": 20}}
    stages = [
        {"name": n, "kind": n.partition("-")[0], "label": n, "config": config, "inputs": {}}
        for n in names
    ]
    graph = {
        "name": "r", "recipe": "bandit_main", "preset": "smoke", "seed": 0, "sets": [],
        "replications": 1, "stages": stages, "trainings": [],
        "cells": [n for n in names if n.startswith("evaluate")],
    }  # fmt: skip
    store.remember("r", graph)
    return store.root / "graphs" / "r.json"


def test_an_artifact_is_what_was_put_in(store):
    assert store.get("evaluate-1") is None
    artifact = put(store)
    assert artifact.records() == [{**RECORD, "agent": "hello"}]
    assert Store(store.root).get("evaluate-1").seconds == 1.0
    assert store.names() == ["evaluate-1"]
    assert not (store.root / "work" / "evaluate-1").exists()


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest"])
def test_damage_is_found_and_never_used(store, damage):
    path = put(store).path
    file = path / "records.jsonl"
    if damage == "flip":
        data = bytearray(file.read_bytes())
        data[3] ^= 1
        file.write_bytes(bytes(data))
    elif damage == "truncate":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "delete":
        file.unlink()
    else:
        (path / "manifest.json").write_text("{")
    fresh = Store(store.root)
    assert fresh.get("evaluate-1") is None and "evaluate-1" in fresh.problems
    assert path.exists() and not os.listdir(store.root / "damaged"), "reading changes nothing"
    assert put(fresh).records() == [{**RECORD, "agent": "hello"}]
    assert len(os.listdir(store.root / "damaged")) == 1 and fresh.problems == {}


def test_verify_names_what_is_damaged(store):
    put(store, "evaluate-1")
    bad = put(store, "evaluate-2").path / "records.jsonl"
    bad.write_text("x")
    for _ in range(2):
        assert verify(store) == {"evaluate-2": "records.jsonl has the wrong size"}
    assert store.names() == ["evaluate-1", "evaluate-2"]


def test_a_claim_excludes_others_and_ends(store):
    other = Store(store.root)
    with store.claim("a-1") as mine:
        assert mine and mine.held()
        with other.claim("a-1") as theirs:
            assert theirs is None
        assert other.claimed("a-1")
        with other.claim("a-2") as another:
            assert another
    assert not other.claimed("a-1")
    with other.claim("a-1") as theirs:
        assert theirs


def test_who_was_taken_for_dead_leaves_the_successor_alone(store):
    other = Store(store.root)
    with store.claim("a-1") as first:
        os.utime(first.path, (0, 0))
        with other.claim("a-1") as second:
            assert second is not None and second.held() and not first.held()
            first.path.unlink()
            assert other.claimed("a-1")
    assert not other.claimed("a-1")


def test_a_wrong_claim_time_is_a_user_error(store, monkeypatch):
    for value in ("abc", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("MITHRIDATE_CLAIM_SECONDS", value)
        with pytest.raises(UserError, match="positive number"):
            Store(store.root)


def test_a_living_claim_is_kept_and_a_dead_one_expires(tmp_path):
    store = Store(Store.open(tmp_path / "store").root, claim_seconds=0.6)
    with store.claim("a-1"):
        time.sleep(1.0)  # longer than a claim lasts without being touched
        with Store(store.root, claim_seconds=0.6).claim("a-1") as theirs:
            assert not theirs
    path = store.root / "claims" / "a-1.0"
    path.write_text("dead\n")
    os.utime(path, (time.time() - 10, time.time() - 10))
    with store.claim("a-1") as mine:
        assert mine


def test_a_signal_at_any_line_leaves_no_claim(store):
    """A worker that is asked to stop raises wherever it is, even while a claim is laid."""
    folder = store.root / "claims"

    def stop(*_):
        raise SystemExit

    def interrupted_at(number):
        """Hold a claim with a signal at that line of claims.py; False if there are fewer lines."""
        seen = 0

        def at_each_line(frame, event, argument):
            nonlocal seen
            if event == "line":
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGTERM)
            return at_each_line

        def trace(frame, event, argument):
            return at_each_line if frame.f_code.co_filename == claims.__file__ else None

        sys.settrace(trace)
        try:
            with store.claim("a-1") as claim:
                assert claim
        except SystemExit:
            pass
        finally:
            sys.settrace(None)
        return seen >= number

    before = signal.signal(signal.SIGTERM, stop)
    try:
        number = 1
        while interrupted_at(number):
            assert os.listdir(folder) == [], f"a signal at line {number}"
            number += 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert number > 50


def contend(root, results):
    store = Store(root, claim_seconds=30)
    for i in range(20):
        with store.claim(f"a-{i}") as mine:
            if mine and store.get(f"a-{i}") is None:
                put(store, f"a-{i}", str(os.getpid()))
                results.append(i)


def test_of_many_processes_one_computes(store):
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        results = manager.list()
        processes = [context.Process(target=contend, args=(store.root, results)) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert sorted(results) == list(range(20)), "each exactly once"
    assert len(store.names()) == 20


def test_only_one_taker_of_a_dead_claim(store):
    for number in range(20):
        dead = store.root / "claims" / f"a-1.{number}"
        dead.write_text("dead\n")
        os.utime(dead, (0, 0))
        winners = []

        def take(winners=winners):
            if path := Store(store.root).claims.take("a-1"):
                winners.append(path)

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [path.name for path in winners] == [f"a-1.{number + 1}"]


def test_garbage_is_what_nobody_asked_for(store):
    put(store, "evaluate-1")
    put(store, "evaluate-2")
    store.work("train-3")
    ask_for(store, "evaluate-1", "train-3")
    assert [p.name for p in garbage(store)] == ["evaluate-2"], "unfinished work is kept"
    collect(store)
    assert store.names() == ["evaluate-1"]
    (taken,) = trash(store)
    assert taken.parent.name == "artifacts" and (taken / "records.jsonl").exists()
    taken.rename(store.root / "artifacts" / taken.name)
    assert Store(store.root).get("evaluate-2") is not None, "it can be moved back"
    collect(store)
    empty_trash(store)
    assert trash(store) == [] and store.names() == ["evaluate-1"]


def test_a_place_that_is_no_store_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not a store"):
        Store.open(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_half_written_files_are_garbage_once_nobody_can_be_writing_them(store):
    half = [store.root / ".store.json.abcd1234", store.root / "graphs" / ".r.json.abcd1234"]
    for path in half:
        path.write_text("{")
    put(store)
    mine = store.root / ".notes"
    mine.write_text("kept")
    assert not {*half} & {*garbage(store)}, "somebody may still be at it"
    for path in (*half, mine):
        os.utime(path, (1, 1))
    assert {*half} <= {*garbage(store)}
    collect(store)
    assert not any(path.exists() for path in half) and mine.exists()
