"""The native kernels against the PyTorch reference, for every instruction set of this machine."""

import math

import pytest
import torch
import torch.nn.functional as F

from mithridate.agents.in_context import InContextAgent
from mithridate.config import ModelConfig
from mithridate.envs import make_env
from mithridate.model import dispatch
from mithridate.model.attention import causal
from mithridate.model.cache import KVCache
from mithridate.model.layouts import make_model
from mithridate.model.loss import linear_cross_entropy
from mithridate.model.one_stream import OneStreamModel
from mithridate.model.query_first import QueryFirstModel
from mithridate.model.transformer import Transformer
from mithridate.native import kernels
from mithridate.rng import Rng
from mithridate.rollout import rollout

SETS = kernels().instruction_sets() if kernels() else []
pytestmark = pytest.mark.skipif(not SETS, reason="native kernels are not built, or switched off")


@pytest.fixture(autouse=True, params=SETS)
def isa(request):
    before = kernels().active()
    kernels().use(request.param)
    yield request.param
    kernels().use(before)


@pytest.fixture(params=[1, 3])
def threads(request):
    torch.set_num_threads(request.param)


def generator(seed=0):
    return Rng(seed).torch_generator()


def relative_error(got, expected):
    return ((got - expected).norm() / expected.norm().clamp(min=1e-12)).item()


# Attention ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize(
    ("batch", "heads", "length"),
    [(1, 1, 1), (2, 3, 2), (1, 2, 15), (3, 1, 16), (2, 2, 17), (1, 1, 33), (2, 1, 131)],
)  # fmt: skip
def test_attention_and_its_gradients(batch, heads, length, width, scale):
    """Up to scores far beyond what can be exponentiated without subtracting the maximum."""
    shape = (3, batch, heads, length, width)
    q, k, v = (scale * torch.randn(shape, generator=generator())).unbind(0)
    weight = torch.randn(shape[1:], generator=generator(1))

    def results(attend, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        out = attend(*leaves)
        grads = torch.autograd.grad((out * weight.to(dtype)).sum(), leaves)
        return [out.detach().double(), *(g.double() for g in grads)]

    ours = results(dispatch.NativeCausalAttention.apply, torch.float32)
    reference = results(reference_attention, torch.float32)
    exact = results(reference_attention, torch.float64)
    sizes = {"o": scale, "dq": scale**2, "dk": scale**2, "dv": 1.0}  # of the terms summed up
    for (name, size), got, theirs, truth in zip(sizes.items(), ours, reference, exact, strict=True):
        # Large scores are ill-conditioned for everybody: PyTorch's own error sets the scale.
        allowed = 1e-5 * truth.norm() + 3 * (theirs - truth).norm() + 1e-6 * size * weight.norm()
        assert (got - truth).norm() <= allowed, name


def reference_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_attention_takes_non_contiguous_inputs():
    q, k, v = torch.randn(2, 40, 3, 4, 8, generator=generator()).permute(2, 0, 3, 1, 4)
    assert not q.is_contiguous()
    got = dispatch.NativeCausalAttention.apply(q, k, v)
    torch.testing.assert_close(got, reference_attention(q, k, v), atol=1e-6, rtol=1e-5)


def test_attention_passes_nan_on():
    q = torch.randn(1, 1, 20, 8, generator=generator())
    broken = q.clone()
    broken[0, 0, 7, 3] = math.nan
    out = dispatch.NativeCausalAttention.apply(q, broken, q)
    assert out[0, 0, :7].isfinite().all()
    assert out[0, 0, 7:].isnan().all()


# The whole transformer ---------------------------------------------------------------------


def random_transformer(layers=3, heads=4, width=32, positions=70, seed=0):
    model = Transformer(ModelConfig(layers=layers, heads=heads, width=width), positions)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator(seed))
            p.copy_(0.3 * noise + ("norm" in name and name.endswith("weight")))
    return model


def reference(model, x):
    """`Transformer.forward` with the native path switched off."""
    x = x + model.positions[: x.shape[1]]
    for block in model.blocks:
        batch, length, width = x.shape
        qkv = block.qkv(block.norm1(x)).view(batch, length, 3, block.heads, -1)
        mixed = reference_attention(*qkv.permute(2, 0, 3, 1, 4))
        x = x + block.out(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + block.mlp(x)
    return model.norm(x)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("layers", "heads", "width"), [(3, 4, 32), (1, 2, 16), (2, 2, 32), (1, 1, 32), (1, 3, 48)]
)
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 7), (5, 16), (2, 49), (40, 3), (3, 70)])
def test_transformer_and_its_gradients(layers, heads, width, batch, length):
    model = random_transformer(layers, heads, width)
    x = torch.randn(batch, length, width, generator=generator(1))
    assert dispatch.transformer_is_native(x, model.config)
    same_with_gradients(model, model, lambda x: reference(model, x), x=x)


def same_with_gradients(model, native, plain, **inputs):
    """Two functions of the inputs and the model's parameters are equal, and so are their gradients
    with respect to all of these."""
    weight = torch.randn(next(iter(inputs.values())).shape, generator=generator(2))

    def results(run):
        leaves = [x.clone().requires_grad_() for x in inputs.values()]
        out = run(*leaves)
        grads = torch.autograd.grad((out * weight).sum(), [*leaves, *model.parameters()])
        return out.detach(), grads

    out, grads = results(native)
    expected, expected_grads = results(plain)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    names = [*inputs, *(name for name, _ in model.named_parameters())]
    largest = max(g.abs().max().item() for g in expected_grads)
    for name, got, wanted in zip(names, grads, expected_grads, strict=True):
        if wanted.abs().max() > 1e-5 * largest:  # the gradient of a key's bias is zero
            assert relative_error(got, wanted) <= 1e-4, name
        else:
            assert got.abs().max() <= 1e-5 * largest, name


def reference_streams(model, x, y):
    """`Transformer.two_streams` with the native path switched off."""
    x, y = x + model.positions[: x.shape[1]], y + model.positions[: y.shape[1]]
    for block in model.blocks:
        batch, length, width = x.shape

        def heads(z, block=block, shape=(batch, length, 3, block.heads, -1)):
            return block.qkv(block.norm1(z)).view(shape).permute(2, 0, 3, 1, 4)

        (q, k, v), asked = heads(x), heads(y)[0]
        mixed, answered = reference_attention(q, k, v), reference_attention(asked, k, v)
        x = x + block.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = y + block.out(answered.transpose(1, 2).reshape(batch, length, width))
        x, y = x + block.mlp(x), y + block.mlp(y)
    return model.norm(y)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("layers", "heads", "width"), [(3, 4, 32), (1, 2, 16), (2, 3, 48)])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (5, 16), (2, 49), (40, 3), (3, 70)])
def test_two_streams_and_their_gradients(layers, heads, width, batch, length):
    model = random_transformer(layers, heads, width)
    x, y = torch.randn(2, batch, length, width, generator=generator(1))
    assert dispatch.transformer_is_native(x, model.config)
    same_with_gradients(
        model, model.two_streams, lambda x, y: reference_streams(model, x, y), x=x, y=y
    )


def test_gradients_do_not_depend_on_the_number_of_threads():
    model = random_transformer()
    x = torch.randn(37, 50, 32, generator=generator(1))

    def gradient(threads):
        torch.set_num_threads(threads)
        model.zero_grad()
        model(x).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    assert torch.equal(gradient(1), gradient(2))
    assert torch.equal(gradient(1), gradient(5))


def test_transformer_takes_non_contiguous_inputs():
    model = random_transformer()
    x = torch.randn(32, 20, 4, generator=generator()).permute(2, 1, 0)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(model, x), atol=1e-5, rtol=1e-5)


def test_a_graph_may_be_walked_twice():
    """The memory of the activations must not be handed on while somebody may need it."""
    model = random_transformer()
    x = torch.randn(2, 20, 32, generator=generator()).requires_grad_()
    out = model(x).square().sum()
    first = torch.autograd.grad(out, x, retain_graph=True)[0]
    other = model(torch.zeros(2, 20, 32)).sum()
    second = torch.autograd.grad(out, x)[0]
    assert torch.equal(first, second)
    other.backward()


# The loss ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("rows", "width", "actions"), [(1, 16, 2), (7, 32, 5), (200, 48, 17)])
def test_cross_entropy_and_its_gradients(rows, width, actions):
    x = 3 * torch.randn(rows, width, generator=generator())
    head = torch.nn.Linear(width, actions)
    with torch.no_grad():
        head.weight.normal_(generator=generator(1))
        head.bias.normal_(generator=generator(2))
    labels = torch.arange(rows) % actions

    def results(loss):
        leaf = x.clone().requires_grad_()
        value = loss(leaf)
        return [value.detach(), *torch.autograd.grad(0.7 * value, [leaf, *head.parameters()])]

    ours = results(lambda leaf: linear_cross_entropy(leaf, head, labels))
    expected = results(lambda leaf: F.cross_entropy(head(leaf), labels))
    for got, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-4)


def test_cross_entropy_refuses_a_label_out_of_range():
    head = torch.nn.Linear(16, 3)
    with pytest.raises(ValueError, match="label 3 is out of range"):
        linear_cross_entropy(torch.zeros(2, 16), head, torch.tensor([0, 3]))


def learning_model(layout, **sizes):
    """Its environment and it, with weights that make attention far from uniform."""
    env = make_env("darkroom2" if layout == "query first" else layout, horizon=60)
    make = QueryFirstModel if layout == "query first" else make_model
    model = make(ModelConfig(**sizes), env.spec)
    model.initialise(generator())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator(1)))
    return env, model


def loss_and_gradients(model, contexts, loss):
    model.zero_grad()
    value = loss(contexts)
    (0.7 * value).backward()
    return [value.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("layout", ["bandit", "darkroom2", "query first"])
@pytest.mark.parametrize(("layers", "heads", "width"), [(3, 4, 32), (1, 2, 16), (2, 3, 48)])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (40, 3), (5, 16), (3, 60)])
def test_loss_in_one_pass(layout, layers, heads, width, batch, length):
    env, model = learning_model(layout, layers=layers, heads=heads, width=width)
    data = env.sample_contexts(env.sample_tasks(batch, Rng(0)), length, Rng(1))
    ours = loss_and_gradients(model, data, model.loss)

    def plainly(contexts):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatch, "_plain", lambda x: False)
            assert not model.transformer.in_kernels
            return model.loss(contexts)

    expected = loss_and_gradients(model, data, plainly)
    assert len(ours) == len(expected) > 10
    for got, wanted in zip(ours, expected, strict=True):
        assert relative_error(got, wanted) < 1e-4 or (got - wanted).abs().max() < 1e-6


@pytest.mark.parametrize("name", ["bandit", "darkroom2"])
def test_the_loss_does_not_depend_on_the_number_of_threads(name):
    env, model = learning_model(name)
    data = env.sample_contexts(env.sample_tasks(37, Rng(0)), 50, Rng(1))

    def run(threads):
        torch.set_num_threads(threads)
        return loss_and_gradients(model, data, model.loss)

    alone = run(1)
    for threads in (2, 5):
        assert all(torch.equal(a, b) for a, b in zip(run(threads), alone, strict=True))


@pytest.mark.parametrize("field", ["actions", "labels"])
@pytest.mark.parametrize("wrong", [-1, 5])
def test_the_loss_refuses_what_is_out_of_range(field, wrong):
    env, model = learning_model("bandit")
    data = env.sample_contexts(env.sample_tasks(2, Rng(0)), 4, Rng(1))
    getattr(data, field)[1, 2] = wrong
    with pytest.raises(ValueError, match=f"{field} are out of range"):
        model.loss(data)


def test_the_loss_without_gradients_is_the_same():
    env, model = learning_model("bandit")
    data = env.sample_contexts(env.sample_tasks(3, Rng(0)), 40, Rng(1))
    with torch.no_grad():
        value = model.loss(data)
    assert not value.requires_grad
    assert value.item() == pytest.approx(model.loss(data).item(), rel=1e-6)


# Decoding ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("layers", "heads", "width"), [(3, 4, 32), (1, 2, 16), (2, 2, 32), (1, 1, 32)]
)
@pytest.mark.parametrize("batch", [1, 11, 12, 13, 40])
def test_decoding_equals_the_full_forward(layers, heads, width, batch):
    model = random_transformer(layers, heads, width, positions=40)
    x = torch.randn(batch, 40, width, generator=generator(1))
    with torch.no_grad():
        exact = reference(model.double(), x.double())
        theirs = reference(model.float(), x)
        cache = model.new_cache(batch)
        assert cache.decoder is not None
        assert cache.blocks.isnan().all(), "positions not yet written must be NaN"
        ours = torch.stack([model.step(x[:, t], cache) for t in range(40)], 1)
    kept = by_position(cache.blocks)
    assert kept[..., :40].isfinite().all() and kept[..., 40:].isnan().all()
    assert ((ours - theirs).abs() <= 1e-5 * theirs.abs().clamp(min=1)).all()
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max()


def test_decoding_does_not_depend_on_the_batch_it_is_in():
    model = random_transformer(positions=20)
    x = torch.randn(30, 20, 32, generator=generator(1))

    def run(rows):
        cache = model.new_cache(len(rows))
        return torch.stack([model.step(rows[:, t], cache) for t in range(20)], 1)

    with torch.no_grad():
        whole = run(x)
        assert torch.equal(torch.cat([run(x[:1]), run(x[1:14]), run(x[14:])]), whole)


def test_queries_see_the_context_and_are_seen_by_nobody():
    """Two streams: a query token attends to the context up to the new position."""
    model = random_transformer(layers=2, positions=20)
    x, queries = torch.randn(2, 5, 20, 32, generator=generator(1))
    with torch.no_grad():
        plain, two = model.new_cache(5), model.new_cache(5)
        for t in range(20):
            model.step(x[:, t], plain)
            answer = model.step_with_query(x[:, t], queries[:, t], two)
            expected = query_reference(model, queries[:, t] + model.positions[t], two)
            torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(by_position(plain.blocks)[..., :20], by_position(two.blocks)[..., :20])


def by_position(cached):
    """(B, layers, 2, heads, blocks, d, 16) as (B, layers, 2, heads, d, capacity)."""
    return cached.transpose(-3, -2).flatten(-2)


def query_reference(model, x, cache: KVCache):
    n = cache.length
    for layer, block in enumerate(model.blocks):
        q = block.qkv(block.norm1(x)).view(len(x), 3, block.heads, -1)[:, 0]
        k, v = by_position(cache.blocks)[:, layer, ..., :n].unbind(1)  # (B, heads, d, n) each
        weights = torch.softmax(torch.einsum("bhd,bhdn->bhn", q, k) / q.shape[-1] ** 0.5, -1)
        x = x + block.out(torch.einsum("bhn,bhdn->bhd", weights, v).flatten(1))
        x = x + block.mlp(x)
    return model.norm(x)


def test_rollouts_choose_the_same_actions(monkeypatch):
    """Actions drawn by inverse CDF on shared uniforms are identical on both paths."""
    env = make_env("bandit", horizon=60)
    model = OneStreamModel(ModelConfig(), env.spec)
    model.initialise(generator())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator(3)))
    tasks = env.sample_tasks(50, Rng(0))
    native = rollout(env, tasks, InContextAgent(model), rng=Rng(1))
    monkeypatch.setattr(dispatch, "transformer_is_native", lambda *_: False)
    monkeypatch.setattr(dispatch, "attention_is_native", lambda *_: False)
    plain = rollout(env, tasks, InContextAgent(model), rng=Rng(1))
    assert torch.equal(native.actions, plain.actions)
    assert native.actions.unique().numel() > 1


# What the kernels refuse -------------------------------------------------------------------


def test_attention_that_is_sure_of_itself():
    """Weights down to 2^-126, whose products are too small for normal numbers: gradients are right,
    and outside the kernels such numbers still count."""
    q, k, v = (torch.randn(2, 4, 50, 8, generator=generator(i)) for i in range(3))
    inputs = [(30 * q).requires_grad_(), (30 * k).requires_grad_(), v.requires_grad_()]
    out = causal(*inputs)
    ours = torch.autograd.grad(out.square().sum(), inputs)
    scores = (inputs[0] @ inputs[1].transpose(-1, -2)) / 8**0.5
    mask = torch.ones(50, 50).tril().bool()
    plain = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ inputs[2]
    theirs = torch.autograd.grad(plain.square().sum(), inputs)
    torch.testing.assert_close(out, plain, rtol=1e-4, atol=1e-4)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    tiny = torch.full((20_000,), 1e-40)
    assert (tiny * 0.5 > 0).all()


def test_nobody_at_all_is_no_trouble():
    model = random_transformer()
    with torch.no_grad():
        assert model.step(torch.zeros(0, 32), model.new_cache(0)).shape == (0, 32)


def test_wrong_sizes_are_refused():
    model = random_transformer()
    decoder = dispatch.NativeDecoder(model.flat_weights(), model.config)
    cache = model.new_cache(2)
    with pytest.raises(ValueError, match="cache has"):
        decoder.step(torch.zeros(3, 32), cache.blocks, 0)
    with pytest.raises(ValueError, match="out of range"):
        decoder.step(torch.zeros(2, 32), cache.blocks, 70)
    with pytest.raises(ValueError, match="longer than the positions"):
        model(torch.zeros(1, 71, 32))


@pytest.mark.parametrize(
    ("x", "config"),
    [
        (torch.zeros(1, 2, 32, dtype=torch.float64), ModelConfig()),
        (torch.zeros(1, 2, 24), ModelConfig(width=24, heads=3)),
        (torch.zeros(1, 2, 32), ModelConfig(width=32, heads=8)),
    ],
)
def test_unsupported_shapes_go_through_pytorch(x, config):
    assert not dispatch.transformer_is_native(x, config)
    model = Transformer(config, positions=4).to(x.dtype)
    assert model(x).shape == x.shape
    assert model.new_cache(1).decoder is None
