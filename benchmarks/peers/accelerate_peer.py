"""Hugging Face Accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from benchmarks.peers.parts import BatchDict, make_loader, make_model, make_optimizer


if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.utils.data import DataLoader

    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device
    from gapless.nmt.data.sampler import Microbatch


class AcceleratePeer:
    """The loop of Accelerate's migration guide and its complete examples.

    Its examples sum the loss on the device (`total_loss += loss.detach().float()`), so the
    documented row does; `item_each_step` reads it each step, as most loops written by hand do.
    Non-blocking copies are not the default, but recommended with pinned memory.

    Source: huggingface.co/docs/accelerate/basic_tutorials/migration,
    github.com/huggingface/accelerate/blob/main/examples/complete_nlp_example.py,
    huggingface.co/docs/accelerate/package_reference/utilities (DataLoaderConfiguration).

    Args:
        case: to train on.
        device: where.
        item_each_step: read each loss at once.
    """

    def __init__(self, case: Case, device: Device, *, item_each_step: bool = False) -> None:
        self.batches: Sequence[Microbatch] = case.plain_batches()
        self.data = BatchDict(case.train)
        self.accelerator_settings: dict[str, Any] = {
            "dataloader_config": DataLoaderConfiguration(non_blocking=True)
        }
        self.case = case
        self._device = device
        self._item_each_step = item_each_step

    def setup(self) -> None:
        """Build and prepare."""
        precision = self.case.config.precision
        self._accelerator = Accelerator(
            mixed_precision="bf16" if precision == "bf16" else "no",
            cpu=not self._device.is_accelerator,
            **self.accelerator_settings,
        )
        model = make_model(self.case)
        optimizer, scheduler = make_optimizer(model, self.case.config)
        self._model, self._optimizer, self._scheduler = self._accelerator.prepare(
            model, optimizer, scheduler
        )

    def run(self, window: Window, *, first: int) -> None:
        """Train."""
        loader = self._accelerator.prepare_data_loader(self.make_loader(window, first=first))
        total_loss: torch.Tensor | float = 0.0
        for batch in loader:
            if window.is_over:
                continue  # not break: Accelerate keeps count of loaders that did not end
            loss = self._train_step(batch)
            total_loss += loss.item() if self._item_each_step else loss.detach().float()
            window.after_step(loss)

    def make_loader(self, window: Window, *, first: int) -> DataLoader[Any]:
        """Return the loader that Accelerate prepares."""
        return make_loader(self.data, self.batches, case=self.case, window=window, first=first)

    def _train_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self._optimizer.zero_grad()
        loss: torch.Tensor = self._model(**batch)["loss"]
        self._accelerator.backward(loss)
        if self._accelerator.sync_gradients:
            self._accelerator.clip_grad_norm_(self._model.parameters(), self.case.config.clip_norm)
        self._optimizer.step()
        self._scheduler.step()
        return loss.detach()
