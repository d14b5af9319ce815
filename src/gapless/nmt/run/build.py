"""Build the parts of a translation run: layout, batches, model and step."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import torch

from gapless.device.instruments.processor import num_cores
from gapless.device.torch_private import start_compiling_processes
from gapless.nmt.data.bpe_dropout import BpeDropout
from gapless.nmt.data.fixed_layout import choose_fixed_layout
from gapless.nmt.data.packed_layout import choose_packed_layout
from gapless.nmt.data.padded_layout import PaddedLayout
from gapless.nmt.data.sampler import MicrobatchSampler
from gapless.nmt.model.compiling import compile_layers
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.nmt.run.training_step import TranslationStep


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.device.base import Device
    from gapless.nmt.data.layout import Layout
    from gapless.nmt.data.token_pairs import TokenPairs
    from gapless.nmt.data.vocab import Vocabs
    from gapless.nmt.run.task import Task
    from gapless.nmt.settings.config import TrainConfig
    from gapless.nmt.settings.effective_settings import EffectiveSettings, LayoutName
    from gapless.plans import Plan
    from gapless.ranks import Ranks


# --- batches ---


def training_sampler(
    config: TrainConfig,
    pairs: TokenPairs,
    *,
    counts: Sequence[int] | None = None,
    layout: LayoutName,
    one_shape: bool = False,
    rank: int = 0,
    world: int = 1,
    vocabs: Vocabs | None = None,
) -> MicrobatchSampler:
    """Return a sampler of the batches that a run trains on: shuffled, and grouped into updates.

    Args:
        config: of the run.
        pairs: to draw from, at least one.
        counts: how many of them are of each corpus; None: there is one.
        layout: of the batches.
        one_shape: all batches of an update have one shape.
        rank: whose batches these are.
        world: number of ranks.
        vocabs: of the pairs, for BPE-dropout; None: without it.
    """
    of_epoch = None
    if vocabs is not None and config.bpe_dropout:
        cut = BpeDropout(
            pairs,
            vocabs,
            share=config.bpe_dropout,
            max_length=config.max_length,
            seed=config.seed,
        )

        def of_epoch(epoch: int) -> tuple[TokenPairs, Layout]:
            drawn = cut.of_epoch(epoch)
            return drawn, make_layout(config, drawn, layout)

    return MicrobatchSampler(
        pairs,
        make_layout(config, pairs, layout),
        of_epoch=of_epoch,
        accumulate=config.num_accumulated,
        counts=counts,
        weights=config.weight_numbers(),
        one_shape=one_shape,
        seed=config.seed,
        rank=rank,
        world=world,
    )


def sampler_of_task(
    config: TrainConfig,
    task: Task,
    effective: EffectiveSettings,
    *,
    rank: int = 0,
    world: int = 1,
) -> MicrobatchSampler:
    """Return a sampler of the batches that a run trains its task on.

    Args:
        config: of the run.
        task: what it learns.
        effective: what its settings mean.
        rank: whose batches these are.
        world: number of ranks.
    """
    return training_sampler(
        config,
        task.train,
        counts=task.counts,
        layout=effective.layout,
        one_shape=effective.one_shape,
        rank=rank,
        world=world,
        vocabs=task.vocabs,
    )


def validation_sampler(
    config: TrainConfig, pairs: TokenPairs, *, rank: int = 0, world: int = 1
) -> MicrobatchSampler:
    """Return a sampler of padded batches in order of length, always the same.

    Args:
        config: of the run.
        pairs: to draw from.
        rank: whose batches these are.
        world: number of ranks, which get whole batches by turns.
    """
    layout = make_layout(config, pairs, "padded")
    return MicrobatchSampler(pairs, layout, shuffle=False, rank=rank, world=world)


def make_layout(config: TrainConfig, pairs: TokenPairs, name: LayoutName) -> Layout:
    """Return the layout of that name for these pairs, with the budgets of a run.

    Args:
        config: of the run; a packed layout needs its `batch_tokens`.
        pairs: to lay out, at least one.
        name: of the layout.
    """
    lengths = pairs.src_lengths, pairs.tgt_lengths
    if name == "packed":
        assert config.batch_tokens is not None
        return choose_packed_layout(
            *lengths, max_tokens=config.batch_tokens, max_sentences=config.batch_size
        )
    make = choose_fixed_layout if name == "fixed" else PaddedLayout
    return make(*lengths, max_tokens=config.batch_tokens, max_sentences=config.batch_size)


def num_workers(config: TrainConfig, *, plan: Plan, device: Device) -> int:
    """Return how many processes make the batches of a run.

    As many as the settings say. If they say nothing: as the plan says, but no more than the cores
    that the loop leaves free. It needs one beside a GPU; on a CPU torch computes with several.

    Args:
        config: of the run.
        plan: that moves its work.
        device: where it runs.
    """
    if config.workers is not None:
        return config.workers
    busy = 1 if device.is_accelerator else torch.get_num_threads()
    return max(0, min(plan.workers, num_cores() - busy))


# --- model and step ---


def build_model(config: TrainConfig, vocabs: Vocabs) -> Transformer:
    """Return a model of a run's sizes on the CPU, freshly initialised."""
    names = {item.name for item in fields(ModelSizes)}
    known = {name: getattr(config, name) for name in names if hasattr(config, name)}
    sizes = ModelSizes(src_vocab=len(vocabs.src), tgt_vocab=len(vocabs.tgt), **known)
    # Room for the begin and end marks, and for translations longer than any training sentence.
    return Transformer(sizes, max_positions=2 * config.max_length + 2)


def build_step(
    config: TrainConfig,
    vocabs: Vocabs,
    *,
    compiles: bool,
    device: Device,
    total_updates: int,
    ranks: Ranks | None = None,
    lengths_vary: bool = True,
) -> TranslationStep:
    """Return the step of a run, with its model on the device, freshly initialised.

    Call it on the loop's compute stream, after seeding: autograd binds each gradient to the stream
    that it first saw.

    Args:
        config: of the run.
        vocabs: of both sides.
        compiles: whether the model's layers are compiled.
        device: where the model goes.
        total_updates: of the run, for schedules that end.
        ranks: whose gradients are summed; None: this process trains alone.
        lengths_vary: whether batches have several shapes, as all have but packed ones.

    Sync: Blocks the host while weights are copied.
    """
    if compiles and device.torch_device.type == "cuda":
        start_compiling_processes()
    model = build_model(config, vocabs).to(device.torch_device)
    if compiles:
        compile_layers(model, lengths_vary=lengths_vary)
    return TranslationStep(model, config, device=device, total_updates=total_updates, ranks=ranks)
