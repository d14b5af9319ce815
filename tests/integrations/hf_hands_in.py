"""Trainer of transformers: subclasses and callbacks that put their hands in."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback

from integrations.frameworks import TRANSFORMERS
from integrations.harness import EITHER, EVERYWHERE, GPU, framework_case
from integrations.hf_parts import (
    Regression,
    gpt2,
    log_of,
    make_trainer,
    numbers,
    sentences,
    texts,
    train,
)


def hf(sentence, *, devices=(GPU,), **options):
    """Register a case. To follow the code of a model takes seconds, so that most run on a GPU alone."""
    return framework_case(TRANSFORMERS, sentence, devices=devices, **options)


# ------------------------------------------------------------------------------- subclasses


class Weighted(Trainer):
    """A loss with weights of classes, as the manual shows."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 2.0, 0.5], device=outputs.logits.device)
        loss = F.cross_entropy(outputs.logits, labels, weight=weight)
        return (loss, outputs) if return_outputs else loss


@hf("an own loss with weights of classes, made in each step", expect=EITHER)
def weighted_loss(place):
    return train(place, make_trainer(place, kind=Weighted, eval_dataset=sentences(8, seed=2)))


class WeightedOnce(Trainer):
    """A loss with weights of classes that were made once."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, inputs["labels"], weight=self.weight)
        return (loss, outputs) if return_outputs else loss


@hf("an own loss, and an evaluation that takes its outputs")
def own_loss_with_outputs(place):
    trainer = make_trainer(
        place,
        kind=WeightedOnce,
        eval_dataset=sentences(8, seed=2),
        eval_strategy="steps",
        eval_steps=8,
    )
    trainer.weight = place.moved(torch.tensor([1.0, 2.0, 0.5]))
    return train(place, trainer)


class PerToken(Trainer):
    """A loss that is divided by the number of tokens of all batches of an update."""

    has_mask = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        mask = inputs["attention_mask"] if self.has_mask else None
        logits = model(input_ids=inputs["input_ids"], attention_mask=mask).logits[:, :-1]
        total = F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), reduction="sum"
        )
        return total / num_items_in_batch


def _per_token(place, kind):
    return train(
        place,
        make_trainer(
            place,
            gpt2(),
            kind=kind,
            rows=texts(32, shortest=9, longest=10),
            gradient_accumulation_steps=2,
            num_train_epochs=3,
        ),
    )


@hf("an own loss by the number of tokens that an update has")
def loss_per_token(place):
    return _per_token(place, PerToken)


class ByHand(Trainer):
    """A training_step that is written out, with a second loss on noise."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        noise = torch.randn_like(inputs["x"])
        loss = loss + 0.1 * model(inputs["x"] + noise).logits.square().mean()
        self.accelerator.backward(loss)
        return loss.detach()


@hf("an own training_step, written out, calls the model twice", expect=EITHER, devices=EVERYWHERE)
def training_step_by_hand(place):
    return train(place, make_trainer(place, Regression(0.1), kind=ByHand, rows=numbers()))


class Reads(Trainer):
    """A loss that reads a value on the host, and draws numbers there."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs.loss * (1 + random.random() + np.random.rand())  # noqa: NPY002
        if loss.item() > 0.2:
            loss = loss * 2
        return (loss, outputs) if return_outputs else loss


@hf(
    "an own loss reads itself, and draws random numbers of Python and numpy",
    expect=EITHER,
    devices=EVERYWHERE,
)
def loss_reads_and_draws(place):
    return train(place, make_trainer(place, Regression(), kind=Reads, rows=numbers()))


# -------------------------------------------------------------------------------- callbacks


class Stops(TrainerCallback):
    """Stops when the log says that it has been enough, and saves what it saw."""

    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, **kwargs):
        self.seen.append(copy.deepcopy(log_of(state.log_history)[-1:]))
        if len(state.log_history) >= 7:
            control.should_training_stop = True

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(state.log_history[-1]["loss"] if state.log_history else None)


@hf("a callback reads the log after each step, and stops the training")
def callback_stops(place):
    callback = Stops()
    found = train(
        place, make_trainer(place, callbacks=[callback], logging_steps=3, num_train_epochs=3)
    )
    return [found, callback.seen]


class OnSteps(TrainerCallback):
    """Calls a function after each step."""

    def __init__(self, act):
        self._act = act

    def on_step_end(self, args, state, control, **kwargs):
        self._act(state.global_step, kwargs["model"], kwargs["optimizer"])


def _with_callback(place, act, model=None, **options):
    return train(place, make_trainer(place, model, callbacks=[OnSteps(act)], **options))


@hf("a callback freezes a layer at a step", devices=EVERYWHERE)
def callback_freezes(place):
    def act(step, model, optimizer):
        if step == 10:
            model.first.requires_grad_(False)

    return _with_callback(place, act, Regression(), rows=numbers(), num_train_epochs=4)


@hf("a callback swaps average weights in at each evaluation", expect=EITHER)
def average_is_evaluated(place):
    class Swaps(TrainerCallback):
        average = None

        def on_step_end(self, args, state, control, **kwargs):
            weights = list(kwargs["model"].parameters())
            if self.average is None:
                self.average = [weight.detach().clone() for weight in weights]
            torch._foreach_lerp_(self.average, [weight.detach() for weight in weights], 0.2)
            if state.global_step % 6 == 0:
                self.own = [weight.data for weight in weights]
                for weight, kept in zip(weights, self.average, strict=True):
                    weight.data = kept
                control.should_evaluate = True

        def on_evaluate(self, args, state, control, **kwargs):
            for weight, own in zip(kwargs["model"].parameters(), self.own, strict=True):
                weight.data = own

    rows = sentences(8, seed=2)
    return train(place, make_trainer(place, callbacks=[Swaps()], eval_dataset=rows))


class Gradients(TrainerCallback):
    """Reads and clamps a gradient between the backward pass and the update."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        gradient = kwargs["model"].classifier.weight.grad
        self.seen.append(gradient.norm().item())
        gradient.clamp_(-0.01, 0.01)


@hf("a callback clamps a gradient before each update")
def callback_clamps_a_gradient(place):
    callback = Gradients()
    return [train(place, make_trainer(place, callbacks=[callback])), callback.seen]
