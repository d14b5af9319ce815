"""Trainer of transformers: settings of training that people use."""

from __future__ import annotations

import torch
from transformers import Trainer

from integrations.frameworks import TRANSFORMERS
from integrations.harness import DEVICES, EITHER, GPU, REPLAYS, either, framework_case, replays
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


def hf(sentence, **options):
    return framework_case(TRANSFORMERS, sentence, **options)


@hf("classify sentences of one length, with dropout")
def sentences_of_one_length(place):
    return train(place, make_trainer(place))


@hf("classify sentences, with all of the library's own settings", expect=replays("model"))
def settings_of_the_library(place):
    own = {"lr_scheduler_type": "linear", "learning_rate": 5e-5, "num_train_epochs": 3}
    return train(place, make_trainer(place, **own))


@hf("classify sentences of some lengths, padded to the longest of the batch")
def padded_to_the_longest(place):
    rows = sentences(48, shortest=6, longest=8)
    return train(place, make_trainer(place, rows=rows, num_train_epochs=6))


@hf("train a language model whose head is tied to its embedding")
def tied_language_model(place):
    return train(place, make_trainer(place, gpt2(), rows=texts()))


@hf("accumulate three batches, of which an epoch has ten")
def accumulation_with_a_remainder(place):
    rows = sentences(40)
    return train(
        place,
        make_trainer(
            place, rows=rows, gradient_accumulation_steps=3, num_train_epochs=6, logging_steps=2
        ),
    )


@hf("accumulate batches with different numbers of tokens")
def accumulation_of_language_models(place):
    rows = texts(40, shortest=8, longest=9)
    return train(
        place,
        make_trainer(place, gpt2(), rows=rows, gradient_accumulation_steps=2, num_train_epochs=8),
    )


@hf("clip gradients by a small norm, which is logged at each step")
def clipped(place):
    return train(place, make_trainer(place, max_grad_norm=0.05, logging_steps=1))


@hf("do not clip")
def not_clipped(place):
    return train(place, make_trainer(place, max_grad_norm=0, logging_steps=1))


@hf("log the first step, and then at every seventh")
def first_step_is_logged(place):
    return train(place, make_trainer(place, logging_first_step=True, logging_steps=7))


@hf("log once an epoch")
def logs_once_an_epoch(place):
    return train(place, make_trainer(place, logging_strategy="epoch"))


@hf("log a part of an epoch, as a share")
def logs_at_a_share(place):
    return train(place, make_trainer(place, logging_steps=0.3))


@hf("a loss is NaN in the middle, and is filtered from the log", expect=EITHER)
def nan_is_filtered(place):
    rows = numbers(nan_at=[17])
    return train(
        place,
        make_trainer(place, Regression(), rows=rows, logging_steps=3, max_grad_norm=0.0),
    )


@hf("a loss is NaN in the middle, and is logged", expect=EITHER)
def nan_is_logged(place):
    rows = numbers(nan_at=[17])
    return train(
        place,
        make_trainer(
            place, Regression(), rows=rows, logging_steps=3, logging_nan_inf_filter=False
        ),
    )


class HeavierLater(Trainer):
    """A loss that weighs more from a step on."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs.loss * 3.0 if self.state.global_step >= 9 else outputs.loss
        return (loss, outputs) if return_outputs else loss


@hf("an own loss branches on the number of the step")
def loss_branches_at_a_step(place):
    trainer = make_trainer(place, Regression(), kind=HeavierLater, rows=numbers(), logging_steps=1)
    return train(place, trainer)


@hf("warm up and decay linearly", expect=replays("model"))
def linear_schedule(place):
    return train(
        place, make_trainer(place, lr_scheduler_type="linear", warmup_steps=5, logging_steps=1)
    )


@hf("decay by a cosine", expect=replays("model"))
def cosine_schedule(place):
    return train(place, make_trainer(place, lr_scheduler_type="cosine", warmup_steps=3))


@hf("a constant rate after a warm-up", expect=replays("model"))
def constant_rate_after_a_warm_up(place):
    settings = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 4}
    return train(place, make_trainer(place, num_train_epochs=3, **settings))


@hf("lower the rate where the evaluation stands still")
def rate_on_plateau(place):
    trainer = make_trainer(
        place,
        rows=sentences(),
        eval_dataset=sentences(10, seed=2),
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0, "factor": 0.5},
        eval_strategy="steps",
        eval_steps=8,
        num_train_epochs=4,
        metric_for_best_model="eval_loss",
        logging_steps=1,
    )
    return train(place, trainer)


@hf("train in bfloat16 by autocast")
def autocast_to_bfloat16(place):
    return train(place, make_trainer(place, bf16=True, num_train_epochs=4))


@hf("train in float16 with a scaler", devices=(GPU,))
def autocast_to_float16(place):
    return train(place, make_trainer(place, fp16=True, num_train_epochs=4))


@hf("smooth labels")
def smoothed_labels(place):
    return train(place, make_trainer(place, label_smoothing_factor=0.1))


@hf("add noise to the embeddings (NEFTune)", expect=EITHER)
def neftune(place):
    return train(place, make_trainer(place, gpt2(), rows=texts(), neftune_noise_alpha=5.0))


@hf("recompute activations in the backward pass", expect=either("checkpoint|hook"))
def recomputes_activations(place):
    return train(
        place,
        make_trainer(
            place,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False},
        ),
    )


@hf("put sentences of similar lengths together", expect=EITHER)
def grouped_by_length(place):
    rows = sentences(48, shortest=6, longest=8)
    return train(
        place,
        make_trainer(
            place, rows=rows, train_sampling_strategy="group_by_length", num_train_epochs=6
        ),
    )


@hf("the last batch is smaller")
def smaller_last_batch(place):
    return train(place, make_trainer(place, rows=sentences(34), num_train_epochs=5))


@hf("drop the last batch, which would be smaller")
def last_batch_is_dropped(place):
    return train(place, make_trainer(place, rows=sentences(34), dataloader_drop_last=True))


@hf("train on a stream without a length, for some steps")
def stream_of_rows(place):
    return train(place, make_trainer(place, rows=Stream(sentences(40)), max_steps=24))


@hf("unfused AdamW", expect=EITHER)
def unfused_adamw(place):
    return train(place, make_trainer(place, optim="adamw_torch"))


@hf("fused AdamW", devices=DEVICES)
def fused_adamw(place):
    return train(place, make_trainer(place, optim="adamw_torch_fused", weight_decay=0.1))


@hf("SGD by name")
def sgd_by_name(place):
    return train(place, make_trainer(place, optim="sgd"))


@hf("Adafactor by name", expect=replays("model"))
def adafactor(place):
    return train(place, make_trainer(place, optim="adafactor"))


@hf("give an SGD with momentum and no schedule")
def own_sgd(place):
    model = bert()
    model.to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return train(place, make_trainer(place, model, optimizers=(optimizer, None)))


@hf("give an AdamW and a schedule", expect=replays("model"))
def own_adamw_and_schedule(place):
    model = bert()
    model.to(place.torch_device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    return train(
        place, make_trainer(place, model, optimizers=(optimizer, schedule), logging_steps=1)
    )


@hf("name the optimizer's class")
def class_of_an_optimizer(place):
    chosen = (torch.optim.SGD, {"lr": 0.05, "nesterov": True, "momentum": 0.8})
    return train(place, make_trainer(place, optimizer_cls_and_kwargs=chosen))


@hf("compile the model", expect=either("compile"), devices=(GPU,))
def compiled(place):
    return train(place, make_trainer(place, torch_compile=True, num_train_epochs=2))


@hf("report tokens seen", expect=REPLAYS)
def counts_tokens(place):
    rows = texts()
    return train(
        place, make_trainer(place, gpt2(), rows=rows, include_num_input_tokens_seen="all")
    )


@hf("average losses over devices and tokens")
def averages_tokens(place):
    rows = texts()
    return train(place, make_trainer(place, gpt2(), rows=rows, average_tokens_across_devices=True))


@hf("train a model of one's own, without dropout", expect=replays())
def model_of_ones_own(place):
    return train(place, make_trainer(place, Regression(), rows=numbers()))


@hf("train a model whose attention is written out")
def eager_attention(place):
    return train(place, make_trainer(place, bert(attn_implementation="eager")))


@hf("skip checks of gradients: no layer of embeddings is trained")
def frozen_embeddings(place):
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    return train(place, make_trainer(place, model))
