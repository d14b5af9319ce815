"""Trainer of transformers: checkpoints, resuming, training twice."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file

from hazards.captured_harness import snapshot
from integrations.frameworks import TRANSFORMERS
from integrations.harness import EVERYWHERE, GPU, framework_case
from integrations.hf_parts import Regression, log_of, make_trainer, numbers, train


def hf(sentence, *, devices=(GPU,), **options):
    """Register a case. To follow the code of a model takes seconds, so that most run on a GPU alone."""
    return framework_case(TRANSFORMERS, sentence, devices=devices, **options)


_SAVES = {"save_strategy": "steps", "save_steps": 10, "num_train_epochs": 3}


def saved(place, number):
    """Return what a checkpoint's folder holds."""
    folder = place.folder / "out" / f"checkpoint-{number}"
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    return snapshot(
        place,
        [
            sorted(path.name for path in folder.iterdir()),
            load_file(folder / "model.safetensors"),
            torch.load(folder / "optimizer.pt"),
            torch.load(folder / "scheduler.pt"),
            log_of(state["log_history"]),
            state["stateful_callbacks"],
            torch.load(folder / "rng_state.pth", weights_only=False),
        ],
    )


def checkpoint(place, number=10):
    return str(place.folder / "out" / f"checkpoint-{number}")


@hf("save every ten steps", devices=EVERYWHERE)
def saves(place):
    found = train(place, make_trainer(place, **_SAVES))
    return [found, saved(place, 10), saved(place, 20)]


@hf("resume from a checkpoint in the middle of an epoch")
def resumes(place):
    first = train(place, make_trainer(place, **_SAVES))
    trainer = make_trainer(place, **_SAVES)
    second = train(place, trainer, resume_from_checkpoint=checkpoint(place))
    return [first, second]


@hf("a checkpoint of a captured trainer is resumed by a plain one")
def plain_resumes_from_captured(place):
    first = train(place, make_trainer(place, **_SAVES))
    plain = make_trainer(place, captured=False, **_SAVES)
    output = plain.train(resume_from_checkpoint=checkpoint(place))
    ended = [output.training_loss, log_of(plain.state.log_history)]
    return [first, ended, snapshot(place, dict(plain.model.state_dict()))]


@hf("call train() twice")
def trains_twice(place):
    trainer = make_trainer(place)
    return [train(place, trainer), train(place, trainer)]


@hf("a new model in each training", devices=EVERYWHERE)
def model_is_made_again(place):
    trainer = make_trainer(place, Regression(), rows=numbers())
    trainer.model_init = lambda: Regression()
    return [train(place, trainer), train(place, trainer)]
