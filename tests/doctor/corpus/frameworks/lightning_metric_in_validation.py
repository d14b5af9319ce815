"""Lightning: a metric of the user's in the validation step."""

import os

import torch
from _needs import needs

needs("lightning")
import lightning as L

STEPS = int(os.environ.get("CASE_STEPS", 60))


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, 4)
        self.right = []

    def validation_step(self, batch, index):  # step
        x, y = batch
        right = self.net(x).argmax(1) == y
        self.right.extend(right.tolist())  # waits: tolist


data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(4, (STEPS * 8,)))
trainer = L.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
trainer.validate(Model(), torch.utils.data.DataLoader(data, 8), verbose=False)
