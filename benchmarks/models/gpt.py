"""A decoder alone, as GPT is."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Causal attention and a feed-forward block, each behind a norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        """Return features, [B, T, width]."""
        heads = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self._qkv(x))
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))

    def _qkv(self, x):
        return self.qkv(self.norm1(x)).chunk(3, dim=-1)


class GPT(nn.Module):
    """A decoder alone; its output layer shares the embedding's weight."""

    def __init__(self, vocabulary, length, width, depth, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids, targets):
        """Return logits and the loss of ids and targets, [B, T] each."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
