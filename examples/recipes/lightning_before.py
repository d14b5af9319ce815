"""A LightningModule that clips, logs, has a schedule, and is validated."""

import argparse

import lightning as L
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_epoch=True, prog_bar=True)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log("gradient", self.net[0].weight.grad.norm(), on_epoch=True)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("right", (self.net(x).argmax(dim=1) == y).float().mean())

    def on_train_epoch_end(self):
        metrics = self.trainer.callback_metrics
        values = ", ".join(f"{name} {value:.12f}" for name, value in sorted(metrics.items()))
        print(f"epoch {self.current_epoch}: {values}")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)]


torch.manual_seed(0)
inputs = torch.randn(800, 32)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
data = TensorDataset(inputs, labels)
loader = DataLoader(torch.utils.data.Subset(data, range(640)), batch_size=32, shuffle=True)
test_loader = DataLoader(torch.utils.data.Subset(data, range(640, 800)), batch_size=32)
model = Classifier()
trainer = L.Trainer(
    accelerator="gpu" if args.device == "cuda" else "cpu",
    devices=1,
    max_epochs=args.steps // len(loader),
    gradient_clip_val=0.5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader, test_loader)
