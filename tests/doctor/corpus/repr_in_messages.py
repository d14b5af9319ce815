"""Tensors become text where nobody looks: in an exception, in a dictionary, in a record of the logger."""

import logging
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
log = logging.getLogger("case")
log.setLevel(logging.WARNING)
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
texts = []
for _ in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.detach()
    try:
        raise ValueError(f"the loss is {value!r}")  # waits: print, 1-20 a step
    except ValueError as error:
        texts.append(str(error))  # harmless: is text already
    texts.append("%s" % {"loss": value})  # waits: print, 1-20 a step
    texts.append("{:.3f}".format(value))  # waits: format
    log.info(f"{value.shape} {value.dtype}")  # harmless: known on the host
    log.info("%s", {"loss": value})  # harmless: this level is off
