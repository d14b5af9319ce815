"""L-BFGS decides on the host, several times a step."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
image = torch.randn(1, 3, 16, 16, device=device, requires_grad=True)
target = torch.rand(1, 3, 16, 16, device=device)
optimizer = torch.optim.LBFGS([image], max_iter=3, lr=0.1)
for _ in range(STEPS):  # step

    def closure():
        optimizer.zero_grad()
        loss = (image - target).abs().square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # waits: optimizer, 3-400 a step, static maybe
