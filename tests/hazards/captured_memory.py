"""Loops in which memory that a step uses is let go, replaced, shared or kept."""

from __future__ import annotations

import copy
import gc

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from hazards.captured_harness import CAPTURED, EITHER, captured_case
from hazards.captured_models import (
    Headed,
    batches,
    mlp,
    poison,
    run,
    state,
    training_step,
)


class Normed(nn.Module):
    """Batch norm and dropout, which differ between training and validation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


# ------------------------------------------------------------------- validation between steps


@captured_case(
    "Every few steps the model is validated in eval mode under no_grad.", expect=CAPTURED
)
def validation_in_eval_mode(place):
    model = Normed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = place.capture(training_step(model, optimizer))
    losses, scores = [], []
    for number, batch in enumerate(batches(place, 18)):
        losses += run(step, [batch])
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                scores.append(model(next(batches(place, 1))[0]))
            model.train()
    return losses, scores, state(model, optimizer)


@captured_case("Validation runs in inference mode between steps.", expect=CAPTURED)
def validation_in_inference_mode(place):
    model = Normed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses, scores = [], []
    for number, batch in enumerate(batches(place, 18)):
        losses += run(step, [batch])
        if number % 3 == 2:
            with torch.inference_mode():
                scores.append(model.eval()(next(batches(place, 1))[0]).argmax(1).cpu().tolist())
            model.train()
    return losses, scores, state(model, optimizer)


@captured_case("Validation forgets to switch back to training for one epoch.", expect=CAPTURED)
def train_mode_is_forgotten(place):
    model = Normed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 18))
    model.eval()
    losses += run(step, batches(place, 18))
    model.train()
    losses += run(step, batches(place, 6))
    return losses, state(model, optimizer)


@captured_case(
    "The model under autocast is validated between steps, which caches casts of weights.",
    expect=EITHER,
)
def validation_fills_the_autocast_cache(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses, scores = [], []
    for number, batch in enumerate(batches(place, 20)):
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            losses += run(step, [batch])
            if number % 2:
                with torch.no_grad():
                    scores.append(model(next(batches(place, 1))[0]))
    return losses, scores, state(model, optimizer)


def _loss_under_autocast(place, model, one):
    x, y = one
    with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
        return F.cross_entropy(model(x), y)


def _step_under_autocast(place, model, optimizer):
    def train(one):
        optimizer.zero_grad()
        loss = _loss_under_autocast(place, model, one)
        loss.backward()
        optimizer.step()
        return loss

    return train


@captured_case("Training and validation each open autocast of their own.", expect=CAPTURED)
def validation_under_autocast(place):
    model = mlp(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    step = place.capture(_step_under_autocast(place, model, optimizer))
    losses, scores = [], []
    for number, one in enumerate(batches(place, 20)):
        losses += run(step, [one])
        if number % 2:
            with torch.no_grad():
                scores.append(_loss_under_autocast(place, model, one))
    return losses, scores, state(model, optimizer)


@captured_case(
    "The whole loop stands in one autocast, whose casts are never renewed.", expect=EITHER
)
def one_autocast_around_the_loop(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(_step_under_autocast(place, model, optimizer))
    with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
        losses = run(step, batches(place, 10))
    with torch.autocast(place.torch_device.type, dtype=torch.bfloat16, cache_enabled=False):
        losses += run(step, batches(place, 10))
    losses += run(step, batches(place, 10))
    return losses, state(model, optimizer)


@captured_case(
    "Autocast with its cache is opened in the step, and a layer is used three times.",
    expect=CAPTURED,
)
def layer_used_three_times_under_autocast(place):
    model = nn.Linear(8, 8).to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            loss = model(model(model(batch[0]))).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    return run(step, batches(place, 18)), state(model, optimizer)


# -------------------------------------------------------------------------- weights replaced


@captured_case(
    "For validation `.data` is swapped with averages, and swapped back.", expect=CAPTURED
)
def averages_are_swapped_in_and_out(place):
    model = mlp(place)
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))

    def swap():
        for number, parameter in enumerate(model.parameters()):
            averages[number], parameter.data = parameter.data, averages[number]

    losses, scores = [], []
    for number, batch in enumerate(batches(place, 20)):
        losses += run(step, [batch])
        for average, parameter in zip(averages, model.parameters(), strict=True):
            average.mul_(0.9).add_(parameter.detach(), alpha=0.1)
        if number % 5 == 4:
            swap()
            with torch.no_grad():
                scores.append(model(next(batches(place, 1))[0]))
            swap()
    return losses, scores, averages, state(model, optimizer)


@captured_case("An epoch is trained on the averages: swapped in and never out.", expect=CAPTURED)
def averages_stay_swapped_in(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 20))
    old = [parameter.data for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5
    losses += run(step, batches(place, 20))
    return losses, old, state(model, optimizer)


@captured_case(
    "A backup of weights is made, `.data` replaced, and the backup set.", expect=CAPTURED
)
def backup_is_set_after_validation(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 20))
    backup = [parameter.data.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter)
    held = poison(place, *[tuple(parameter.shape) for parameter in model.parameters()])
    for parameter, kept in zip(model.parameters(), backup, strict=True):
        parameter.data = kept
    losses += run(step, batches(place, 20))
    return losses, held, state(model, optimizer)


@captured_case("The best checkpoint is loaded back in place.", expect=CAPTURED)
def best_checkpoint_is_loaded(place):
    model = Normed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 9))
    best = copy.deepcopy(model.state_dict())
    losses += run(step, batches(place, 9))
    model.load_state_dict(best)
    losses += run(step, batches(place, 9))
    return losses, state(model, optimizer)


@captured_case(
    "A checkpoint is loaded with assign=True, and the optimizer keeps the old parameters.",
    expect=EITHER,
)
def checkpoint_is_assigned_under_an_old_optimizer(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 14))
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses += run(step, batches(place, 3))
    model.load_state_dict(saved, assign=True)
    losses += run(step, batches(place, 14))
    return losses, state(model, optimizer)


@captured_case(
    "A checkpoint is loaded with assign=True; a new optimizer follows.", expect=CAPTURED
)
def checkpoint_is_assigned_with_a_new_optimizer(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = run(step, batches(place, 20))
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(saved, assign=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    held = poison(place, (16, 8), (16,), (4, 16), (4,))
    losses += run(step, batches(place, 20))
    return losses, held, state(model, optimizer)


@captured_case("The head is replaced for the second task, with a new optimizer.", expect=CAPTURED)
def head_is_replaced(place):
    model = Headed().to(place.torch_device)
    training = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

    def train(batch):
        x, y = batch
        training["optimizer"].zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        training["optimizer"].step()
        return loss

    step = place.capture(train)
    losses = run(step, batches(place, 20))
    model.head = nn.Linear(16, 4).to(place.torch_device)
    training["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    held = poison(place, (4, 16), (4,))
    losses += run(step, batches(place, 20))
    return losses, held, state(model, training["optimizer"])


@captured_case(
    "The head is replaced by one of more classes; the optimizer is kept.", expect=EITHER
)
def head_of_another_size(place):
    model = Headed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 14))
    model.head = nn.Linear(16, 7).to(place.torch_device)
    losses += run(step, batches(place, 14))
    return losses, state(model, optimizer)


@captured_case("`layer.weight = other` between steps, back and forth.", expect=EITHER)
def weight_is_replaced_by_another(place):
    model = nn.Linear(8, 4).to(place.torch_device)
    weights = [nn.Parameter(model.weight.detach() * scale) for scale in (1.0, 0.5, 2.0)]
    optimizer = torch.optim.SGD([model.bias, *weights], lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for number, batch in enumerate(batches(place, 36)):
        model.weight = weights[number % 3]
        losses += run(step, [batch])
    return losses, weights, state(model, optimizer)


@captured_case("A new optimizer is made for the second epoch, of another class.", expect=CAPTURED)
def optimizer_of_another_class(place):
    model = mlp(place)

    class Training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def train(self, batch):
            x, y = batch
            self.optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss

    training = Training()
    step = place.capture(training.train)
    losses = run(step, batches(place, 20))
    training.optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    losses += run(step, batches(place, 20))
    return losses, state(model, training.optimizer)


@captured_case("The body is frozen at first, then thawed by add_param_group.", expect=CAPTURED)
def body_is_thawed(place):
    model = Headed().to(place.torch_device)
    model.body.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 20))
    model.body.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.body.parameters()), "lr": 0.01})
    losses += run(step, batches(place, 20))
    return losses, state(model, optimizer)


def _double_batches(place, num):
    return [(x.double(), y) for x, y in batches(place, num)]


@captured_case("Training goes on in double precision, with a new optimizer.", expect=CAPTURED)
def model_becomes_double(place):
    model = mlp(place)
    training = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

    def train(batch):
        x, y = batch
        training["optimizer"].zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        training["optimizer"].step()
        return loss

    step = place.capture(train)
    losses = run(step, batches(place, 20))
    model.to(torch.float64)
    training["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    losses += run(step, _double_batches(place, 20))
    return losses, state(model, training["optimizer"])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.out = nn.Linear(8, 12, bias=False)

    def forward(self, ids):
        return self.out(self.embed(ids))


def _ids(place, count):
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(12, (2, 5), generator=generator) for _ in range(count)]
    return [(row.to(place.torch_device), row.flip(0).to(place.torch_device)) for row in rows]


def _token_loss(scores, ids):
    return F.cross_entropy(scores.flatten(0, 1), ids.flatten())


@captured_case(
    "Output weights are tied to the embedding in the middle of training.", expect=CAPTURED
)
def weights_are_tied(place):
    model = Tied().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer, loss_of=_token_loss))
    losses = run(step, _ids(place, 20))
    model.out.weight = model.embed.weight
    held = poison(place, (12, 8))
    losses += run(step, _ids(place, 20))
    return losses, held, state(model, optimizer)


@captured_case("Tied weights are untied, and the copy joins the optimizer.", expect=CAPTURED)
def weights_are_untied(place):
    model = Tied().to(place.torch_device)
    model.out.weight = model.embed.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer, loss_of=_token_loss))
    losses = run(step, _ids(place, 20))
    model.out.weight = nn.Parameter(model.embed.weight.detach().clone())
    optimizer.add_param_group({"params": [model.out.weight]})
    losses += run(step, _ids(place, 20))
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------------- gradients


def _step_without_zero(model, optimizer):
    def train(batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return train


@captured_case("Gradients are set to None outside, before each step.", expect=CAPTURED)
def gradients_are_let_go_outside(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(_step_without_zero(model, optimizer))
    losses = []
    for batch in batches(place, 18):
        optimizer.zero_grad(set_to_none=True)
        losses += run(step, [batch])
    return losses, state(model, optimizer)


@captured_case("Gradients are zeroed in place outside, after each step.", expect=CAPTURED)
def gradients_are_zeroed_outside(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(_step_without_zero(model, optimizer))
    losses, norms = [], []
    for batch in batches(place, 18):
        losses += run(step, [batch])
        norms.append(sum(parameter.grad.abs().sum() for parameter in model.parameters()))
        optimizer.zero_grad(set_to_none=False)
    return losses, norms, state(model, optimizer)


@captured_case("Gradients are set to None at the end of the step.", expect=CAPTURED)
def gradients_are_let_go_at_the_end(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    step = place.capture(train)
    losses = run(step, batches(place, 18))
    return losses, state(model, optimizer)


@captured_case(
    "Gradients are zeroed in place within the step, from the first call on.", expect=CAPTURED
)
def gradients_are_zeroed_within(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = run(step, batches(place, 18))
    return losses, state(model, optimizer)


@captured_case("Gradients are kept from every step, as `.grad` handed them out.", expect=EITHER)
def gradients_are_kept(place):
    model = nn.Linear(8, 4).to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    kept, losses = [], []
    for batch in batches(place, 18):
        losses += run(step, [batch])
        kept.append(model.weight.grad)
    return losses, kept, state(model, optimizer)


@captured_case("Two calls accumulate before gradients are let go outside.", expect=CAPTURED)
def gradients_accumulate_over_two_calls(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def add_gradients(batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    step = place.capture(add_gradients)
    losses = []
    for number, batch in enumerate(batches(place, 40)):
        losses += run(step, [batch])
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses, state(model, optimizer)


@captured_case("`.grad` is set by hand to a new tensor before each step.", expect=EITHER)
def gradients_are_set_by_hand(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(_step_without_zero(model, optimizer))
    losses = []
    for number, batch in enumerate(batches(place, 18)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.01 * number)
        losses += run(step, [batch])
    return losses, state(model, optimizer)


@captured_case(
    "A gradient is added by hand between backward and a captured update.", expect=EITHER
)
def gradients_come_from_outside(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def update(scale):
        for parameter in model.parameters():
            parameter.grad.mul_(scale)
        optimizer.step()

    step = place.capture(update)
    losses = []
    for number, (x, y) in enumerate(batches(place, 18)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step(x.new_tensor(1.0 / (1 + number % 3)))
        losses.append(loss.detach())
    return losses, state(model, optimizer)


# --------------------------------------------------------------- buffers, caches, wrappers


class Masked(nn.Module):
    """Attention scores under a causal mask that is cached and grows."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.mask = None

    def forward(self, x):
        length = x.size(1)
        if self.mask is None or self.mask.size(0) < length:
            self.mask = torch.ones(length, length, device=x.device).triu(1) * -9.0
        scores = self.project(x) @ x.transpose(1, 2) + self.mask[:length, :length]
        return scores.softmax(-1) @ x


def _masked_step(model, optimizer):
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return train


@captured_case("A causal mask is cached and grows as longer batches come.", expect=EITHER)
def cached_mask_grows(place):
    model = Masked().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(_masked_step(model, optimizer))
    lengths = [4] * 10 + [6] * 10 + [4] * 8 + [7] * 6 + [4, 6, 7] * 4
    losses, held = [], []
    for number, length in enumerate(lengths):
        x = torch.randn(2, length, 8, generator=torch.Generator().manual_seed(number))
        losses += run(step, [x.to(place.torch_device)])
        if number in (10, 28):
            held.append(poison(place, (4, 4), (6, 6)))
    return losses, held, state(model, optimizer)


@captured_case("A mask is cached by the first call, and its size never changes.", expect=CAPTURED)
def cached_mask_stays(place):
    model = Masked().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(_masked_step(model, optimizer))
    losses = []
    for number in range(18):
        x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(number))
        losses += run(step, [x.to(place.torch_device)])
    return losses, model.mask, state(model, optimizer)


@captured_case("The cache of a mask is cleared between epochs, to save memory.", expect=EITHER)
def cached_mask_is_cleared(place):
    model = Masked().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(_masked_step(model, optimizer))
    losses, held = [], []
    for number in range(30):
        if number % 10 == 0:
            model.mask = None
            held.append(poison(place, (5, 5)))
        x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(number))
        losses += run(step, [x.to(place.torch_device)])
    return losses, held, state(model, optimizer)


@captured_case(
    "A buffer is registered again with other values for the second epoch.", expect=CAPTURED
)
def buffer_is_registered_again(place):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 4)
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            return self.linear(x) * self.scale

    model = Scaled().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 20))
    model.register_buffer("scale", torch.full((4,), 0.5).to(place.torch_device))
    held = poison(place, (4,))
    losses += run(step, batches(place, 20))
    return losses, held, state(model, optimizer)


@captured_case("Running statistics of batch norm are replaced by new tensors.", expect=CAPTURED)
def running_statistics_are_replaced(place):
    model = Normed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 20))
    old = model.norm.running_mean
    model.norm.running_mean = torch.zeros_like(old)
    model.norm.running_var = torch.ones_like(old)
    losses += run(step, batches(place, 20))
    return losses, old, state(model, optimizer)


@captured_case("Batch norm is switched to batch statistics alone, then back.", expect=EITHER)
def running_statistics_are_switched_off(place):
    model = Normed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 14))
    model.norm.track_running_stats = False
    model.norm.momentum = 0.5
    losses += run(step, batches(place, 14))
    model.norm.track_running_stats = True
    losses += run(step, batches(place, 14))
    return losses, state(model, optimizer)


@captured_case("A layer is pruned in the middle of training.", expect=EITHER)
def layer_is_pruned(place):
    model = Headed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 14))
    mask = (torch.arange(128).reshape(16, 8) % 3 > 0).float().to(place.torch_device)
    prune.custom_from_mask(model.body, "weight", mask)
    losses += run(step, batches(place, 14))
    prune.remove(model.body, "weight")
    losses += run(step, batches(place, 14))
    return losses, state(model, optimizer)


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


@captured_case("A parametrization is put on a layer in the middle of training.", expect=EITHER)
def parametrization_is_added(place):
    model = Headed().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 14))
    parametrize.register_parametrization(model.body, "weight", Doubled())
    losses += run(step, batches(place, 14))
    parametrize.remove_parametrizations(model.body, "weight")
    losses += run(step, batches(place, 14))
    return losses, state(model, optimizer)


@captured_case("Weights are normalised by a parametrization from the beginning.", expect=CAPTURED)
def weights_are_normalised(place):
    model = Headed()
    parametrizations.weight_norm(model.body)
    model.to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 18))
    return losses, model.body.weight, state(model, optimizer)


# -------------------------------------------------------------- memory let go and handed out


@captured_case("Two folds, each with a model of its own; the first is deleted.", expect=CAPTURED)
def folds_of_a_cross_validation(place):
    results = []
    for fold in range(2):
        model = mlp(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = place.capture(training_step(model, optimizer))
        results.append(run(step, batches(place, 18 + fold)))
        results.append([parameter.detach().clone() for parameter in model.parameters()])
        del model, optimizer, step
        gc.collect()
    return results


@captured_case("The captured step stays while its model is replaced and deleted.", expect=EITHER)
def model_is_deleted(place):
    training = {}

    def begin():
        training["model"] = mlp(place)
        training["optimizer"] = torch.optim.SGD(training["model"].parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        training["optimizer"].zero_grad()
        loss = F.cross_entropy(training["model"](x), y)
        loss.backward()
        training["optimizer"].step()
        return loss

    step = place.capture(train)
    losses, held = [], []
    for _ in range(3):
        begin()
        held.append(poison(place, (16, 8), (16,), (4, 16), (4,)))
        losses += run(step, batches(place, 14))
    return losses, held, state(training["model"], training["optimizer"])


@captured_case("A tensor of the closure is replaced by another before each call.", expect=EITHER)
def tensor_is_replaced_each_call(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = torch.ones(4).to(place.torch_device)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, weight=weights)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses, held = [], []
    for number, batch in enumerate(batches(place, 18)):
        weights = torch.tensor([1.0, 2.0, 3.0, 1.0 + number]).to(place.torch_device)
        held.append(torch.full((4,), 1e9, device=place.torch_device))
        losses += run(step, [batch])
    return losses, held, state(model, optimizer)


CLASS_WEIGHTS = None


@captured_case(
    "Class weights are a global that is bound again for the second epoch.", expect=CAPTURED
)
def global_tensor_is_bound_again(place):
    global CLASS_WEIGHTS
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, weight=CLASS_WEIGHTS)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = []
    for factors in ([1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 1.0, 1.0]):
        CLASS_WEIGHTS = torch.tensor(factors).to(place.torch_device)
        held = poison(place, (4,))
        losses += run(step, batches(place, 20))
    CLASS_WEIGHTS = None
    return losses, held, state(model, optimizer)


@captured_case("A table is refreshed in place between steps.", expect=CAPTURED)
def table_is_refreshed_in_place(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = torch.ones(4).to(place.torch_device)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, weight=weights)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = []
    for number, batch in enumerate(batches(place, 18)):
        weights.fill_(1.0 + number)
        weights[0] = 0.5
        losses += run(step, [batch])
    return losses, state(model, optimizer)


@captured_case("A list of tensors that the step sums grows between epochs.", expect=EITHER)
def list_of_tensors_grows(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    anchors = [torch.zeros(4).to(place.torch_device)]

    def train(batch):
        x, _ = batch
        optimizer.zero_grad()
        scores = model(x)
        loss = sum((scores - anchor).square().mean() for anchor in anchors)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = []
    for epoch in range(3):
        losses += run(step, batches(place, 14))
        anchors.append(torch.full((4,), float(epoch)).to(place.torch_device))
    anchors.pop(0)
    losses += run(step, batches(place, 14))
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------------- results


@captured_case("All results are kept to the end, without copies.", expect=CAPTURED)
def results_are_kept(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "scores": scores.detach(), "best": scores.argmax(1)}

    step = place.capture(train)
    return [step(batch) for batch in batches(place, 18)], state(model, optimizer)


@captured_case("Losses are appended with their graphs, and averaged at the end.", expect=CAPTURED)
def losses_are_appended_with_their_graphs(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))
    losses, total = [], 0
    for batch in batches(place, 18):
        loss = step(batch)
        losses.append(loss)
        total += loss
    mean = torch.stack(losses).mean().item()
    return mean, total.detach(), [loss.detach() for loss in losses], state(model, optimizer)


@captured_case("What the step returned is changed in place by the loop.", expect=CAPTURED)
def results_are_changed_in_place(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return loss.detach(), scores.detach()

    step = place.capture(train)
    kept = []
    for batch in batches(place, 18):
        loss, scores = step(batch)
        kept.append((loss, scores.clone()))
        loss.mul_(100)
        scores.zero_()
    return kept, state(model, optimizer)


@captured_case("The step returns a weight and a view of it, which go on changing.", expect=EITHER)
def results_are_weights(place):
    model = nn.Linear(8, 4).to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        return model.bias.detach(), model.weight[0].detach(), model.weight.detach().clone()

    step = place.capture(train)
    return [step(batch) for batch in batches(place, 18)], state(model, optimizer)


@captured_case(
    "The step returns its batch and a view of it, which the loop overwrites.", expect=EITHER
)
def results_are_the_batch(place):
    model = nn.Linear(8, 4).to(place.torch_device)

    def normalise(x):
        return x, x[0], model(x).detach()

    step = place.capture(normalise)
    kept = []
    for x, _ in batches(place, 18):
        same, row, scores = step(x)
        x.add_(1)
        kept.append((same, row, scores, same is x))
    return kept


@captured_case(
    "The forward pass alone is the step; backward and update are outside.", expect=EITHER
)
def backward_is_outside(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
    losses = []
    for batch in batches(place, 18):
        optimizer.zero_grad()
        loss = step(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, state(model, optimizer)


@captured_case(
    "Losses are read with a weighted mean on the device, forty calls without a wait.",
    expect=EITHER,
    waits=False,
)
def running_mean_without_a_wait(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = place.capture(training_step(model, optimizer))
    mean = torch.zeros((), device=place.torch_device)
    for batch in batches(place, 44):
        mean.mul_(0.9).add_(step(batch).detach(), alpha=0.1)
    return mean, state(model, optimizer)


@captured_case(
    "Weights are let go while launched work may still use them.", expect=EITHER, waits=False
)
def memory_is_let_go_without_a_wait(place):
    training = {}

    def train(batch):
        x, y = batch
        training["optimizer"].zero_grad()
        loss = F.cross_entropy(training["model"](x), y)
        loss.backward()
        training["optimizer"].step()
        return loss

    step = place.capture(train)
    losses, held = [], []
    for _ in range(3):
        training["model"] = mlp(place)
        training["optimizer"] = torch.optim.SGD(training["model"].parameters(), lr=0.1)
        held.append(poison(place, (16, 8), (16,), (4, 16), (4,)))
        losses += [step(batch).detach() for batch in batches(place, 15)]
    return losses, held, state(training["model"], training["optimizer"])
