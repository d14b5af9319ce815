"""Training, evaluation and generation in turns, and the modes that a call is made under."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from hazards.captured_models import batches, kept, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case, refused
from hazards.in_place_models import NUM, Normed, Tied, fit, made, tokens, update


# ------------------------------------------------------------------------------- evaluation


def _epochs(place, evaluate, *, num=4, model=None):
    model = place.capture(made(place, Normed) if model is None else model)
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses, scores = [], []
    for epoch in range(num):
        model.train()
        losses += fit(place, model, optimizer, 8, start=10 * epoch)
        scores.append(evaluate(model))
    return losses, scores, state(model, optimizer)


@in_place_case("After each epoch the model is evaluated in inference mode, and outputs are kept.")
def evaluated_in_inference_mode(place):
    def evaluate(model):
        model.eval()
        with torch.inference_mode():
            outputs = [model(x) for x, _ in batches(place, 4)]
        return outputs, [one.is_inference() for one in outputs]

    return _epochs(place, evaluate)


@in_place_case("Evaluation is called between forward and backward.", expect=captured("optimizer"))
def evaluated_between_forward_and_backward(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(sgd(model))
    losses, scores = [], []
    for number, (x, y) in enumerate(batches(place, 24)):
        loss = F.cross_entropy(model(x), y)
        if number % 3 == 0:
            model.eval()
            with torch.no_grad():
                scores.append(kept(model(x)))
            model.train()
        losses.append(update(optimizer, loss))
    return losses, scores, state(model, optimizer)


@in_place_case(
    "Text is generated between steps: the sequence grows by a token a call.", expect=either()
)
def generates_between_steps(place):
    model = place.capture(made(place, Tied))
    optimizer = sgd(model)
    losses, texts = [], []
    for number in range(24):
        ids = tokens(place, number, 4, 6)
        logits = model(ids[:, :-1])
        losses.append(
            update(optimizer, F.cross_entropy(logits.reshape(-1, 11), ids[:, 1:].flatten()))
        )
        if number % 6 == 5:
            model.eval()
            with torch.no_grad():
                text = ids[:1, :2]
                for _ in range(5):
                    chances = model(text)[:, -1].softmax(-1)
                    text = torch.cat([text, torch.multinomial(chances, 1)], 1)
            texts.append(kept(text))
            model.train()
    return losses, texts, state(model, optimizer)


# --------------------------------------------------------------------------------- autocast


def _kind(place):
    return place.torch_device.type


@in_place_case("Mixed precision: one call of the model and of the loss in each autocast block.")
def autocast_with_one_call(place):
    model = place.capture(mlp(place, dropout=0.1))
    criterion = place.capture(nn.CrossEntropyLoss())
    optimizer = place.capture(sgd(model))
    losses = []
    for x, y in batches(place, NUM):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case(
    "Mixed precision: all batches of an evaluation in one autocast block.",
    expect=refused("without gradients within autocast"),
)
def autocast_around_an_evaluation(place):
    model = place.capture(mlp(place))
    optimizer, losses, found = sgd(model), [], []
    for number, (x, y) in enumerate(batches(place, NUM)):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        losses.append(update(optimizer, loss))
        if number % 5 == 4:
            model.eval()
            with torch.inference_mode(), torch.autocast(_kind(place), dtype=torch.bfloat16):
                found += [kept(model(part)) for part in x.split(2)]
            model.train()
    return losses, found, state(model, optimizer)


@in_place_case(
    "Mixed precision: the update and a call without gradients behind it are in the block of the loss.",
    expect=refused("called twice in one block of autocast"),
)
def autocast_around_update_and_evaluation(place):
    model = place.capture(mlp(place))
    optimizer, losses, found = sgd(model), [], []
    for x, y in batches(place, NUM):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            losses.append(update(optimizer, F.cross_entropy(model(x), y)))
            with torch.no_grad():
                found.append(kept(model(x)))
    return losses, found, state(model, optimizer)


@in_place_case(
    "One autocast stands around the whole loop, and its casts grow stale.",
    expect=either("autocast"),
)
def autocast_around_the_loop(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    with torch.autocast(_kind(place), dtype=torch.bfloat16):
        losses += fit(place, model, optimizer, 12)
    with torch.autocast(_kind(place), dtype=torch.bfloat16, cache_enabled=False):
        losses += fit(place, model, optimizer, 12)
    losses += fit(place, model, optimizer, 12)
    return losses, state(model, optimizer)


def _scaled(place, optimizer_of, *, num=24, every=1, clips=False, captures=True):
    model = place.capture(mlp(place))
    optimizer = optimizer_of(model.parameters())
    if captures:
        place.capture(optimizer)
    scaler = torch.amp.GradScaler(_kind(place), init_scale=2.0**6, growth_interval=5)
    losses, scales = [], []
    for number, (x, y) in enumerate(batches(place, num)):
        x = x * (1e38 if number == 13 else 1)
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y) / every
        scaler.scale(loss).backward()
        losses.append(loss.item())
        if number % every == every - 1:
            if clips:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return losses, scales, scaler.state_dict(), state(model, optimizer)


@in_place_case("A GradScaler with a fused AdamW, which finds the overflow on the device.")
def grad_scaler_with_fused_adamw(place):
    return _scaled(place, lambda weights: torch.optim.AdamW(weights, lr=1e-2, fused=True))


@in_place_case("A GradScaler, unscale_, clipping and accumulation of two batches.")
def grad_scaler_clipping_and_accumulation(place):
    def optimizer_of(weights):
        return torch.optim.SGD(weights, lr=0.1)

    return _scaled(place, optimizer_of, num=36, every=2, clips=True)
