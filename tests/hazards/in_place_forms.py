"""Models of all forms, captured where they stand: what they take, and what they return."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
from hazards.harness import GPU
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import (
    NUM,
    Normed,
    Output,
    Recurrent,
    fit,
    floats,
    made,
    tokens,
    update,
)


@in_place_case("The plainest loop: the model is captured, and nothing else.")
def plain_model(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case("Model, loss module and optimizer are captured, each where it stands.")
def model_loss_and_optimizer(place):
    model = place.capture(mlp(place, dropout=0.2))
    criterion = place.capture(nn.CrossEntropyLoss(label_smoothing=0.1))
    optimizer = place.capture(sgd(model, momentum=0.9, weight_decay=1e-3))
    losses = fit(place, model, optimizer, loss_of=criterion)
    return losses, state(model, optimizer)


@in_place_case("The optimizer alone is captured.")
def optimizer_alone(place):
    model = mlp(place)
    optimizer = place.capture(sgd(model, momentum=0.9))
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case("The loss alone is captured; it has a buffer of class weights.")
def loss_alone(place):
    model = mlp(place)
    weight = torch.tensor([1.0, 2.0, 0.5, 1.5])
    criterion = place.capture(nn.CrossEntropyLoss(weight).to(place.torch_device))
    optimizer = sgd(model)
    return (
        fit(place, model, optimizer, loss_of=criterion),
        state(model, optimizer),
        list(criterion.buffers()),
    )


class CentreLoss(nn.Module):
    """Distances to learned centres of the classes."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))

    def forward(self, scores, y):
        return F.cross_entropy(scores, y) + (scores - self.centres[y]).square().mean()


@in_place_case("The loss has weights of its own, with an optimizer of their own.")
def loss_with_weights(place):
    model = place.capture(mlp(place))
    criterion = place.capture(CentreLoss().to(place.torch_device))
    optimizer, centres = sgd(model), sgd(criterion, lr=0.5)
    losses = []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        centres.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        centres.step()
        losses.append(loss.item())
    return losses, state(model, optimizer), state(criterion, centres)


@in_place_case("Batch norm counts and averages, dropout draws.")
def batch_norm_and_dropout(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case("Each epoch ends with a smaller batch.")
def last_batch_is_smaller(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses = []
    for epoch in range(5):
        losses += fit(place, model, optimizer, 6, start=10 * epoch)
        losses += fit(place, model, optimizer, 1, start=10 * epoch + 6, rows=3)
    return losses, state(model, optimizer)


@in_place_case("Batches of three sizes come in turns.")
def three_sizes_in_turns(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = sgd(model)
    losses = []
    for number in range(36):
        losses += fit(place, model, optimizer, 1, start=number, rows=4 + number % 3)
    return losses, state(model, optimizer)


@in_place_case(
    "The same rows come as another dtype, other strides, and an empty batch.", expect=either()
)
def other_forms_of_the_same_batch(place):
    model = place.capture(mlp(place, num_in=6))
    optimizer = sgd(model)
    losses = []
    for number in range(24):
        x, y = batch(place, number, rows=6, num_in=6)
        x = [x, x.t(), x.double().float(), x[:0]][number % 4]
        losses.append(update(optimizer, F.cross_entropy(model(x), y[: len(x)], reduction="sum")))
    return losses, state(model, optimizer)


class Attending(nn.Module):
    """Queries attend to a memory, of which a mask hides a part."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, queries, memory=None, *, mask=None, scale=1.0):
        memory = queries if memory is None else memory
        out, _ = self.attention(queries, memory, memory, key_padding_mask=mask, need_weights=False)
        return self.head(out.mean(1)) * scale


@in_place_case("Several inputs by position and by name, some of them None, and a number.")
def inputs_by_name(place):
    model = place.capture(made(place, Attending))
    optimizer = sgd(model)
    losses = []
    for number in range(30):
        _, y = batch(place, number, rows=4)
        x, memory = floats(place, number, 4, 3, 8), floats(place, 50 + number, 4, 5, 8)
        mask = tokens(place, number, 4, 5) > 7
        if number % 2:
            scores = model(x, memory, mask=mask, scale=0.5)
        else:
            scores = model(queries=x, memory=None)
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, state(model, optimizer)


class Answering(Headed):
    """Returns its output in the form that it is asked for."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x, y):
        hidden = F.relu(self.body(x))
        logits = self.head(hidden)
        loss = F.cross_entropy(logits, y)
        if self.form is dict:
            return {"loss": loss, "logits": logits, "hidden": None, "rows": len(x), "tag": "a"}
        if self.form is Output:
            return Output(logits, loss, {"hidden": hidden, "rows": len(x)})
        return loss, (logits, [hidden, None, x.shape]), "a"


def _answered(place, form, read):
    model = place.capture(made(place, Answering, form))
    optimizer = sgd(model)
    found = []
    for number in range(NUM):
        output = model(*batch(place, number))
        loss, logits, rest = read(output)
        found.append((update(optimizer, loss), logits.argmax(1), rest, type(output).__name__))
    return found, state(model, optimizer)


@in_place_case("The model returns a dict with the loss, None, a number and text.")
def returns_a_dict(place):
    def read(output):
        return output["loss"], output["logits"], [list(output), output["rows"], output["tag"]]

    return _answered(place, dict, read)


@in_place_case("The model returns a dataclass, as those of Hugging Face do.")
def returns_a_dataclass(place):
    def read(output):
        return output.loss, output.logits, [output.extra["rows"], output.extra["hidden"].mean()]

    return _answered(place, Output, read)


@in_place_case("The model returns nested tuples and lists with None, a shape and text.")
def returns_nested_tuples(place):
    def read(output):
        loss, (logits, (hidden, nothing, shape)), tag = output
        return loss, logits, [hidden.sum(), nothing, shape, tag]

    return _answered(place, tuple, read)


class Passing(Headed):
    """Returns its input, a view of it, a weight and a buffer beside its scores."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        scores = self.head(F.relu(self.body(x))) * self.scale
        return scores, x, x[:, :4], self.head.weight, self.scale


@in_place_case(
    "Outputs are the input itself, a view of it, a weight and a buffer.", expect=either()
)
def outputs_that_are_inputs(place):
    model = place.capture(made(place, Passing))
    optimizer = sgd(model)
    found = []
    for number in range(NUM):
        x, y = batch(place, number)
        scores, same, view, weight, scale = model(x)
        loss = F.cross_entropy(scores + view, y) + 0.01 * weight.square().sum()
        is_same = (same is x, weight is model.head.weight, scale is model.scale)
        found.append((update(optimizer, loss), *is_same, view._base is x))
        same.zero_()
        found.append((kept(view), kept(x)))
    return found, state(model, optimizer)


@in_place_case("The input requires gradients, which the loop reads: saliency.")
def input_requires_gradients(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    found = []
    for number in range(NUM):
        x, y = batch(place, number)
        x.requires_grad_()
        found.append((update(optimizer, F.cross_entropy(model(x), y)), kept(x.grad)))
    return found, state(model, optimizer)


@in_place_case("The input requires gradients in every second step only.")
def input_requires_gradients_at_times(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    found = []
    for number in range(30):
        x, y = batch(place, number)
        x.requires_grad_(number % 2 == 1)
        found.append((update(optimizer, F.cross_entropy(model(x), y)), x.grad))
    return found, state(model, optimizer)


@in_place_case("The model stands between two parts that are not captured.")
def in_the_middle(place):
    parts = made(place, nn.Sequential, nn.Linear(8, 8), Headed(), nn.Linear(4, 4))
    place.capture(parts[1])
    optimizer = sgd(parts, momentum=0.9)
    return fit(place, parts, optimizer), state(parts, optimizer)


@in_place_case("Encoder and decoder are captured apart, and called in a row.")
def two_parts_in_a_row(place):
    encoder = place.capture(made(place, Normed), name="encoder")
    decoder = place.capture(made(place, nn.Linear, 4, 8), name="decoder")
    optimizer = torch.optim.AdamW(
        [*encoder.parameters(), *decoder.parameters()], lr=1e-2, fused=True
    )
    place.capture(optimizer)
    losses = []
    for x, _ in batches(place, NUM):
        losses.append(update(optimizer, F.mse_loss(decoder(encoder(x)), x)))
    return losses, state(encoder, optimizer), state(decoder)


@in_place_case("Truncated backpropagation: the state is carried, detached, and new each epoch.")
def hidden_state_is_carried(place):
    model = place.capture(made(place, Recurrent))
    optimizer = sgd(model)
    losses, state_now = [], None
    for number in range(24):
        if number % 12 == 0:
            state_now = None
        x, y = floats(place, number, 5, 3, 8), tokens(place, number, 15, most=4)
        if state_now is not None:
            state_now = tuple(one.detach() for one in state_now)
        out, state_now = model(x, state_now)
        losses.append(update(optimizer, F.cross_entropy(out.reshape(15, 4), y)))
    return losses, state_now, state(model, optimizer)


@in_place_case(
    "The cell is called for each moment of a sequence, before one backward.",
    expect=either("forward"),
)
def cell_in_a_loop_over_time(place):
    cell = place.capture(made(place, nn.GRUCell, 8, 4))
    optimizer = sgd(cell)
    losses = []
    for number in range(NUM):
        x, y = floats(place, number, 5, 3, 8), tokens(place, number, 3, most=4)
        hidden = x.new_zeros(3, 4)
        for moment in range(5):
            hidden = cell(x[moment], hidden)
        losses.append(update(optimizer, F.cross_entropy(hidden, y)))
    return losses, state(cell, optimizer)


class Checkpointed(Headed):
    """Its body is run again in backward, with dropout."""

    def forward(self, x):
        hidden = checkpoint(self._body, x, use_reentrant=False)
        return self.head(hidden)

    def _body(self, x):
        return F.dropout(F.relu(self.body(x)), 0.3, self.training)


@in_place_case("A part of the model is checkpointed, with dropout.", expect=either("checkpoint"))
def checkpointed_part(place):
    model = place.capture(made(place, Checkpointed))
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case(
    "The captured model itself is checkpointed by the loop.", expect=either("checkpoint|backward")
)
def checkpointed_from_outside(place):
    model = place.capture(made(place, Normed, 0.3))
    optimizer = sgd(model)

    def forward(x):
        return checkpoint(model, x, use_reentrant=False)

    return fit(place, forward, optimizer), state(model, optimizer)


@in_place_case(
    "A part of the model is compiled by torch.compile.", expect=either("compile"), devices=(GPU,)
)
def compiled_part(place):
    torch.compiler.reset()
    model = made(place, Headed)
    model.body = torch.compile(model.body)
    place.capture(model)
    optimizer = sgd(model)
    found = fit(place, model, optimizer), state(model, optimizer)
    torch.compiler.reset()
    return found


@in_place_case(
    "The model is compiled in place, and captured.", expect=either("compile"), devices=(GPU,)
)
def compiled_model(place):
    torch.compiler.reset()
    model = made(place, Headed)
    model.compile()
    place.capture(model)
    optimizer = place.capture(sgd(model))
    found = fit(place, model, optimizer), state(model, optimizer)
    torch.compiler.reset()
    return found


@in_place_case(
    "torch.compile is put around the captured model.", expect=either("compile"), devices=(GPU,)
)
def compiled_around(place):
    torch.compiler.reset()
    model = place.capture(made(place, Headed))
    compiled, optimizer = torch.compile(model), sgd(model)
    found = fit(place, compiled, optimizer, 12) + fit(place, model, optimizer, 12)
    torch.compiler.reset()
    return found, state(model, optimizer)


class Blocks(nn.Module):
    """Drops layers at random on the host, as stochastic depth does."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x, depth):
        for block in self.blocks[:depth]:
            x = x + torch.tanh(block(x))
        return self.head(x)


@in_place_case("The depth comes as a number, and weights that are not used keep no gradient.")
def depth_is_an_argument(place):
    model = place.capture(made(place, Blocks))
    optimizer = sgd(model, momentum=0.9)
    found = []
    for number in range(36):
        x, y = batch(place, number)
        loss = update(optimizer, F.cross_entropy(model(x, 1 + number % 3), y))
        found.append((loss, [one.grad is None for one in model.parameters()]))
    return found, state(model, optimizer)


@in_place_case("Images in channels_last go through convolutions.", expect=captured("model"))
def convolutions_in_channels_last(place):
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    model = made(place, nn.Sequential, *layers, nn.Linear(64, 4))
    place.capture(model.to(memory_format=torch.channels_last))
    optimizer = place.capture(sgd(model))
    found = []
    for number in range(NUM):
        _, y = batch(place, number)
        x = floats(place, number, 6, 3, 4, 4).to(memory_format=torch.channels_last)
        found.append(update(optimizer, F.cross_entropy(model(x), y)))
    return found, state(model, optimizer), [one.stride() for one in model.parameters()]
