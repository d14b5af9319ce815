"""Metrics of the cases."""

import torch


class Accuracy:
    def __init__(self):
        self.correct = 0
        self.total = 0

    def update(self, logits, target):
        matches = logits.argmax(dim=-1) == target
        self.correct = self.correct + matches.sum()  # harmless: added up on the device
        self.total += target.numel()  # harmless: a size

    def compute(self):
        return float(self.correct) / self.total


class MeanLoss:
    def __init__(self):
        self.values = []

    def update(self, loss):
        self.values.append(loss.detach().cpu())  # waits: cpu

    def compute(self):
        return torch.stack(self.values).mean().item()  # harmless: these tensors are on the host
