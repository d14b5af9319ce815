"""A text classifier: an encoder like BERT on padded batches in dictionaries."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import gapless
from benchmarks.public_loops.script import Loop


try:
    from transformers import BertConfig, BertModel
except ImportError:
    BertModel = None

VOCABULARY, NUM_LABELS, PADDING = 4000, 4, 0


class PlainEncoder(nn.Module):
    """An encoder of torch's own layers, with the interface of the BERT of transformers."""

    def __init__(self, width, depth, heads, length):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, input_ids, attention_mask):
        """Return features, [B, T, width], of ids, [B, T], and a mask that is 0 for padding."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(positions))
        x = self.layers(x, src_key_padding_mask=attention_mask == 0)
        return SimpleNamespace(last_hidden_state=x)


class Classifier(nn.Module):
    """An encoder and a linear layer on its first position."""

    def __init__(self, run):
        super().__init__()
        width, depth, heads = (32, 1, 2) if run.is_tiny else (384, 6, 6)
        self.encoder = make_encoder(width, depth, heads)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(width, NUM_LABELS)

    def forward(self, input_ids, attention_mask, labels):
        """Return an object with the loss and the logits, [B, NUM_LABELS]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        logits = self.out(self.dropout(hidden.last_hidden_state[:, 0]))
        return SimpleNamespace(loss=F.cross_entropy(logits, labels), logits=logits)


def make_encoder(width, depth, heads):
    """Return BERT of transformers if that is installed, else torch's own layers."""
    if BertModel is None:
        return PlainEncoder(width, depth, heads, 128)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=128,
    )
    return BertModel(config, add_pooling_layer=False)


def make_examples(count):
    """Return sentences of 8 to 96 ids; the label is told by the first of them."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 97, (count,), generator=draw).tolist()
    examples = []
    for length in lengths:
        ids = torch.randint(1, VOCABULARY, (length,), generator=draw).tolist()
        examples.append({"ids": ids, "label": ids[0] % NUM_LABELS})
    return examples


def padded(examples):
    """Return ids and attention mask, [B, T], and labels, [B]."""
    longest = max(len(example["ids"]) for example in examples)
    ids = torch.full((len(examples), longest), PADDING)
    for row, example in zip(ids, examples, strict=True):
        row[: len(example["ids"])] = torch.tensor(example["ids"])
    labels = torch.tensor([example["label"] for example in examples])
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long(), "labels": labels}


def make_loader(run):
    """Return the loader of an epoch of `run.steps` batches."""
    size = 4 if run.is_tiny else 32
    return DataLoader(
        make_examples(run.steps * size), batch_size=size, shuffle=True, collate_fn=padded
    )


def rate_of(step):
    """Return the share of the learning rate of a step: a linear warm-up and decay."""
    return (step + 1) / 100 if step < 100 else max(0.1, 1.0 - (step - 100) / 10_000)


def as_written(run):
    """Sum up the loss of every step, and show it every ten."""
    device = run.device
    model = Classifier(run).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_of)
    train_dataloader = make_loader(run)
    while True:
        model.train()
        losses, total_loss = [], 0.0
        for step, batch in enumerate(train_dataloader):
            batch = {key: value.to(device) for key, value in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            total_loss += losses[-1]
            if step % 10 == 0:
                run.progress(f"step {step}: loss {losses[-1]:.4f}")
        run.progress(f"epoch: loss {total_loss / len(train_dataloader):.4f}\n")
        yield model, losses


def with_gapless(run):
    """Show the newest loss that has arrived every ten."""
    device = run.device
    model = Classifier(run).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_of)
    train_dataloader = gapless.prefetch(make_loader(run), device)
    metrics = gapless.DeferredLoss(device)
    while True:
        model.train()
        for step, batch in enumerate(train_dataloader):
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            metrics.add(loss)
            if step % 10 == 0 and (newest := metrics.latest()):
                run.progress(f"step {step}: loss {newest.values['loss']:.4f}")
        run.progress(f"epoch: loss {metrics.mean():.4f}\n")
        yield model, metrics.history
        metrics.reset()


LOOP = Loop(
    name="bert",
    title=f"text classifier ({'transformers BERT' if BertModel else 'encoder'}, dictionaries, "
    "loss read each step)",
    as_written=as_written,
    with_gapless=with_gapless,
    steps=40,
)
