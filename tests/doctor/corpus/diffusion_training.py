"""Training of a diffusion model, with nothing read."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(33, 64), nn.SiLU(), nn.Linear(64, 32)).to(device)
alphas = torch.linspace(0.9999, 0.98, 1000, device=device).cumprod(0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = torch.zeros(STEPS, device=device)
for step in range(STEPS):  # step
    x0 = torch.randn(64, 32, device=device)
    t = torch.randint(0, 1000, (64,), device=device)
    a = alphas[t].unsqueeze(1)  # harmless: indices of the device
    noise = torch.randn_like(x0)
    noisy = a.sqrt() * x0 + (1 - a).sqrt() * noise
    loss = (model(torch.cat([noisy, t.unsqueeze(1) / 1000], 1)) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses[step] = loss.detach()  # harmless: written on the device at a place of the host
print(losses.tolist()[-1])
