"""Fine-tune a Marian model with gapless and with transformers, and say BLEU before and after.

    PYTHONPATH=src python3 -m benchmarks.marian_start MULTI30K DIR --out runs/results

MULTI30K holds `train.en.gz`, `train.de.gz`, `val.*` and `test_2016_flickr.*`. A `MarianMTModel` from a
configuration is trained with `Seq2SeqTrainer` on 20,000 pairs, then both fine-tune it on 5,000 others, with
batches, rate and epochs alike. Each score is sacrebleu's 13a of test2016, beam 5, by the program that the row
names; the run of gapless is exported to a Marian model again, which transformers scores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sacrebleu
import sentencepiece
import torch

from benchmarks.processes import replace_text


SIDES = {"source": "en", "target": "de"}
PRETRAINING, FINE_TUNING = 20_000, 5_000


def read(folder: Path, name: str) -> list[tuple[str, str]]:
    """Return the pairs of a split, English first."""
    files = [folder / f"{name}.{side}.gz" for side in SIDES.values()]
    texts = [gzip.decompress(file.read_bytes()).decode().splitlines() for file in files]
    return [(en.strip(), de.strip()) for en, de in zip(*texts, strict=True)]


def make_tokenizer(pairs: list[tuple[str, str]], folder: Path, *, size: int) -> Any:
    """Make two sentencepiece models and one table of ids, as Marian has them."""
    from transformers import MarianTokenizer

    pieces: dict[str, None] = {}
    for at, side in enumerate(SIDES):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([pair[at] for pair in pairs]),
            model_prefix=str(folder / side),
            vocab_size=size,
            minloglevel=2,
        )
        model = (folder / f"{side}.model").rename(folder / f"{side}.spm")
        found = sentencepiece.SentencePieceProcessor(model_file=str(model))
        pieces |= dict.fromkeys(found.id_to_piece(n) for n in range(3, len(found)))
    ids = {token: n for n, token in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    tokenizer = MarianTokenizer(*files, source_lang="en", target_lang="de")
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_model(tokenizer: Any, *, width: int, layers: int) -> Any:
    """Return a Marian model with random weights."""
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    pad, size = tokenizer.pad_token_id, len(tokenizer.get_vocab())
    ids = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    config = MarianConfig(
        **{"vocab_size": size, "d_model": width, "max_position_embeddings": 256, **ids},
        encoder_layers=layers,
        decoder_layers=layers,
        scale_embedding=True,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        encoder_attention_heads=width // 64,
        decoder_attention_heads=width // 64,
        activation_function="swish",
        dropout=0.1,
        init_std=width**-0.5,
        forced_eos_token_id=0,
    )
    model = MarianMTModel(config)
    model.generation_config = GenerationConfig(
        **ids, forced_eos_token_id=0, bad_words_ids=[[pad]], max_length=100, num_beams=5
    )
    return model


def train(
    model: Any, tokenizer: Any, pairs: list[tuple[str, str]], folder: Path, options: dict[str, Any]
) -> float:
    """Train with `Seq2SeqTrainer`; return the seconds."""
    from transformers import (
        DataCollatorForSeq2Seq,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        set_seed,
    )

    set_seed(1)
    src, tgt = (list(side) for side in zip(*pairs, strict=True))
    found = tokenizer(src, text_target=tgt, max_length=100, truncation=True)
    rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        save_strategy="no",
        report_to=[],
        label_smoothing_factor=0.1,
        lr_scheduler_type="inverse_sqrt",
        logging_steps=200,
        disable_tqdm=True,
        **options,
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    start = time.perf_counter()
    trainer.train()
    return time.perf_counter() - start


@torch.inference_mode()
def bleu(model: Any, tokenizer: Any, pairs: list[tuple[str, str]]) -> float:
    """Return the BLEU of the translations that transformers finds."""
    model.eval()
    order = sorted(range(len(pairs)), key=lambda n: len(pairs[n][0]))
    found = [""] * len(pairs)
    for start in range(0, len(order), 128):
        numbers = order[start : start + 128]
        batch = tokenizer([pairs[n][0] for n in numbers], return_tensors="pt", padding=True)
        ids = model.generate(**batch.to(model.device))
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        for number, text in zip(numbers, texts, strict=True):
            found[number] = text
    return float(sacrebleu.corpus_bleu(found, [[target for _, target in pairs]]).score)


def gapless(*arguments: object) -> None:
    """Run a command of gapless."""
    command = [sys.executable, "-m", "gapless", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write_pairs(folder: Path, splits: dict[str, list[tuple[str, str]]]) -> Path:
    """Write parallel files that `gapless train` reads."""
    folder.mkdir(exist_ok=True)
    for split, pairs in splits.items():
        for at, side in enumerate(SIDES.values()):
            text = "".join(f"{pair[at]}\n" for pair in pairs)
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8")
    return folder


def main() -> None:
    """Train, fine-tune twice, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("multi30k", type=Path)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--fine-tuning-epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=PRETRAINING)
    parser.add_argument("--vocab-size", type=int, default=4000)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--options", default="", metavar="'--NAME VALUE ...'", help="of gapless")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base, rows = options.dir / "marian", []
    base.mkdir(parents=True)

    def say(row: str, score: float, seconds: float | None = None) -> None:
        rows.append({"row": row, "bleu": round(score, 2), "seconds": seconds})
        print(json.dumps(rows[-1]), flush=True)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            result = {"torch": torch.__version__, "device": device, "rows": rows}
            text = json.dumps(result, indent=2) + "\n"
            replace_text(options.out / "marian-start.json", text)

    everything = read(options.multi30k, "train")
    others = everything[PRETRAINING : PRETRAINING + min(FINE_TUNING, options.pairs)]
    val = read(options.multi30k, "val")
    test = read(options.multi30k, "test_2016_flickr")[: options.test]
    precise = {"bf16": device == "cuda", "use_cpu": device == "cpu"}
    tokenizer = make_tokenizer(everything[: options.pairs], base, size=options.vocab_size)
    model = make_model(tokenizer, width=options.width, layers=options.layers).to(device)
    settings = {"learning_rate": 1.5e-3, "warmup_steps": 300, "per_device_train_batch_size": 256}
    seconds = train(
        model,
        tokenizer,
        everything[: options.pairs],
        options.dir,
        {**settings, **precise, "num_train_epochs": options.epochs},
    )
    model.save_pretrained(base)
    say("before, scored by transformers", bleu(model, tokenizer, test), seconds)

    data = write_pairs(options.dir / "data", {"train": others, "val": val, "test": test})
    same = ["--data", data, "--src", "en", "--tgt", "de", "--init-from", base, "--batch-size", 128]
    same += ["--average", 1, "--max-length", 100, "--label-smoothing", 0.1, "--dropout", 0.1]
    same += ["--precision", "bf16" if device == "cuda" else "fp32", "--clip-norm", 1]
    same += ["--schedule", "inverse-sqrt", "--patience", 0, "--beam", 5]
    same += shlex.split(options.options)
    still, run = options.dir / "still", options.dir / "run"
    start = time.perf_counter()
    epochs = ["--epochs", options.fine_tuning_epochs, "--val-interval", options.fine_tuning_epochs]
    gapless("train", *same, "--run-dir", run, *epochs, "--lr", 2e-4, "--warmup", 40)
    say("fine-tuned by gapless", score(run), time.perf_counter() - start)
    with ThreadPoolExecutor(1) as beside:
        before = beside.submit(_before, same, still)
        fine = {"learning_rate": 2e-4, "warmup_steps": 40, "per_device_train_batch_size": 128}
        fine |= {**precise, "num_train_epochs": options.fine_tuning_epochs}
        seconds = train(model, tokenizer, others, options.dir, fine)
        say("fine-tuned by transformers", bleu(model, tokenizer, test), seconds)
        say("before, scored by gapless", before.result())
    gapless("export", run, options.dir / "again", "--format", "marian")
    from transformers import AutoTokenizer, MarianMTModel

    again = MarianMTModel.from_pretrained(options.dir / "again").to(device)
    read_back = AutoTokenizer.from_pretrained(options.dir / "again")
    say("the same by gapless, exported, scored by transformers", bleu(again, read_back, test))


def _before(same: list[object], run: Path) -> float:
    """Return the BLEU of the start, from a run whose one update changes nothing."""
    once = ["--max-steps", 1, "--lr", 1e-30, "--plan", "gapless", "--no-compile"]
    gapless("train", *same, "--run-dir", run, *once)
    return score(run)


def score(run: Path) -> float:
    """Return the BLEU of a run on its test split, with which it ends."""
    return float(json.loads((run / "summary.json").read_text(encoding="utf-8"))["bleu"])


if __name__ == "__main__":
    main()
