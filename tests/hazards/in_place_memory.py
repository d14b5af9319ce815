"""Memory of captured objects: what the loop keeps, changes, or never waits for."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from hazards.captured_models import mlp, poison, sgd, state
from hazards.in_place_harness import in_place_case
from hazards.in_place_models import fit, floats


# ------------------------------------------------------------------------------------- kept


@in_place_case("Memory of batches, outputs and gradients is let go and used again by the loop.")
def memory_is_used_again(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses, held = [], []
    for number in range(24):
        losses += fit(place, model, optimizer, 1, start=number)
        optimizer.zero_grad()
        held = poison(place, (6, 8), (6, 16), (6, 4), (16, 8), (4, 16), (16,), (4,))
    return losses, held, state(model, optimizer)


# ------------------------------------------------------------------------------- many, late


@in_place_case("Batches are prefetched, losses deferred, and the model is captured.")
def prefetched_and_deferred(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model))
    losses, host = place.losses(), [(floats(place, n, 6, 8).cpu(), n % 4) for n in range(12)]
    for _ in range(2):
        for x, label in place.prefetch(host):
            optimizer.zero_grad()
            y = torch.full((6,), label, device=x.device)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.add(loss)
            place.settle()
    return losses.mean(), losses.history, state(model, optimizer)
