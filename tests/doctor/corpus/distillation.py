"""A teacher's logits, softened, on the device."""

import os

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
teacher = nn.Linear(16, 10).to(device).eval()
student = nn.Linear(16, 10).to(device)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, foreach=True)
T = float(os.environ.get("TEMPERATURE", "2"))  # harmless: a string of the host
for _ in range(STEPS):  # step
    x = torch.randn(32, 16, device=device)
    with torch.no_grad():
        wanted = teacher(x).div(T).softmax(-1)
    loss = F.kl_div(student(x).div(T).log_softmax(-1), wanted, reduction="batchmean") * T * T  # harmless: T is a number
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
