"""Logs to standard error and to a file, and warns, while it trains."""

import logging
import pathlib
import warnings

import torch

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("train")
handler = logging.FileHandler("train.log")
log.addHandler(handler)

torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 2))
ema = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
best = float("inf")
for step in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(5, 6)).square().mean()
    loss.backward()
    optimizer.step()
    for average, p in zip(ema, model.parameters()):
        average.mul_(0.9).add_(p.detach(), alpha=0.1)
    if loss.item() < best:
        best = loss.item()
        torch.save(model.state_dict(), "best.pt")
    if step % 20 == 0:
        log.info("step %d best %.8f", step, best)
warnings.warn("done with the last step", stacklevel=1)
pathlib.Path("best.txt").write_text(f"{best!r}\n")
torch.save(ema, "ema.pt")
