"""Accelerate: clipping and accumulation, nothing read by the user."""

import os

import torch
from _needs import needs

needs("accelerate")
from accelerate import Accelerator

STEPS = int(os.environ.get("CASE_STEPS", 60))
accelerator = Accelerator(gradient_accumulation_steps=1)
data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 16))
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8, pin_memory=torch.cuda.is_available()))
for (x,) in loader:  # step; waits: copy, 0-3 a step, static no, unsure
    with accelerator.accumulate(model):  # harmless: a flag of the host
        loss = model(x).square().mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:  # harmless: a flag of the host
            accelerator.clip_grad_norm_(model.parameters(), 1.0)  # harmless: clipped on the device
        optimizer.step()
        optimizer.zero_grad()
