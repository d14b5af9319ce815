"""The same without the checks."""

import os

import torch
from torch import nn
from torch.distributions import Categorical, Normal

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
actor = nn.Linear(8, 4).to(device)
mean = nn.Linear(8, 2).to(device)
optimizer = torch.optim.Adam([*actor.parameters(), *mean.parameters()])
for _ in range(STEPS):  # step
    obs = torch.randn(64, 8, device=device)
    dist = Categorical(logits=actor(obs), validate_args=False)  # harmless: not checked
    action = dist.sample()  # harmless: drawn on the device
    log_prob = dist.log_prob(action)  # harmless: not checked
    move = Normal(mean(obs), 0.3, validate_args=False)  # waits: new tensor, static no
    sample = move.rsample()  # harmless: drawn on the device
    loss = -log_prob.mean() - 0.01 * dist.entropy().mean() + sample.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
