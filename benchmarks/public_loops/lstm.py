"""A word language model: an LSTM whose hidden state goes from slice to slice of the text."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

import gapless
from benchmarks.models.word_model import WordModel, repackage_hidden
from benchmarks.public_loops.script import Loop


BPTT = 35
LOG_INTERVAL = 50


class Text:
    """Words in columns, [length, batch], and their slices; Zipf's law says which are frequent."""

    def __init__(self, run):
        self.vocabulary = 100 if run.is_tiny else 10_000
        self.batch = 4 if run.is_tiny else 20
        draw = torch.Generator().manual_seed(0)
        shares = 1.0 / torch.arange(1.0, self.vocabulary + 1.0)
        count = (run.steps * BPTT + 1) * self.batch
        words = torch.multinomial(shares, count, replacement=True, generator=draw)
        self.words = words.view(self.batch, -1).t().contiguous()

    def slices(self):
        """Yield inputs, [T, B], and their targets, [T * B]."""
        for start in range(0, len(self.words) - 1, BPTT):
            end = min(start + BPTT, len(self.words) - 1)
            yield self.words[start:end], self.words[start + 1 : end + 1].reshape(-1)


def make_model(run, text):
    """Return the model."""
    return WordModel(text.vocabulary, 16 if run.is_tiny else 200, 2)


def as_written(run):
    """Sum up the loss of every step, and print the perplexity now and then."""
    device = run.device
    text = Text(run)
    model = make_model(run, text).to(device)
    lr = 5.0
    while True:
        model.train()
        losses, total_loss = [], 0.0
        hidden = model.init_hidden(text.batch)
        for batch, (data, targets) in enumerate(text.slices()):
            data, targets = data.to(device), targets.to(device)
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
            loss = F.nll_loss(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            losses.append(loss.item())
            total_loss += losses[-1]
            if batch % LOG_INTERVAL == LOG_INTERVAL - 1:
                cur_loss = total_loss / LOG_INTERVAL
                run.progress(
                    f"{batch} batches | loss {cur_loss:5.2f} | ppl {math.exp(cur_loss):8.2f}"
                )
                total_loss = 0.0
        yield model, losses


def with_gapless(run):
    """Print the newest loss that has arrived instead."""
    device = run.device
    text = Text(run)
    model = make_model(run, text).to(device)
    lr = 5.0
    metrics = gapless.DeferredLoss(device)
    while True:
        model.train()
        hidden = model.init_hidden(text.batch)
        for batch, (data, targets) in enumerate(gapless.prefetch(text.slices(), device)):
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
            loss = F.nll_loss(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            metrics.add(loss)
            if batch % LOG_INTERVAL == LOG_INTERVAL - 1 and (newest := metrics.latest()):
                cur_loss = newest.values["loss"]
                run.progress(
                    f"{batch} batches | loss {cur_loss:5.2f} | ppl {math.exp(cur_loss):8.2f}"
                )
        metrics.mean()
        yield model, metrics.history
        metrics.reset()


LOOP = Loop(
    name="lstm",
    title="word language model (LSTM, hidden state carried over, loss read each step)",
    as_written=as_written,
    with_gapless=with_gapless,
    steps=150,
)
