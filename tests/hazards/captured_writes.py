"""What a step does on the host, which a replay would not do."""

from __future__ import annotations

from torch.nn import functional as F

from hazards.captured_harness import captured_case, refused
from hazards.captured_models import batches, kept, mlp, sgd


class Trainer:
    """A trainer as people write it."""

    def __init__(self, place, **settings):
        self.model = mlp(place, **settings)
        self.optimizer = sgd(self.model)
        self.seen = 0

    def train(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


@captured_case(
    "The step counts its calls in an attribute.",
    expect=refused("seen", at="self.seen += 1"),
)
def counter_in_an_attribute(place):
    class Counting(Trainer):
        def step(self, batch):
            self.seen += 1
            return self.train(batch)

    trainer = Counting(place)
    step = place.capture(trainer.step)
    losses = [kept(step(batch)) for batch in batches(place, 14)]
    return losses, trainer.seen, list(trainer.model.parameters())
