"""Trimmed sums: the native form equals the PyTorch one, which equals sorting."""

import math

import pytest
import torch

from mithridate.agents import trimmed
from mithridate.native import kernels


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(("batch", "arms", "room", "steps"), [(7, 3, 40, 40), (130, 2, 9, 30)])
def test_sums_of_the_middle(native, batch, arms, room, steps, monkeypatch):
    if native and kernels() is None:
        pytest.skip("not built")
    if not native:
        monkeypatch.setattr(trimmed, "kernels", lambda: None)
    generator = torch.Generator().manual_seed(3)
    ordered = torch.full((batch, arms, room), math.inf)
    kept: list[list[list[float]]] = [[[] for _ in range(arms)] for _ in range(batch)]
    for step in range(steps):
        actions = torch.randint(0, arms, (batch,), generator=generator)
        rewards = torch.randn(batch, generator=generator).round(decimals=1)  # with ties
        counts, drops, expected = [], [], []
        for b, (arm, reward) in enumerate(zip(actions.tolist(), rewards.tolist(), strict=True)):
            some = kept[b][arm]
            some.append(reward)
            n = len(some)
            drop = math.ceil(0.4 * n - 1e-9)
            middle = sorted(some)[:room][drop : n - drop]
            counts.append(n)
            drops.append(drop)
            expected.append(sum(middle))
        words = (torch.tensor(counts), torch.tensor(drops), step + 1)
        total = trimmed.insert(ordered, actions, rewards, *words)
        torch.testing.assert_close(
            total, torch.tensor(expected, dtype=torch.float32), atol=1e-5, rtol=0
        )


def test_what_makes_no_sense_is_refused():
    if kernels() is None:
        pytest.skip("not built")
    ordered, one = torch.full((2, 3, 4), math.inf), torch.ones(2, dtype=torch.int64)
    for actions, counts in ((3 * one, one), (-one, one), (one, 0 * one)):
        with pytest.raises(ValueError, match="no such arm"):
            trimmed.insert(ordered, actions, torch.zeros(2), counts, 0 * one, 1)
    assert torch.isinf(ordered).all()
