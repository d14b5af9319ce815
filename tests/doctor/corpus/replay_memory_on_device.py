"""A replay memory that is a tensor of the device, sampled there."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
capacity, filled = 256, 0
states = torch.zeros(capacity, 4, device=device)
rewards = torch.zeros(capacity, device=device)
q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.Adam(q.parameters())
state = torch.zeros(4, device=device)
for step in range(STEPS):  # step
    action = q(state).argmax()  # harmless: stays on the device
    state = (state * 0.9 + 0.1 * action).detach()  # harmless: an environment on the device
    states[step % capacity] = state  # harmless: a place of the host
    rewards[step % capacity] = state.sum()  # harmless: a place of the host
    filled = min(filled + 1, capacity)  # harmless: numbers of the host
    drawn = torch.randint(filled, (32,), device=device)  # harmless: a bound of the host
    loss = (q(states[drawn]).amax(1) - rewards[drawn]).square().mean()  # harmless: indices of the device
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
