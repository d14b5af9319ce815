"""Tiny models, data and trainers of transformers, for the cases."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_outputs import ModelOutput

from hazards.captured_harness import snapshot


VOCAB, LABELS, PAD = 40, 3, 0


def _made(make, config, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(config)


def bert(*, dropout=0.1, seed=5, **settings):
    """Return a BERT that classifies."""
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=LABELS,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **settings,
    )
    return _made(BertForSequenceClassification, config, seed)


def gpt2(*, dropout=0.1, seed=5, **settings):
    """Return a GPT-2 language model, whose head has the weight of its embedding."""
    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=32,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=1,
        eos_token_id=2,
        **settings,
    )
    return _made(GPT2LMHeadModel, config, seed)


def t5(seed=5):
    """Return a T5."""
    config = T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=PAD,
        pad_token_id=PAD,
        eos_token_id=2,
    )
    return _made(T5ForConditionalGeneration, config, seed)


def marian(seed=5):
    """Return a Marian translation model."""
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=32,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    return _made(MarianMTModel, config, seed)


class Regression(torch.nn.Module):
    """A model of one's own, as the manual shows: it returns its loss and its output."""

    def __init__(self, dropout=0.0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.first, self.last = torch.nn.Linear(6, 16), torch.nn.Linear(16, 1)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x, labels=None):
        out = self.last(self.drop(torch.tanh(self.first(x)))).squeeze(-1)
        loss = None if labels is None else torch.nn.functional.mse_loss(out, labels)
        return ModelOutput(loss=loss, logits=out)


# -------------------------------------------------------------------------------------- data


def sentences(num=32, *, shortest=8, longest=8, seed=1):
    """Return so many sentences with a label, each of shortest to longest tokens."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(num):
        length = int(torch.randint(shortest, longest + 1, (1,), generator=draw))
        ids = torch.randint(3, VOCAB, (length,), generator=draw).tolist()
        found.append(
            {"input_ids": ids, "attention_mask": [1] * length, "labels": sum(ids) % LABELS}
        )
    return found


def pairs(num=32, *, shortest=7, longest=7, seed=1):
    """Return so many sentences and what they are translated to."""
    return [
        {"input_ids": one["input_ids"], "labels": [*one["input_ids"][::-1][:-1], 2]}
        for one in sentences(num, shortest=shortest, longest=longest, seed=seed)
    ]


def texts(num=32, *, shortest=10, longest=10, seed=1):
    """Return so many sentences for a language model."""
    return [
        {"input_ids": one["input_ids"], "labels": list(one["input_ids"])}
        for one in sentences(num, shortest=shortest, longest=longest, seed=seed)
    ]


def numbers(num=32, *, seed=1, nan_at=()):
    """Return inputs and targets of a regression; targets at some places are NaN."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 6, generator=draw)
    y = x.sum(1) * 0.3
    for place in nan_at:
        y[place] = float("nan")
    return [{"x": row, "labels": target} for row, target in zip(x, y, strict=True)]


def padded(rows):
    """Collate rows: pad each list of tokens to the longest, and stack everything else."""
    batch = {}
    for name in rows[0]:
        column = [row[name] for row in rows]
        if isinstance(column[0], list):
            fill = -100 if name == "labels" else PAD
            width = max(map(len, column))
            column = [[*one, *[fill] * (width - len(one))] for one in column]
        stacks = isinstance(column[0], torch.Tensor)
        batch[name] = torch.stack(column) if stacks else torch.tensor(column)
    if "attention_mask" not in batch and "input_ids" in batch:
        batch["attention_mask"] = (batch["input_ids"] != PAD).long()
    return batch


class Stream(torch.utils.data.IterableDataset):
    """Rows that come one by one and have no length."""

    def __init__(self, rows):
        self._rows = rows

    def __iter__(self):
        return iter(self._rows)


def accuracy(prediction):
    """Compute what people hand to `compute_metrics`."""
    logits = prediction.predictions
    logits = logits[0] if isinstance(logits, tuple) else logits
    return {"accuracy": float((np.argmax(logits, -1) == prediction.label_ids).mean())}


def spread(prediction):
    """Compute a number from generated tokens."""
    return {
        "mean_token": float(np.where(prediction.predictions < 0, 0, prediction.predictions).mean())
    }


# ---------------------------------------------------------------------------------- trainers


_SETTINGS = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 2,
    "learning_rate": 1e-2,
    # Where a schedule changes the rate in every step, as the default one does, captured updates are
    # not expected to be replayed; cases about schedules say which they have.
    "lr_scheduler_type": "constant",
    "logging_steps": 5,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "seed": 3,
}


def arguments(place, make=TrainingArguments, **settings):
    """Return arguments for this place's device."""
    made = make(
        output_dir=str(place.folder / "out"),
        use_cpu=not place.is_gpu,
        **{**_SETTINGS, **settings},
    )
    if not place.is_gpu:
        _ = made.device
        made.__dict__["_setup_devices"] = place.torch_device
    return made


def make_trainer(place, model=None, *, kind=Trainer, captured=True, rows=None, **options):
    """Return a trainer, which gapless has captured in the product.

    Args:
        place: where it trains.
        model: a BERT with dropout by default.
        kind: the trainer's class.
        captured: whether it is captured at all.
        rows: what it trains on; 32 sentences of one length by default.
        options: those that the trainer takes, and settings of its arguments.
    """
    of_trainer = {
        name: options.pop(name)
        for name in (
            "eval_dataset",
            "compute_metrics",
            "callbacks",
            "optimizers",
            "optimizer_cls_and_kwargs",
            "compute_loss_func",
            "preprocess_logits_for_metrics",
        )
        if name in options
    }
    make = Seq2SeqTrainingArguments if issubclass(kind, Seq2SeqTrainer) else TrainingArguments
    transformers.set_seed(3)
    trainer = kind(
        model=bert() if model is None else model,
        args=arguments(place, make, **options),
        train_dataset=sentences() if rows is None else rows,
        data_collator=padded,
        **of_trainer,
    )
    return place.capture_trainer(trainer) if captured else trainer


def train(place, trainer, **options):
    """Train, and return all that a user could compare."""
    output = trainer.train(**options)
    return {
        "train_loss": output.training_loss,
        "steps": output.global_step,
        **told(place, trainer),
    }


def told(place, trainer):
    """Return all that a user could compare of a trainer that has trained."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    place.watch("model", model)
    place.watch("optimizer", optimizer)
    return {
        "log": log_of(trainer.state.log_history),
        "state": [trainer.state.global_step, trainer.state.epoch, trainer.state.best_metric],
        "weights": snapshot(place, dict(model.state_dict())),
        "optimizer": snapshot(place, trainer.optimizer.state_dict()),
        "rates": trainer.lr_scheduler.get_last_lr(),
    }


def log_of(history):
    """Return logged rows without what they say of time."""
    timed = ("time", "per_second")
    return [
        {name: value for name, value in row.items() if not name.endswith(timed)} for row in history
    ]


def metrics_of(place, output):
    """Return what `predict` gave, without what it says of time."""
    (metrics,) = log_of([output.metrics])
    return snapshot(place, [metrics, output.predictions, output.label_ids])
