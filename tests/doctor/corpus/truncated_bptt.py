"""Hidden states are carried on, detached."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
table, lstm, head = nn.Embedding(50, 16), nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 50)
model = nn.ModuleList([table, lstm, head]).to(device)
optimizer = torch.optim.Adagrad(model.parameters())
text = torch.randint(50, (8, STEPS * 5 + 1), device=device)
state = None
for step in range(STEPS):  # step
    piece = text[:, step * 5 : step * 5 + 6]  # harmless: bounds of the host
    if state is not None:  # harmless: identity
        state = tuple(one.detach() for one in state)  # harmless: no copy
    out, state = lstm(table(piece[:, :-1]), state)
    loss = nn.functional.cross_entropy(head(out).transpose(1, 2), piece[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.25)  # harmless: clipped on the device
    optimizer.step()
