"""Lightning: `training_step` logs a number that it has read."""

import os

import torch
from _needs import needs

needs("lightning")
import lightning as L

STEPS = int(os.environ.get("CASE_STEPS", 60))


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, 4)

    def training_step(self, batch, index):  # step
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss.item())  # waits: item; waits: new tensor, 0-3 a step, static no, unsure
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(4, (STEPS * 8,)))
trainer = L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Classifier(), torch.utils.data.DataLoader(data, 8))
