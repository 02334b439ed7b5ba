"""A shipped model in a loop of your own: it chooses one of five advertisements, five hundred times.
A fifth of the feedback is forged by somebody who wants the worst one to be shown.

The model's weights are frozen. What it learns is in its context, which `reset` empties."""

import random

import mithridate as mi

STEPS = 500
rates = [0.7, 0.5, 0.4, 0.3, 0.1]  # what each one is worth; the agent does not know
draw = random.Random(0)


def feedback(shown):
    """What the agent is told, which one time in five is not true."""
    if draw.random() < 0.2:
        return 1.0 if shown == 4 else 0.0
    return draw.gauss(rates[shown], 0.3)


env = mi.make_env("bandit", arms=5, horizon=STEPS)
agents = {"AT-DPT": mi.load("at-dpt-bandit-s0"), "Thompson sampling": mi.make_agent("ts")[1]}
for name, agent in agents.items():
    solo = mi.Solo(agent, env.spec, seed=1)
    regret = 0.0
    for _ in range(STEPS):
        choice = solo.act()
        regret += max(rates) - rates[choice]
        solo.observe(choice, reward=feedback(choice))
    print(f"{name:18} regret {regret:6.1f} after {STEPS} steps")
