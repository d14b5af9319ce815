"""A language model: a small GPT on a token stream, four micro-batches a step."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import torch

import gapless
from benchmarks.models.gpt import GPT
from benchmarks.public_loops.script import Loop


MICRO_STEPS = 4
NUM_TOKENS = 2_000_000


class Sizes:
    """How large model and batches are."""

    def __init__(self, run):
        self.vocabulary = 96
        self.batch, self.length = (2, 16) if run.is_tiny else (32, 256)
        self.width, self.depth, self.heads = (32, 1, 2) if run.is_tiny else (384, 6, 6)

    def make_model(self):
        """Return the model."""
        return GPT(self.vocabulary, self.length, self.width, self.depth, self.heads)


def make_tokens(sizes):
    """Return a stream of tokens in which each depends on the one before."""
    draw = np.random.default_rng(0)
    steps = draw.integers(0, 4, NUM_TOKENS, dtype=np.int64)
    return (np.cumsum(steps) % sizes.vocabulary).astype(np.uint16)


def rate_of(step):
    """Return the learning rate of a step: a warm-up, and then half a cosine."""
    if step < 100:
        return 1e-3 * (step + 1) / 100
    return 1e-4 + 0.45e-3 * (1.0 + math.cos(math.pi * min(step / 5000, 1.0)))


def autocast(device):
    """Return the context of the forward pass."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def as_written(run):
    """Copy each batch while the forward pass before it runs; read every tenth loss."""
    device = run.device
    sizes = Sizes(run)
    data = make_tokens(sizes)

    def get_batch():
        ix = torch.randint(len(data) - sizes.length, (sizes.batch,)).tolist()
        rows = np.stack([data[i : i + sizes.length + 1] for i in ix]).astype(np.int64)
        x, y = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
        if device.type == "cuda":
            x = x.pin_memory().to(device, non_blocking=True)
            y = y.pin_memory().to(device, non_blocking=True)
        return x, y

    model = sizes.make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    x, y = get_batch()
    done = 0
    while True:
        losses = []
        for step in range(done, done + run.steps):
            for group in optimizer.param_groups:
                group["lr"] = rate_of(step)
            for _ in range(MICRO_STEPS):
                with autocast(device):
                    _, loss = model(x, y)
                    loss = loss / MICRO_STEPS
                x, y = get_batch()
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 10 == 0:
                losses.append(loss.item() * MICRO_STEPS)
                run.progress(f"iter {step}: loss {losses[-1]:.4f}")
        done += run.steps
        yield model, losses


def with_gapless(run):
    """Let prefetch copy each batch."""
    device = run.device
    sizes = Sizes(run)
    data = make_tokens(sizes)

    def get_batch():
        ix = torch.randint(len(data) - sizes.length, (sizes.batch,)).tolist()
        rows = np.stack([data[i : i + sizes.length + 1] for i in ix]).astype(np.int64)
        x, y = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
        return x, y

    def get_batches():
        while True:
            yield get_batch()

    model = sizes.make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    batches = iter(gapless.prefetch(get_batches(), device))
    metrics = gapless.DeferredLoss(device)
    x, y = next(batches)
    done = 0
    while True:
        for step in range(done, done + run.steps):
            for group in optimizer.param_groups:
                group["lr"] = rate_of(step)
            for _ in range(MICRO_STEPS):
                with autocast(device):
                    _, loss = model(x, y)
                    loss = loss / MICRO_STEPS
                x, y = next(batches)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 10 == 0:
                metrics.add(loss.detach() * MICRO_STEPS)
            if newest := metrics.latest():
                run.progress(f"iter {step}: loss {newest.values['loss']:.4f}")
        done += run.steps
        metrics.mean()
        yield model, metrics.history
        metrics.reset()


LOOP = Loop(
    name="lm",
    title="language model (GPT, 4 micro-batches, pinned batches, every tenth loss read)",
    as_written=as_written,
    with_gapless=with_gapless,
    steps=20,
)
