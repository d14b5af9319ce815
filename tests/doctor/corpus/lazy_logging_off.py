"""All logging of tensors is below the level that is on."""

import logging
import os

import torch
from torch import nn

logging.basicConfig(level=logging.WARNING)
logger = logging.getLogger(__name__)
STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):  # step
    loss = model(torch.randn(64, 8, device=device)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logger.info("loss %s", loss)  # harmless: this level is off
    logger.debug("loss %.4f at %d", loss, step)  # harmless: this level is off
