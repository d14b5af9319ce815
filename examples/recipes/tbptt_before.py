"""Truncated backpropagation through time: the state goes on from window to window."""

import argparse

import torch
from torch.nn import functional as F


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
device = torch.device(args.device)

torch.manual_seed(0)
num_symbols, rows, length = 12, 16, 20
# Each row counts upwards, with a random symbol in ten; a window of it is a batch.
text = torch.arange(length * 20 + 1) % num_symbols + torch.arange(rows)[:, None]
noise = torch.randint(num_symbols, text.shape)
text = torch.where(torch.rand(text.shape) < 0.1, noise, text % num_symbols)
windows = [text[:, start : start + length + 1] for start in range(0, length * 20, length)]


class LanguageModel(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = torch.nn.Embedding(num_symbols, width)
        self.lstm = torch.nn.LSTM(width, width, batch_first=True)
        self.out = torch.nn.Linear(width, num_symbols)

    def forward(self, symbols, state):
        hidden, state = self.lstm(self.embed(symbols), state)
        return self.out(hidden), state


model = LanguageModel().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
zeros = torch.zeros(1, rows, 32, device=device)

for epoch in range(args.steps // len(windows)):
    losses, state = [], (zeros, zeros)
    for window in windows:
        window = window.to(device)
        state = tuple(part.detach() for part in state)
        scores, state = model(window[:, :-1], state)
        loss = F.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.12f}")
