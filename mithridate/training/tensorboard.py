"""TensorBoard as an optional second reader of what log.jsonl gets."""

from __future__ import annotations

from pathlib import Path

from mithridate.errors import UserError
from mithridate.training.loop import Values


class TensorBoard:
    """A watcher of the training loop."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "TensorBoard is not installed: pip install 'mithridate[tensorboard]'"
            ) from None
        self._open = SummaryWriter
        self._directory = directory

    def prepared(self, done: int, total: int) -> None:
        pass

    def started(self, step: int, total: int) -> None:
        # What an interrupted run wrote past its checkpoint is hidden by purge_step.
        self._writer = self._open(str(self._directory), purge_step=step + 1)

    def stepped(self, step: int, values: Values) -> None:
        pass

    def logged(self, step: int, values: Values) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
