import torch

from mithridate.agents.sampling import argmax_random_ties, sample
from mithridate.rng import Rng


def test_argmax_without_ties():
    values = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]])
    for u in (0.0, 0.5, 0.999999):
        assert argmax_random_ties(values, torch.full((2, 1), u)).tolist() == [1, 0]


def test_ties_are_broken_evenly():
    n = 30_000
    values = torch.tensor([2.0, 1.0, 2.0, 2.0]).expand(n, 4)
    uniform = torch.rand(n, 1, generator=Rng(0).torch_generator())
    counts = torch.bincount(argmax_random_ties(values, uniform), minlength=4)
    assert counts[1] == 0
    assert ((counts[[0, 2, 3]] / n - 1 / 3).abs() < 0.01).all()


def test_infinite_ties():
    values = torch.tensor([[float("inf"), 0.0, float("inf")]])
    assert argmax_random_ties(values, torch.tensor([[0.0]])).item() == 0
    assert argmax_random_ties(values, torch.tensor([[0.99]])).item() == 2


def test_sample_follows_the_softmax():
    logits = torch.tensor([0.0, 1.0, -1.0])
    n = 50_000
    uniform = torch.rand(n, 1, generator=Rng(0).torch_generator())
    counts = torch.bincount(sample(logits.expand(n, 3), uniform), minlength=3)
    assert torch.allclose(counts / n, torch.softmax(logits, 0), atol=0.01)


def test_sample_at_the_edges():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]] * 3)
    uniform = torch.tensor([[0.0], [0.25], [0.9999999]])
    assert sample(logits, uniform).tolist() == [0, 1, 3]
