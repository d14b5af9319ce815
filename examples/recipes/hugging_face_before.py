"""A Trainer of transformers that clips, logs, evaluates and saves."""

import argparse
import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

set_seed(0)
rows = []
for length in torch.randint(8, 17, (200,)).tolist():
    tokens = torch.randint(2, 100, (length,)).tolist()
    rows.append({"input_ids": tokens, "labels": tokens[0] % 2})


def padded(rows):
    """Collate sentences: all of them are padded to 16 tokens."""
    ids = torch.zeros(len(rows), 16, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model,
        TrainingArguments(
            folder,
            use_cpu=args.device != "cuda",
            max_steps=args.steps,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=20,
            save_strategy="steps",
            save_steps=20,
            load_best_model_at_end=True,
            disable_tqdm=True,
            report_to=[],
        ),
        data_collator=padded,
        train_dataset=rows[:160],
        eval_dataset=rows[160:],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
for row in trainer.state.log_history:
    for name in ("loss", "grad_norm", "eval_loss"):
        if name in row:
            print(f"step {row['step']}: {name} {row[name]:.12f}")
print(f"best evaluation: {trainer.state.best_metric:.12f}")
