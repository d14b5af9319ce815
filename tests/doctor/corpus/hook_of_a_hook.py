"""A forward hook puts a hook on the gradient of each output, which reads its norm."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
norms, largest = [], []


def watch(module, inputs, output):
    output.register_hook(lambda grad: norms.append(grad.norm().item()))  # waits: item, in autograd
    largest.append(output.detach().abs().amax())  # harmless: stays on the device


model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
model[0].register_forward_hook(watch)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()  # harmless: the hook waits, in the thread of autograd
    optimizer.step()
