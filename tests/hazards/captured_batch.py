"""Batches that the step changes, or that are of a peculiar kind."""

from __future__ import annotations

from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, captured_case
from hazards.captured_models import batches, kept, mlp, sgd


@captured_case("The step puts normalised features into its batch.", expect=CAPTURED)
def features_assigned(place):
    model = mlp(place)
    optimizer = sgd(model)

    def step(batch):
        batch["x"] = batch["x"] / 2 + 1
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss

    step, losses, seen = place.capture(step), [], []
    for x, y in batches(place, 14):
        batch = {"x": x, "y": y}
        losses.append(kept(step(batch)))
        seen.append(batch)
    return losses, seen, list(model.parameters())
