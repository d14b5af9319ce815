"""An activation is kept on the host between forward and backward."""

import os

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


def pack(tensor):
    return tensor.cpu()  # waits: cpu, static maybe


def unpack(tensor):
    return tensor.to(device)  # waits: copy, in autograd, static maybe


model = nn.Linear(256, 256).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    out = model(torch.randn(512, 256, device=device))
    with saved_tensors_hooks(pack, unpack):
        out = out.tanh()  # harmless: the function that packs copies
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()  # harmless: the function that unpacks copies
    optimizer.step()
