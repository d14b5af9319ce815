"""Time series: N-BEATS, blocks that each explain a part of the past and of the future."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


TITLE = "N-BEATS: 30 blocks of linear layers, Adam, clipping, loss read each step"
STEPS = 60


class Block(nn.Module):
    """Linear layers, and one more for the past and for the future each."""

    def __init__(self, length, horizon, width):
        super().__init__()
        layers = [nn.Linear(length, width), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.fc = nn.Sequential(*layers, nn.Dropout(0.1))
        self.backcast, self.forecast = nn.Linear(width, length), nn.Linear(width, horizon)

    def forward(self, x):
        """Return the part of the past, [B, length], and of the future, [B, horizon]."""
        x = self.fc(x)
        return self.backcast(x), self.forecast(x)


class NBeats(nn.Module):
    """Stacks of blocks; each looks at what those before it left."""

    def __init__(self, length, horizon, width, depth):
        super().__init__()
        self.horizon = horizon
        self.blocks = nn.ModuleList(Block(length, horizon, width) for _ in range(depth))

    def forward(self, past):
        """Return the future, [B, horizon]."""
        future = torch.zeros(len(past), self.horizon, device=past.device)
        for block in self.blocks:
            backcast, forecast = block(past)
            past, future = past - backcast, future + forecast
        return future


def make_series(count, length, horizon):
    """Return windows of noisy waves, past and future."""
    draw = torch.Generator().manual_seed(0)
    phase, period = torch.rand(2, count, 1, generator=draw).unbind(0)
    time = torch.arange(length + horizon).float()
    waves = torch.sin(6.3 * (phase + time / (8.0 + 24.0 * period)))
    waves += 0.1 * torch.randn(waves.shape, generator=draw)
    return TensorDataset(waves[:, :length], waves[:, length:])


def train(args):
    """Train; return the model."""
    device = args.device
    length, horizon, width, depth, batch_size = (
        (12, 4, 8, 2, 4) if args.is_small else (96, 24, 256, 30, 128)
    )
    loader_args = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    series = make_series(args.steps * batch_size, length, horizon)
    train_loader = DataLoader(series, batch_size, shuffle=True, **loader_args)
    model = NBeats(length, horizon, width, depth).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in args.epochs:
        model.train()
        total_loss = 0.0
        for past, future in args.progress(train_loader):
            past, future = past.to(device), future.to(device)
            optimizer.zero_grad()
            loss = F.l1_loss(model(past), future)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total_loss += loss.item()
            args.log(loss=loss.item())
        args.log(epoch_loss=total_loss)
    return model
