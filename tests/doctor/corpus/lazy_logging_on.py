"""A logger formats its arguments late, but it does so in the same thread."""

import logging
import os

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("train")
STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):  # step
    loss = model(torch.randn(4, 8, device=device)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.debug("loss is %s", loss)  # harmless: this level is off, nothing is formatted
    if step % 5 == 0:
        log.info("step %d: loss %.4f", step, loss)  # waits: format, 1/5 a step
