"""Forwards and backwards of captured models out of turn: two of one, none of the other, or neither."""

from __future__ import annotations

import copy
import threading

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import NUM, Normed, Tied, fit, floats, made, tokens, update


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
    "Triplets: anchor, positive and negative, with batch norm.", expect=either("forward")
)
def triplet(place):
    model = place.capture(made(place, Normed))
    criterion = place.capture(nn.TripletMarginLoss(margin=0.5))
    optimizer, losses = sgd(model), []
    for number in range(NUM):
        three = [batch(place, number + 50 * part)[0] for part in range(3)]
        losses.append(update(optimizer, criterion(*[model(x) for x in three])))
    return losses, state(model, optimizer)


@in_place_case(
    "Contrastive: two views, of which one goes through without gradients.",
    expect=either("forward"),
)
def one_of_two_views_without_gradients(place):
    model = place.capture(made(place, Normed))
    optimizer, losses = sgd(model), []
    for number in range(24):
        x, _ = batch(place, number)
        query = model(x + 0.1 * torch.randn_like(x))
        with torch.no_grad():
            key = model(x + 0.1 * torch.randn_like(x))
        scores = F.normalize(query) @ F.normalize(key).t()
        labels = torch.arange(len(x), device=x.device)
        losses.append(update(optimizer, F.cross_entropy(scores / 0.2, labels)))
    return losses, state(model, optimizer)


@in_place_case("R-Drop: the same batch twice through dropout.", expect=either("forward"))
def same_batch_twice(place):
    model = place.capture(mlp(place, dropout=0.3))
    optimizer, losses = sgd(model), []
    for x, y in batches(place, NUM):
        first, second = model(x), model(x)
        apart = F.kl_div(first.log_softmax(1), second.log_softmax(1), log_target=True)
        losses.append(update(optimizer, F.cross_entropy(first, y) + apart))
    return losses, state(model, optimizer)


@in_place_case(
    "Two forwards, then the backward of the first, then of the second.", expect=either("forward")
)
def two_forwards_two_backwards(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer, losses = sgd(model), []
    for number in range(24):
        first, second = batch(place, number), batch(place, 60 + number)
        one = F.cross_entropy(model(first[0]), first[1])
        other = F.cross_entropy(model(second[0]), second[1])
        optimizer.zero_grad()
        for loss in (one, other) if number % 2 else (other, one):
            loss.backward()
        optimizer.step()
        losses.append((one.item(), other.item()))
    return losses, state(model, optimizer)


@in_place_case(
    "Two steps in three are plain; each third calls the model twice.", expect=either("forward")
)
def second_forward_at_times(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 36)):
        loss = F.cross_entropy(model(x), y)
        if number % 3 == 2:
            loss = loss + F.mse_loss(model(x * 0.9), model(x * 1.1))
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


@in_place_case(
    "A batch of another size goes through before the backward.", expect=either("forward")
)
def two_sizes_before_a_backward(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    for number in range(NUM):
        x, y = batch(place, number)
        more, _ = batch(place, 70 + number, rows=10)
        loss = F.cross_entropy(model(x), y) + 0.1 * model(more).square().mean()
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case("The model's output goes through it again, twice.", expect=either("forward"))
def output_goes_in_again(place):
    model = place.capture(made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh()))
    optimizer, losses = sgd(model), []
    for x, _ in batches(place, NUM):
        losses.append(update(optimizer, F.mse_loss(model(model(model(x))), x)))
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


@in_place_case(
    "A GAN whose critic sees real and fake before one backward, and two new fakes a step.",
    expect=either("forward"),
)
def gan_with_one_loss_of_the_critic(place):
    generator, critic, of_generator, of_critic = _gan(place)
    place.capture(generator, name="generator")
    place.capture(critic, name="critic")
    losses = []
    for number in range(NUM):
        fake = generator(floats(place, number, 6, 4)).detach()
        apart = update(of_critic, critic(fake).mean() - critic(batch(place, number)[0]).mean())
        critic.requires_grad_(False)
        fooled = update(of_generator, -critic(generator(floats(place, 99 + number, 6, 4))).mean())
        critic.requires_grad_(True)
        losses.append((apart, fooled))
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


@in_place_case("Losses that are too high are dropped, after they were read.")
def high_losses_are_dropped(place):
    model = place.capture(mlp(place, dropout=0.2))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses, num_dropped = [], 0
    for x, y in batches(place, 30):
        loss = F.cross_entropy(model(x), y)
        if loss.item() > 1.8:
            num_dropped += 1
            continue
        losses.append(update(optimizer, loss))
    return losses, num_dropped, state(model, optimizer)


@in_place_case(
    "A loss is kept with its graph, and goes backward only after two more steps.",
    expect=either("forward"),
)
def backward_comes_late(place):
    model = place.capture(mlp(place))
    optimizer, waiting, losses = sgd(model, lr=0.05), [], []
    for x, y in batches(place, 24):
        waiting.append(F.cross_entropy(model(x).tanh(), y))
        losses.append(waiting[-1].item())
        if len(waiting) == 3:
            optimizer.zero_grad()
            torch.stack(waiting).mean().backward()
            optimizer.step()
            waiting.clear()
    return losses, state(model, optimizer)


@in_place_case(
    "The first loss of all is kept alive to the end, and read and sent backward there.",
    expect=either("forward|kept"),
)
def first_loss_goes_backward_at_the_end(place):
    model = place.capture(mlp(place, dropout=0.2))
    frozen = copy.deepcopy(model.state_dict())
    optimizer = sgd(model)
    x, y = batch(place, 90)
    first = F.cross_entropy(model(x), y)
    losses = fit(place, model, optimizer)
    with torch.no_grad():
        for name, one in model.state_dict().items():
            frozen[name].sub_(one)
    try:
        first.backward()
    except RuntimeError as error:
        losses.append("modified by an inplace operation" in str(error))
    return losses, first, frozen, state(model, optimizer)


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


@in_place_case("An exception of a hook of the output ends the loop in backward.", raises=True)
def exception_in_backward(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)

    def stop(grad):
        raise ValueError("stopped in backward")

    for number, (x, y) in enumerate(batches(place, 24)):
        scores = model(x)
        if number == 20:
            scores.register_hook(stop)
        update(optimizer, F.cross_entropy(scores, y))


@in_place_case("Several losses of several outputs are summed, one of them without a graph.")
def several_losses(place):
    model = place.capture(made(place, Headed))
    criterion = place.capture(nn.SmoothL1Loss())
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        scores = model(x)
        parts = [
            F.cross_entropy(scores, y),
            criterion(scores, floats(place, number, 6, 4)),
            0.1 * scores.detach().square().mean(),
        ]
        losses.append((update(optimizer, sum(parts)), [part.item() for part in parts]))
    return losses, state(model, optimizer)


@in_place_case("The loss takes only some rows of the output, others no gradient.")
def part_of_the_output(place):
    model = place.capture(made(place, Tied))
    optimizer, losses = sgd(model), []
    for number in range(NUM):
        ids = tokens(place, number, 4, 6)
        scores = model(ids)[:, 1:-1]
        losses.append(
            update(optimizer, F.cross_entropy(scores.reshape(-1, 11), ids[:, 2:].flatten()))
        )
    return losses, state(model, optimizer)


class TwoHeads(nn.Module):
    """Returns the scores of two heads on one body."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.body(x))
        return self.first(x), self.second(x)


@in_place_case(
    "Two heads: the loss takes the first, the second, or both, and the other has no gradient.",
    expect=captured(),
)
def heads_in_turns(place):
    model = place.capture(made(place, TwoHeads))
    optimizer, found = sgd(model, momentum=0.9), []
    for number, (x, y) in enumerate(batches(place, 36)):
        first, second = model(x)
        used = [first, second, first + second][number % 3]
        found.append(update(optimizer, F.cross_entropy(used, y)))
        found.append([one.grad is None for one in model.parameters()])
    return found, state(model, optimizer)


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
    "Parts of a captured model are called by themselves, and model.forward by name.",
    expect=either(),
)
def parts_are_called(place):
    model = place.capture(made(place, Headed))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 30)):
        if number % 3 == 0:
            scores = model(x)
        elif number % 3 == 1:
            scores = model.head(F.relu(model.body(x)).detach())
        else:
            scores = model.forward(x)
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, state(model, optimizer)


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


@in_place_case(
    "A second thread evaluates while the first one waits with its graph.", expect=either()
)
def evaluated_in_another_thread(place):
    model = place.capture(mlp(place))
    optimizer, losses, scores = sgd(model), [], []

    def evaluate(x):
        with torch.no_grad():
            scores.append(kept(model(x)))

    for number, (x, y) in enumerate(batches(place, 24)):
        loss = F.cross_entropy(model(x), y)
        if number % 2:
            place.settle()
            thread = threading.Thread(target=evaluate, args=(x,))
            thread.start()
            thread.join()
        losses.append(update(optimizer, loss))
    return losses, scores, state(model, optimizer)
