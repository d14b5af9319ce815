"""A sampling loop of a diffusion model: timesteps are a tensor of the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(33, 32).to(device).eval()
alphas = torch.linspace(0.99, 0.5, STEPS, device=device).cumprod(0)
timesteps = torch.arange(STEPS - 1, -1, -1, device=device)
x = torch.randn(16, 32, device=device)
with torch.no_grad():
    for t in timesteps:  # step of no optimizer
        time = t.float().expand(16, 1) / STEPS  # harmless: expanded on the device
        noise = model(torch.cat([x, time], 1))
        if t > 0:  # waits: bool, static maybe
            x = x + 0.1 * torch.randn_like(x)
        alpha = alphas[t]  # waits: index, static maybe, unsure
        x = (x - (1 - alpha).sqrt() * noise) / alpha.sqrt().clamp(min=0.1)
print(x.std().item())
