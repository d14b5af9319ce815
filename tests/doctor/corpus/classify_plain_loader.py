"""The first tutorial: a loader without pinned memory, blocking copies, accuracy in the loop."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(STEPS * 64, 3, 16, 16), torch.randint(10, (STEPS * 64,)))
loader = DataLoader(data, batch_size=64, shuffle=True)
net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10))
net.to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

correct, total = 0, 0
for images, labels in loader:  # step
    images, labels = images.to(device), labels.to(device)  # waits: copy, 2 a step, static surely
    optimizer.zero_grad()
    outputs = net(images)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
    _, predicted = torch.max(outputs.data, 1)
    total += labels.size(0)  # harmless: a size is known on the host
    correct += (predicted == labels).sum().item()  # waits: item, static surely
print("accuracy", 100 * correct / total)
