"""The loss of all trainings: cross-entropy of a linear head. The version here is the definition."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mithridate.model import dispatch


def linear_cross_entropy(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
    """Mean cross-entropy of softmax(head(hidden)), hidden (..., D), to labels (...)."""
    hidden, labels = hidden.flatten(0, -2), labels.flatten()
    if dispatch.cross_entropy_is_native(hidden):
        return dispatch.NativeCrossEntropy.apply(hidden, head.weight, head.bias, labels)  # type: ignore[no-untyped-call,no-any-return]
    return F.cross_entropy(head(hidden), labels)
