"""Which in-context model an environment needs."""

from __future__ import annotations

from mithridate.config import ModelConfig
from mithridate.model.context_model import ContextModel
from mithridate.model.one_stream import OneStreamModel
from mithridate.model.two_stream import TwoStreamModel
from mithridate.types import EnvSpec


def make_model(config: ModelConfig, spec: EnvSpec) -> ContextModel:
    """Without observations, DPT's layout; with observations, two streams."""
    if spec.observation is None:
        return OneStreamModel(config, spec)
    return TwoStreamModel(config, spec)
