"""A word language model: an LSTM whose hidden state goes from slice to slice of the text."""

import math

import torch
from torch.nn import functional as F

from benchmarks.models.word_model import WordModel, repackage_hidden


TITLE = "word LM: LSTM, truncated backpropagation, update by hand, loss read each step"
STEPS = 120

BPTT, CLIP, LOG_INTERVAL = 35, 0.25, 40


def batchify(count, vocabulary, batch_size, seed):
    """Return words in columns, [count, batch_size]; Zipf's law says which are frequent."""
    draw = torch.Generator().manual_seed(seed)
    shares = 1.0 / torch.arange(1.0, vocabulary + 1.0)
    words = torch.multinomial(shares, count * batch_size, replacement=True, generator=draw)
    return words.view(batch_size, -1).t().contiguous()


def get_batch(source, i):
    """Return words, [T, B], and those that follow them, [T * B]."""
    seq_len = min(BPTT, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def evaluate(model, data_source):
    """Return the mean loss."""
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(data_source.shape[1])
    with torch.no_grad():
        for i in range(0, len(data_source) - 1, BPTT):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * F.nll_loss(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train(args):
    """Train; return the model."""
    device = args.device
    vocabulary, width, batch_size = (100, 16, 4) if args.is_small else (10_000, 200, 20)
    train_data = batchify(args.steps * BPTT + 1, vocabulary, batch_size, seed=1).to(device)
    val_data = batchify(2 * BPTT + 1, vocabulary, 2, seed=2).to(device)
    model = WordModel(vocabulary, width, 2).to(device)
    lr, best_val_loss = 5.0, None
    for _ in args.epochs:
        model.train()
        total_loss = 0.0
        hidden = model.init_hidden(batch_size)
        starts = range(0, len(train_data) - 1, BPTT)
        for batch, i in enumerate(args.progress(starts)):
            data, targets = get_batch(train_data, i)
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
            loss = F.nll_loss(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            total_loss += loss.item()
            if batch % LOG_INTERVAL == LOG_INTERVAL - 1 or batch == len(starts) - 1:
                args.log(loss=total_loss, lr=lr)
                total_loss = 0.0
        val_loss = evaluate(model, val_data)
        args.log(val_loss=val_loss, perplexity=math.exp(val_loss))
        if best_val_loss is None or val_loss < best_val_loss:
            best_val_loss = val_loss
        else:
            lr /= 4.0
    return model
