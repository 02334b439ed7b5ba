"""The model against Hugging Face's, the cache against the full forward."""

import pytest
import torch
from torch import nn

from mithridate.config import ModelConfig
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.model.one_stream import OneStreamModel
from mithridate.model.transformer import Transformer
from mithridate.rng import Rng


def random_model(seed=0, horizon=40, scale=1.0, **sizes) -> OneStreamModel:
    """Weights large enough for attention to be far from uniform."""
    model = OneStreamModel(ModelConfig(**sizes), make_env("bandit", horizon=horizon).spec)
    model.initialise(Rng(seed).torch_generator())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale if p.dim() > 1 else 1.0).add_(
                0.1 * torch.randn(p.shape, generator=Rng(seed).child(1).torch_generator())
            )
    return model


def contexts(model, batch, length, seed=0):
    env = make_env("bandit", horizon=model.context_length)
    tasks = env.sample_tasks(batch, Rng(seed))
    return env.sample_contexts(tasks, length, Rng(seed).child("contexts"))


@pytest.mark.parametrize(("layers", "heads", "width"), [(4, 4, 32), (2, 1, 16)])
def test_equal_to_hugging_face_gpt2(layers, heads, width):
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    theirs = GPT2Model(
        GPT2Config(
            n_layer=layers, n_head=heads, n_embd=width, n_positions=64, vocab_size=1,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    ).eval()  # fmt: skip
    for p in theirs.parameters():
        nn.init.normal_(p, 0.0, 0.3)
    ours = Transformer(ModelConfig(layers=layers, heads=heads, width=width), positions=64)
    head = nn.Linear(width, 5)
    with torch.no_grad():
        ours.positions.copy_(theirs.wpe.weight)
        copy_norm(ours.norm, theirs.ln_f)
        for mine, other in zip(ours.blocks, theirs.h, strict=True):
            copy_norm(mine.norm1, other.ln_1)
            copy_norm(mine.norm2, other.ln_2)
            copy_linear(mine.qkv, other.attn.c_attn)
            copy_linear(mine.out, other.attn.c_proj)
            copy_linear(mine.up, other.mlp.c_fc)
            copy_linear(mine.down, other.mlp.c_proj)
        x = torch.randn(3, 64, width)
        expected = head(theirs(inputs_embeds=x).last_hidden_state)
        got = head(ours(x))
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def copy_norm(mine, other):
    mine.weight.copy_(other.weight)
    mine.bias.copy_(other.bias)


def copy_linear(mine, other):
    mine.weight.copy_(other.weight.T)  # Conv1D stores the transpose
    mine.bias.copy_(other.bias)


def test_cached_steps_equal_the_full_forward():
    model = random_model()
    data = contexts(model, batch=7, length=40)
    with torch.no_grad():
        full = model(data)  # (B, T + 1, A)
        cache, logits = model.begin(7)
        kept = cache.keys if cache.player is None else cache.blocks
        assert kept.isnan().sum() > 0, "the cache must start as NaN"
        steps = [logits]
        for t in range(40):
            steps.append(model.extend(cache, data.actions[:, t], data.rewards[:, t]))
    assert full.std() > 0.1
    torch.testing.assert_close(torch.stack(steps, 1), full, atol=1e-5, rtol=1e-5)


def test_the_future_does_not_leak():
    model = random_model()
    data = contexts(model, batch=3, length=40)
    changed = contexts(model, batch=3, length=40)
    changed.rewards[:, 20:] += 5
    with torch.no_grad():
        a, b = model(data), model(changed)
    assert torch.equal(a[:, :21], b[:, :21])
    assert (a[:, 21] - b[:, 21]).abs().max() > 1e-3


def test_a_batch_equals_its_parts():
    model = random_model()
    data = contexts(model, batch=6, length=30)
    with torch.no_grad():
        whole = model(data)
        for i in range(6):
            one = type(data)(data.actions[i : i + 1], data.rewards[i : i + 1], data.labels[:1])
            torch.testing.assert_close(model(one)[0], whole[i], atol=1e-5, rtol=1e-5)


def test_a_full_context_is_an_error_that_says_so():
    model = random_model(horizon=3)
    cache, _ = model.begin(1)
    action, reward = torch.tensor([0]), torch.tensor([0.5])
    with torch.no_grad():
        for _ in range(3):
            model.extend(cache, action, reward)
        with pytest.raises(UserError, match="holds 3 transitions"):
            model.extend(cache, action, reward)


def test_initialisation_depends_only_on_the_seed():
    a, b, c = random_model(0), random_model(0), random_model(1)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.start, c.start)
