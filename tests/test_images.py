"""An environment with images goes through everything by the standard code (`ring.py`)."""

from dataclasses import replace

import pytest
import torch
from ring import SEEN, Ring
from safetensors.torch import load_file

from mithridate.agents.in_context import InContextAgent, load
from mithridate.config import ModelConfig
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES, Level, Recipe, Row
from mithridate.experiments.store import Store
from mithridate.model.layouts import make_model
from mithridate.observations import Array, States, describe, fits
from mithridate.registry import AGENTS, ATTACKERS, ENVS
from mithridate.report.html import write_report
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, AttackConfig, DistillConfig, PretrainConfig
from mithridate.training.adversarial import train_adversarially
from mithridate.training.attack import LearnedAttack, attack
from mithridate.training.distill import distill
from mithridate.training.pretrain import pretrain
from mithridate.types import Contexts, Transition


@pytest.fixture(scope="module", autouse=True)
def _registered():
    ENVS.names()
    ENVS._classes["ring"] = Ring
    yield
    del ENVS._classes["ring"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.set_num_threads(1)
    config = resolve(PretrainConfig, "pretrain", "ring", "smoke")
    return pretrain(config, tmp_path_factory.mktemp("ring") / "run")


@pytest.fixture
def env():
    return Ring()


def some_model(spec, seed=0):
    model = make_model(ModelConfig(layers=2, heads=2, width=16), spec)
    model.initialise(Rng(seed).torch_generator())
    return model.eval()


# What is kept ----------------------------------------------------------------------------------


def test_a_trajectory_keeps_each_observation_once(env):
    tasks = env.sample_tasks(5, Rng(0))
    agent = AGENTS.create("uniform")
    agent.learning_episodes = 1
    lived = rollout(env, tasks, agent, rng=Rng(1), record_learning=True)
    assert lived.observations["image"].dtype == torch.uint8
    assert lived.observations["image"].shape == (5, 2, 13, 8, 8, 3)
    assert lived.observations["place"].shape == (5, 2, 13, 2)
    shown = lived.observations["image"][:, :, :-1].flatten(1, 2)
    assert torch.equal(shown, env._frames[lived.keys]), "keys are the cells that the images show"


def test_contexts_keep_each_observation_once(env):
    tasks = env.sample_tasks(5, Rng(0))
    lived = rollout(env, tasks, AGENTS.create("uniform"), rng=Rng(1))
    whole = lived.contexts()
    assert len(whole.bank["image"]) == 5 * 13 and whole.bank["image"].dtype == torch.uint8
    part = whole.select(torch.tensor([3, 1, 1]), 4)
    assert part.states.shape == (3, 4) and part.queries.shape == (3, 5)
    assert len(part.bank["image"]) == 2 * 5, "what is not asked for is not kept, nor kept twice"
    joined = Contexts.cat([part, whole.select(slice(0, 1), 4)])
    for name, seen in joined.bank.items():
        for i, task in enumerate((3, 1, 1, 0)):
            truth = lived.observations[name][task, 0]
            assert torch.equal(seen[joined.states[i]], truth[:4])
            assert torch.equal(seen[joined.next_states[i]], truth[1:5])
            assert torch.equal(seen[joined.queries[i]], truth[:5])


def test_contexts_from_a_file_must_be_in_their_bank(env):
    contexts = env.sample_contexts(env.sample_tasks(3, Rng(0)), 6, Rng(1))
    contexts = replace(contexts, values=None)
    found = Contexts.of(contexts.tensors(), 3, 6)
    assert found.bank.keys() == SEEN.keys() and torch.equal(found.labels, contexts.labels)
    short = contexts.tensors() | {"bank.image": contexts.bank["image"][:-1]}
    less = {name: t for name, t in contexts.tensors().items() if name != "queries"}
    for tensors in (short, less):
        with pytest.raises(ValueError, match="not in their bank"):
            Contexts.of(tensors, 3, 6)


def test_an_observation_that_is_not_what_the_spec_says_is_named(env):
    env.observe = lambda state: {
        "image": env._frames[state["cell"]].float(),
        "place": state["count"],
    }
    with pytest.raises(UserError, match=r"observe\(\) must return .* image \(8, 8, 3\) uint8"):
        rollout(env, env.sample_tasks(2, Rng(0)), AGENTS.create("uniform"), rng=Rng(0))


def test_descriptions():
    assert describe(None) == "no states" and describe(States(25)) == "25 states"
    assert describe(Array((2,))) == "observations (2,) float32"
    assert fits(torch.zeros(3, 2), Array((2,)), 3) and not fits(torch.zeros(3), Array((2,)), 3)
    assert not fits(None, Array((2,)), 3) and not fits(torch.zeros(3), States(4), 3)


# The model -------------------------------------------------------------------------------------


def test_a_cached_rollout_equals_the_full_forward(env):
    tasks = env.sample_tasks(7, Rng(0))
    c = env.sample_contexts(tasks, 12, Rng(1))
    model = some_model(env.spec)

    def at(places):
        return {name: frames[places] for name, frames in c.bank.items()}

    with torch.no_grad():
        whole = model(c)
        cache, logits = model.begin_at(7, at(c.queries[:, 0]))
        steps = [logits]
        for t in range(12):
            transition = Transition(
                at(c.states[:, t]), c.actions[:, t], c.rewards[:, t], at(c.next_states[:, t])
            )
            steps.append(model.follow(cache, transition, at(c.queries[:, t + 1])))
        again = model.ask_again(cache, at(c.queries[:, 0]))
        back = model.ask_again(cache, at(c.queries[:, 12]))
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(back, steps[-1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(again, back, atol=1e-3), "it looks at what it is asked about"


def test_the_agent_is_asked_about_what_it_sees(env):
    """In a rollout it gives what the model gives for the contexts that it lived through."""
    tasks, model = env.sample_tasks(6, Rng(0)), some_model(env.spec)
    agent = InContextAgent(model, greedy=True)
    lived = rollout(env, tasks, agent, ATTACKERS.create("uniform"), 0.5, rng=Rng(1))
    with torch.no_grad():
        logits = model(lived.contexts())[:, :-1]
    top = logits.topk(2).values
    sure = top[..., 0] - top[..., 1] > 1e-3
    assert torch.equal(logits.argmax(2)[sure], lived.actions[sure]) and sure.float().mean() > 0.9


@pytest.mark.parametrize("name", ["image", "place"])
def test_a_single_array_will_do(env, name):
    spec = replace(env.spec, observation=SEEN[name])
    c = env.sample_contexts(env.sample_tasks(3, Rng(0)), 6, Rng(1))
    model = some_model(spec)
    assert model(replace(c, bank=c.bank[name])).shape == (3, 7, 3)


def test_models_of_other_observations_are_refused(env):
    bandit = make_env("bandit", arms=3, horizon=12).spec
    room = replace(make_env("darkroom2", horizon=12).spec, n_actions=3)
    image = replace(env.spec, observation=SEEN["image"])
    for spec, message in (
        (bandit, "trained for no states; the environment has observations image"),
        (room, "trained for 25 states; the environment has observations image"),
        (image, r"trained for observations \(8, 8, 3\) uint8; the environment has"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            InContextAgent(some_model(spec)).check(env.spec)
        assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="trained for observations image .* has no states"):
        InContextAgent(some_model(env.spec)).check(bandit)


@pytest.mark.parametrize("name", ["gaussian", "adaptive", "raise_worst", "hide_best", "few_arms"])
def test_attackers_of_other_environments_are_refused(env, name):
    tasks = env.sample_tasks(2, Rng(0))
    with pytest.raises(UserError, match="needs"):
        ATTACKERS.create(name).reset(env.spec, tasks, Rng(1).streams(tasks.luck))


# Training --------------------------------------------------------------------------------------


def score(env, agent, attacker=None, eps=0.0):
    tasks = env.sample_tasks(200, Rng(7))
    return env.score(tasks, rollout(env, tasks, agent, attacker, eps, rng=Rng(8))).sum(1).mean()


def test_the_model_learns(env, weights):
    oracle, chance = score(env, AGENTS.create("oracle")), score(env, AGENTS.create("uniform"))
    assert score(env, load(str(weights))) > chance + 0.6 * (oracle - chance)


class Stop(Exception):
    pass


class Interrupts:
    """Ends a training after a step."""

    def __init__(self, at):
        self.at = at

    def started(self, step, total):
        pass

    def stepped(self, step, values):
        if step == self.at:
            raise Stop

    def logged(self, step, values):
        pass

    def evaluated(self, step, values):
        pass


def test_pretraining_resumes_bit_for_bit(tmp_path):
    config = resolve(
        PretrainConfig, "pretrain", "ring", "smoke", ["steps=25", "checkpoint_every=5"]
    )
    whole = pretrain(config, tmp_path / "whole")
    with pytest.raises(Stop):
        pretrain(config, tmp_path / "stopped", [Interrupts(14)])
    assert pretrain(config, tmp_path / "stopped").read_bytes() == whole.read_bytes()


def test_adversarial_training_resumes_bit_for_bit(env, weights, tmp_path):
    """With contexts in memory, and with second-best labels."""
    config = resolve(AdversarialConfig, "train", "ring", "smoke", start=str(weights))
    whole = train_adversarially(config, tmp_path / "whole")
    with pytest.raises(Stop):
        train_adversarially(config, tmp_path / "stopped", [Interrupts(3)])
    kept = load_file(tmp_path / "stopped" / "checkpoint.safetensors")
    assert kept["memory0.bank.image"].dtype == torch.uint8
    assert len(kept["memory0.bank.image"]) == 16 * 13
    assert train_adversarially(config, tmp_path / "stopped").read_bytes() == whole.read_bytes()
    assert score(env, load(str(whole)), ATTACKERS.create("uniform"), 0.4) > 0


def test_attackers_learn_and_resume(weights, tmp_path):
    config = resolve(AttackConfig, "attack", "ring", "smoke", target=str(weights))
    whole = attack(config, tmp_path / "whole")
    with pytest.raises(Stop):
        attack(config, tmp_path / "stopped", [Interrupts(2)])
    assert attack(config, tmp_path / "stopped").read_bytes() == whole.read_bytes()
    found = LearnedAttack(whole)
    assert found.attacker.tensors()["logits"].shape == (10, 4, 3, 3)


def test_distillation(weights, tmp_path):
    few = ["steps=12", "tasks=8", "refresh_every=4", "pool=2", "checkpoint_every=2"]
    sets = [*few, "batches.short_length=8", "evaluate_tasks=5", "final_tasks=5", "threads=1"]
    config = resolve(DistillConfig, "distill", "ring", "smoke", sets, source="uniform")
    whole = distill(config, tmp_path / "whole")
    with pytest.raises(Stop):
        distill(config, tmp_path / "stopped", [Interrupts(7)])
    assert distill(config, tmp_path / "stopped").read_bytes() == whole.read_bytes()


def test_evaluation(env, weights, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    found = evaluate(
        env, {"dpt": str(weights), "chance": "uniform"},
        attackers=("none", "uniform", "learned"), tasks=40, rounds=2, budget=2.0, threads=1,
    )  # fmt: skip
    assert found.columns() == ["none", "uniform", "learned(dpt)", "learned(chance)"]
    for column in found.columns():
        assert found.cell("dpt", column)[0] > found.cell("chance", column)[0]
    code, out, err = command("evaluate", "ring", "--agents", weights, "--preset", "smoke")
    assert code == 0 and "episode reward" in out, err
    code, _, err = command("evaluate", "ring", "--agents", "at-dpt-bandit-s0", "--preset", "smoke")
    assert (code, err.count("\n")) == (2, 1) and "this model was trained for" in err
    code, _, err = command("evaluate", "ring", "--agents", "uniform", "--attackers", "swap")
    assert (code, err.count("\n")) == (2, 1) and "needs an environment whose tasks are arms" in err


def test_a_recipe_and_its_report(tmp_path, monkeypatch):
    """Pretraining, adversarial training, attackers, cells, and the page with tables and curves."""
    recipe = Recipe(
        name="ring", title="Images", environment="ring", static=("none", "uniform"),
        rows=(Row("AT-DPT", "at-dpt"), Row("DPT", "dpt"), Row("chance", "uniform")),
        trained={"learned": ("AT-DPT", "DPT")}, levels=(Level(0.4, 2.0),),
    )  # fmt: skip
    monkeypatch.setitem(RECIPES, "ring", recipe)
    planned = plan(recipe, "smoke", sets=["pretrain.steps=60"])
    store = Store.open(tmp_path / "store")
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)
    kinds = {r["kind"] for s in planned.stages() if s.kind == "evaluate"
             for r in store.get(s.name).records()}  # fmt: skip
    assert kinds == {"clean", "random", "learned"}
    page = write_report(store, tmp_path / "page.html")[0].read_text()
    for text in ("Images", "AT-DPT", "chance", "episode reward", "learned(DPT)", "Per round of"):
        assert text in page
