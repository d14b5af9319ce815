"""Fine-tuning: BERT on pairs of sentences, with the loop that courses teach."""

import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader, default_collate
from transformers import BertConfig, BertForSequenceClassification, get_scheduler


TITLE = "BERT fine-tuning: transformers, one length, linear schedule, loss read each step"
STEPS = 40

VOCABULARY, LENGTH, NUM_LABELS = 4000, 128, 3


def make_examples(count, seed):
    """Return padded sentences in dictionaries; the first word tells the label."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (count, LENGTH), generator=draw)
    sizes = torch.randint(16, LENGTH + 1, (count, 1), generator=draw)
    attention_mask = (torch.arange(LENGTH) < sizes).long()
    parts = {
        "input_ids": ids * attention_mask,
        "attention_mask": attention_mask,
        "token_type_ids": (torch.arange(LENGTH) >= sizes // 2).long() * attention_mask,
        "labels": ids[:, 0] % NUM_LABELS,
    }
    return [{name: part[i] for name, part in parts.items()} for i in range(count)]


def trim(examples):
    """Return a batch that is as long as its longest sentence."""
    batch = default_collate(examples)
    size = int(batch["attention_mask"].sum(dim=1).max())
    return {name: part[:, :size] if part.dim() > 1 else part for name, part in batch.items()}


def make_model(is_small):
    """Return the model, from a configuration; nothing is loaded."""
    width, depth, heads = (16, 1, 2) if is_small else (512, 4, 8)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=LENGTH,
        num_labels=NUM_LABELS,
    )
    return BertForSequenceClassification(config)


def make_groups(model):
    """Return the weights that decay, and those that do not."""
    named = list(model.named_parameters())
    kept = [p for name, p in named if "bias" in name or "LayerNorm" in name]
    decayed = [p for name, p in named if not ("bias" in name or "LayerNorm" in name)]
    return [{"params": decayed, "weight_decay": 0.01}, {"params": kept, "weight_decay": 0.0}]


def train(args):
    """Train; return the model."""
    device = args.device
    batch_size = 2 if args.is_small else 32
    collate_fn, examples = (
        trim if args.is_changing else None,
        make_examples(args.steps * batch_size, 1),
    )
    train_dataloader = DataLoader(examples, batch_size, shuffle=True, collate_fn=collate_fn)
    eval_dataloader = DataLoader(make_examples(2 * batch_size, 2), batch_size)
    model = make_model(args.is_small).to(device)
    optimizer = AdamW(make_groups(model), lr=5e-5)
    lr_scheduler = get_scheduler(
        "linear", optimizer=optimizer, num_warmup_steps=100, num_training_steps=10_000
    )
    for _ in args.epochs:
        model.train()
        total_loss = 0.0
        for batch in args.progress(train_dataloader):
            batch = {name: part.to(device) for name, part in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss
            total_loss += loss.detach().float()
            loss.backward()
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            args.log(loss=loss.item(), lr=lr_scheduler.get_last_lr()[0])
        model.eval()
        hits = 0
        for batch in eval_dataloader:
            batch = {name: part.to(device) for name, part in batch.items()}
            with torch.no_grad():
                outputs = model(**batch)
            predictions = outputs.logits.argmax(dim=-1)
            hits += (predictions == batch["labels"]).sum().item()
        args.log(train_loss=total_loss.item() / len(train_dataloader), hits=hits)
    return model
