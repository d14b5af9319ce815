"""Trainer of transformers: settings of training that people use."""

from __future__ import annotations

import torch
from transformers import Trainer

from integrations.frameworks import TRANSFORMERS
from integrations.harness import (
    EITHER,
    EVERYWHERE,
    GPU,
    REPLAYS,
    either,
    framework_case,
    replays,
)
from integrations.hf_parts import (
    Regression,
    Stream,
    bert,
    gpt2,
    make_trainer,
    numbers,
    sentences,
    texts,
    train,
)


class HeavierLater(Trainer):
    """A loss that weighs more from a step on."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs.loss * 3.0 if self.state.global_step >= 9 else outputs.loss
        return (loss, outputs) if return_outputs else loss


def adamw_and_schedule(place):
    model = bert()
    model.to(place.torch_device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    return {"model": model, "optimizers": (optimizer, schedule), "logging_steps": 1}


def with_frozen_embeddings(place):
    del place
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    return {"model": model}


# By name: what users do, what is expected, what the trainer is given, and where it runs: on a GPU, if
# nothing is said, since to follow the code of a model takes seconds.
SETTINGS = {
    "sentences_of_one_length": (
        "classify sentences of one length, with dropout",
        REPLAYS,
        lambda place: {},
    ),
    "settings_of_the_library": (
        "classify sentences, with all of the library's own settings",
        replays("model"),
        lambda place: {
            "lr_scheduler_type": "linear",
            "learning_rate": 5e-5,
            "num_train_epochs": 3,
        },
        EVERYWHERE,
    ),
    "padded_to_the_longest": (
        "classify sentences of some lengths, padded to the longest of the batch",
        REPLAYS,
        lambda place: {"rows": sentences(48, shortest=6), "num_train_epochs": 6},
    ),
    "tied_language_model": (
        "train a language model whose head is tied to its embedding, and report tokens seen",
        REPLAYS,
        lambda place: {
            "model": gpt2(),
            "rows": texts(),
            "include_num_input_tokens_seen": "all",
        },
        EVERYWHERE,
    ),
    "accumulation_with_a_remainder": (
        "accumulate three batches, of which an epoch has ten",
        REPLAYS,
        lambda place: {
            "rows": sentences(40),
            "gradient_accumulation_steps": 3,
            "num_train_epochs": 6,
            "logging_steps": 2,
        },
    ),
    "clipped": (
        "clip gradients by a small norm, which is logged at each step",
        REPLAYS,
        lambda place: {"max_grad_norm": 0.05, "logging_steps": 1},
    ),
    "nan_is_filtered": (
        "a loss is NaN in the middle, and is filtered from the log",
        EITHER,
        lambda place: {
            "model": Regression(),
            "rows": numbers(nan_at=[17]),
            "logging_steps": 3,
            "max_grad_norm": 0.0,
        },
        EVERYWHERE,
    ),
    "nan_is_logged": (
        "a loss is NaN in the middle, and is logged",
        EITHER,
        lambda place: {
            "model": Regression(),
            "rows": numbers(nan_at=[17]),
            "logging_steps": 3,
            "logging_nan_inf_filter": False,
        },
        EVERYWHERE,
    ),
    "loss_branches_at_a_step": (
        "an own loss branches on the number of the step",
        REPLAYS,
        lambda place: {
            "model": Regression(),
            "kind": HeavierLater,
            "rows": numbers(),
            "logging_steps": 1,
        },
        EVERYWHERE,
    ),
    "rate_on_plateau": (
        "lower the rate where the evaluation stands still",
        REPLAYS,
        lambda place: {
            "eval_dataset": sentences(10, seed=2),
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5},
            "eval_strategy": "steps",
            "eval_steps": 8,
            "num_train_epochs": 4,
            "metric_for_best_model": "eval_loss",
            "logging_steps": 1,
        },
    ),
    "autocast_to_bfloat16": (
        "train in bfloat16 by autocast",
        REPLAYS,
        lambda place: {"bf16": True, "num_train_epochs": 4},
    ),
    "autocast_to_float16": (
        "train in float16 with a scaler",
        REPLAYS,
        lambda place: {"fp16": True, "num_train_epochs": 4},
    ),
    "neftune": (
        "add noise to the embeddings (NEFTune)",
        EITHER,
        lambda place: {"model": gpt2(), "rows": texts(), "neftune_noise_alpha": 5.0},
    ),
    "recomputes_activations": (
        "recompute activations in the backward pass",
        either("checkpoint|hook"),
        lambda place: {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        },
        EVERYWHERE,
    ),
    "smaller_last_batch": (
        "the last batch is smaller",
        REPLAYS,
        lambda place: {"rows": sentences(34), "num_train_epochs": 5},
    ),
    "stream_of_rows": (
        "train on a stream without a length, for some steps",
        REPLAYS,
        lambda place: {"rows": Stream(sentences(40)), "max_steps": 24},
    ),
    "unfused_adamw": ("unfused AdamW", EITHER, lambda place: {"optim": "adamw_torch"}),
    "fused_adamw": (
        "fused AdamW",
        REPLAYS,
        lambda place: {"optim": "adamw_torch_fused", "weight_decay": 0.1},
    ),
    "adafactor": ("Adafactor by name", replays("model"), lambda place: {"optim": "adafactor"}),
    "own_adamw_and_schedule": (
        "give an AdamW and a schedule",
        replays("model"),
        adamw_and_schedule,
    ),
    "compiled": (
        "compile the model",
        either("compile"),
        lambda place: {"torch_compile": True, "num_train_epochs": 2},
    ),
    "model_of_ones_own": (
        "train a model of one's own, without dropout",
        REPLAYS,
        lambda place: {"model": Regression(), "rows": numbers()},
        EVERYWHERE,
    ),
    "frozen_embeddings": (
        "skip checks of gradients: no layer of embeddings is trained",
        REPLAYS,
        with_frozen_embeddings,
    ),
}


def program_of(settings):
    """Return a program that trains with these settings."""

    def program(place):
        return train(place, make_trainer(place, **settings(place)))

    return program


for _name, (_sentence, _expect, _settings, *_devices) in SETTINGS.items():
    framework_case(
        TRANSFORMERS,
        _sentence,
        expect=_expect,
        devices=_devices[0] if _devices else (GPU,),
        name=_name,
        theme="hf_training",
    )(program_of(_settings))
