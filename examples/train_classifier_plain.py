"""An ordinary training loop: every batch waits for its copy and for its loss."""

import torch
from torch.utils.data import DataLoader, TensorDataset


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
inputs = torch.randn(2000, 32)
data = TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)

for epoch in range(3):
    loader = DataLoader(data, batch_size=50, shuffle=True)
    losses = []
    for x, y in [(x.to(device), y.to(device)) for x, y in loader]:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.12f}")
