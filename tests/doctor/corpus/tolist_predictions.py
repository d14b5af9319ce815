"""Collect predictions as lists of Python numbers."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(20, 5).to(device).eval()
predictions, scores = [], []
with torch.no_grad():
    for _ in range(STEPS):  # step of no optimizer
        logits = model(torch.randn(64, 20, device=device))
        probs, labels = logits.softmax(-1).max(-1)
        predictions.extend(labels.tolist())  # waits: tolist, static surely
        scores += probs.cpu().numpy().tolist()  # waits: cpu, static surely
print(len(predictions), sum(scores) / len(scores))
