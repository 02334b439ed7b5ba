"""Batches made ahead are the same, in the same order, and no more than one is made too early."""

import threading

import pytest
import torch

from mithridate.native import kernels
from mithridate.settings import FIRST_EDITION, resolve
from mithridate.stage_config import AdversarialConfig
from mithridate.training import adversarial
from mithridate.training.adversarial import AdversarialTraining
from mithridate.training.ahead import made_ahead

SMALL = (
    "synthetic.rounds=1", "rounds=2", "iterations=5", "tasks=10", "batches.long_batch=4",
    "batches.short_batch=6", "compare_every=0",
)  # fmt: skip


@pytest.mark.parametrize("so", [True, False])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_they_come_in_order(count, so):
    assert list(made_ahead(lambda i: 10 * i, count, so)) == [10 * i for i in range(count)]


def test_the_next_one_is_made_meanwhile_and_only_that():
    made, done = [], threading.Event()

    def make(i):
        made.append((i, threading.current_thread()))
        if i == 1:
            done.set()
        return i

    for i in made_ahead(make, 4):
        if i == 0:
            assert done.wait(10), "the caller is still at the first"
            assert [number for number, _ in made] == [0, 1]
    assert all(thread is not threading.main_thread() for _, thread in made)


def test_what_goes_wrong_is_the_callers_to_know():
    def make(i):
        if i == 2:
            raise ValueError("the third")
        return i

    seen = []
    with pytest.raises(ValueError, match="the third"):
        seen.extend(made_ahead(make, 5))
    assert seen == [0, 1]


def test_a_caller_may_stop_and_threads_are_as_before():
    before = torch.get_num_threads()
    for i in made_ahead(lambda i: i, 5):
        if i == 1:
            break
    assert torch.get_num_threads() == before


@pytest.mark.skipif(kernels() is None, reason="nothing is made ahead without kernels")
def test_training_is_the_same(monkeypatch):
    def trained():
        config = resolve(
            AdversarialConfig, "train", "bandit", FIRST_EDITION, SMALL,
            start="dpt-bandit-s0",
        )  # fmt: skip
        training = AdversarialTraining(config)
        for step in range(3):
            training.step(step)
        return training.tensors()

    ahead = trained()
    monkeypatch.setattr(adversarial, "made_ahead", lambda make, count, so: map(make, range(count)))
    plain = trained()
    assert ahead.keys() == plain.keys()
    assert all(torch.equal(ahead[name], plain[name]) for name in plain)
