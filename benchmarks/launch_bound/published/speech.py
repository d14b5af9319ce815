"""Speech: convolutions on the raw signal and a Transformer, which name the units of hidden frames."""

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader


TITLE = "speech: convolutions and Transformer on waveforms, bf16, clipping, loss read each step"
STEPS = 40

SIGNAL, UNITS, STRIDE = 16_000, 50, 320


class SpeechModel(nn.Module):
    """Frames from a waveform; what is hidden of them is to be found by attention."""

    def __init__(self, channels, width, depth, heads):
        super().__init__()
        sizes = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
        layers, num_in = [], 1
        for number, (kernel, stride) in enumerate(sizes):
            layers.append(nn.Conv1d(num_in, channels, kernel, stride, bias=False))
            layers += [nn.GroupNorm(channels, channels)] if number == 0 else []
            layers.append(nn.GELU())
            num_in = channels
        self.features = nn.Sequential(*layers)
        self.norm, self.project = nn.LayerNorm(channels), nn.Linear(channels, width)
        self.hidden = nn.Parameter(torch.rand(width))
        self.position = nn.Conv1d(width, width, 16, padding=8, groups=heads)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, UNITS)

    def forward(self, waveform, mask):
        """Return logits, [B, T, UNITS], of signals, [B, SIGNAL], and hidden frames, [B, T]."""
        x = self.features(waveform.unsqueeze(1)).transpose(1, 2)
        x = self.project(self.norm(x))
        x = torch.where(mask.unsqueeze(-1), self.hidden.to(x.dtype), x)
        x = x + F.gelu(self.position(x.transpose(1, 2))[..., :-1]).transpose(1, 2)
        return self.head(self.encoder(x))


def make_speech(count, length):
    """Return signals, [length], in which every unit has a tone of its own, and units of frames."""
    draw = torch.Generator().manual_seed(0)
    num_frames = (length - 80) // STRIDE
    units = torch.randint(UNITS, (count, num_frames // 5 + 1), generator=draw)
    units = units.repeat_interleave(5, dim=1)[:, :num_frames]
    tones = F.pad(units, (0, 1)).repeat_interleave(STRIDE, dim=1)
    tones = F.pad(tones, (0, length))[:, :length] * 0.01 + 0.05
    signals = tones.cumsum(dim=1).sin() + 0.1 * torch.randn(count, length, generator=draw)
    return list(zip(signals, units, strict=True))


def collate(samples):
    """Return signals, hidden frames and targets; frames that are seen have no target."""
    signals = torch.stack([signal for signal, _ in samples])
    units = torch.stack([unit for _, unit in samples])
    starts = F.pad(torch.rand(units.shape) < 0.08, (9, 0)).float()
    mask = F.max_pool1d(starts.unsqueeze(1), 10, stride=1).squeeze(1).bool()
    mask[:, 0] = True
    return {"signals": signals, "mask": mask, "targets": units.masked_fill(~mask, -100)}


def cut(samples):
    """Return a batch of signals of one length, which is another for each."""
    size = int(torch.randint(len(samples[0][1]) // 3, len(samples[0][1]) + 1, ()))
    return collate([(signal[: 80 + size * STRIDE], units[:size]) for signal, units in samples])


def train(args):
    """Train; return the model."""
    device = args.device
    channels, width, depth, heads = (8, 16, 1, 2) if args.is_small else (256, 512, 6, 8)
    batch_size, length = (2, SIGNAL // 4) if args.is_small else (16, SIGNAL)
    train_loader = DataLoader(
        make_speech(args.steps * batch_size, length),
        batch_size,
        shuffle=True,
        collate_fn=cut if args.is_changing else collate,
        pin_memory=device.type == "cuda",
    )
    model = SpeechModel(channels, width, depth, heads).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 400))
    for _ in args.epochs:
        model.train()
        running_loss = 0.0
        for batch in args.progress(train_loader):
            batch = {name: part.to(device) for name, part in batch.items()}
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(batch["signals"], batch["mask"])
            loss = F.cross_entropy(logits.float().flatten(0, 1), batch["targets"].flatten())
            loss.backward()
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            running_loss += loss.item()
            args.log(loss=loss.item(), grad_norm=grad_norm.item())
        args.log(epoch_loss=running_loss)
    return model
