"""LoRA: a frozen GPT, of whose attention additions of low rank are trained, as scripts do it without a library."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.models.gpt import GPT


TITLE = "LoRA of a GPT: rank 8, dropout, clipping, loss read each step"
STEPS = 40

VOCABULARY = 96


class LoRALinear(nn.Module):
    """A frozen layer, and beside it a product of two narrow ones."""

    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.dropout = nn.Dropout(0.05)
        self.lora_a = nn.Parameter(torch.empty(rank, linear.in_features))
        self.lora_b = nn.Parameter(torch.zeros(linear.out_features, rank))
        self.scaling = alpha / rank
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x):
        """Return features, [B, T, out]."""
        added = self.dropout(x) @ self.lora_a.t() @ self.lora_b.t()
        return self.linear(x) + added * self.scaling


def add_lora(model):
    """Freeze all weights, and replace the layers of attention."""
    model.requires_grad_(False)
    for layer in model.layers:
        layer.qkv = LoRALinear(layer.qkv, rank=8, alpha=16)
        layer.out = LoRALinear(layer.out, rank=8, alpha=16)
    return model


def make_tokens(count, length):
    """Return sequences in which each token depends on the one before."""
    draw = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 4, (count, length + 1), generator=draw)
    return steps.cumsum(1) % VOCABULARY


def train(args):
    """Train; return the model."""
    device = args.device
    batch_size, length, width, depth = (2, 16, 32, 1) if args.is_small else (8, 128, 512, 8)
    tokens = make_tokens(args.steps * batch_size, length)
    train_loader = DataLoader(
        TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size, shuffle=True
    )
    model = add_lora(GPT(VOCABULARY, length, width, depth, 4)).to(device)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    for _ in args.epochs:
        model.train()
        total_loss = 0.0
        for ids, targets in args.progress(train_loader):
            ids, targets = ids.to(device), targets.to(device)
            optimizer.zero_grad()
            _, loss = model(ids, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            total_loss += loss.item()
            args.log(loss=loss.item())
        args.log(epoch_loss=total_loss)
    return model
