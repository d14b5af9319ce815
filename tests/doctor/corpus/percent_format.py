"""Old style formatting asks the tensor for a float."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
weights = torch.zeros(20, device=device, requires_grad=True)
opt = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
lines = []
for step in range(1, STEPS + 1):  # step
    features = torch.randn(32, 20, device=device)
    target = features[:, 0]
    loss = torch.nn.functional.mse_loss(features @ weights, target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    lines.append("%d/%d loss %.3f" % (step, STEPS, loss))  # waits: format
print(lines[-1])
