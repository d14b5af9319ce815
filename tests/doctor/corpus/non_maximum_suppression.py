"""Detection: boxes are kept one by one in Python."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


def suppress(boxes, scores, most):
    order = scores.argsort(descending=True)
    keep = []
    while order.numel() > 0 and len(keep) < most:  # harmless: a shape
        i = order[0].item()  # waits: item, 1-4 a step
        keep.append(i)
        near = (boxes[order] - boxes[i]).abs().amax(1) < 0.3
        order = order[~near]  # waits: shape, 1-4 a step, static maybe
    return keep


head = nn.Linear(16, 5).to(device).eval()
with torch.no_grad():
    for _ in range(STEPS):  # step of no optimizer
        out = head(torch.randn(50, 16, device=device))
        kept = suppress(out[:, :4], out[:, 4], most=4)
print(kept)
