"""The kernels' threads: they survive a fork, end with their process, and do not get in the way of
each other. The fork tests run in processes of their own, which have started no other threads."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from mithridate.config import ModelConfig
from mithridate.model.threads import kernel_threads, left_to_kernels
from mithridate.model.transformer import Transformer
from mithridate.native import kernels
from mithridate.rng import Rng

pytestmark = pytest.mark.skipif(kernels() is None, reason="native kernels are not built")

WORK = """
import multiprocessing, os, sys, torch
from mithridate.config import ModelConfig
from mithridate.model.transformer import Transformer
torch.set_num_threads(3)
model = Transformer(ModelConfig(), positions=64)
x = torch.linspace(-1, 1, 12 * 64 * 32).view(12, 64, 32)

@torch.no_grad()
def work(rounds=1):
    for _ in range(rounds):
        y = model(x)
    return y
"""


def python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", WORK + code], capture_output=True, text=True, timeout=120, **options
    )


def transformer():
    model = Transformer(ModelConfig(), positions=40)
    model.initialise(Rng(0).torch_generator())
    return model


def test_results_are_those_of_one_thread():
    model, x = transformer(), torch.randn(23, 40, 32, generator=Rng(1).torch_generator())

    def run(threads):
        torch.set_num_threads(threads)
        with torch.no_grad():
            return model(x)

    alone = run(1)
    for threads in (2, 3, 8):
        for _ in range(20):
            assert torch.equal(run(threads), alone)


def test_several_python_threads_at_once():
    """Who finds the pool at work does his work alone."""
    model, x = transformer(), torch.randn(23, 40, 32, generator=Rng(1).torch_generator())
    with torch.no_grad():
        expected = model(x)
    wrong = []

    def run():
        torch.set_num_threads(3)
        with torch.no_grad():
            wrong.extend(1 for _ in range(30) if not torch.equal(model(x), expected))

    callers = [threading.Thread(target=run) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_forked_child_has_threads_of_its_own():
    done = python(
        """
before = work()
def child():
    sys.exit(0 if torch.equal(work(5), before) else 1)
for method in ("fork", "fork"):
    started = multiprocessing.get_context(method).Process(target=child)
    started.start()
    after = work(5)  # the parent's go on
    started.join()
    print(started.exitcode, torch.equal(after, before), len(os.listdir("/proc/self/task")) >= 3)
"""
    )
    assert done.stdout.split() == ["0", "True", "True"] * 2, done.stderr


def test_a_spawned_child_has_threads_of_its_own(tmp_path):
    script = tmp_path / "spawning.py"
    script.write_text(
        WORK
        + """
def child():
    sys.exit(0 if work(5).isfinite().all() else 1)
if __name__ == "__main__":
    work()
    started = multiprocessing.get_context("spawn").Process(target=child)
    started.start()
    started.join()
    print(started.exitcode)
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0"], done.stderr


def test_the_interpreter_ends_with_helpers_asleep():
    done = python("""
work(20)
print(len(os.listdir("/proc/self/task")) >= 3)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_killed_at_work_leaves_nothing_behind(how, tmp_path):
    shared = set(os.listdir("/dev/shm"))
    code = WORK + "work(20); print('at work', flush=True); work(1_000_000)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        start_new_session=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout.readline() == "at work\n"
    time.sleep(0.05)
    process.send_signal(how)
    assert process.wait(60) == -how
    process.stdout.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left of its group
    assert not list(tmp_path.iterdir())
    assert set(os.listdir("/dev/shm")) <= shared


def test_ctrl_c_reaches_the_interpreter():
    """Helpers block all signals: the interpreter's own thread gets them."""
    code = WORK + "work(20); print('at work', flush=True); work(1_000_000)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in stderr


def test_torch_has_one_thread_where_kernels_do_the_work():
    torch.set_num_threads(3)
    with left_to_kernels():
        assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
        with left_to_kernels():
            assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
        assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
    assert (torch.get_num_threads(), kernel_threads()) == (3, 3)
    with left_to_kernels(False):
        assert (torch.get_num_threads(), kernel_threads()) == (3, 3)
    with pytest.raises(KeyError), left_to_kernels():
        raise KeyError
    assert (torch.get_num_threads(), kernel_threads()) == (3, 3)
