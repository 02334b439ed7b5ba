"""Driver `api`: the library as other people's programs call it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fuzzing.plans import Plan
from fuzzing.strangers import ERRORS

Strategy = st.SearchStrategy[Plan]
SUMMARY = "class Mine:\n    def reset(self): {reset}\n    def act(self, obs): {act}\n" \
          "    def observe(self, obs, action, reward, next_obs): {observe}\n"  # fmt: skip

# fmt: off
NO_REWARD = ("nan", "inf", "-inf", "1e39", "-1e39", "None", "'text'", "'0.5'", "[0.5]", "[0.5, 1]",
             "10**400", "1j", "object()", "{}", "torch.tensor([0.5, 1.0])", "np.array([1.0, 2.0])",
             "torch.tensor(nan)", "np.float64('nan')", "b'1'", "()", "np.array([])")
NO_ACTION = ("-1", "99", "10**30", "-10**30", "1.5", "True", "False", "None", "'0'", "nan",
             "inf", "[0]", "[0, 1]", "{}", "object()", "torch.tensor([0, 1])", "torch.tensor(1.5)",
             "np.array([0])", "1j", "b'0'", "()", "np.float64(1.5)", "2**63")
NO_STATE = ("-1", "99", "1.5", "nan", "None", "'x'", "[0, 1]", "torch.tensor([0, 1])", "10**30",
            "object()", "{}", "torch.tensor(1.5)", "np.array([0.5])", "True", "{'a': 1}")
NO_OBSERVATION = ("0", "[1, 2]", "'x'", "nan", "torch.zeros(3)", "{'a': 1}", "object()", "1j")
ANSWERS = ("inf", "nan", "'text'", "'1'", "1.7", "None", "np.array([0, 1])", "[0, 1]", "-1", "99",
           "10**30", "1j", "object()", "{}", "torch.tensor([0, 1])", "torch.tensor(1.7)",
           "np.float32(1.5)", "b'1'", "()", "lambda: 0", "np.datetime64('2020')")
BATCH_ANSWERS = ("None", "'text'", "0", "[0, 1, 2]", "torch.zeros(3)", "torch.zeros(3, 1).long()",
                 "torch.zeros(2).long()", "torch.zeros(3).int()", "torch.zeros(3).bool()",
                 "torch.full((3,), 99)", "torch.full((3,), -1)", "torch.tensor(0)",
                 "torch.full((3,), nan)", "np.zeros(3, dtype=int)", "torch.zeros(0).long()",
                 "torch.zeros(3, dtype=torch.complex64)", "torch.zeros(3, device='meta').long()",
                 "torch.zeros(3).long().to_sparse()", "(1, 2, 3)")
REWARDS = ("torch.full((3,), nan)", "torch.full((3,), inf)", "None", "'x'", "0.5", "[1, 2, 3]",
           "torch.zeros(2)", "torch.zeros(3, 3)", "torch.zeros(())", "torch.zeros(1)",
           "np.zeros(3)", "torch.zeros(3, dtype=torch.complex64)", "torch.zeros(3).bool()",
           "torch.zeros(0)", "object()", "torch.full((3,), 1e300, dtype=torch.float64)")
COSTS = ("None", "'x'", "torch.full((3,), nan)", "torch.zeros(2)", "[0.5] * 3", "torch.zeros(0)",
         "torch.zeros(3, dtype=torch.complex64)", "0.5", "torch.full((3,), inf)")
NO_COUNT = ("0", "-1", "True", "1.5", "'2'", "None", "nan", "10**12", "10**30", "[2]", "2**63",
            "np.int64(0)", "inf", "{}", "2**62")
SMALL_NO_COUNT = tuple(text for text in NO_COUNT if text not in ("10**12", "2**62"))
NO_SHARE = ("-0.1", "1.1", "nan", "inf", "'0.4'", "None", "[0.4]", "True", "1j", "1e308")
NO_ATTACKERS = ("5", "()", "[]", "''", "None", "['nonsense']", "'learned(nobody)'", "{}",
                "['swap', 5]", "object()", "'gaussian'", "[None]", "'a/b.safetensors'", "b'swap'",
                "'swap('", "['swap', '']", "'x\\ny'", "'\\x00'", "'x' * 5000", "[['swap']]")
NO_AGENTS = ("[]", "{}", "None", "5", "[None]", "[5]", "[object()]", "{'a': []}", "{'a': None}",
             "['']", "['nobody']", "[[]]", "{'a': ['ts', None]}", "'nobody'", "[lambda: 0]",
             "[int]", "[print]", "['ts(']", "['x\\ny']", "['\\x00']", "['x' * 5000]", "[b'ts']",
             "{'a': {}}", "{'': 'nobody'}", "['X=*nothing']", "[strangers]", "[1.5]", "[type]")
NO_ENV = ("None", "5", "''", "'bandti'", "object()", "'x\\ny'", "b'bandit'", "[]", "'\\x00'",
          "'x' * 5000", "int", "{}", "1.5")
NO_SOURCE = ("None", "5", "''", "'nobody'", "'\\x00'", "'x' * 5000", "'x\\ny'", "b'dpt-bandit-s0'",
             "'/dev/null'", "'/'", "object()", "[]", "'.safetensors'", "'a/b.safetensors'", "1.5",
             "'\\udc80'", "'x' * 300 + '.safetensors'", "'\\x00.safetensors'")
NO_LOADING = ({"temperature": "nan"}, {"temperature": "inf"}, {"temperature": "0"},
              {"temperature": "-1"}, {"temperature": "'x'"}, {"temperature": "True"},
              {"temperature": "[1]"}, {"greedy": "'x'"}, {"greedy": "None"}, {"greedy": "2"},
              {"temperature": "1e-320"}, {"temperature": "10**400"})
# fmt: on


def _plan(what: str, group: str = "", wrong: bool = True, **call: Any) -> Plan:
    model = [{"op": "copy", "from": "model", "to": "m"}]
    return Plan("api", what, group, wrong=wrong, files=model, call=call)


def _solo() -> Strategy:
    """Rewards, actions and observations that are none, in the midst of an episode."""
    bandit = st.sampled_from(("ts", "ucb1", "uniform", "crucb", "rts", "@CASE@/m"))
    room = st.sampled_from(("q_learning", "npg", "uniform", "dpt-darkroom2-s0"))
    after = st.integers(0, 3)

    def observe(agent: str, env: str, after: int, key: str, text: str) -> Plan:
        return _plan(f"Solo({agent}).observe({key}={text})", f"Solo({agent}).observe({key})",
                     do="solo", env=env, agent=agent, after=after, method="observe",
                     given={key: text})  # fmt: skip

    def act(agent: str, env: str, after: int, text: str) -> Plan:
        return _plan(f"Solo({agent}).act({text})", f"Solo({agent}).act(obs)", do="solo",
                     env=env, agent=agent, after=after, method="act",
                     given={"obs": text})  # fmt: skip

    rewards = st.floats(min_value=3.5e38).map(repr) | st.sampled_from(NO_REWARD)
    actions = st.integers(min_value=25).map(repr) | st.integers(max_value=-1).map(repr)
    actions |= st.sampled_from(NO_ACTION)
    return st.one_of(
        st.builds(observe, bandit, st.just("bandit"), after, st.just("reward"), rewards),
        st.builds(observe, bandit, st.just("bandit"), after, st.just("action"), actions),
        st.builds(observe, room, st.just("darkroom2"), after, st.sampled_from(("obs", "next_obs")),
                  st.sampled_from(NO_STATE)),
        st.builds(observe, room, st.just("darkroom2"), after, st.just("reward"), rewards),
        st.builds(act, room, st.just("darkroom2"), after, st.sampled_from(NO_STATE)),
        st.builds(act, bandit, st.just("bandit"), after, st.sampled_from(NO_OBSERVATION)),
    )  # fmt: skip


def _settings() -> Strategy:
    """Settings of an evaluation and of environments."""

    def evaluate(key: str, text: str) -> Plan:
        return _plan(f"evaluate({key}={text[:40]})", do="evaluate", settings={key: text})

    def people(text: str) -> Plan:
        return _plan(f"evaluate(agents={text[:40]})", do="evaluate", agents=text, settings={})

    def place(text: str) -> Plan:
        return _plan(f"evaluate(env={text[:40]})", do="evaluate", env=text, settings={})

    def env(name: str, key: str, text: str) -> Plan:
        return _plan(f"make_env({key}={text[:40]})", do="make_env", name=repr(name),
                     settings={key: text})  # fmt: skip

    def env_name(text: str) -> Plan:
        return _plan(f"make_env({text[:40]})", do="make_env", name=text, settings={})

    counts, small = st.sampled_from(NO_COUNT), st.sampled_from(SMALL_NO_COUNT)
    return st.one_of(
        st.builds(evaluate, st.sampled_from(("tasks", "replications")), counts),
        st.builds(evaluate, st.sampled_from(("threads", "rounds", "block")), small),
        st.builds(evaluate, st.just("seed"), st.sampled_from(SMALL_NO_COUNT[1:])),
        st.builds(evaluate, st.just("eps"), st.sampled_from(NO_SHARE)),
        st.builds(evaluate, st.just("budget"), st.sampled_from(NO_SHARE[:1] + NO_SHARE[2:9])),
        st.builds(evaluate, st.just("attackers"), st.sampled_from(NO_ATTACKERS)),
        st.builds(evaluate, st.sampled_from(("x", "__class__", "taskz")), st.just("1")),
        st.builds(people, st.sampled_from(NO_AGENTS)), st.builds(place, st.sampled_from(NO_ENV)),
        st.builds(env, st.just("bandit"), st.sampled_from(("arms", "horizon")), small),
        st.builds(env, st.just("linear_bandit"), st.sampled_from(("arms", "dimension")), small),
        st.builds(env, st.just("darkroom2"), st.sampled_from(("size", "held_out")),
                  st.sampled_from(("-1", "1.5", "'x'", "nan", "None", "10**30", "True"))),
        st.builds(env, st.just("bandit"), st.just("noise_std"),
                  st.sampled_from(("-1", "nan", "inf", "'x'", "None", "10**400", "1j"))),
        st.builds(env_name, st.sampled_from(NO_ENV)),
    )  # fmt: skip


def _sources() -> Strategy:
    def load(text: str, settings: dict[str, str]) -> Plan:
        return _plan(f"load({text[:30]}, {settings})", do="load", source=text, settings=settings)

    def make(text: str) -> Plan:
        return _plan(f"make_agent({text[:40]})", do="make_agent", agent=text)

    things = (*NO_SOURCE[:5], "object()", "int", "lambda: 0", "strangers", "type", "[]", "'ts('",
              "'ts(x=1)'", "'json:dumps'", "'..:X'", "'ts(prior_std=NaN)'")  # fmt: skip
    return st.one_of(
        st.builds(load, st.sampled_from(NO_SOURCE), st.just({})),
        st.builds(load, st.just("'m'"), st.sampled_from(NO_LOADING)),
        st.builds(make, st.sampled_from(things)),
    )


def _strangers() -> Strategy:
    def answering(kind: str, text: str) -> Plan:
        return _plan(f"a {kind} agent says {text}", do="stranger", role="agent", name=kind,
                     answer=text)  # fmt: skip

    def raising(error: str, where: str) -> Plan:
        return _plan(f"an agent raises {error} in {where}", do="stranger", role="agent",
                     name=f"raises {error} in {where}")  # fmt: skip

    def honest(name: str, twin: str, env: str, attackers: str) -> Plan:
        attack = "swap_goals" if attackers == "swap" and env == "darkroom2" else attackers
        return _plan(f"{name} in {env}", wrong=False, do="stranger", role="agent", name=name,
                     twin=twin, env=env, attackers=attack)  # fmt: skip

    def attacker(name: str, text: str) -> Plan:
        return _plan(f"an attacker {name} {text}", do="stranger", role="attacker", name=name,
                     answer=text)  # fmt: skip

    def attacker_raises(error: str) -> Plan:
        return _plan(f"an attacker raises {error}", do="stranger", role="attacker",
                     name=f"raises {error}")  # fmt: skip

    def spoils(name: str, env: str) -> Plan:
        return _plan(f"an attacker: {name} in {env}", wrong=False, do="stranger", role="attacker",
                     name=name, twin="honest", env=env)  # fmt: skip

    def module(method: str, text: str) -> Plan:
        body = {"reset": "pass", "act": "return 0", "observe": "pass"} | {method: text}
        plan = _plan(f"a module: {method} {text}", wrong=False, do="module")
        plan.files.append({"op": "write", "path": "mine.py", "text": SUMMARY.format(**body)})
        return plan

    envs, attacks = st.sampled_from(("bandit", "darkroom2")), st.sampled_from(("none", "swap"))
    errors = st.sampled_from(sorted(ERRORS))
    batched = st.sampled_from(("batched spoiler", "batched keeper", "same tensor"))
    plain = st.sampled_from(("plain spoiler", "talks"))
    bodies = ("print('hello')", "__import__('sys').exit(0)", "__import__('sys').exit('bye')",
              "1 / 0", "raise StopIteration")  # fmt: skip
    return st.one_of(
        st.builds(answering, st.just("plain"), st.sampled_from(ANSWERS)),
        st.builds(answering, st.just("batched"), st.sampled_from(BATCH_ANSWERS)),
        st.builds(raising, errors, st.sampled_from(("reset", "act", "observe"))),
        st.builds(honest, batched, st.just("batched"), envs, attacks),
        st.builds(honest, plain, st.just("plain"), envs, attacks),
        st.builds(attacker, st.just("answers"), st.sampled_from(REWARDS)),
        st.builds(attacker, st.just("costs"), st.sampled_from(COSTS)),
        st.builds(attacker_raises, errors),
        st.builds(spoils, st.sampled_from(("spoiler", "keeper")), envs),
        st.builds(module, st.sampled_from(("reset", "act", "observe")),
                  st.sampled_from(bodies)),
    )  # fmt: skip


def plans() -> Strategy:
    return st.one_of(_solo(), _settings(), _sources(), _strangers())
