"""Forwards and backwards of captured models out of turn: two of one, none of the other, or neither."""

from __future__ import annotations

import copy
import threading

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import batch, batches, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import NUM, Normed, fit, floats, made, tokens, update


# ------------------------------------------------------------------------- several forwards


@in_place_case("Siamese: both of a pair go through one model.", expect=either("forward"))
def siamese(place):
    model = place.capture(mlp(place, dropout=0.2))
    optimizer, losses = sgd(model), []
    for number in range(NUM):
        left, right = batch(place, number)[0], batch(place, 50 + number)[0]
        same = tokens(place, number, 6, most=2) * 2.0 - 1
        loss = F.cosine_embedding_loss(model(left), model(right), same, margin=0.2)
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case(
    "Losses of four small batches are summed, with one backward.", expect=either("forward")
)
def summed_losses_of_small_batches(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    for number in range(14):
        four = [batch(place, 4 * number + part, rows=3) for part in range(4)]
        loss = sum(F.cross_entropy(model(x), y) for x, y in four)
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


def _gan(place):
    generator = made(place, nn.Sequential, nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    critic = made(place, nn.Sequential, nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    return generator, critic, sgd(generator, lr=0.05), sgd(critic, lr=0.05)


@in_place_case(
    "A GAN as the tutorial writes it: the fake batch is made once, and judged twice.",
    expect=captured("generator"),
)
def gan_of_the_tutorial(place):
    generator, critic, of_generator, of_critic = _gan(place)
    place.capture(generator, name="generator")
    place.capture(critic, name="critic")
    place.capture(of_generator, name="generator's optimizer")
    place.capture(of_critic, name="critic's optimizer")
    ones, zeros = (torch.full((6, 1), one, device=place.torch_device) for one in (1.0, 0.0))
    losses = []
    for number in range(NUM):
        critic.zero_grad()
        real = F.binary_cross_entropy_with_logits(critic(batch(place, number)[0]), ones)
        real.backward()
        fake = generator(floats(place, number, 6, 4))
        false = F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        false.backward()
        of_critic.step()
        generator.zero_grad()
        fooled = F.binary_cross_entropy_with_logits(critic(fake), ones)
        fooled.backward()
        of_generator.step()
        losses.append((real.item(), false.item(), fooled.item()))
    return losses, state(generator, of_generator), state(critic, of_critic)


# -------------------------------------------------------------------- forwards alone, dropped


@in_place_case("Every fifth batch is only looked at: its loss is never sent backward.")
def forward_without_backward(place):
    model = place.capture(made(place, Normed))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 30)):
        loss = F.cross_entropy(model(x), y)
        losses.append(loss.item() if number % 5 == 4 else update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case("An exception between forward and backward, from the loop's own code.")
def exception_between_forward_and_backward(place):
    model = place.capture(mlp(place, dropout=0.2))
    optimizer = place.capture(sgd(model))
    losses, caught = [], []
    for number, (x, y) in enumerate(batches(place, 30)):
        try:
            loss = F.cross_entropy(model(x), y)
            if number in (1, 2, 8, 17):
                raise ValueError(f"bad labels in batch {number}")
            losses.append(update(optimizer, loss))
        except ValueError as error:
            caught.append(error)
    return losses, caught, state(model, optimizer)


@in_place_case("A batch of a wrong width raises torch's own error, from the model's own line.")
def wrong_batch_raises(place):
    model = place.capture(made(place, Normed))
    optimizer, losses, caught = sgd(model), [], []
    for number in range(30):
        x, y = batch(place, number)
        try:
            losses.append(
                update(
                    optimizer, F.cross_entropy(model(x[:, :7] if number in (0, 9, 20) else x), y)
                )
            )
        except RuntimeError as error:
            caught.append((type(error).__name__, "shapes cannot be multiplied" in str(error)))
    return losses, caught, state(model, optimizer)


# --------------------------------------------------------------------- other ways to call it


@in_place_case("A teacher of the same class teaches without gradients, and follows as an average.")
def teacher_follows(place):
    student = place.capture(made(place, Normed), name="student")
    teacher = copy.deepcopy(student).requires_grad_(False)
    place.capture(teacher, name="teacher")
    optimizer, losses = sgd(student), []
    for x, _ in batches(place, NUM):
        with torch.no_grad():
            target = teacher(x)
        losses.append(update(optimizer, F.mse_loss(student(x), target.detach())))
        with torch.no_grad():
            for one, other in zip(teacher.parameters(), student.parameters(), strict=True):
                one.lerp_(other, 0.1)
    return losses, state(student, optimizer), state(teacher)


@in_place_case(
    "The model is called in a thread of its own, one step after the other.", expect=either()
)
def trained_in_another_thread(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = place.capture(sgd(model))
    losses = fit(place, model, optimizer, 12)

    def work():
        losses.extend(fit(place, model, optimizer, 12, start=12))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    losses += fit(place, model, optimizer, 12, start=24)
    return losses, state(model, optimizer)
