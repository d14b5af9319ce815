"""An f-string formats a tensor of one value: that reads it."""

import os
import sys

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main():
    model = nn.GRU(16, 32, batch_first=True).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(STEPS):  # step
        x = torch.randn(8, 12, 16, device=DEVICE)
        out, _ = model(x)
        loss = out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sys.stderr.write(
            f"\rstep {step:4d} "
            f"loss {loss:.4f}"  # waits: format, static maybe
        )
    sys.stderr.write("\n")


if __name__ == "__main__":
    main()
