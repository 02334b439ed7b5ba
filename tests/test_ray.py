"""The Ray executor on a real cluster of two nodes on this machine."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.test_experiments import ARGUMENTS, artifacts, records_of

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture
def cluster(monkeypatch):
    """A head and one worker node, on the loopback interface."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("MITHRIDATE_CLAIM_SECONDS", "2")
    monkeypatch.setenv("RAY_ENABLE_UINT_DASHBOARD", "0")
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "node_ip_address": "127.0.0.1", "include_dashboard": False},
    )
    worker = made.add_node(num_cpus=2, node_ip_address="127.0.0.1")
    yield made, worker
    made.shutdown()


def start(store, address):
    command = [sys.executable, "-m", "mithridate", "reproduce", *ARGUMENTS, "--store", str(store)]
    return subprocess.Popen(
        [*command, "--executor", "ray", "--address", address, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "MITHRIDATE_CLAIM_SECONDS": "2"},
    )  # fmt: skip


def test_two_nodes_one_lost_in_the_middle(finished, cluster, tmp_path):
    """Records as in process, though a node dies on the way."""
    made, worker = cluster
    store = tmp_path / "store"
    process = start(store, made.address)
    while process.poll() is None and artifacts(store) < 20:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[1].decode()
    made.remove_node(worker, allow_graceful=False)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["stages"] == artifacts(store)
    assert records_of(store) == records_of(finished.root)


def test_an_address_nobody_listens_at(command, tmp_path):
    code, _, stderr = command(
        "reproduce", *ARGUMENTS, "--store", tmp_path / "s", "--executor", "ray",
        "--address", "127.0.0.1:1",
    )  # fmt: skip
    assert code == 2 and "cannot reach the Ray cluster" in stderr
