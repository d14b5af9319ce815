"""Power iteration until it has converged, asked in each turn."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
matrix = torch.rand(200, 200, device=device)
v = torch.ones(200, device=device)
delta = torch.ones((), device=device)
turn = 0
while delta >= 0 and turn < STEPS:  # waits: bool, static maybe
    turn += 1  # step of no optimizer
    w = matrix @ v
    w = w / w.norm()  # harmless: a norm stays on the device
    delta = (w - v).abs().max()
    v = w
print(turn)
