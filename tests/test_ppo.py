"""PPO: it learns, each task for itself, repeatably, from what it is shown and nothing else."""

from dataclasses import replace

import pytest
import torch
from ring import SEEN, Ring, RingConfig

from mithridate.agents.ppo import PPO, Learner, PPOConfig, estimated
from mithridate.agents.ppo_network import Network
from mithridate.agents.single_task import Solo
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.observations import Views
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout

FEW = {"episodes": 3, "epochs": 2, "minibatches": 2, "width": 16}


@pytest.fixture
def env():
    return Ring()


class ImageRing(Ring):
    """Of which only the image is seen."""

    def __init__(self):
        super().__init__()
        self.spec = replace(self.spec, observation={"image": SEEN["image"]})

    def observe(self, state):
        return {"image": self._frames[state["cell"]]}


class ViewRing(ImageRing):
    """The same as views: numbers of cells."""

    def __init__(self):
        super().__init__()
        self.looked = 0
        self.spec = replace(self.spec, observation=Views(self.spec.observation, self.look))

    def observe(self, state):
        return state["cell"]

    def look(self, numbers):
        self.looked += len(numbers)
        return {"image": self._frames[numbers]}


def weights_of(agent):
    """(B, …) of all weights."""
    every = [[w.detach().flatten() for w in one.weights.values()] for one in agent.learners]
    return torch.stack([torch.cat(one) for one in every])


def trained(env, tasks, attacker=None, eps=0.0, **settings):
    agent = AGENTS.create("ppo", **{**FEW, **settings})
    lived = rollout(env, tasks, agent, attacker, eps, rng=Rng(1), record_learning=True)
    return agent, lived


# It learns ---------------------------------------------------------------------------------------


def test_it_solves_the_ring():
    env = Ring(RingConfig(horizon=24))
    tasks = env.sample_tasks(4, Rng(3))
    settings = {"episodes": 15, "epochs": 4, "learning_rate": 3e-3, "discount": 0.8, "clip": 0.2}
    agents = [trained(env, tasks, **settings, width=32, greedy=g) for g in (False, True)]
    drawn, greedy = (lived.true_rewards.view(4, 16, 24).sum(2).mean(0) for _, lived in agents)
    oracle = rollout(env, tasks, AGENTS.create("oracle"), rng=Rng(1)).true_rewards.sum(1).mean()
    assert drawn[0] < 0.4 * oracle, "there is something to learn"
    assert drawn[-1] > 0.9 * oracle and greedy[-1] > 0.9 * oracle
    assert torch.equal(drawn[:-1], greedy[:-1]), "while it learns, it draws its actions"
    agent, lived = agents[1]
    for i, learner in enumerate(agent.learners):
        best = learner(seen_of(lived, i))[0].argmax(1)
        assert torch.equal(lived.actions[i, -24:], best)


def seen_of(lived, task):
    """What a task showed in the last episode."""
    return {name: x[task, -1, :-1] for name, x in lived.observations.items()}


def test_it_does_not_learn_in_the_evaluated_episode(env):
    tasks = env.sample_tasks(3, Rng(0))
    before = []

    class Watched(PPO):
        def act(self, obs):
            if self._lived == 3 * env.spec.horizon:
                before.append(weights_of(self))
            return super().act(obs)

    agent = Watched(PPOConfig(**FEW))
    rollout(env, tasks, agent, rng=Rng(1))
    assert len(before) == env.spec.horizon and agent._updates == 3
    assert all(torch.equal(weights_of(agent), one) for one in before)


def test_an_update_may_be_of_several_episodes(env):
    tasks = env.sample_tasks(3, Rng(0))
    agent, _ = trained(env, tasks, episodes=5, update_every=2)
    assert agent._updates == 3, "the last one is of the episode that is left"
    assert trained(env, tasks, episodes=0)[0]._updates == 0


def test_the_learning_rate_falls_to_zero(env):
    rates = []

    class Watched(PPO):
        def _update(self):
            super()._update()
            rates.append(self.learners[0]._adam.param_groups[0]["lr"])

    for anneal in (True, False):
        config = PPOConfig(**FEW, anneal=anneal, learning_rate=0.3)
        rollout(env, env.sample_tasks(1, Rng(0)), Watched(config), rng=Rng(1))
    assert rates == pytest.approx([0.3, 0.2, 0.1, 0.3, 0.3, 0.3])


# The parts ---------------------------------------------------------------------------------------


def test_advantages_are_those_of_the_definition():
    draw = Rng(0).torch_generator()
    rewards, values = (torch.randn(2, 7, generator=draw) for _ in range(2))
    after = torch.cat([values[:, 1:], torch.zeros(2, 1)], 1)
    surprise = rewards + 0.9 * after - values
    wanted = torch.stack(
        [sum((0.9 * 0.8) ** k * surprise[:, t + k] for k in range(7 - t)) for t in range(7)], 1
    )
    torch.testing.assert_close(estimated(rewards, values, 0.9, 0.8), wanted)


def test_the_loss_is_that_of_the_definition():
    """By CleanRL's formulae, before and after the weights have moved."""
    network = Network(SEEN, 3, 16)
    normal = Rng(0).streams([0]).normal(network.size)[0]
    for clip_values in (True, False):
        c = PPOConfig(clip=0.05, clip_values=clip_values)
        learner = Learner(network, normal, c)
        draw = Rng(1).torch_generator()
        seen = {
            "image": torch.randint(0, 256, (9, 8, 8, 3), generator=draw, dtype=torch.uint8),
            "place": torch.randn(9, 2, generator=draw),
        }
        actions = torch.randint(0, 3, (9,), generator=draw)
        rewards = torch.randn(1, 9, generator=draw)
        lived = learner.judged(seen, torch.arange(9), actions, rewards)
        rows = torch.tensor([4, 1, 7, 2])
        learner.learn(lived, [torch.arange(9)], 1e-2)
        logits, values = learner({name: x[rows] for name, x in seen.items()})
        now = torch.distributions.Categorical(logits=logits)
        ratio = (now.log_prob(actions[rows]) - lived.log_probs[rows]).exp()
        assert (ratio - 1).abs().max() > 0.05, "something is clipped"
        good = lived.advantages[rows]
        good = (good - good.mean()) / (good.std() + 1e-8)
        policy = torch.max(-good * ratio, -good * ratio.clamp(0.95, 1.05)).mean()
        returns = lived.advantages[rows] + lived.values[rows]
        off = (values - returns) ** 2
        if clip_values:
            moved = (values - lived.values[rows]).clamp(-0.05, 0.05)
            off = torch.max(off, (lived.values[rows] + moved - returns) ** 2)
        wanted = policy - 0.01 * now.entropy().mean() + 0.5 * 0.5 * off.mean()
        torch.testing.assert_close(learner.loss(lived, rows), wanted)


def test_weights_begin_orthogonal():
    network = Network(SEEN, 3, 16)
    weights = network.initial(Rng(0).streams([0]).normal(network.size)[0])
    for name, layer in network.layers.items():
        flat = weights[name].flatten(1)
        small = flat @ flat.T if len(flat) <= flat.shape[1] else flat.T @ flat
        torch.testing.assert_close(small, layer.gain**2 * torch.eye(len(small)))
        assert not weights[f"{name} bias"].any()


# Tasks do not mix --------------------------------------------------------------------------------


def test_a_task_learns_the_same_in_any_company(env):
    tasks, attacker = env.sample_tasks(4, Rng(0)), ATTACKERS.create("uniform")
    whole, lived = trained(env, tasks, attacker, 0.5)
    order = torch.tensor([2, 0, 3, 1])
    permuted, also = trained(env, tasks.select(order), attacker, 0.5)
    assert torch.equal(weights_of(permuted), weights_of(whole)[order])
    assert torch.equal(also.actions, lived.actions[order])
    for i in (0, 3):
        alone, one = trained(env, tasks.select(slice(i, i + 1)), attacker, 0.5)
        assert torch.equal(weights_of(alone)[0], weights_of(whole)[i])
        assert torch.equal(one.actions[0], lived.actions[i])
    begun = weights_of(trained(env, tasks, episodes=0)[0])
    assert (begun[0] - begun[1]).abs().max() > 0.01, "each begins with weights of its own"
    assert ((weights_of(whole) - begun).abs().amax(1) > 1e-4).all(), "and all learn"


def test_a_neighbours_rewards_change_nothing(env):
    """The same steps with other rewards for one task."""
    tasks = env.sample_tasks(2, Rng(0))

    class Bribes:
        def reset(self, spec, tasks, rng):
            pass

        def poison(self, step):
            return step.true_rewards + torch.tensor([0.0, 1.0]) * (step.actions == 0)

        def cost(self):
            return torch.zeros(2)

    plain, bribed = (weights_of(trained(env, tasks, a, 1.0)[0]) for a in (None, Bribes()))
    assert torch.equal(plain[0], bribed[0]) and not torch.equal(plain[1], bribed[1])


def test_it_is_repeatable(env):
    tasks = env.sample_tasks(3, Rng(0))
    first, second = (trained(env, tasks) for _ in range(2))
    assert torch.equal(weights_of(first[0]), weights_of(second[0]))
    assert torch.equal(first[1].actions, second[1].actions)


def test_views_are_as_good_as_what_they_show():
    """And each is looked at once to act, and once to learn, in an episode."""
    views, images = ViewRing(), ImageRing()
    tasks = images.sample_tasks(3, Rng(0))
    (agent, lived), (other, also) = trained(images, tasks), trained(views, tasks)
    torch.testing.assert_close(weights_of(agent), weights_of(other), rtol=1e-3, atol=1e-4)
    assert torch.equal(lived.actions, also.actions)
    distinct = [[len(e.unique()) for e in task] for task in also.observations[..., :-1]]
    assert views.looked == sum(2 * sum(d[:-1]) + d[-1] for d in distinct)
    assert views.looked < also.actions.numel()


# What it sees ------------------------------------------------------------------------------------


def test_it_learns_from_poisoned_rewards_only(env):
    """True rewards that it is not shown make no difference."""
    tasks = env.sample_tasks(3, Rng(0))

    class Says:
        """Half a unit for staying, whatever is true."""

        def reset(self, spec, tasks, rng):
            pass

        def poison(self, step):
            return 0.5 * (step.actions == 1).float()

        def cost(self):
            return torch.zeros(3)

    moved = replace(tasks, goals=(tasks.goals + 1) % 4)
    (one, lived), (other, also) = (trained(env, some, Says(), 1.0) for some in (tasks, moved))
    assert not torch.equal(lived.true_rewards, also.true_rewards)
    assert torch.equal(weights_of(one), weights_of(other))
    assert torch.equal(lived.actions, also.actions)
    honest, _ = trained(env, tasks)
    assert not torch.equal(weights_of(honest), weights_of(one))


@pytest.mark.parametrize("name", ["image", "place"])
def test_a_single_array_will_do(env, name):
    env.spec = replace(env.spec, observation=SEEN[name])
    whole, env.observe = env.observe, lambda state: whole(state)[name]
    agent, _ = trained(env, env.sample_tasks(2, Rng(0)))
    assert agent._updates == 3


def test_it_refuses_what_it_cannot_take(command):
    for env in (make_env("bandit"), make_env("darkroom2"), make_env("linear_bandit")):
        with pytest.raises(UserError, match="ppo needs an environment whose observations are"):
            rollout(env, env.sample_tasks(2, Rng(0)), AGENTS.create("ppo"), rng=Rng(0))
    code, _, err = command("evaluate", "darkroom2", "--agents", "ppo", "--preset", "smoke")
    assert (code, err.count("\n")) == (2, 1) and "ppo needs" in err
    code, _, err = command("evaluate", "miniworld", "--agents", "ppo(epoch=3)", "--preset", "smoke")
    assert (code, err.count("\n")) == (2, 1) and "epochs" in err


def test_networks_that_do_not_fit_into_memory_are_refused(env):
    with pytest.raises(UserError, match="ppo with networks for 2 tasks would need about"):
        trained(env, env.sample_tasks(2, Rng(0)), width=2_000_000_000)


def test_it_says_so_if_it_diverges(env):
    with pytest.raises(UserError, match="not finite; choose a smaller learning_rate"):
        trained(env, env.sample_tasks(2, Rng(0)), learning_rate=1e6, episodes=8)


def test_it_acts_in_a_loop_of_ones_own(env):
    solo = Solo(AGENTS.create("ppo", **FEW), env.spec)
    tasks = env.sample_tasks(1, Rng(0))
    for _ in range(2):
        state = env.reset(tasks)
        for _ in range(env.spec.horizon):
            seen = {name: x[0].numpy() for name, x in env.observe(state).items()}
            action = solo.act(seen)
            state, paid = env.step(tasks, state, torch.tensor([action]), None)
            after = {name: x[0].numpy() for name, x in env.observe(state).items()}
            solo.observe(action, float(paid), seen, after)
    assert solo._agent._updates == 2


@pytest.mark.gl
def test_miniworld():
    """Through the evaluation, with frames."""
    found = evaluate(
        "miniworld", ["ppo(episodes=2,width=16)", "uniform"], attackers=("none", "hide_goal"),
        preset="smoke", tasks=3,
    )  # fmt: skip
    assert found.columns() == ["none", "hide_goal"]
