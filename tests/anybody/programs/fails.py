"""Fails in the middle, with one exception raised from another."""

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)


def train():
    torch.manual_seed(2)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(60):
        width = 6 if step < 40 else 5
        optimizer.zero_grad()
        model(torch.randn(4, width)).sum().backward()
        optimizer.step()
        print(step)


if __name__ == "__main__":
    try:
        train()
    except RuntimeError as error:
        raise ValueError("training failed") from error
