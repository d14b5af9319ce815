"""A vision Transformer on small images: AdamW, warm-up and cosine by steps, bf16, clipping."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.launch_bound.published.image_amp_ema import make_images


TITLE = "ViT: bf16 autocast, cosine by steps, clipping, every 10th loss and each evaluation read"
STEPS = 60


class Layer(nn.Module):
    """Attention and a feed-forward block, each behind a norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        """Return features, [B, T, width]."""
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts.unbind(0))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches of 4 x 4 and a class token."""

    def __init__(self, width, depth, heads):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        """Return logits, [B, 10], of images, [B, 3, 32, 32]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


def adjust_learning_rate(optimizer, step, total):
    """Set the learning rate of a step, and return it."""
    share = min(step / total, 1.0)
    lr = 1e-3 * (step + 1) / 100 if step < 100 else 5e-4 * (1.0 + math.cos(math.pi * share))
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


@torch.no_grad()
def evaluate(model, device, loader, args):
    """Log loss and accuracy on the test set."""
    model.eval()
    total_loss, hits = 0.0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            output = model(images)
        total_loss += F.cross_entropy(output.float(), labels).item()
        hits += (output.argmax(dim=1) == labels).sum().item()
    args.log(val_loss=total_loss, hits=hits)


def train(args):
    """Train; return the model."""
    device = args.device
    width, depth, heads, batch_size = (16, 1, 2, 4) if args.is_small else (384, 6, 6, 64)
    loader_args = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader_args |= {"pin_memory": device.type == "cuda", "drop_last": True}
    train_images = make_images(args.steps * batch_size, 1)
    train_loader = DataLoader(train_images, batch_size, shuffle=True, **loader_args)
    val_loader = DataLoader(make_images(2 * batch_size, 2), batch_size, **loader_args)
    model = ViT(width, depth, heads).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    step = 0
    for _ in args.epochs:
        model.train()
        for images, labels in args.progress(train_loader):
            lr = adjust_learning_rate(optimizer, step, total=10_000)
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                output = model(images)
                loss = criterion(output, labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 10 == 0:
                args.log(loss=loss.item(), lr=lr)
            step += 1
        evaluate(model, device, val_loader, args)
    return model
