"""Poison the rewards of somebody else's Gymnasium environment, and see tabular Q-learning suffer:
FrozenLake, where the best policy earns 1 in every episode."""

import gymnasium as gym
import numpy as np

from mithridate.gym import PoisonReward


def regret_of_q_learning(attacker, eps, episodes=500, tests=20, discount=0.95, rate=0.2):
    """What Q-learning's final policy loses per episode, in true rewards."""
    env = PoisonReward(gym.make("FrozenLake-v1", is_slippery=False), attacker, eps=eps, seed=0)
    draw, q = np.random.default_rng(0), np.zeros((16, 4))

    def play(explore):
        state, _ = env.reset()
        earned, over = 0.0, False
        while not over:
            best = np.flatnonzero(q[state] == q[state].max())
            action = draw.integers(4) if draw.random() < explore else draw.choice(best)
            after, reward, terminated, truncated, info = env.step(action)
            if explore:
                target = reward + discount * q[after].max() * (not terminated)
                q[state, action] += rate * (target - q[state, action])
            earned, over, state = earned + info["true_reward"], terminated or truncated, after
        return earned

    for _ in range(episodes):
        play(explore=0.2)
    return 1 - np.mean([play(explore=0.0) for _ in range(tests)])


stay = np.zeros((16, 4))
stay[0, 0] = 1.0  # a reward for walking against the wall in the first cell
attacks = {"none": ("uniform", 0.0), "uniform": ("uniform", 0.4), "stay": (stay, 0.4)}
for name, (attacker, eps) in attacks.items():
    print(f"attack {name:8} regret {regret_of_q_learning(attacker, eps):.2f} of 1 per episode")
