"""A batch of Python numbers, made into a tensor of the device in each step."""

import os
import random

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
q_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
optimizer = torch.optim.Adam(q_net.parameters())
memory = [([random.random() for _ in range(4)], random.randrange(2), 1.0) for _ in range(500)]
for _ in range(STEPS):  # step
    batch = random.sample(memory, 32)
    states = torch.tensor([one[0] for one in batch], device=device)  # waits: new tensor, static surely
    actions = torch.tensor([one[1] for one in batch]).to(device)  # waits: copy, static surely
    rewards = torch.as_tensor([one[2] for one in batch], device=device)  # waits: new tensor, static surely
    value = q_net(states).gather(1, actions.unsqueeze(1)).squeeze(1)  # harmless: indices of the device
    loss = nn.functional.smooth_l1_loss(value, rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
