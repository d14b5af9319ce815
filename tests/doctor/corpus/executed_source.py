"""Part of the loop is text that the script executes: it is in no file."""

import os

import torch
from torch import nn

RECIPE = """
def summary(loss, step):
    if step % 2 == 0:
        return loss.item()
    return None
"""
space = {}
exec(compile(RECIPE, "<recipe>", "exec"), space)
STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):  # step
    loss = model(torch.randn(8, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = space["summary"](loss, step)  # waits: item, 1/2 a step, static no
    number = eval("float(loss) + step")  # waits: float, static no
