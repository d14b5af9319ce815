"""Trainer of transformers: evaluation, prediction, generation, early stopping."""

from __future__ import annotations

from transformers import Seq2SeqTrainer

from hazards.captured_harness import snapshot
from integrations.frameworks import TRANSFORMERS
from integrations.harness import EITHER, EVERYWHERE, GPU, framework_case
from integrations.hf_parts import (
    accuracy,
    bert,
    gpt2,
    log_of,
    make_trainer,
    marian,
    metrics_of,
    pairs,
    sentences,
    spread,
    t5,
    texts,
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


@hf("evaluate before the first step and on two sets")
def evaluates_two_sets(place):
    trainer = make_trainer(
        place,
        eval_dataset={"short": sentences(9, shortest=5, seed=2), "long": sentences(8, seed=4)},
        eval_strategy="steps",
        eval_steps=6,
        eval_on_start=True,
        eval_accumulation_steps=2,
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


@hf("evaluate alone, without ever training", expect=EITHER)
def only_evaluates(place):
    trainer = make_trainer(place, compute_metrics=accuracy)
    first = log_of([trainer.evaluate(sentences(20, seed=2))])
    return [first, metrics_of(place, trainer.predict(sentences(20, seed=2)))]


@hf("evaluate in bfloat16 while training in float32", expect=EITHER)
def evaluates_in_bfloat16(place):
    trainer = make_trainer(place, eval_dataset=sentences(8, seed=2), bf16_full_eval=True)
    found = train(place, trainer)
    return [found, log_of([trainer.evaluate()])]


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


@hf("a Marian learns to translate, clipped and accumulated")
def marian_generates(place):
    return _translates(place, marian(), gradient_accumulation_steps=2, num_train_epochs=6)


@hf("generate by hand between two trainings")
def generates_by_hand(place):
    trainer = make_trainer(place, gpt2(dropout=0.0), rows=texts())
    first = train(place, trainer)
    prompt = place.moved(trainer.data_collator(texts(2, seed=4))["input_ids"][:, :4])
    drawn = trainer.model.generate(prompt, max_new_tokens=4, do_sample=True, pad_token_id=0)
    return [first, snapshot(place, drawn), train(place, trainer)]


@hf("look at the model's hidden states after training, by calling it")
def calls_the_model(place):
    trainer = make_trainer(place, bert())
    found = train(place, trainer)
    batch = trainer.data_collator(sentences(4, seed=3))
    batch = {name: place.moved(value) for name, value in batch.items()}
    trainer.model.eval()
    out = trainer.model(**batch, output_hidden_states=True)
    return [found, snapshot(place, [out.loss, out.logits, list(out.hidden_states)])]
