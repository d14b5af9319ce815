"""The host stays at most two steps ahead: it waits for an event of the step before the last."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
events = []
for step in range(STEPS):  # step
    loss = model(torch.randn(64, 256, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device == "cuda":
        event = torch.cuda.Event()
        event.record()
        events.append(event)
        if len(events) > 2:
            events.pop(0).synchronize()  # waits: event, unseen, static maybe
