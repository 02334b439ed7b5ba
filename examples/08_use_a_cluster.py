"""A recipe of your own on a Ray cluster: attackers are trained against each of three agents, and
everybody meets everybody. Every stage is a Ray task; the records are the same as in one process.

Without an address Ray starts on this machine. On a cluster, name its head ("10.0.0.1:6379"), and a
store on a path that all nodes share. A script for SLURM is in docs/experiments.md."""

from pathlib import Path

import mithridate as mi
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES, Recipe, Row
from mithridate.experiments.store import Store

STORE, ADDRESS, PRESET, REPLICATIONS = Path("cluster_store"), None, "laptop", 2

RECIPES["three_agents"] = Recipe(
    name="three_agents",
    title="Three agents against attackers of their own",
    environment="bandit",
    rows=(Row("TS", "ts"), Row("crUCB", "crucb"), Row("UCB", "ucb1")),
    static=("none", "swap"),
    trained={"learned": ("TS", "crUCB")},
)


if __name__ == "__main__":
    store = Store.open(STORE)
    planned = plan(RECIPES["three_agents"], PRESET, REPLICATIONS)
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store, executor="ray", address=ADDRESS)
    for record in mi.read_records(STORE):
        print(f"{record['agent']:6} {record['attacker']:10} regret {record['mean']:.1f}")
