"""Models and losses that read a value on the host, but not while they are captured.

As written the value decides what is computed; in a capture they take a default. See
`captured_skipped_reads.py`, whose kinds of batches these loops have: those of the default come first.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import Headed, is_capturing, sgd, state
from hazards.captured_skipped_reads import (
    LATE,
    MIXED,
    masked,
)
from hazards.in_place_harness import either, in_place_case
from hazards.in_place_models import made, update


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
