"""Objects captured in place, in loops of other libraries' idioms: tracing, wrappers, updates by `.data`."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from hazards.captured_models import batches, sgd, state
from hazards.in_place_harness import in_place_case
from hazards.in_place_models import NUM, made, update


# ------------------------------------------------------------------------------------ outputs


class LastMoment(nn.Module):
    """Returns a slice of what its layers give: the scores of the last moment of a sequence."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, 6)

    def forward(self, x):
        return self.head(self.lstm(x)[0])[:, -1, :4]


@in_place_case("A slice is returned, whose rows have gaps between them: `out[:, -1]`.")
def slice_is_returned(place):
    model = place.capture(made(place, LastMoment))
    optimizer = sgd(model)
    losses, strides = [], []
    for x, y in batches(place, NUM):
        scores = model(x.view(6, 2, 4).repeat(1, 1, 2))
        strides.append(scores.stride())
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, strides, state(model, optimizer)
