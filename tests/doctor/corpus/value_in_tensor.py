"""`in` of a tensor, and `math` with a tensor."""

import math
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
EOS = 3
decoder = nn.Linear(16, 50).to(device)
with torch.no_grad():
    for step in range(STEPS):  # step of no optimizer
        state = torch.randn(4, 16, device=device)
        tokens = decoder(state).argmax(-1)
        if EOS in tokens:  # waits: bool, static maybe
            finished = True
        entropy = -decoder(state).log_softmax(-1).mean()
        perplexity = math.exp(entropy)  # waits: float, static maybe
        warmup = math.sqrt(step + 1)  # harmless: a number of the host
