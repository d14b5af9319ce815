"""A gradient penalty: gradients of gradients, nothing read."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
critic = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)


def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1, device=real.device)  # harmless: a size, drawn on the device
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    (gradients,) = torch.autograd.grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),  # harmless: filled on the device
        create_graph=True,
    )
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()  # harmless: a norm stays on the device


for _ in range(STEPS):  # step
    real, fake = torch.randn(2, 64, 32, device=device)  # harmless: two views
    loss = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(real, fake)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
