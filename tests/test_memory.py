"""Memory that is used again."""

import torch

from mithridate.config import ModelConfig
from mithridate.model import memory
from mithridate.model.cache import KVCache
from mithridate.model.memory import Pool
from mithridate.model.transformer import Transformer
from mithridate.rng import Rng


def test_a_piece_goes_back_to_its_pool_and_is_given_out_again():
    pool = Pool()
    piece = pool.take(6, 4)
    assert [len(part) for part in piece.parts] == [6, 4]
    where = piece.parts[0].data_ptr()
    other = pool.take(6)
    assert other.parts[0].data_ptr() != where, "what is in use is not given out"
    del piece
    assert pool.take(8).parts[0].data_ptr() == where
    del other
    assert len(pool.take(100).parts[0]) == 100, "what is too small is not given out"


def test_a_pool_keeps_only_a_few():
    pool = Pool()
    pieces = [pool.take(5) for _ in range(memory.KEPT + 3)]
    pieces.clear()
    assert len(pool.free) == memory.KEPT


def test_a_cache_in_used_memory_is_as_good_as_new():
    """Two rollouts after each other: the second must not see what the first has left."""
    model = Transformer(ModelConfig(layers=2, heads=2, width=16), positions=20)
    model.initialise(Rng(0).torch_generator())
    x = torch.randn(3, 20, 16, generator=Rng(1).torch_generator())

    def run() -> tuple[KVCache, torch.Tensor]:
        cache = model.new_cache(3)
        with torch.no_grad():
            return cache, torch.stack([model.step(x[:, t], cache) for t in range(10)], 1)

    _, first = run()
    cache, second = run()
    assert torch.equal(first, second)
    if cache.decoder is not None:
        kept = cache.blocks.transpose(-3, -2).flatten(-2)  # (B, layers, 2, heads, d, capacity)
        assert kept[..., 10:].isnan().all() and not kept[..., :10].isnan().any()
