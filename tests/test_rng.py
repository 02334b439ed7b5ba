import numpy as np
import pytest
import torch

from mithridate.rng import Rng, TaskStreams


def test_children_are_independent_and_reproducible():
    a, b = Rng(0).child("a"), Rng(0).child("b")
    assert a.generator().random() == Rng(0).child("a").generator().random()
    assert a.generator().random() != b.generator().random()
    assert Rng(1).child("a").generator().random() != a.generator().random()
    assert Rng(0).child("a", 1).generator().random() != Rng(0).child("a", 2).generator().random()


def test_state_restores_the_stream():
    rng = Rng(7).child("pretrain", 3)
    assert Rng.from_state(rng.state()) == rng


def test_streams_belong_to_tasks_not_to_batches():
    whole = Rng(0).streams(range(10))
    part = Rng(0).streams([7, 3])
    for _ in range(150):  # across block borders
        assert torch.equal(whole.normal(4)[[7, 3]], part.normal(4))
        assert torch.equal(whole.uniform()[[7, 3]], part.uniform())


def test_interleaving_does_not_shift_a_stream():
    plain, mixed = Rng(0).streams([0]), Rng(0).streams([0])
    for _ in range(100):
        mixed.normal(3)
        mixed.uniform(2)
        assert torch.equal(plain.uniform(), mixed.uniform())


@pytest.mark.parametrize(("kind", "method"), [("uniform", "random"), ("normal", "standard_normal")])
def test_streams_asked_again_go_on(kind, method):
    ids = [3, 0, 2**40]
    streams = Rng(0).child("x").streams(ids)
    found = torch.cat([streams.ahead(kind, steps, 3) for steps in (2, 5, 40)], 1)
    word = Rng(0).child("x", kind, 3)._words()[0]
    for row, i in zip(found.numpy(), ids, strict=True):
        key = np.array([word, i], dtype=np.uint64)
        whole = getattr(np.random.Generator(np.random.Philox(key=key)), method)
        np.testing.assert_array_equal(row, whole((47, 3), dtype=np.float32))


def test_distributions():
    streams = Rng(0).streams(range(500))
    uniforms = torch.stack([streams.uniform(2) for _ in range(100)])
    normals = torch.stack([streams.normal(2) for _ in range(100)])
    assert uniforms.min() >= 0 and uniforms.max() < 1
    assert abs(uniforms.mean() - 0.5) < 0.005
    assert abs(normals.mean()) < 0.01
    assert abs(normals.std() - 1) < 0.01
    correlation = np.corrcoef(normals[:, 0, 0], normals[:, 1, 0])[0, 1]
    assert abs(correlation) < 0.35


def test_nothing_drawn_costs_nothing_and_shifts_nothing():
    streams = Rng(0).streams([3, 4])
    assert streams.normal(0).shape == (2, 0) and not streams._generators
    assert torch.equal(streams.normal(2), Rng(0).streams([3, 4]).normal(2))


@pytest.mark.parametrize("n", [1, 3, 64, 100, 5000])
def test_a_stream_does_not_depend_on_how_far_ahead_it_is_drawn(n, monkeypatch):
    def drawn(block, ahead):
        monkeypatch.setattr(TaskStreams, "BLOCK", block)
        monkeypatch.setattr(TaskStreams, "AHEAD", ahead)
        streams = Rng(0).streams([3, 2**40 + 3])
        return torch.stack([f(n) for _ in range(70) for f in (streams.uniform, streams.normal)])

    whole = drawn(64, 10**9)
    for block, ahead in ((64, 4096), (1, 4096), (7, 10**9), (64, 1)):
        assert torch.equal(drawn(block, ahead), whole)


def test_large_vectors_are_not_drawn_far_ahead():
    streams = Rng(0).streams([0])
    streams.normal(19_200)
    streams.uniform(4)
    assert [len(block) for block, _ in streams._blocks.values()] == [1, 64]
