"""A model twice as wide, or more, that computes the same (Chen et al., 2016, Net2Net).

Every vector inside has copies of itself, so each layer that reads it has its weights shared out
among the copies: not evenly, or they would stay equal for ever.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mithridate.errors import UserError
from mithridate.model.context_model import ContextModel
from mithridate.model.layouts import make_model
from mithridate.types import EnvSpec

UNEVEN = 0.5
"""How different the shares are, in units of the weights' root mean square."""


@torch.no_grad()
def widened(
    model: ContextModel, times: int, spec: EnvSpec, generator: torch.Generator
) -> ContextModel:
    """With `times` as many heads, and everything between them so many times as wide."""
    if times == 1:
        return model
    if spec.observation is not None and spec.n_states is None:
        raise UserError("models that see images or arrays cannot be made wider")
    config = model.config
    changes = {"width": times * config.width, "heads": times * config.heads}
    wide = make_model(config.model_copy(update=changes), spec)
    old, reads = dict(model.named_parameters()), _readers(wide)
    for name, parameter in wide.named_parameters():
        found: Tensor = old[name]
        if parameter.shape[:1] != found.shape[:1]:
            found = _copies(found, times, 3 if ".qkv." in name else 1)
        if parameter.shape != found.shape:
            found = _shares(found, times, generator) if name in reads else found.repeat(1, times)
        parameter.copy_(found)
    return wide


def _readers(model: nn.Module) -> set[str]:
    return {f"{k}.weight" for k, layer in model.named_modules() if isinstance(layer, nn.Linear)}


def _copies(rows: Tensor, times: int, parts: int) -> Tensor:
    """Rows, each of their `parts` repeated."""
    return torch.cat([part.repeat(times, *[1] * (rows.dim() - 1)) for part in rows.chunk(parts)])


def _shares(weight: Tensor, times: int, generator: torch.Generator) -> Tensor:
    """(O, I) → (O, times · I), which add up to what they were."""
    noise = torch.randn(times, *weight.shape, generator=generator)
    noise = UNEVEN * weight.square().mean().sqrt() * (noise - noise.mean(0))
    return torch.cat(list(weight / times + noise), 1)
