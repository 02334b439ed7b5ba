"""The command line as a user meets it, bad input above all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SMOKE = ("--preset", "smoke")


def files_below(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrian", "bandit"], "Did you mean 'pretrain'"),
        (["pretrain", "bandti"], "unknown environment 'bandti'; did you mean 'bandit'?"),
        (["pretrain"], "missing argument"),
        (["pretrain", "bandit", "--presett", "smoke"], "--preset"),
        (["pretrain", "bandit", "--preset", "smokey"], "did you mean 'smoke'?"),
        (["pretrain", "bandit", "--set", "optimizer.learning_rate=1"], "did you mean 'optimiser'?"),
        (["pretrain", "bandit", "--set", "env.horizon=-3"], "greater than 0, not -3"),
        (["pretrain", "bandit", "--set", "steps=many"], "valid integer"),
        (["pretrain", "bandit", "--seed", "-1"], "'seed': input should be greater than or equal"),
        (["evaluate", "bandit", "--agents", "tss"], "unknown agent 'tss'; did you mean 'ts'?"),
        (["evaluate", "bandit", "--agents", "ts,,ts"], "separated by commas"),
        (["evaluate", "bandit", "--agents", "ts(prior=1)"], "did you mean 'prior_std'?"),
        (["evaluate", "bandit", "--agents", "uniform(x=1)"], "takes no parameters"),
        (["evaluate", "bandit", "--agents", "no_module:Agent"], "cannot import no_module"),
        (["evaluate", "bandit", "--agents", "json:Agent"], "has no 'Agent'"),
        (["evaluate", "bandit", "--agents", "ts", "--attackers", "unifrm"], "mean 'uniform'"),
        (["evaluate", "bandit", "--agents", "ts", "--attackers", "gaussian"], "learned(TARGET)"),
        (["evaluate", "bandit", "--agents", "ts", "--attackers", "a/b.safetensors"],
         "no such file"),
        (["evaluate", "bandit", "--agents", "ts", "--attackers", "learned(tss)"], "mean 'ts'"),
        (["evaluate", "bandit", "--agents", "ts", "--attackers", "uniform(rang=1)"], "'range'"),
        (["evaluate", "bandit", "--agents", "oracle", "--attackers", "learned(oracle)"],
         "knows the attack"),
        (["evaluate", "bandit", "--agents", "X=nothing-s*"], "nothing matches"),
        (["evaluate", "bandit", "--agents", "dpt-bandit-s0(heat=1)"], "greedy and temperature"),
        (["evaluate", "bandit", "--agents", "dpt-bandit-s0(temperature=0)"], "number from 0.001"),
        (["evaluate", "bandit", "--agents", "dpt-bandit-s0(greedy=False)"], "true or false"),
        (["evaluate", "bandit", "--agents", ":Foo"], "cannot import"),
        (["evaluate", "bandit", "--agents", "ts", "--figure", "x.xyz"], "must end in one of"),
        (["evaluate", "bandit", "--agents", "ts", "--attackers", "swap(budget=10)"], "exceeds"),
        (["attack", "bandit", "--target", "dpt-bandit-s0", "--set", "env.arms=7"], "5 actions"),
        (["evaluate", "bandit", "--agents", "rts(level=low)"], "'tuned', 'unknown' or 'known'"),
        (["evaluate", "bandit", "--agents", "crucb(alpha=0.5)"], "less than 0.5"),
        (["train", "bandit", "--from", "dpt-bandit-s"], "dpt-bandit-s0"),
        (["train", "bandit"], "missing option '--from'"),
        (["train", "bandit", "--from", "dpt-bandit-s0", "--set", "threats=3"], "threats"),
        (["train", "bandit", "--from", "dpt-bandit-s0", "--eps", "2"], "less than or equal to 1"),
        (["attack", "bandit", "--target", "tss"], "did you mean 'ts'?"),
        (["attack", "bandit", "--target", "oracle"], "knows the attack"),
        (["attack", "bandit", "--target", "ts", "--set", "attacker=uniform"], "does not learn"),
        (["attack", "bandit", "--target", "ts", "--budget", "-1"], "greater than or equal to 0"),
        (["evaluate", "bandit", "--agents", "ts", "--eps", "1.5"], "less than or equal to 1"),
        (["evaluate", "bandit", "--agents", "ts", "--tasks", "0"], "greater than 0"),
        (["evaluate", "bandit", "--agents", "missing.safetensors"], "not found"),
        (["pretrain", "bandit", "--out", "/dev/null/run"], "cannot write to directory"),
        (["pretrain", "bandit", "--out", "/proc/run"], "cannot write to directory"),
        (["evaluate", "bandit", "--agents", "ts", "--preset", "smoke", "--figure", "/proc/x/y.png"],
         "cannot write"),
        (["demo", "--out", "/proc/demo"], "cannot write to directory"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = command(*arguments)
    assert (code, stdout) == (2, "")
    assert message in stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith("error: ")
    assert files_below(tmp_path) == []


def test_the_console_script_exits_with_2_and_no_traceback(cli):
    code, stdout, stderr = cli("evaluate", "nothing", "--agents", "ts")
    assert (code, stdout) == (2, "")
    choices = "bandit, darkroom2, linear_bandit, many_bandits, miniworld"
    assert stderr == f"error: unknown environment 'nothing' (choices: {choices})\n"


def test_damaged_weights_on_the_command_line(smoke_model, tmp_path, command):
    copy = tmp_path / "model.safetensors"
    copy.write_bytes(smoke_model.read_bytes()[:-1])
    copy.with_suffix(".json").write_bytes(smoke_model.with_suffix(".json").read_bytes())
    code, _, stderr = command("evaluate", "bandit", "--agents", copy, *SMOKE)
    assert code == 2
    assert "damaged" in stderr and stderr.count("\n") == 1


def test_json_is_one_document(command):
    code, stdout, stderr = command(
        "evaluate", "bandit", "--agents", "ts,oracle", "--replications", "2", "--json", *SMOKE
    )
    assert (code, stderr) == (0, "")
    records = json.loads(stdout)["records"]
    assert [(r["agent"], r["replication"]) for r in records] == [
        ("ts", 0), ("ts", 1), ("oracle", 0), ("oracle", 1),
    ]  # fmt: skip
    wanted = {"agent", "attacker", "target", "eps", "budget", "replication", "mean", "ci95",
              "tasks", "seed"}  # fmt: skip
    assert all(wanted <= record.keys() for record in records)
    assert records[0]["mean"] != records[1]["mean"]


def test_json_of_a_single_task_has_no_nan(command):
    _, stdout, _ = command("evaluate", "bandit", "--agents", "ts", "--tasks", "1", "--json", *SMOKE)
    assert json.loads(stdout)["records"][0]["ci95"] is None


def test_block_size_does_not_change_the_result(command):
    def means(block):
        _, stdout, _ = command(
            "evaluate", "bandit", "--agents", "ts,ucb1", "--json", "--set", f"block={block}", *SMOKE
        )
        return [record["mean"] for record in json.loads(stdout)["records"]]

    assert means(3) == means(1000)


def test_pretrain_evaluate_and_figure(cli, tmp_path):
    """Two commands from nothing to a picture, quiet because nobody is looking."""
    code, stdout, stderr = cli("pretrain", "bandit", *SMOKE, "--out", tmp_path / "run", "--json")
    assert (code, stderr) == (0, "")
    weights = json.loads(stdout)["weights"]
    figure = tmp_path / "curves.png"
    code, stdout, stderr = cli(
        "evaluate", "bandit", "--agents", f"{weights},ts", "--figure", figure, *SMOKE
    )
    assert (code, stderr) == (0, "")
    assert "cumulative regret" in stdout
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_an_agent_of_the_users_own(command, tmp_path, monkeypatch):
    (tmp_path / "my_agents.py").write_text(
        "class First:\n"
        "    def reset(self): pass\n"
        "    def act(self, obs): return 0\n"
        "    def observe(self, obs, action, reward, next_obs): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = command(
        "evaluate", "bandit", "--agents", "my_agents:First,uniform", "--json", *SMOKE
    )
    assert code == 0
    assert [r["agent"] for r in json.loads(stdout)["records"]] == ["First", "uniform"]


def test_doctor(command):
    code, stdout, _ = command("doctor", "--json")
    found = json.loads(stdout)
    assert code == 0
    assert found["cores"] == os.cpu_count()
    assert {"versions", "accelerator", "native_kernels", "extras", "zoo"} <= found.keys()
    assert command("doctor")[0] == 0


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("torch.utils.tensorboard", ["pretrain", "bandit", "--tensorboard"], "tensorboard"),
        ("transformers", ["bench", "--quick"], "bench"),
    ],
)
def test_a_missing_extra_is_named(command, monkeypatch, tmp_path, module, arguments, extra):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)  # makes its import fail
    code, _, stderr = command(*arguments)
    assert code == 2
    assert f"pip install 'mithridate[{extra}]'" in stderr and stderr.count("\n") == 1
    assert files_below(tmp_path) == []


def test_the_readme_example_runs(tmp_path):
    """The Python block of the README, with fewer tasks and steps."""
    text = (Path(__file__).parent.parent / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    code = code.replace("tasks=200", "tasks=5").replace("eps=0.4", "tasks=5, eps=0.4")
    exec(code.replace("range(500)", "range(5)"), {"pull": lambda arm: 0.5 + 0.1 * arm})


def test_help_names_every_command(command):
    _, stdout, _ = command("--help")
    for name in ("pretrain", "evaluate", "demo", "bench", "doctor"):
        assert name in stdout


def test_the_readmes_results_are_those_of_the_repository():
    script = Path(__file__).parent.parent / "scripts" / "readme_tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"])
    assert done.returncode == 0, "run python scripts/readme_tables.py"


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_a_full_disk_under_standard_output(arguments):
    line = [sys.executable, "-m", "mithridate", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "error: cannot write: No space left on device\n")


def test_a_terminal_that_knows_no_letters_but_ascii(cli):
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code, stdout, stderr = cli("evaluate", "bandit", "--agents", "ts", *SMOKE, env=ascii_only)
    assert (code, stderr) == (0, "") and "2 SEM" in stdout
    code, _, stderr = cli("evaluate", "bandit", "--agents", "téess", env=ascii_only)
    assert code == 2 and stderr.startswith("error: unknown agent")


def test_ctrl_c_says_interrupted(tmp_path):
    line = [sys.executable, "-m", "mithridate", "evaluate", "bandit", "--agents", "slow:Agent"]
    (tmp_path / "slow.py").write_text(
        "import os, signal\n"
        "class Agent:\n"
        "    def reset(self): pass\n"
        "    def act(self, obs): os.kill(os.getpid(), signal.SIGINT); return 0\n"
        "    def observe(self, *a): pass\n"
    )
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
