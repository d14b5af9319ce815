"""A language model, trained as nanoGPT does: micro-batches, bf16, a cosine, evaluation in between."""

import math
from contextlib import nullcontext

import numpy as np
import torch

from benchmarks.models.gpt import GPT


TITLE = "nanoGPT: bf16 autocast, 4 micro-batches, clipping, every 10th loss printed"
STEPS = 30

VOCABULARY = 96


def make_tokens(count):
    """Return a stream of tokens in which each depends on the one before."""
    steps = np.random.default_rng(0).integers(0, 4, count, dtype=np.int64)
    return (np.cumsum(steps) % VOCABULARY).astype(np.uint16)


def make_optimizer(model, learning_rate):
    """Return AdamW that decays matrices alone."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def get_lr(it):
    """Return the learning rate of an iteration: a warm-up, and then a cosine."""
    if it < 100:
        return 1e-3 * (it + 1) / 101
    return 1e-4 + 0.5 * (1.0 + math.cos(math.pi * min((it - 100) / 4900, 1.0))) * 9e-4


def train(args):
    """Train; return the model."""
    torch.set_float32_matmul_precision("high")
    device, device_type = args.device, args.device.type
    batch_size, block_size, eval_iters = (2, 16, 1) if args.is_small else (16, 256, 5)
    width, depth, heads = (32, 1, 2) if args.is_small else (384, 6, 6)
    gradient_accumulation_steps, eval_interval, log_interval = 4, args.steps, 10
    data = {"train": make_tokens(1_000_000), "val": make_tokens(100_000)}
    bf16 = torch.autocast(device_type=device_type, dtype=torch.bfloat16)
    ctx = bf16 if device_type == "cuda" else nullcontext()

    def get_batch(split):
        tokens = data[split]
        ix = torch.randint(len(tokens) - block_size, (batch_size,)).tolist()
        x = torch.stack(
            [torch.from_numpy(tokens[i : i + block_size].astype(np.int64)) for i in ix]
        )
        y = torch.stack(
            [torch.from_numpy(tokens[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]
        )
        if device_type == "cuda":
            x = x.pin_memory().to(device, non_blocking=True)
            y = y.pin_memory().to(device, non_blocking=True)
        else:
            x, y = x.to(device), y.to(device)
        return x, y

    @torch.no_grad()
    def estimate_loss():
        out = {}
        model.eval()
        for split in data:
            losses = torch.zeros(eval_iters)
            for k in range(eval_iters):
                x, y = get_batch(split)
                with ctx:
                    _, loss = model(x, y)
                losses[k] = loss.item()
            out[split] = losses.mean().item()
        model.train()
        return out

    model = GPT(VOCABULARY, block_size, width, depth, heads).to(device)
    optimizer = make_optimizer(model, 1e-3)
    scaler = torch.amp.GradScaler(device_type, enabled=False)
    x, y = get_batch("train")
    for iter_num in args.iterations:
        for param_group in optimizer.param_groups:
            param_group["lr"] = get_lr(iter_num)
        if iter_num % eval_interval == 0:
            args.log(**estimate_loss())
        for _ in range(gradient_accumulation_steps):
            with ctx:
                _, loss = model(x, y)
                loss = loss / gradient_accumulation_steps
            x, y = get_batch("train")
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if iter_num % log_interval == 0:
            args.log(loss=loss.item() * gradient_accumulation_steps)
    return model
