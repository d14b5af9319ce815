"""Steps that raise or read in the middle, and what a failed try leaves behind."""

from __future__ import annotations

from torch.nn import functional as F

from hazards.captured_harness import EITHER, captured_case
from hazards.captured_models import batches, kept, mlp, sgd


@captured_case("The step raises the user's own error in the tenth call.", expect=EITHER)
def raises_in_the_tenth_call(place):
    model, number = mlp(place), 0
    optimizer = sgd(model)

    def step(batch):
        x, y = batch
        if number == 10:
            raise ValueError(f"no labels in batch {number}")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step, losses, caught = place.capture(step), [], []
    for number, batch in enumerate(batches(place, 16)):  # noqa: B007
        try:
            losses.append(kept(step(batch)))
        except ValueError as error:
            caught.append(error)
    return losses, caught, list(model.parameters())
