"""A small trainer with callbacks; one of them reads."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Callback:
    def on_step_end(self, trainer, loss):
        pass


class LossHistory(Callback):
    def __init__(self):
        self.values = []

    def on_step_end(self, trainer, loss):
        self.values.append(loss.item())  # waits: item


class CountSteps(Callback):
    def on_step_end(self, trainer, loss):
        trainer.steps += 1  # harmless: a number of the host


class Trainer:
    def __init__(self, model, optimizer, callbacks):
        self.model, self.optimizer, self.callbacks = model, optimizer, callbacks
        self.steps = 0

    def fit(self, batches):
        for x in batches:
            loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()  # step
            for callback in self.callbacks:
                callback.on_step_end(self, loss.detach())  # harmless: the line that reads is in the callback


model = nn.Linear(16, 4).to(device)
trainer = Trainer(model, torch.optim.Adam(model.parameters()), [LossHistory(), CountSteps()])
trainer.fit(torch.randn(8, 16, device=device) for _ in range(STEPS))
