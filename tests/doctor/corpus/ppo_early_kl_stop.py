"""PPO's inner loop ends early when the policies have drifted apart."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
EPOCHS = 3
device = "cuda" if torch.cuda.is_available() else "cpu"
policy = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-5)
for rollout in range(max(STEPS // EPOCHS, 1)):
    obs = torch.randn(256, 6, device=device)
    advantage = torch.randn(256, device=device)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)  # harmless: on the device
    with torch.no_grad():
        old = policy(obs).log_softmax(-1)
        action = torch.multinomial(old.exp(), 1)
    for epoch in range(EPOCHS):
        new = policy(obs).log_softmax(-1)
        ratio = (new - old).gather(1, action).squeeze(1).exp()
        clipped = ratio.clamp(0.8, 1.2)  # harmless: clamped on the device
        loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # step
        approx_kl = ((ratio - 1) - ratio.log()).mean()
        if approx_kl > 100:  # waits: bool, static maybe
            break
