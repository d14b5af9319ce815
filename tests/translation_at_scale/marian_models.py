"""A Marian checkpoint as Hugging Face's own library makes and saves it: small, trained a little, with its own vocabulary."""

from __future__ import annotations

import io
import json

import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from translation_at_scale.corpora import pairs


END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"


def subwords(lines, path):
    """Train a subword model on lines; return its pieces but for marks."""
    proto = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=proto,
        vocab_size=110,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,
    )
    path.write_bytes(proto.getvalue())
    model = SentencePieceProcessor(model_proto=proto.getvalue())
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    return [piece for piece in pieces if piece not in (UNKNOWN, "<s>", END)]


def write_vocabulary(pieces, path):
    """Write ids as Marian gives them: the end mark first, padding last; return their number."""
    names = [END, UNKNOWN, *dict.fromkeys(pieces), PADDING]
    path.write_text(json.dumps({name: number for number, name in enumerate(names)}))
    return len(names)


def make(folder, *, separate=False):
    """Make a model of two layers, train it on 300 pairs, and save it with its tokenizer.

    Args:
        folder: to save it in.
        separate: whether each side has a vocabulary and embeddings of its own.
    """
    from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

    folder.mkdir()
    rows = pairs(300, seed=21)
    src = subwords([source for source, _ in rows], folder / "source.spm")
    tgt = subwords([target for _, target in rows], folder / "target.spm")
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    if separate:
        sizes = {
            "vocab_size": write_vocabulary(src, folder / "vocab.json"),
            "decoder_vocab_size": write_vocabulary(tgt, folder / "target_vocab.json"),
        }
        own = {"target_vocab_file": str(folder / "target_vocab.json"), "separate_vocabs": True}
    else:
        sizes, own = {"vocab_size": write_vocabulary([*src, *tgt], folder / "vocab.json")}, {}
    tokenizer = MarianTokenizer(*files, model_max_length=512, **own)
    padding = sizes.get("decoder_vocab_size", sizes["vocab_size"]) - 1
    config = MarianConfig(
        **sizes,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
        init_std=0.15,
        dropout=0.0,
        share_encoder_decoder_embeddings=not separate,
        pad_token_id=sizes["vocab_size"] - 1,
        decoder_start_token_id=padding,
        eos_token_id=0,
        forced_eos_token_id=0,
    )
    torch.manual_seed(0)
    model = MarianMTModel(config)
    # Marian's models have a bias on the output, which training with transformers leaves as it is.
    model.final_logits_bias.normal_(std=0.3)
    model.final_logits_bias[0, padding] = 0.0
    train(model, tokenizer, rows)
    model.generation_config = GenerationConfig(
        pad_token_id=config.pad_token_id,
        eos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=padding,
        bad_words_ids=[[padding]],
        max_length=512,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def encoded(tokenizer, rows):
    """Return inputs of a model, labels included; padding has none."""
    batch = tokenizer([source for source, _ in rows], return_tensors="pt", padding=True)
    labels = tokenizer(text_target=[target for _, target in rows], padding=True)["input_ids"]
    mask = tokenizer.pad(
        tokenizer(text_target=[target for _, target in rows]), return_tensors="pt"
    )["attention_mask"]
    batch["labels"] = torch.tensor(labels).masked_fill(mask == 0, -100)
    return batch


def train(model, tokenizer, rows):
    batches = [encoded(tokenizer, rows[start : start + 50]) for start in range(0, 300, 50)]
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step, batch in enumerate(batches * 50):
        optimizer.param_groups[0]["lr"] = 5e-3 * min(1, step / 100)
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loss_of(folder, rows):
    """Return what a target token costs, in nats, the end mark included, as transformers says."""
    model, tokenizer = load(folder)
    with torch.inference_mode():
        return float(model(**encoded(tokenizer, rows)).loss)


def greedy_of(folder, lines, *, most):
    """Return the greedy translations of transformers, of at most so many tokens."""
    model, tokenizer = load(folder)
    with torch.inference_mode():
        ids = model.generate(
            **tokenizer(lines, return_tensors="pt", padding=True),
            num_beams=1,
            do_sample=False,
            max_new_tokens=most + 1,
        )
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def load(folder):
    from transformers import MarianMTModel, MarianTokenizer

    return MarianMTModel.from_pretrained(folder).eval(), MarianTokenizer.from_pretrained(folder)
