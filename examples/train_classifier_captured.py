"""The loop of train_classifier_gapless.py with its step as one CUDA graph, where there is a GPU."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import gapless


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
inputs = torch.randn(2000, 32)
data = TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
).to(device)
# Fused, Adam counts its updates on the device, so that the update is inside the graph as well.
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)


def train_step(batch):
    x, y = batch
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


train_step = gapless.capture(train_step)

for epoch in range(3):
    loader = DataLoader(data, batch_size=50, shuffle=True)
    losses = gapless.DeferredLoss(device)
    for batch in gapless.prefetch(loader, device):
        losses.add(train_step(batch))
    print(f"epoch {epoch}: loss {losses.mean():.12f}")
print(train_step.report)
