"""Gradients come from a transformed function; neither `backward` nor an optimizer is called."""

import os

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
weights = {name: value.detach() for name, value in model.named_parameters()}


def loss_of(weights, x):
    return functional_call(model, weights, (x,)).square().mean()


gradients = grad_and_value(loss_of)
history = []
for step in range(STEPS):  # step of no optimizer
    grads, loss = gradients(weights, torch.randn(32, 16, device=device))
    weights = {name: value - 0.1 * grads[name] for name, value in weights.items()}  # harmless: on the device
    history.append(loss.item())  # waits: item, static maybe
