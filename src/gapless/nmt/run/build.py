"""The parts of a translation task for those who run it in a loop of their own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch

from gapless.nmt.data.fixed_layout import choose_fixed_layout
from gapless.nmt.data.packed_layout import choose_packed_layout
from gapless.nmt.data.padded_layout import PaddedLayout
from gapless.nmt.data.sampler import MicrobatchSampler, make_loader
from gapless.nmt.model.compiling import compile_layers
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.nmt.run.checkpoints import FINAL, FOLDER, load_weights
from gapless.nmt.run.folder import read_config, read_vocabs
from gapless.nmt.run.translation_step import TranslationStep


if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.data import DataLoader

    from gapless.device.base import Device
    from gapless.nmt.data.batch import AnyBatch
    from gapless.nmt.data.layout import Layout
    from gapless.nmt.data.token_pairs import TokenPairs
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.task import Task, Vocabs


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
) -> MicrobatchSampler:
    """Return a sampler of these pairs with the budgets of a run.

    Args:
        config: of the run, resolved for its device.
        pairs: to draw from, at least one.
        for_training: shuffle, group batches into updates, and lay them out as the run does.
            Otherwise batches are padded and come in the order of length.
    """
    if not for_training:
        return MicrobatchSampler(pairs, _padded_layout(config, pairs), shuffle=False)
    return MicrobatchSampler(
        pairs,
        make_layout(config, pairs),
        accumulate=config.accumulate,
        seed=config.seed,
    )


def make_layout(config: TrainConfig, pairs: TokenPairs) -> Layout:
    """Return how a run lays its training pairs out in batches: padded, fixed or packed.

    Args:
        config: of the run, resolved for its device.
        pairs: to train on, at least one.
    """
    lengths = pairs.src_lengths, pairs.tgt_lengths
    if config.pack and config.batch_tokens is not None:
        return choose_packed_layout(
            *lengths, max_tokens=config.batch_tokens, max_sentences=config.batch_size
        )
    if config.fixed_shapes:
        return choose_fixed_layout(
            *lengths, max_tokens=config.batch_tokens, max_sentences=config.batch_size
        )
    return _padded_layout(config, pairs)


def _padded_layout(config: TrainConfig, pairs: TokenPairs) -> PaddedLayout:
    return PaddedLayout(
        pairs.src_lengths,
        pairs.tgt_lengths,
        max_tokens=config.batch_tokens,
        max_sentences=config.batch_size,
    )


def build_model(config: TrainConfig, vocabs: Vocabs) -> Transformer:
    """Return a model of a run's sizes on the CPU, freshly initialised."""
    names = {item.name for item in fields(ModelSizes)}
    known = {name: getattr(config, name) for name in names if hasattr(config, name)}
    sizes = ModelSizes(src_vocab=len(vocabs.src), tgt_vocab=len(vocabs.tgt), **known)
    # Both marks, and room for translations longer than what was trained on.
    return Transformer(sizes, max_positions=2 * config.max_length + 2)


def load_model(
    path: Path, *, device: Device, checkpoint: str | None = FINAL
) -> tuple[TrainConfig, Vocabs, Transformer]:
    """Return the settings, vocabularies and trained model of a run.

    Args:
        path: the run folder.
        device: where the model goes.
        checkpoint: name of a file in the run's `checkpoints`; None leaves the weights random.

    Raises:
        RunFolderError: the folder is not a run, or has no such checkpoint.

    Sync: Blocks the host while weights are copied.
    """
    config = read_config(path)
    vocabs = read_vocabs(path, config)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, vocabs)
    if checkpoint is not None:
        load_weights(model, path / FOLDER / checkpoint)
    return config, vocabs, model.to(device.torch_device).eval()
