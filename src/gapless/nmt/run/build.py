"""The parts of a translation task for those who run it in a loop of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.nmt.data.batching import BucketSampler, make_loader
from gapless.nmt.data.packed import choose_packings
from gapless.nmt.data.padded import choose_shapes
from gapless.nmt.model.compiling import compile_layers
from gapless.nmt.run.run_folder import build_model
from gapless.nmt.run.translation_step import TranslationStep


if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from gapless.device.base import Device
    from gapless.nmt.data.batching import AnyBatch
    from gapless.nmt.data.packed import Packings
    from gapless.nmt.data.padded import Shapes
    from gapless.nmt.data.token_pairs import TokenPairs
    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.task import Task


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
    loader: DataLoader[AnyBatch]


def make_parts(
    config: TrainConfig, task: Task, *, device: Device, total_updates: int
) -> TrainingParts:
    """Build model, step and batches as `gapless train` does; batches are made in this process.

    Call it in the loop's compute context, after seeding.
    """
    config = config.resolved_for(is_accelerator=device.is_accelerator)
    model = build_model(config, task.vocabs).to(device.torch_device)
    if config.compile:
        compile_layers(model)
    step = TranslationStep(model, config, device=device, total_updates=total_updates)
    loader = make_loader(task.train, make_sampler(config, task.train), workers=0)
    return TrainingParts(model=model, step=step, loader=loader)


def make_sampler(
    config: TrainConfig, pairs: TokenPairs, *, for_training: bool = True
) -> BucketSampler:
    """Return a sampler of these pairs with the budgets of a run.

    Args:
        config: of the run, resolved for its device.
        pairs: to draw from, at least one.
        for_training: shuffle, group batches into updates, and pad or pack as the run does.
    """
    return BucketSampler(
        pairs,
        max_tokens=config.batch_tokens,
        max_sentences=config.batch_size,
        accumulate=config.accumulate if for_training else 1,
        shuffle=for_training,
        seed=config.seed,
        shapes=_shapes(config, pairs) if for_training else None,
    )


def _shapes(config: TrainConfig, pairs: TokenPairs) -> Shapes | Packings | None:
    lengths = pairs.src_lengths, pairs.tgt_lengths
    if config.pack and config.batch_tokens is not None:
        return choose_packings(
            *lengths, max_tokens=config.batch_tokens, max_sentences=config.batch_size
        )
    if config.fixed_shapes:
        return choose_shapes(
            *lengths, max_tokens=config.batch_tokens, max_sentences=config.batch_size
        )
    return None
