"""Hugging Face Seq2SeqTrainer: with the model of all other rows, and with MarianMT."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from benchmarks.peers.parts import (
    BatchDict,
    keep_cached_memory,
    make_loader,
    make_model,
    make_optimizer,
)
from gapless.nmt.data.vocab import BOS, EOS, PAD


if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import DataLoader

    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device
    from gapless.nmt.data.sampler import Microbatch


class Seq2SeqPeer:
    """`Seq2SeqTrainer` with its defaults: logging every 500 steps, progress bar, NaN filter.

    Given are what a user sets: bf16, workers, clip norm, no checkpoints, no reports. Optimizer and
    schedule are handed over through `optimizers`. With `marian` the model is MarianMT with the
    sizes of the others' model, and the trainer smooths the labels, as its users have it.

    Source: huggingface.co/docs/transformers/main_classes/trainer,
    huggingface.co/docs/transformers/trainer (custom loader: override `get_train_dataloader`),
    huggingface.co/docs/transformers/perf_train_gpu_one (bf16, fused AdamW, workers, pinning).

    Args:
        case: to train on.
        device: where.
        marian: train MarianMT.
    """

    def __init__(self, case: Case, device: Device, *, marian: bool = False) -> None:
        self.batches: Sequence[Microbatch] = case.plain_batches()
        self._case = case
        self._device = device
        self._marian = marian

    def setup(self) -> None:
        """Build model and optimizer."""
        keep_cached_memory(self._device)
        self._folder = tempfile.TemporaryDirectory(prefix="peers-")
        model = make_marian(self._case) if self._marian else make_model(self._case)
        self._model = model.to(self._device.torch_device)
        self._optimizers = make_optimizer(self._model, self._case.config)
        data = BatchDict(self._case.train)
        self._data: Dataset[Any] = MarianBatches(data) if self._marian else data

    def run(self, window: Window, *, first: int) -> None:
        """Train: one `train` of the same model, with a trainer of its own."""
        steps = _Steps(window)
        loader = make_loader(self._data, self.batches, case=self._case, window=window, first=first)
        trainer = _Trainer(
            model=self._model,
            args=self._arguments(window.total),
            optimizers=self._optimizers,
            callbacks=[steps],
        )
        trainer.given_loader, trainer.steps = loader, steps
        trainer.train()

    def _arguments(self, max_steps: int) -> Seq2SeqTrainingArguments:
        config = self._case.config
        return Seq2SeqTrainingArguments(
            output_dir=self._folder.name,
            max_steps=max_steps,
            bf16=config.precision == "bf16",
            use_cpu=not self._device.is_accelerator,
            max_grad_norm=config.clip_norm,
            label_smoothing_factor=config.label_smoothing if self._marian else 0.0,
            dataloader_num_workers=self._case.workers,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
        )


class _Trainer(Seq2SeqTrainer):
    given_loader: DataLoader[Any]
    steps: _Steps

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(self.given_loader)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.steps.loss = super().training_step(*args, **kwargs)
        return self.steps.loss


class _Steps(TrainerCallback):
    def __init__(self, window: Window) -> None:
        self._window = window
        self.loss = torch.zeros(())

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._window.after_step(self.loss)


def make_marian(case: Case) -> nn.Module:
    """Return MarianMT with the sizes, vocabularies and sharing of the others' model."""
    config = case.config
    torch.manual_seed(config.seed)
    model: nn.Module = MarianMTModel(
        MarianConfig(
            vocab_size=len(case.vocabs.src),
            decoder_vocab_size=len(case.vocabs.tgt),
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=config.share != "none",
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.ffn,
            decoder_ffn_dim=config.ffn,
            activation_function="relu",
            dropout=config.dropout,
            max_position_embeddings=2 * config.max_length + 2,
            scale_embedding=True,
            pad_token_id=PAD,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
            decoder_start_token_id=BOS,
            use_cache=False,
        )
    )
    return model.train()


class MarianBatches(Dataset[dict[str, Any]]):
    """The same batches under the names that MarianMT and DataCollatorForSeq2Seq give them."""

    def __init__(self, batches: BatchDict) -> None:
        self._batches = batches

    def __getitem__(self, micro: Microbatch) -> dict[str, Any]:
        batch = self._batches[micro]
        targets = batch["tgt"][:, 1:]
        return {
            "input_ids": batch["src"],
            "attention_mask": (batch["src"] != PAD).long(),
            "decoder_input_ids": batch["tgt"][:, :-1].contiguous(),
            "labels": targets.masked_fill(targets == PAD, -100),
        }
