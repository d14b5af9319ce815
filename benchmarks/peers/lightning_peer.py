"""PyTorch Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch


try:
    import lightning.pytorch as pl
except ImportError:  # the same code under its older name
    import pytorch_lightning as pl

from benchmarks.peers.parts import (
    BatchDict,
    keep_cached_memory,
    make_loader,
    make_model,
    make_optimizer,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device
    from gapless.nmt.data.sampler import Microbatch


class LightningPeer:
    """A LightningModule under `Trainer(precision="bf16-mixed")`.

    Each turn is a `fit`. Model and optimizer stay on the device between them, and memory stays
    with the allocator: only then are the turn's timed steps those of one long `fit`.

    The loss is logged to the progress bar, which is on by default and reads it each step; a second
    row has no progress bar. Logger and checkpoints are off. `gradient_clip_val` refuses fused
    optimizers in mixed precision (Lightning issue 21435), so the documented hook clips instead:
    the unfused optimizer would be slower.

    Source: lightning.ai/docs/pytorch/stable/advanced/speed.html (workers, pinned memory, no
    `.item()`), lightning.ai/docs/pytorch/stable/extensions/logging.html (`prog_bar=True`),
    lightning.ai/docs/pytorch/stable/common/precision_basic.html,
    lightning.ai/docs/pytorch/stable/common/lightning_module.html#configure-gradient-clipping.

    Args:
        case: to train on.
        device: where.
        progress_bar: show it, with the loss.
    """

    def __init__(self, case: Case, device: Device, *, progress_bar: bool = True) -> None:
        self.batches: Sequence[Microbatch] = case.plain_batches()
        self._case = case
        self._device = device
        self._progress_bar = progress_bar

    def setup(self) -> None:
        """Build the module, on the device, where every `fit` finds it."""
        self._module = _Module(self._case).to(self._device.torch_device)
        keep_cached_memory(self._device)

    def run(self, window: Window, *, first: int) -> None:
        """Train: one `fit` of the same module, with a trainer of its own."""
        is_gpu = self._device.is_accelerator
        trainer = pl.Trainer(
            accelerator="gpu" if is_gpu else "cpu",
            devices=1,
            strategy=_Staying(self._device.torch_device),
            precision="bf16-mixed" if self._case.config.precision == "bf16" else "32-true",
            max_steps=window.total,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=self._progress_bar,
            callbacks=[_Steps(window)],
        )
        data = BatchDict(self._case.train)
        loader = make_loader(data, self.batches, case=self._case, window=window, first=first)
        trainer.fit(self._module, loader)


class _Staying(pl.strategies.SingleDeviceStrategy):
    """The default strategy, but for what it does last: move everything to the CPU."""

    def teardown(self) -> None:
        pass


class _Module(pl.LightningModule):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.model = make_model(case)
        self._config = case.config
        # Kept from fit to fit; Lightning would else be given a new optimizer each round.
        self._optimizers: dict[str, Any] | None = None

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        del batch_idx
        loss: torch.Tensor = self.model(**batch)["loss"]
        self.log("train_loss", loss, prog_bar=True, batch_size=len(batch["src"]))
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        if self._optimizers is None:
            optimizer, scheduler = make_optimizer(self.model, self._config)
            self._optimizers = {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }
        return self._optimizers

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        torch.nn.utils.clip_grad_norm_(self.parameters(), self._config.clip_norm)


class _Steps(pl.Callback):
    def __init__(self, window: Window) -> None:
        self._window = window

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        del trainer, module, args
        self._window.after_step(outputs["loss"])
