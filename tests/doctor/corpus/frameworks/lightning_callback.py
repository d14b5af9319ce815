"""Lightning: a callback of the user's reads the loss of each batch."""

import os

import torch
from _needs import needs

needs("lightning")
import lightning as L

STEPS = int(os.environ.get("CASE_STEPS", 60))


class History(L.Callback):
    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.values.append(outputs["loss"].item())  # waits: item


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, 1)

    def training_step(self, batch, index):  # step
        return self.net(batch[0]).square().mean()  # harmless: stays on the device

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 16))
trainer = L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[History()])
trainer.fit(Regressor(), torch.utils.data.DataLoader(data, 8))
