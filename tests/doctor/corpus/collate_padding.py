"""Sentences are padded on the host; lengths are needed there by `pack_padded_sequence`."""

import os
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
table = nn.Embedding(100, 16).to(device)
lstm = nn.LSTM(16, 16, batch_first=True).to(device)
optimizer = torch.optim.Adam([*table.parameters(), *lstm.parameters()])
for _ in range(STEPS):  # step
    sentences = [torch.randint(100, (random.randint(3, 12),)) for _ in range(8)]
    lengths = torch.tensor([len(one) for one in sentences])  # harmless: on the host
    tokens = pad_sequence(sentences, batch_first=True).to(device)  # waits: copy, static surely
    packed = pack_padded_sequence(table(tokens), lengths, batch_first=True, enforce_sorted=False)  # waits: copy, 1-2 a step, static no
    out, _ = lstm(packed)
    out, out_lengths = pad_packed_sequence(out, batch_first=True)  # waits: cpu, 1-2 a step, static no, unsure
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
