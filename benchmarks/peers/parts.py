"""What every peer trains with: model and loss in one module, optimizer, schedule, loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gapless.nmt.data.batch import Batch
from gapless.nmt.data.sampler import Microbatch, PairBatches
from gapless.nmt.model.loss import LabelSmoothing, LossCompute
from gapless.nmt.run.build import build_model
from gapless.nmt.run.training_step import learning_rate


if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device
    from gapless.nmt.data.token_pairs import TokenPairs
    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.settings.config import TrainConfig


class Peer(Protocol):
    """One row: a way to train.

    One that has `setup_facts` tells more about its set-up by it.

    Attributes:
        batches: that it goes through, over and over.
    """

    batches: Sequence[Microbatch]

    def setup(self) -> None:
        """Build the model and whatever else is done once, and is not timed."""

    def run(self, window: Window, *, first: int) -> None:
        """Train on the batches from number `first` on, as many as the window has steps."""


class ModelWithLoss(nn.Module):
    """The Transformer with its loss, so that a framework sees one module with one output."""

    def __init__(self, model: Transformer, *, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self._loss = LossCompute(model.generator, LabelSmoothing(label_smoothing))

    def forward(
        self, src: torch.Tensor, tgt: torch.Tensor, ntokens: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the loss per target token."""
        batch = Batch.from_tokens(src, tgt, ntokens)
        out = self.model(batch.src, batch.trg, batch.src_mask, batch.trg_mask)
        return {"loss": self._loss.normalized(out, batch.trg_y, batch.ntokens)}


def make_model(case: Case) -> ModelWithLoss:
    """Return the model on the CPU; equal for all peers."""
    torch.manual_seed(case.config.seed)
    model = build_model(case.config, case.vocabs)
    return ModelWithLoss(model, label_smoothing=case.config.label_smoothing).train()


def make_optimizer(
    model: nn.Module, config: TrainConfig
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """Return the optimizer of `gapless train` and its schedule, in torch's own classes."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.lr,
        betas=(0.9, 0.98),
        eps=1e-8,
        weight_decay=config.weight_decay,
        fused=True,
    )

    def factor(done: int) -> float:
        return learning_rate(done + 1, peak=1.0, warmup=config.warmup, schedule=config.schedule)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class BatchDict(Dataset[dict[str, Any]]):
    """The padded batches as dictionaries, which every framework can move to a device."""

    def __init__(self, pairs: TokenPairs) -> None:
        self._batches = PairBatches(pairs)

    def __getitem__(self, micro: Microbatch) -> dict[str, Any]:
        batch: Any = self._batches[micro]
        return {"src": batch.src, "tgt": batch.tgt, "ntokens": batch.ntokens}


# More batches than steps: a framework that fetches one batch ahead would find the end of its loader,
# and wait for the workers to end, within the timed steps.
_SPARE_BATCHES = 8

# Batches that each worker makes ahead, as gapless's own loaders have it.
_PREFETCH_FACTOR = 8


def make_loader(
    dataset: Dataset[Any],
    batches: Sequence[Microbatch],
    *,
    case: Case,
    window: Window,
    first: int,
    dealt_to: int = 1,
) -> DataLoader[Any]:
    """Return a loader of a few more batches than the window has steps, from number `first` on.

    With `dealt_to` ranks, among which a framework deals them, it has as many for each rank.

    Set as PyTorch's tuning guide says: worker processes and pinned memory.

    Source: docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """
    taken = take(batches, dealt_to * (window.total + _SPARE_BATCHES), first=dealt_to * first)
    return DataLoader(
        dataset,
        batch_sampler=[[micro] for micro in taken],
        collate_fn=_only_item,
        num_workers=case.workers,
        prefetch_factor=_PREFETCH_FACTOR if case.workers else None,
        pin_memory=window.device.is_accelerator,
    )


def _only_item(items: list[Any]) -> Any:
    # A batch of sentences is one item of the data set, padded by the loader's worker.
    return items[0]


def take(batches: Sequence[Microbatch], count: int, *, first: int) -> list[Microbatch]:
    """Return so many batches from number `first` on, starting over at the end."""
    return [batches[(first + number) % len(batches)] for number in range(count)]


def keep_cached_memory(device: Device) -> None:
    """Let no framework empty the allocator's cache in this process.

    Lightning and Transformers do so at the start of each run, which a user has once. Here a run is
    a turn, and the timed steps would pay for memory that is asked for anew.
    """
    if device.is_accelerator:
        torch.cuda.empty_cache = lambda: None
