"""AdamW with warm-up, cosine decay, clipping, and a state that is a dict of tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mithridate.config import OptimiserConfig
from mithridate.errors import TrainingDiverged
from mithridate.model.threads import left_to_kernels
from mithridate.tensor_files import misfit

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimiser:
    def __init__(self, module: nn.Module, config: OptimiserConfig, steps: int) -> None:
        self.config = config
        self.steps = steps
        self._module = module
        self._names = [name for name, _ in module.named_parameters()]
        self._parameters = list(module.parameters())
        self._adam = torch.optim.AdamW(
            self._parameters, lr=0.0, weight_decay=config.weight_decay, fused=True
        )

    def rate(self, step: int) -> float:
        """The learning rate of update number `step`, counted from 0."""
        c = self.config
        if step < c.warmup_steps:
            return c.learning_rate * (step + 1) / c.warmup_steps
        done = (step - c.warmup_steps) / max(1, self.steps - c.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return c.learning_rate * (c.final_fraction + (1 - c.final_fraction) * cosine)

    def step(self, loss: Tensor, step: int, loss_limit: float = math.inf) -> dict[str, float]:
        """One update. Raises TrainingDiverged, before touching a weight, if the loss or its
        gradient is not finite or the loss exceeds the limit."""
        with left_to_kernels(getattr(self._module, "in_kernels", False)):
            return self._step(loss, step, loss_limit)

    def _step(self, loss: Tensor, step: int, loss_limit: float) -> dict[str, float]:
        for parameter in self._parameters:
            parameter.grad = None
        value = loss.item()
        if not value <= loss_limit:  # NaN compares false
            raise TrainingDiverged(f"loss {value:.4g} at step {step + 1}")
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self.config.clip_norm or math.inf).item()
        if not math.isfinite(norm):
            raise TrainingDiverged(f"gradient norm {norm:.4g} at step {step + 1}")
        for group in self._adam.param_groups:
            group["lr"] = self.rate(step)
        self._adam.step()
        return {"loss": value, "grad_norm": norm, "learning_rate": self.rate(step)}

    def tensors(self) -> dict[str, Tensor]:
        """Adam's moments and counters, as '<parameter>.<kind>'."""
        return {
            f"{name}.{kind}": tensor
            for name, parameter in zip(self._names, self._parameters, strict=True)
            for kind, tensor in self._adam.state[parameter].items()
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """A ValueError if they are not what `tensors` gives: after a step, or before the first."""
        expected = {
            f"{name}.{kind}": parameter if kind in MOMENTS else torch.zeros(())
            for name, parameter in zip(self._names, self._parameters, strict=True)
            for kind in (*MOMENTS, "step")
        }
        if tensors and (difference := misfit(tensors, expected)) is not None:
            raise ValueError(difference)
        for name, parameter in zip(self._names, self._parameters, strict=True):
            prefix = f"{name}."
            self._adam.state[parameter] = {
                key.removeprefix(prefix): tensor.clone()
                for key, tensor in tensors.items()
                if key.rpartition(".")[0] == name
            }
