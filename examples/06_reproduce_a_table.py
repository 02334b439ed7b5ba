"""Reproduce the paper's main table of the bandit with shipped models, and look at its numbers. What
is done already is not done again: stop this when you like, and start it again.

The same as: mithridate reproduce bandit_main --replications 3 --shipped
The page with tables, figures and flags: mithridate report"""

from pathlib import Path

import mithridate as mi
from mithridate.experiments.executors import run_graph
from mithridate.experiments.left_out import left_out
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES
from mithridate.experiments.store import Store

STORE, PRESET, REPLICATIONS = Path("store"), "laptop", 3

store = Store.open(STORE)
planned, notes = left_out(plan(RECIPES["bandit_main"], PRESET, REPLICATIONS), store, True)
print("\n".join(notes))
store.remember(planned.name, planned.describe())
run_graph(planned.stages(), store, shipped=True)

results = mi.read_records(STORE)
frame = results.to_pandas()  # a row for each agent, attacker and replication
print(frame.groupby(["agent", "column"])["mean"].mean().unstack().round(1))
for agent, (iqm, low, high) in results.interquartile_means().items():
    interval = "" if low is None else f" [{low:.1f}, {high:.1f}]"
    print(f"{agent:18} regret, interquartile mean over attackers {iqm:6.1f}{interval}")
