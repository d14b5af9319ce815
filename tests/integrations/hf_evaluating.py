"""Trainer of transformers: evaluation, prediction, generation, early stopping."""

from __future__ import annotations

from transformers import Seq2SeqTrainer

from integrations.frameworks import TRANSFORMERS
from integrations.harness import EVERYWHERE, GPU, framework_case
from integrations.hf_parts import (
    accuracy,
    log_of,
    make_trainer,
    metrics_of,
    pairs,
    sentences,
    spread,
    t5,
    train,
)


def hf(sentence, *, devices=(GPU,), **options):
    """Register a case. To follow the code of a model takes seconds, so that most run on a GPU alone."""
    return framework_case(TRANSFORMERS, sentence, devices=devices, **options)


@hf("evaluate every few steps, with a metric")
def evaluates_every_few_steps(place):
    trainer = make_trainer(
        place,
        eval_dataset=sentences(10, seed=2),
        compute_metrics=accuracy,
        eval_strategy="steps",
        eval_steps=5,
    )
    return train(place, trainer)


@hf("load the best model at the end")
def best_model_at_the_end(place):
    trainer = make_trainer(
        place,
        eval_dataset=sentences(10, seed=2),
        compute_metrics=accuracy,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        save_total_limit=2,
        load_best_model_at_end=True,
        learning_rate=5e-2,
    )
    found = train(place, trainer)
    best = trainer.state.best_model_checkpoint.rsplit("/", 1)[-1]
    return [found, best, metrics_of(place, trainer.predict(sentences(6, seed=3)))]


@hf("predict after training, and evaluate before and after", devices=EVERYWHERE)
def predicts(place):
    trainer = make_trainer(place, compute_metrics=accuracy)
    before = log_of([trainer.evaluate(sentences(10, seed=2))])
    found = train(place, trainer)
    after = log_of([trainer.evaluate(sentences(10, seed=2))])
    return [before, found, after, metrics_of(place, trainer.predict(sentences(10, seed=3)))]


def _translates(place, model, **options):
    trainer = make_trainer(
        place,
        model,
        kind=Seq2SeqTrainer,
        rows=pairs(24),
        eval_dataset=pairs(6, seed=2),
        compute_metrics=spread,
        predict_with_generate=True,
        generation_max_length=9,
        eval_strategy="steps",
        eval_steps=8,
        **options,
    )
    found = train(place, trainer)
    return [found, metrics_of(place, trainer.predict(pairs(5, seed=3), max_length=8, num_beams=2))]


@hf("a T5 learns to translate, and generates when it is evaluated", devices=EVERYWHERE)
def t5_generates(place):
    return _translates(place, t5())
