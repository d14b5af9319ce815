"""Loader workers, page-locked memory, copies that do not block."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("CASE_STEPS", 60))


class Images(Dataset):
    def __len__(self):
        return STEPS * 16

    def __getitem__(self, index):
        image = torch.randn(3, 16, 16)
        if image.mean().item() > 10:  # harmless: in a worker, on the host
            image = image / 2
        return image, int(torch.randint(10, ()))  # harmless: in a worker, on the host


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Images(), 16, num_workers=2, pin_memory=device.type == "cuda", persistent_workers=True
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for images, labels in loader:  # step
        images = images.to(device, non_blocking=True)  # harmless: page-locked
        labels = labels.to(device, non_blocking=True)  # harmless: page-locked
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
