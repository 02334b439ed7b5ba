"""The matrix: crossed replications, paired luck, true rewards, and how it is shown."""

import json
import re
import sys

import pytest
import torch

from mithridate.envs import env_of, make_env
from mithridate.errors import UserError
from mithridate.evaluation.columns import make_columns
from mithridate.evaluation.crossplay import Evaluation, Record, evaluate, evaluate_config
from mithridate.evaluation.kinds import untrained
from mithridate.evaluation.victims import make_victims, split_names
from mithridate.report.paper import paper_clean, paper_value
from mithridate.report.terminal import matrix_table, worst_attack
from mithridate.rng import Rng
from mithridate.scores import step_scores
from mithridate.settings import resolve
from mithridate.stage_config import EvaluateConfig

SMOKE = ("--preset", "smoke")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def config(*sets, **direct) -> EvaluateConfig:
    return resolve(EvaluateConfig, "evaluate", "bandit", "smoke", sets, threads=1, **direct)


def test_a_victim_never_meets_the_attackers_of_its_own_replication():
    settings = config(attackers=("learned(ts)",), replications=3)
    (column,) = make_columns(settings, make_victims(["ts"]))
    seeds = [attack.config.seed for attack in column.learned]
    assert seeds == [0, 1, 2]
    for replication in range(3):
        attacker, tasks = column.meet(replication)
        other = column.learned[(replication + 1) % 3]
        assert attacker is other.attacker and tasks is other.tasks
        assert other.config.seed != replication
    assert column.target == "ts"


def test_attackers_are_trained_once_and_found_again(tmp_path):
    settings = config(attackers=("learned(ts)",), replications=2)
    first = evaluate_config(settings, ["ts", "crucb"])
    runs = sorted((tmp_path / "runs").iterdir())
    stamps = [(run / "attackers.safetensors").stat().st_mtime_ns for run in runs]
    again = evaluate_config(settings, ["ts", "crucb"])
    assert [r.mean for r in again.records] == [r.mean for r in first.records]
    assert [(run / "attackers.safetensors").stat().st_mtime_ns for run in runs] == stamps
    files = evaluate_config(config(attackers=("runs/attack-*",), replications=2), ["ts"])
    assert {r.mean for r in files.records} == {r.mean for r in first.records if r.agent == "ts"}


def test_of_attackers_with_more_tasks_the_first_are_met():
    settings = config(attackers=("learned(ts)",), replications=2)
    columns = make_columns(settings, make_victims(["ts"]))
    few = config("tasks=7", attackers=("learned(ts)",), replications=2)
    found = evaluate_config(few, ["ts"], columns=columns).records
    assert [r.tasks for r in found] == [7, 7]
    for record, (attacker, tasks) in zip(found, map(columns[0].meet, range(2)), strict=True):
        rng = Rng(few.seed).child("evaluate", record.replication)
        agent = make_victims(["ts"])[0].replication(0)
        first = tasks.select(slice(0, 7))
        scores = step_scores(env_of(few.env), first, agent, attacker, few.eps, rng=rng)
        assert record.mean == pytest.approx(scores.sum(1).mean().item())


def test_rows_share_tasks_and_luck():
    """Whoever else is in the matrix, and in whatever order, a cell is the same."""
    attackers = ("none", "uniform", "raise_worst")
    whole = evaluate_config(config(attackers=attackers, replications=2), ["ts", "ucb1", "crucb"])
    part = evaluate_config(config(attackers=attackers[2:], replications=2), ["crucb"])
    assert part.cell("crucb", "raise_worst") == whole.cell("crucb", "raise_worst")
    assert whole.columns() == list(attackers)


def test_the_interval_is_over_replications():
    result = evaluate_config(config(attackers=("none",), replications=3), ["ts"])
    means = torch.tensor([r.mean for r in result.records])
    mean, ci95 = result.cell("ts", "none")
    assert mean == pytest.approx(means.mean().item())
    assert ci95 == pytest.approx(2 * means.std().item() / 3**0.5, rel=1e-5)


def test_scores_use_true_rewards_only():
    """An attack that the victim ignores changes nothing, however large."""
    env = make_env("bandit", arms=3, horizon=20)
    settings = {"tasks": 20, "threads": 1}
    clean = evaluate(env, ["uniform"], **settings)
    attacked = evaluate(env, ["uniform"], attackers="swap", budget=1e6, **settings)
    assert attacked.cell("uniform", "swap") == clean.cell("uniform", "none")


def test_the_norm_that_was_used_is_in_the_record():
    result = evaluate_config(config(attackers=("none", "swap"), budget=2.0), ["ts"])
    assert [r.norm for r in result.records] == [0.0, pytest.approx(2.0)]


def test_models_of_several_seeds_are_one_victim(smoke_model, tmp_path):
    for name in ("m0", "m1", "m10"):
        (tmp_path / name).mkdir()
        for suffix in (".safetensors", ".json"):
            source = smoke_model.with_suffix(suffix)
            (tmp_path / name / f"model{suffix}").write_bytes(source.read_bytes())
    (victim,) = make_victims(["DPT=m*"])
    assert victim.label == "DPT"
    assert [victim.source(i) for i in range(3)] == ["m0", "m1", "m10"]
    (victim,) = make_victims({"DPT": ["m1", "m0"]})
    assert victim.source(0) == "m1"


def test_labels():
    labels = [v.label for v in make_victims(["ts", "ts", "X=ucb1(constant=1)", "ucb1(constant=2)"])]
    assert labels == ["ts", "ts #2", "X", "ucb1(constant=2)"]
    assert split_names("a(b,c),learned(x(y=1,z=2)),d") == ["a(b,c)", "learned(x(y=1,z=2))", "d"]


def test_an_object_of_the_users_can_be_the_target(tmp_path):
    class Mine:
        def reset(self):
            self.t = 0

        def act(self, obs):
            self.t += 1
            return self.t % 3

        def observe(self, *args):
            pass

    result = evaluate_config(config(attackers=("learned",)), {"mine": Mine()})
    assert result.columns() == ["learned(mine)"]
    assert not (tmp_path / "runs").exists(), "nothing would say whose attackers these are"


def test_a_column_is_there_once():
    same = evaluate_config(config(attackers=("swap", "swap")), ["ts"])
    assert len(same.records) == 1
    with pytest.raises(UserError, match=r"learned\(ts\) is there twice"):
        evaluate_config(config(attackers=("learned", "learned(ts)")), ["ts"])


def test_nothing_is_trained_if_a_later_word_is_wrong(tmp_path):
    for wrong in ("swap(bugdet=1)", "learned(tss)", "gaussian", "swap(budget=10)", "nowhere/*.x"):
        with pytest.raises(UserError):
            evaluate_config(config(attackers=("learned(ts)", wrong)), ["ts"])
    assert not (tmp_path / "runs").exists()


def test_attackers_against_code_that_has_changed_are_not_used(tmp_path, command):
    mine = "class A:\n    def reset(self): pass\n    def act(self, obs): return {}\n"
    mine += "    def observe(self, *a): pass\n"
    outputs = []
    for arm in (0, 1):
        (tmp_path / "changing.py").write_text(mine.format(arm))
        for name in [n for n in sys.modules if n == "changing"]:
            del sys.modules[name]
        outputs.append(command("attack", "bandit", "--target", "changing:A", *SMOKE)[1])
    assert outputs[0] != outputs[1]
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_attackers_of_another_kind_are_refused():
    evaluate_config(config(attackers=("learned(ts)",), budget=2.0), ["ts"])
    with pytest.raises(UserError, match="budget 2 and eps 0.4; evaluate them with the same"):
        evaluate_config(config(attackers=("runs/*",), budget=1.0), ["ts"])
    with pytest.raises(UserError, match="3 replications need as many files"):
        evaluate_config(config(attackers=("runs/*",), budget=2.0, replications=3), ["ts"])
    evaluate_config(config(attackers=("learned(ucb1)",), budget=2.0), ["ts"])
    with pytest.raises(UserError, match="several targets: ts, ucb1"):
        evaluate_config(config(attackers=("runs/*",), budget=2.0), ["ts"])
    result = evaluate_config(
        config("adaptive_rounds=2", attackers=("adaptive(ts)",), budget=2.0), ["ts"]
    )
    assert result.columns() == ["adaptive(ts)"] and result.records[0].norm <= 2.0
    result = evaluate_config(
        config("adaptive_rounds=2", attackers=("from_nothing(ts)",), budget=2.0), ["ts"]
    )
    assert result.columns() == ["from_nothing(ts)"]
    assert result.records[0].attacker == "adaptive(tilt=0)"
    result = evaluate_config(config(attackers=("kept(ts)",), budget=2.0), ["ts"])
    assert result.columns() == ["kept(ts)"] and result.records[0].norm <= 2.0
    assert result.records[0].attacker == "gaussian(keep=best)"
    with pytest.raises(UserError, match=r"several kinds: adaptive, adaptive\(tilt=0\), gaussian"):
        evaluate_config(config(attackers=("runs/*",), budget=2.0), ["ts"])
    with pytest.raises(UserError, match="another environment"):
        evaluate_config(config("env.arms=4", attackers=("runs/*",), budget=2.0), ["ts"])


# How it is shown -----------------------------------------------------------------------------


def record(agent, attacker, mean, target=None, replication=0) -> Record:
    kind = untrained(attacker) if target is None else "learned"
    return Record(
        kind=kind, agent=agent, environment="bandit", metric="cumulative regret", attacker=attacker,
        target=target, eps=0.4, budget=3.0, norm=2.9, replication=replication, mean=mean, ci95=1.0,
        tasks=200, seed=0, config_hash="", version="", seconds=0.0,
    )  # fmt: skip


@pytest.fixture
def evaluation() -> Evaluation:
    env = make_env("bandit")
    records = [
        record("TS", "none", 9.0), record("TS", "swap", 225.0),
        record("TS", "gaussian", 94.0, "TS"),
        record("crucb", "none", 15.0), record("crucb", "swap", 70.0),
        record("crucb", "gaussian", 82.0, "TS"),
    ]  # fmt: skip
    return Evaluation(env.config, env.spec.metric, records, {})


def test_the_worst_attack_is_named(evaluation):
    assert worst_attack(evaluation, "TS") == "swap\n225.0"
    assert worst_attack(evaluation, "crucb") == "learned(TS)\n82.0"


def test_the_matrix_shows_the_papers_values(evaluation):
    from rich.console import Console

    console = Console(width=200, record=True, force_terminal=True, color_system="truecolor")
    console.print(matrix_table(evaluation))
    text = console.export_text()
    assert "94.0 ± 1.0" in text and "94.1 ±" in text and "81.9 ±" in text and "8.7 ±" in text
    assert re.search(r"worst attack", text)


def test_paper_values_are_found_under_both_names_and_only_where_they_belong():
    env = make_env("bandit").config
    at = {"eps": 0.4, "budget": 3.0}
    assert paper_value(env, "ts", "learned(ts)", **at) == (94.1, 3.8)
    assert paper_value(env, "TS", "learned(TS)", **at) == (94.1, 3.8)
    assert paper_value(env, "crucb(variant=low)", "none", **at)[0] == 15.0
    assert paper_value(env, "AT-DPT", "learned(crucb)", **at)[0] == 23.4
    assert paper_value(env, "AT-DPT", "none", eps=0.1, budget=3.0)[0] == 12.4
    assert paper_value(env, "ts", "raise_worst", **at) is None
    assert paper_value(env, "AT-DPT", "learned(TS)", table="bandit_main", **at)[0] == 29.8
    assert (
        paper_value(env, "AT-DPT", "learned(TS)", table="bandit_main", eps=0.1, budget=3.0) is None
    )
    budgets = {"eps": 0.4, "table": "bandit_budgets"}
    assert paper_value(env, "AT-DPT", "learned(TS)", budget=5.0, **budgets)[0] == 40.5
    adaptive = {**at, "table": "bandit_adaptive_full"}
    assert paper_value(env, "AT-DPT (n-A)", "from_nothing(AT-DPT (A))", **adaptive)[0] == 88.1
    assert paper_value(env, "AT-DPT (n-A)", "from_nothing(AT-DPT (n-A))", **adaptive) is None
    assert paper_value(env, "AT-DPT (A)", "learned(AT-DPT (n-A))", **adaptive)[0] == 38.0
    assert paper_value(env, "TS", "from_nothing(TS)", **adaptive)[0] == 104.2
    assert paper_value(env, "TS", "learned(TS)", **adaptive)[0] == 94.3
    assert paper_value(env, "TS", "from_nothing(TS)", **at) is None
    assert paper_value(env, "TS", "adaptive(TS)", **adaptive) is None, "these begin with a guess"
    main = {**at, "table": "bandit_adaptive_main"}
    assert paper_value(env, "AT-DPT (A)", "from_nothing(AT-DPT (A))", **main)[0] == 37.1
    assert paper_value(env, "UCB1.0", "from_nothing(TS)", **main)[0] == 103.9
    assert paper_value(env, "ts", "none", eps=0.4, budget=2.0) is None
    assert paper_value(make_env("bandit", arms=4).config, "ts", "none", **at) is None
    low = {"eps": 0.1, "budget": 3.0}
    assert paper_value(env, "ts", "learned(crucb)", **low)[0] < 40
    assert paper_value(env, "ts", "learned(crucb)", **low) == paper_value(
        env, "TS", "learned(crUCB)", **low
    )
    linear = make_env("linear_bandit").config
    assert paper_value(linear, "linucb", "learned(linucb)", **low)[0] == 7.56
    assert paper_value(linear, "LinUCB", "learned(CRLinUCBv2)", **low)[0] == 8.04
    assert paper_value(linear, "linucb", "learned(crlinucb)", **low)[0] == 8.04
    assert paper_value(linear, "crlinucb", "none", **at)[0] == 2.94
    assert paper_value(linear, "CRLinUCBv3", "none", **at)[0] == 34.08
    assert paper_value(linear, "CRLinUCBv3", "none", **low) is None, "the paper's is that of 0.4"
    room = make_env("darkroom2").config
    assert paper_value(room, "npg", "learned(npg)", eps=0.4, budget=10.0)[0] == 228.9
    assert paper_clean(room, "npg")[0] == 241.7 and paper_clean(env, "ts")[0] == 8.7
    views = make_env("miniworld").config
    assert paper_value(views, "ppo", "learned(DPT)", eps=0.4, budget=5.0)[0] == 83.8
    assert paper_value(views, "AT-DPT", "learned(AT-DPT)", eps=0.1, budget=5.0)[0] == 111.1
    assert paper_clean(views, "DPT")[0] == 110.0


def test_the_command_prints_the_matrix_and_draws_it(command, tmp_path):
    code, stdout, stderr = command(
        "evaluate", "bandit", "--agents", "ts,posterior_oracle", "--attackers",
        "none,raise_worst,learned(ts)", "--replications", "2", "--figure", "f.png", *SMOKE,
    )  # fmt: skip
    assert (code, stderr) == (0, "")
    words = " ".join(stdout.split())
    assert "worst attack" in words and "2 × 20 tasks" in words
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    code, stdout, _ = command(
        "evaluate", "bandit", "--agents", "ts", "--attackers", "none,learned(ts)", "--json", *SMOKE
    )
    records = json.loads(stdout)["records"]
    assert [r["target"] for r in records] == [None, "ts"]
