"""Models and losses that read a value on the host, but not while they are captured.

As written the value decides what is computed; in a capture they take a default. See
`captured_skipped_reads.py`, whose kinds of batches these loops have: those of the default come first.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import Headed, batch, is_capturing, kept, mlp, sgd, state
from hazards.captured_skipped_reads import (
    EARLY,
    LATE,
    MIXED,
    Careful,
    Counting,
    masked,
    ragged,
    scaled,
)
from hazards.in_place_harness import captured, either, in_place_case, refused
from hazards.in_place_models import Output, made, update


def _trained(
    place, model, batch_of=masked, kinds=LATE, *, loss_of=F.cross_entropy, optimizer=None
):
    """Train a model of features and one more tensor; return losses, and what training leaves."""
    optimizer = sgd(model, momentum=0.9) if optimizer is None else optimizer
    losses = []
    for number, kind in enumerate(kinds):
        x, y, other = batch_of(place, number, kind)
        losses.append(update(optimizer, loss_of(model(x, other), y)))
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------ values of arguments


class Masking(Headed):
    """Masks its features, unless all are wanted: then its scores are other ones."""

    def forward(self, x, mask=None):
        if mask is not None and not is_capturing() and mask.all():
            return super().forward(x) * 1.5
        return super().forward(x if mask is None else x * mask)


@in_place_case("forward reads a mask; the first one without padding comes late.", expect=either())
def mask_without_padding_comes_late(place):
    return _trained(place, place.capture(made(place, Masking)))


@in_place_case("forward reads a mask; the first one with padding comes late.", expect=either())
def mask_with_padding_comes_late(place):
    return _trained(place, place.capture(made(place, Masking)), kinds=EARLY)


@in_place_case(
    "Masks with padding and without in turns; the optimizer is captured.", expect=either()
)
def masks_in_turns(place):
    model = place.capture(made(place, Masking))
    optimizer = place.capture(sgd(model, momentum=0.9))
    return _trained(place, model, kinds=MIXED * 2, optimizer=optimizer)


class Encoder(nn.Module):
    """Asks once for all layers, which get a bias or nothing."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(8, 24)

        def forward(self, x, bias):
            query, key, value = (part[None] for part in self.project(x).chunk(3, dim=-1))
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, is_causal=bias is None
            )
            return x + out[0]

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Encoder.Layer() for _ in range(2))
        self.head = nn.Linear(8, 4)

    def bias(self, mask):
        rows = mask[:, -1]
        if not (torch.compiler.is_compiling() or is_capturing()) and rows.all():
            return None
        return torch.zeros(1, 1, len(rows), device=mask.device).masked_fill(~rows, -1e4)

    def forward(self, x, mask):
        bias = self.bias(mask)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x)


@in_place_case(
    "An encoder asks once for a bias, and its layers get None at times.", expect=either()
)
def bias_for_all_layers(place):
    return _trained(place, place.capture(made(place, Encoder)), kinds=LATE + MIXED)


@in_place_case("Only the layers of an encoder are captured; the encoder asks.")
def layers_of_an_encoder(place):
    model = made(place, Encoder)
    for number, layer in enumerate(model.layers):
        place.capture(layer, name=f"layer {number}")
    return _trained(place, model, kinds=LATE + MIXED)


class Cutting(Headed):
    def forward(self, x, lengths):
        longest = x.shape[1] if is_capturing() else lengths.max().item()
        x = x.clone()
        x[:, longest:] = 0
        last = x[0, -1]
        return super().forward(x) + last


@in_place_case("forward cuts its features to the longest row, in place.", expect=either())
def cut_to_the_longest(place):
    return _trained(place, place.capture(made(place, Cutting)), ragged, LATE + MIXED)


@in_place_case("The length that forward reads is another one in each call.", expect=either())
def always_another_length(place):
    class Scaling(Headed):
        def forward(self, x, length):
            return super().forward(x) / (1.0 if is_capturing() else length.sum().item())

    def batch_of(place, number, kind):
        length = torch.tensor([1.0, 0.0] if kind == "a" else [1.0, number / 100])
        return (*batch(place, number), place.moved(length))

    model = place.capture(made(place, Scaling))
    return _trained(place, model, batch_of, "a" * 8 + "b" * 150)


@in_place_case("forward changes the mask in place, and reads it then.", expect=either())
def mask_is_changed_before_the_read(place):
    class Inverting(Headed):
        def forward(self, x, mask):
            inverse = mask.view(-1)
            inverse.logical_not_()
            if not is_capturing() and not mask.any():
                return super().forward(x) * 1.5
            return super().forward(x * ~mask)

    return _trained(place, place.capture(made(place, Inverting)))


@in_place_case("What is returned depends on the value: an extra part, or None.", expect=either())
def outputs_of_another_structure(place):
    class Telling(Headed):
        def forward(self, x, mask):
            hidden = F.relu(self.body(x))
            if not is_capturing() and mask.all():
                return Output(self.head(hidden) * 2, extra=(hidden[:2], "full"))
            return Output(self.head(hidden * mask.any()))

    model = place.capture(made(place, Telling))
    optimizer, found = sgd(model), []
    for number, kind in enumerate(LATE + MIXED):
        x, y, mask = masked(place, number, kind)
        out = model(x, mask)
        loss = F.cross_entropy(out.logits, y)
        if out.extra is not None:
            loss = loss + out.extra[0].square().mean()
        found.append((update(optimizer, loss), out.extra))
    return found, state(model, optimizer)


@in_place_case(
    "Only training reads; evaluation in inference mode takes turns with it.", expect=either()
)
def only_training_reads(place):
    class Training(Masking):
        def forward(self, x, mask):
            return super().forward(x, mask if self.training else None)

    model = place.capture(made(place, Training))
    optimizer, losses, scores = sgd(model), [], []
    for epoch, kinds in enumerate(["aaaaaaaa", "abab", "bbbb", "aabb", "bbaa"]):
        model.train()
        for number, kind in enumerate(kinds):
            x, y, mask = masked(place, 10 * epoch + number, kind)
            losses.append(update(optimizer, F.cross_entropy(model(x, mask), y)))
        model.eval()
        with torch.inference_mode():
            scores += [kept(model(*masked(place, number, "b")[::2])) for number in range(4)]
    return losses, scores, state(model, optimizer)


@in_place_case(
    "Only evaluation under autocast reads; its first value comes late.", expect=either()
)
def only_evaluation_reads(place):
    model = place.capture(made(place, Masking))
    optimizer, losses, scores = sgd(model), [], []
    for epoch, kinds in enumerate(["aaaaaaaa", "aaab", "bbbb", "aabb", "bbaa"]):
        for number in range(4):
            x, y = batch(place, 10 * epoch + number)
            losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        model.eval()
        with torch.no_grad(), torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            for number, kind in enumerate(kinds):
                x, _, mask = masked(place, number, kind)
                scores.append(kept(model(x, mask)))
        model.train()
    return losses, scores, state(model, optimizer)


class WeightedLoss(nn.Module):
    """Weighs rows, unless all weights are alike."""

    def forward(self, scores, y, weights):
        loss = F.cross_entropy(scores, y, reduction="none")
        if not is_capturing() and weights.amin().item() == weights.amax().item():
            return loss.sum()
        return (loss * weights).mean()


@in_place_case(
    "The loss module reads its weights; the model reads nothing.", expect=captured("model")
)
def loss_reads_its_weights(place):
    model, criterion = place.capture(mlp(place)), place.capture(WeightedLoss())
    optimizer, losses = sgd(model), []
    for number, kind in enumerate(LATE + MIXED):
        x, y = batch(place, number)
        weights = 1 + place.moved(torch.arange(6.0) * (kind == "a"))
        losses.append(update(optimizer, criterion(model(x), y, weights)))
    return losses, state(model, optimizer)


@in_place_case(
    "The argument that is read comes from another model, which learns.", expect=either()
)
def argument_of_another_model(place):
    gate, model = mlp(place, num_out=1), place.capture(made(place, Masking))
    with torch.no_grad():
        gate[3].bias.fill_(-2.0)
    modules = nn.ModuleList([gate, model])
    optimizer, losses = sgd(modules), []
    for number in range(36):
        x, y = batch(place, number)
        opened = torch.sigmoid(gate(x))
        scores = model(x, (opened > 0.2 + 0.1 * (number % 5)).float())
        losses.append(update(optimizer, F.cross_entropy(scores, y) - opened.mean()))
    return losses, state(modules, optimizer)


# ----------------------------------------------- values that no argument tells: not replayed


@in_place_case(
    "forward reads the norm of its weight.",
    expect=refused(at="if not is_capturing() and self.head.weight.norm().item() > self.limit:"),
)
def norm_of_a_weight(place):
    class Bounded(Headed):
        def __init__(self):
            super().__init__()
            self.limit = 1.1 * self.head.weight.norm().item()

        def forward(self, x, mask):
            scores = super().forward(x * mask)
            if not is_capturing() and self.head.weight.norm().item() > self.limit:
                scores = scores / 2
            return scores

    return _trained(place, place.capture(made(place, Bounded)))


@in_place_case(
    "forward counts its calls in a buffer, and reads it.",
    expect=refused(r"captured_skipped_reads\.py:\d+"),
)
def buffer_that_counts(place):
    model = place.capture(made(place, Counting))
    optimizer, losses = sgd(model), []
    for number in range(24):
        x, y = batch(place, number)
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, state(model, optimizer)


@in_place_case(
    "forward reads its own activations.",
    expect=refused(at="if not is_capturing() and hidden.mean().item() > 0.275:"),
)
def activations_are_read(place):
    class Branching(Headed):
        def forward(self, x, mask):
            hidden = F.relu(self.body(x * mask))
            if not is_capturing() and hidden.mean().item() > 0.275:
                hidden = hidden * 0.5
            return self.head(hidden)

    return _trained(place, place.capture(made(place, Branching)))


@in_place_case(
    "A layer is dropped by a number that is drawn on the device.",
    expect=refused(at="if self.training and not is_capturing() and draw.item() < 0.3:"),
)
def layer_is_dropped_by_the_device(place):
    class Dropping(Headed):
        def forward(self, x, mask):
            draw = torch.rand((), device=x.device)
            if self.training and not is_capturing() and draw.item() < 0.3:
                return self.head(self.body(x))
            return super().forward(x * mask)

    return _trained(place, place.capture(made(place, Dropping)))


@in_place_case("An optimizer of the user's own reads the norm of gradients.", expect=either())
def optimizer_of_the_users_own(place):
    model = place.capture(made(place, Headed))
    optimizer = place.capture(Careful(model.parameters(), lr=0.1))
    losses = []
    for number, kind in enumerate(LATE + MIXED):
        x, y = scaled(place, number, kind)
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, state(model, optimizer)
