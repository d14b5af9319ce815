"""Speech: CTC with lengths on the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(20, 30).to(device)
optimizer = torch.optim.Adam(net.parameters())
input_lengths = torch.full((4,), 50, device=device)
target_lengths = torch.full((4,), 10, device=device)
for _ in range(STEPS):  # step
    audio = torch.randn(50, 4, 20, device=device)
    targets = torch.randint(1, 30, (4, 10), device=device)
    log_probs = net(audio).log_softmax(-1)
    loss = nn.functional.ctc_loss(log_probs, targets, input_lengths, target_lengths)  # waits: cpu, 1-10 a step, static no; waits: copy, 0-10 a step, in autograd, static no, unsure
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
