"""The parts of a translation task for those who run it in a loop of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.nmt.batching import BucketSampler, make_loader
from gapless.nmt.run import build_model
from gapless.nmt.step import TranslationStep


if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from gapless.device.base import Device
    from gapless.nmt.batching import TokenBatch
    from gapless.nmt.config import TrainConfig
    from gapless.nmt.model import Transformer
    from gapless.nmt.task import Task


@dataclass(frozen=True, kw_only=True)
class TrainingParts:
    """What one training loop needs.

    Attributes:
        model: on the device, freshly initialised.
        step: trains it; holds the optimizer.
        loader: the batches of the first epoch.
    """

    model: Transformer
    step: TranslationStep
    loader: DataLoader[TokenBatch]


def make_parts(
    config: TrainConfig, task: Task, *, device: Device, total_updates: int
) -> TrainingParts:
    """Build model, step and batches as `gapless train` does; batches are made in this process.

    Call it in the loop's compute context, after seeding.
    """
    model = build_model(config, task.vocabs).to(device.torch_device)
    step = TranslationStep(model, config, device=device, total_updates=total_updates)
    sampler = BucketSampler(
        task.train,
        max_tokens=config.batch_tokens,
        max_sentences=config.batch_size,
        accumulate=config.accumulate,
        seed=config.seed,
    )
    return TrainingParts(
        model=model, step=step, loader=make_loader(task.train, sampler, workers=0)
    )
