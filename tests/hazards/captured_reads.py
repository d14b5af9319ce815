"""What a step reads from Python, and that changes or stays between its calls."""

from __future__ import annotations

from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, captured_case
from hazards.captured_models import batches, kept, mlp, sgd


@captured_case(
    "A plain step of a classifier, where nothing but the weights changes.", expect=CAPTURED
)
def nothing_changes(place):
    model = mlp(place)
    optimizer = sgd(model)

    def step(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(step)
    losses = [kept(step(batch)) for batch in batches(place, 16)]
    return losses, list(model.parameters()), optimizer.state_dict()


@captured_case("A number of the closure changes once, in the middle of training.", expect=CAPTURED)
def closure_number_changes_once(place):
    model, alpha = mlp(place), 0.1
    optimizer = sgd(model)

    def step(batch):
        x, y = batch
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y) + alpha * out.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step, losses = place.capture(step), []
    for number, batch in enumerate(batches(place, 30)):
        if number == 15:
            alpha = 0.7
        losses.append(kept(step(batch)))
    return losses, list(model.parameters()), alpha
