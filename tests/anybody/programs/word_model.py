"""A word-level language model with a hidden state, read from standard input if it is a pipe."""

import math
import sys

import torch
import torch.nn as nn

text = sys.stdin.read().split() if not sys.stdin.isatty() else []
words = text or ("the cat sat on the mat and the dog sat on the log " * 12).split()
vocabulary = sorted(set(words))
ids = torch.tensor([vocabulary.index(word) for word in words])
torch.manual_seed(1111)
ids = ids[: len(ids) // 4 * 4].view(4, -1).t().contiguous()


class RNNModel(nn.Module):
    def __init__(self, ntoken):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, 12)
        self.rnn = nn.LSTM(12, 12, 1)
        self.decoder = nn.Linear(12, ntoken)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(output)).view(-1, len(vocabulary)), hidden


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


model = RNNModel(len(vocabulary))
criterion = nn.CrossEntropyLoss()
lr = 5.0
for epoch in range(8):
    hidden = (torch.zeros(1, 4, 12), torch.zeros(1, 4, 12))
    total = 0.0
    for i in range(0, ids.size(0) - 1, 6):
        length = min(6, len(ids) - 1 - i)
        data, target = ids[i : i + length], ids[i + 1 : i + 1 + length].reshape(-1)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
    print(f"| epoch {epoch} | loss {total:.6f} | ppl {math.exp(min(total, 20)):.4f}", flush=True)
    lr *= 0.9
with open("model.pt", "wb") as f:
    torch.save(model.state_dict(), f)
