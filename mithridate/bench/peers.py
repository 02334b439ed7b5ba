"""The peers that speed is measured against. They carry our weights and do the same work."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mithridate import native
from mithridate.agents.sampling import sample
from mithridate.errors import UserError
from mithridate.model.one_stream import OneStreamModel
from mithridate.rng import TaskStreams
from mithridate.types import Contexts, EnvSpec, Observation


class HuggingFaceModel(nn.Module):
    """Hugging Face's GPT2Model (default sdpa attention, no torch.compile) in place of our
    blocks; encoder and head are ours."""

    def __init__(self, model: OneStreamModel) -> None:
        super().__init__()
        transformers = _transformers()
        c = model.config
        self.ours = model
        self.gpt2 = transformers.GPT2Model(
            transformers.GPT2Config(
                n_layer=c.layers, n_head=c.heads, n_embd=c.width, vocab_size=1,
                n_positions=len(model.transformer.positions),
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            )
        )  # fmt: skip
        copy_weights(model, self.gpt2)

    def loss(self, contexts: Contexts) -> Tensor:
        tokens = self.ours.encode(contexts.actions, contexts.rewards)
        start = self.ours.start.expand(len(tokens), 1, -1)
        hidden = self.gpt2(inputs_embeds=torch.cat([start, tokens], 1), use_cache=False)
        logits = self.ours.head(hidden.last_hidden_state)
        return F.cross_entropy(logits.flatten(0, 1), contexts.labels.flatten())


def _transformers() -> Any:
    try:
        module: Any = importlib.import_module("transformers")
    except ImportError:
        raise UserError("the peers need transformers: pip install 'mithridate[bench]'") from None
    module.utils.logging.set_verbosity_error()
    return module


@torch.no_grad()
def copy_weights(model: OneStreamModel, gpt2: Any) -> None:
    """Our weights into a GPT2Model (whose Conv1D layers store the transpose)."""
    ours = model.transformer
    gpt2.wpe.weight.copy_(ours.positions)
    pairs: list[tuple[Any, Any]] = [(gpt2.ln_f, ours.norm)]
    block: Any
    for theirs, block in zip(gpt2.h, ours.blocks, strict=True):
        pairs += [(theirs.ln_1, block.norm1), (theirs.ln_2, block.norm2)]
        pairs += [(theirs.attn.c_attn, block.qkv), (theirs.attn.c_proj, block.out)]
        pairs += [(theirs.mlp.c_fc, block.up), (theirs.mlp.c_proj, block.down)]
    for to, source in pairs:
        to.weight.copy_(source.weight if source.weight.dim() == 1 else source.weight.T)
        to.bias.copy_(source.bias)


class HuggingFaceAgent:
    """The in-context agent on GPT2Model, with its own cache or, as in the original DPT code,
    without one."""

    def __init__(self, model: HuggingFaceModel, *, cached: bool = True) -> None:
        self.model = model
        self.cached = cached

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self._rng = rng
        self._past: Any = None
        self._tokens = self.model.ours.start.expand(batch, 1, -1)

    @torch.no_grad()
    def act(self, obs: Observation) -> Tensor:
        out = self.model.gpt2(
            inputs_embeds=self._tokens, past_key_values=self._past, use_cache=self.cached
        )
        self._past = out.past_key_values if self.cached else None
        logits = self.model.ours.head(out.last_hidden_state[:, -1])
        return sample(logits, self._rng.uniform())

    @torch.no_grad()
    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        token = self.model.ours.encode(actions, rewards).unsqueeze(1)
        self._tokens = token if self.cached else torch.cat([self._tokens, token], 1)


@contextlib.contextmanager
def reference_path() -> Iterator[None]:
    """Without the native kernels, inside this block."""
    before = os.environ.get("MITHRIDATE_KERNELS")
    os.environ["MITHRIDATE_KERNELS"] = "reference"
    native.kernels.cache_clear()
    try:
        yield
    finally:
        if before is None:
            del os.environ["MITHRIDATE_KERNELS"]
        else:
            os.environ["MITHRIDATE_KERNELS"] = before
        native.kernels.cache_clear()
