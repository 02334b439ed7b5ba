"""Train PPO of Stable-Baselines3 on an environment whose rewards are poisoned, and measure what it
earns in truth: CartPole, where the best policy earns 500 in every episode."""

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from mithridate.gym import PoisonReward

STEPS = 16_384
offsets = np.zeros((2, 2))  # (key, action)
offsets[1, 1] = -2.0  # no reward, but a loss, for pushing right while the pole leans to the right


def leans_right(observation):
    return int(observation[2] > 0)


def trained(eps):
    env = gym.make("CartPole-v1")
    env = PoisonReward(env, offsets, eps=eps, key=leans_right, keys=2, seed=0)
    model = PPO("MlpPolicy", Monitor(env), n_steps=1024, batch_size=64, seed=0, device="cpu")
    return model.learn(STEPS)


for eps in (0.0, 0.1, 0.4):
    test = Monitor(gym.make("CartPole-v1"))  # rewards are true here
    test.reset(seed=1)
    mean, std = evaluate_policy(trained(eps), test, n_eval_episodes=20)
    print(f"eps {eps:.1f}: {mean:.0f} ± {std:.0f} of 500 per episode, regret {500 - mean:.0f}")
