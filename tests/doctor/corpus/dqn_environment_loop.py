"""Reinforcement learning: the environment is on the host, the policy on the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Environment:
    def __init__(self):
        self.state = torch.zeros(4)

    def step(self, action):
        self.state = (self.state + 0.1 * (action - 0.5)).clamp(-1, 1)
        return self.state, float(self.state.sum())  # harmless: the state is on the host


env = Environment()
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
state = env.state
for _ in range(STEPS):  # step
    logits = policy(state.to(device).unsqueeze(0))  # waits: copy, static surely
    action = torch.multinomial(logits.softmax(-1), 1)  # harmless: drawn on the device
    state, reward = env.step(action.item())  # waits: item, static surely
    loss = -logits.log_softmax(-1).gather(1, action).squeeze() * reward
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
