"""What the doctor says of torch's averaged models."""

from __future__ import annotations

import pytest

from anybody.harness import marked
from gapless.doctor.static.look import findings_of


LOOP = """
import torch
from torch.optim.swa_utils import AveragedModel

device = torch.device("cuda")
model = torch.nn.Linear(4, 4).to(device)
average = AveragedModel(model){more}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.ones(2, 4, device=device)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
"""

FORMS = ["", ".to(device)", ".cuda()", ".eval()", ".to(device).eval()", ".requires_grad_(False)"]


@pytest.mark.parametrize(
    "more", [pytest.param(one, marks=marked(f"average-{one}"), id=one or "plain") for one in FORMS]
)
def test_an_average_that_asks_the_device_is_found(more):
    """A method that returns the module keeps what it is."""
    found = findings_of(LOOP.replace("{more}", more), "s.py")
    last = len(LOOP.rstrip().splitlines())

    assert [(one.code, one.site.line) for one in found] == [("GAP009", last)]
