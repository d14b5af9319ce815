"""Policy gradients with torch.distributions, which check their arguments."""

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
    dist = Categorical(logits=actor(obs))  # waits: validation, 1-2 a step
    action = dist.sample()  # harmless: drawn on the device
    log_prob = dist.log_prob(action)  # waits: validation, 1-2 a step
    move = Normal(mean(obs), 0.3)  # waits: validation, 1-3 a step
    entropy = dist.entropy().mean() + move.entropy().mean()  # harmless: computed on the device
    loss = -(log_prob * torch.rand(64, device=device)).mean() - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
