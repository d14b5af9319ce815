"""Models of all forms, captured where they stand: what they take, and what they return."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hazards.captured_models import Headed, batch, mlp, sgd, state
from hazards.harness import GPU
from hazards.in_place_harness import either, in_place_case
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


@in_place_case("The model returns a dataclass, as those of Hugging Face do.")
def returns_a_dataclass(place):
    def read(output):
        return output.loss, output.logits, [output.extra["rows"], output.extra["hidden"].mean()]

    return _answered(place, Output, read)


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
