"""Models that other programs read and write: both find the same ids, and the same loss."""

from __future__ import annotations

import json
import random
import sys
import warnings
from dataclasses import replace

import pytest
import sentencepiece
import torch

from gapless.cli.main import run_command
from gapless.device.find import find_device
from gapless.device.numerics import numerics_restored
from gapless.errors import TranslationWarning, UserError
from gapless.nmt import Translator
from gapless.nmt.data.vocab import BOS, EOS, PAD
from gapless.nmt.exchange.ctranslate2_model import write_ctranslate2
from gapless.nmt.exchange.hugging_face import write_hugging_face
from gapless.nmt.model.loss import LabelSmoothing
from gapless.nmt.run.build import build_model
from gapless.nmt.run.export import export_run
from gapless.nmt.run.initial_weights import read_initial_weights
from gapless.nmt.run.new_run import new_run
from gapless.nmt.run.trainer import Trainer
from gapless.nmt.run.translator import load_model
from gapless.nmt.run_folder.checkpoints import set_weights
from tiny_run import Silent, as_asked, tiny_config


WORDS = [
    ("red", "rot"),
    ("big", "groß"),
    ("cat", "Katze"),
    ("dog", "Hund"),
    ("sees", "sieht"),
    ("the", "die"),
    ("umbrella", "die"),
    ("kitchen", "rot"),
    ("house", "Haus"),
    ("猫", "😀"),
]

# What a run of each of these settings is to be read from.
MODELS = {
    "pre": {},
    "post": {"norm": "post"},
    "pre, all shared": {"shared_vocab": True, "share": "all"},
    "post, all shared": {"norm": "post", "shared_vocab": True, "share": "all"},
    "pre, nothing shared": {
        "share": "none",
        "activation": "gelu",
        "output_bias": True,
        "vocab_size": 400,
    },
    "post, nothing shared": {"norm": "post", "share": "none", "output_bias": True},
}


SETTINGS = {
    "src": "en",
    "tgt": "de",
    "columns": "en,de",
    "tokenizer": "sentencepiece",
    "vocab_size": 290,
    "d_model": 32,
    "heads": 2,
    "ffn": 32,
    "encoder_layers": 2,
    "epochs": 12,
    "batch_size": 16,
    "warmup": 5,
    "lr": 0.01,
    "dropout": 0.0,
    "beam": 1,
    "max_length": 20,
    "average": 1,
}
WORDS_ALONE = {"words": {"tokenizer": "none", "vocab_size": None}}


def sentences(count, *, seed=1):
    """Return pairs of a few words each."""
    draw = random.Random(seed)
    rows = [[draw.choice(WORDS) for _ in range(draw.randint(2, 6))] for _ in range(count)]
    return [(" ".join(w for w, _ in row), " ".join(w for _, w in row)) for row in rows]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return a function that trains a run of some settings once, and returns its folder."""
    runs = {}

    def train(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp("exchange")
            rows = "".join(f"{src}\t{tgt}\n" for src, tgt in sentences(120))
            (folder / "d.tsv").write_text(rows, encoding="utf-8")
            settings = SETTINGS | (MODELS | WORDS_ALONE)[name]
            settings["vocab_model"] = "unigram" if "all" in name else "bpe"
            config = tiny_config(folder, **settings)
            with numerics_restored():
                Trainer(new_run(as_asked(config)), observer=Silent()).train()
            runs[name] = folder / "run"
        return runs[name]

    return train


sacremoses = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

TEXT = [*(src for src, _ in sentences(30, seed=2)), "zebra  5 你好", "x"]


def greedy(run):
    """Return the ids of each sentence as greedy search finds them."""
    with numerics_restored():
        translator = Translator(run, device="cpu")
        sources = translator.vocabs.src.encode(TEXT)
        found = translator.decoder.translate(sources, translator.settings(beam=1))
    return [best[0].ids for best in found]


@pytest.mark.parametrize("name", MODELS)
def test_ctranslate2_finds_the_same_ids(name, trained, tmp_path):
    """From the pieces of the sentencepiece model beside it, with nothing added by its user."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    out = tmp_path / "model"
    export_run(trained(name), out, form="ctranslate2")
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(out / f"{side}.spm"))
        for side in ("source", "target")
    )

    found = ctranslate2.Translator(str(out), device="cpu").translate_batch(
        source.encode(TEXT, out_type=str),
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=20,
    )

    expected = greedy(trained(name))
    assert [target.piece_to_id(one.hypotheses[0]) for one in found] == expected
    assert len({tuple(ids) for ids in expected}) > 5


@sacremoses
@pytest.mark.parametrize("name", MODELS)
def test_transformers_finds_the_same_ids(name, trained, tmp_path):
    """From text alone, with the tokenizer beside it; nothing is warned of as missing or left over."""
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "model"
    export_run(trained(name), out, form="huggingface")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        out, output_loading_info=True
    )
    assert set(map(len, report.values())) == {0}
    inputs = tokenizer(TEXT, return_tensors="pt", padding=True)
    found = model.generate(**inputs).tolist()
    expected = greedy(trained(name))
    assert [[i for i in ids if i > 3 or i == 1] for ids in found] == expected


@sacremoses
@pytest.mark.parametrize("form", ["ctranslate2", "huggingface"])
def test_entries_that_are_no_text_are_never_predicted(form, trained, tmp_path):
    """Neither padding nor a begin mark, nor what fills up the smaller of two tables, whatever their scores."""
    reader = pytest.importorskip("transformers" if form == "huggingface" else form)
    config, vocabs, model = load_model(trained("pre, nothing shared"), device=find_device("cpu"))
    with torch.no_grad():
        model.generator.bias -= 100.0
        model.generator.bias[[PAD, BOS]] = 100.0
    assert len(vocabs.src) > len(vocabs.tgt)
    if form == "huggingface":
        write_hugging_face(model, vocabs, config, tmp_path, is_marian=False)
        read = reader.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
        batch = reader.AutoTokenizer.from_pretrained(tmp_path)(
            TEXT, return_tensors="pt", padding=True
        )
        # What follows the end mark is padding.
        found = {
            i for row in read.generate(**batch).tolist() for i in row[1 : [*row, EOS].index(EOS)]
        }
    else:
        write_ctranslate2(model, vocabs, tmp_path)
        split = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source.spm"))
        read = reader.Translator(str(tmp_path), device="cpu")
        best = read.translate_batch(split.encode(TEXT, out_type=str), beam_size=1)
        found = {vocabs.tgt.tokens().index(token) for one in best for token in one.hypotheses[0]}

    assert len(found) > 3
    assert not found & {PAD, BOS, *range(len(vocabs.tgt), len(vocabs.src))}


def test_what_a_format_cannot_hold_is_named_in_one_line(trained, tmp_path):
    """With the format that can; nothing is written."""
    with pytest.raises(UserError, match=r"norm=post.*huggingface.*ctranslate2"):
        export_run(trained("pre"), tmp_path / "m", form="marian")
    with pytest.raises(UserError, match=r"tokenizer=none.*ctranslate2"):
        export_run(trained("words"), tmp_path / "m", form="huggingface")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(UserError, match="full holds something already"):
        export_run(trained("pre"), tmp_path / "full", form="huggingface")

    assert [path.name for path in tmp_path.rglob("*")] == ["full", "x"]


def test_a_format_whose_package_is_missing(trained, tmp_path, monkeypatch):
    """Says which extra brings it."""
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)

    with pytest.raises(UserError, match=r'pip install "gapless\[ctranslate2\]"'):
        export_run(trained("pre"), tmp_path / "m", form="ctranslate2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::gapless.errors.TranslationWarning")
def test_words_go_to_ctranslate2_as_they_are(trained, tmp_path):
    """Where a run has no sentencepiece model, its words are the tokens."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    export_run(trained("words"), tmp_path / "m", form="ctranslate2")

    found = ctranslate2.Translator(str(tmp_path / "m"), device="cpu").translate_batch(
        [line.split() for line in TEXT],
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=20,
    )

    with numerics_restored():
        expected = Translator(trained("words"), device="cpu").translate(TEXT, beam=1)
    assert [" ".join(one.hypotheses[0]) for one in found] == expected


def test_the_command_says_what_it_wrote(trained, tmp_path, capsys):
    """In a line; the folder holds what transformers reads, and an empty folder may be there."""
    out = tmp_path / "m"
    out.mkdir()

    assert run_command(["export", str(trained("post")), str(out), "--format", "marian"]) == 0

    assert capsys.readouterr().out == f"marian model: {out}\n"
    assert {path.name for path in out.iterdir()} == {
        *("config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors"),
        *("vocab.json", "target_vocab.json", "source.spm", "target.spm"),
    }


# --- starting with a model of transformers ---


AS_PUBLISHED = {
    "activation_function": "swish",
    "scale_embedding": True,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}


def _numbered(pieces, *, pad_at):
    tokens = ["</s>", "<unk>", *random.Random(4).sample(pieces, len(pieces))]
    tokens.insert(len(tokens) if pad_at is None else pad_at, "<pad>")
    return {token: number for number, token in enumerate(tokens)}


def marian_of(folder, transformers, **settings):
    """Make a Marian model with random weights, as `save_pretrained` leaves it; return model and tokenizer."""
    pairs = sentences(200, seed=3)
    sides = {"source": [src for src, _ in pairs], "target": [tgt for _, tgt in pairs]}
    folder.mkdir()
    kind = settings.pop("subwords", "unigram")
    pieces = []
    for side, lines in sides.items():
        # No ids of ours: their models have neither padding nor byte pieces.
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(folder / side),
            vocab_size={"bpe": 45, "unigram": 25}[kind] - (side == "target"),
            model_type=kind,
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        split = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces.append([split.id_to_piece(n) for n in range(3, len(split))])
    separate = settings.get("share_encoder_decoder_embeddings") is False
    tables = pieces if separate else [[*dict.fromkeys(pieces[0] + pieces[1])]]
    # One table ends with padding; of two it has the same number in both.
    ids = [_numbered(table, pad_at=2 if separate else None) for table in tables]
    for name, table in zip(("vocab.json", "target_vocab.json"), ids, strict=False):
        (folder / name).write_text(json.dumps(table), encoding="utf-8")
    tokenizer = transformers.MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        str(folder / "target_vocab.json") if separate else None,
        separate_vocabs=separate,
        source_lang="en",
        target_lang="de",
    )
    tokenizer.save_pretrained(folder)
    pad = ids[0]["<pad>"]
    config = transformers.MarianConfig(
        vocab_size=len(ids[0]),
        decoder_vocab_size=len(ids[-1]),
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        max_position_embeddings=64,
        encoder_ffn_dim=48,
        pad_token_id=pad,
        eos_token_id=0,
        init_std=0.4,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
        dropout=0.0,
        **{**AS_PUBLISHED, **settings},
    )
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        model.final_logits_bias.normal_()
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=pad,
        eos_token_id=0,
        decoder_start_token_id=pad,
        bad_words_ids=[[pad]],
        max_length=22,
        forced_eos_token_id=0,
    )
    model.save_pretrained(folder)
    return model, tokenizer


def _padded(rows):
    rows = [torch.tensor([*row, EOS]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


MARIAN = {
    "one table, unigram": {},
    "one table, bpe, relu": {"subwords": "bpe", "activation_function": "relu"},
    "two tables": {"share_encoder_decoder_embeddings": False},
    "three tables": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
}


@sacremoses
@pytest.mark.parametrize("name", MARIAN)
def test_a_run_starts_with_a_marian_model(name, tmp_path, numerics):
    """Before its first update it has the loss that transformers has, and finds the same text."""
    transformers = pytest.importorskip("transformers")
    model, tokenizer = marian_of(tmp_path / "marian", transformers, **MARIAN[name])
    initial = read_initial_weights(tmp_path / "marian")
    config = replace(initial.config, max_length=20, device="cpu")
    ours = build_model(config, initial.vocabs).eval()
    set_weights(ours, initial.weights, path=initial.path)
    pairs = sentences(40, seed=6)
    batch = tokenizer(
        [src for src, _ in pairs],
        text_target=[tgt for _, tgt in pairs],
        return_tensors="pt",
        padding=True,
    )
    labels = batch.pop("labels")
    labels[labels == tokenizer.pad_token_id] = -100

    with torch.no_grad():
        theirs = float(model(**batch, labels=labels).loss)
    src, tgt = (
        _padded(vocab.encode(list(lines)))
        for vocab, lines in zip(
            (initial.vocabs.src, initial.vocabs.tgt), zip(*pairs, strict=True), strict=True
        )
    )
    begun = torch.cat((torch.full((len(tgt), 1), BOS), tgt[:, :-1]), dim=1)
    with torch.no_grad():
        hidden = ours(src, begun, (src != PAD).unsqueeze(1))
        found = LabelSmoothing().of_hidden(hidden, ours.generator, tgt) / (tgt != PAD).sum()

    assert float(found) == pytest.approx(theirs, rel=1e-5)


@sacremoses
@pytest.mark.parametrize("name", MARIAN)
def test_a_run_that_starts_with_a_marian_model_gives_one_again(name, tmp_path, numerics):
    """With a rate that rounds to 0: its run, and the Marian model that this is exported to, translate as it did."""
    transformers = pytest.importorskip("transformers")
    model, tokenizer = marian_of(tmp_path / "marian", transformers, **MARIAN[name])
    inputs = tokenizer(TEXT, return_tensors="pt", padding=True)
    expected = tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)
    rows = "".join(f"{src}\t{tgt}\n" for src, tgt in sentences(60, seed=7))
    (tmp_path / "d.tsv").write_text(f"en\tde\n{rows}", encoding="utf-8")
    run, again = tmp_path / "run", tmp_path / "again"

    assert (
        run_command(
            [
                *(
                    "train",
                    "--init-from",
                    str(tmp_path / "marian"),
                    "--data",
                    str(tmp_path / "d.tsv"),
                ),
                *("--src", "en", "--tgt", "de", "--run-dir", str(run), "--device", "cpu"),
                *("--lr", "1e-40", "--epochs", "1", "--max-length", "20", "--workers", "0"),
            ]
        )
        == 0
    )
    with warnings.catch_warnings(action="ignore", category=TranslationWarning):
        found = Translator(run, device="cpu").translate(TEXT, beam=1)
    assert run_command(["export", str(run), str(again), "--format", "marian"]) == 0

    assert found == expected
    assert len(set(expected)) > 5
    reread = transformers.MarianMTModel.from_pretrained(again)
    tokenizer = transformers.AutoTokenizer.from_pretrained(again)
    inputs = tokenizer(TEXT, return_tensors="pt", padding=True)
    ids = reread.generate(**inputs, num_beams=1)
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == expected


@sacremoses
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"scale_embedding": False}, "scale_embedding False"),
        ({"activation_function": "tanh"}, "activation_function tanh"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads 4"),
        ({"decoder_ffn_dim": 64}, "decoder_ffn_dim 64"),
    ],
    ids=str,
)
def test_what_our_model_cannot_have_is_refused_by_name(settings, named, tmp_path):
    """Before any weight is read."""
    transformers = pytest.importorskip("transformers")
    marian_of(tmp_path / "marian", transformers, **settings)

    with pytest.raises(UserError, match=f"has {named} in config.json"):
        read_initial_weights(tmp_path / "marian")


def test_a_model_of_another_type_is_refused(tmp_path):
    """With its type."""
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')

    with pytest.raises(UserError, match="a model of the type t5, and only Marian"):
        read_initial_weights(tmp_path)


@sacremoses
def test_files_of_older_versions_are_read(tmp_path):
    """Pickled weights, a model without an output bias, and marks that are objects."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "marian"
    model, _ = marian_of(folder, transformers)
    newer = read_initial_weights(folder)
    state = {
        name: value for name, value in model.state_dict().items() if name != "final_logits_bias"
    }
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    written = json.loads((folder / "tokenizer_config.json").read_text())
    written["eos_token"] = {"__type": "AddedToken", "content": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))

    older = read_initial_weights(folder)

    assert older.vocabs.files() == newer.vocabs.files()
    bias = older.weights["generator.bias"]
    assert bias.nonzero().flatten().tolist() == [BOS]
    for name in newer.weights.keys() - {"generator.bias"}:
        assert torch.equal(older.weights[name], newer.weights[name])


# What git has in the place of a large file that it did not fetch.
LFS_NOTE = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 312087009\n"


@sacremoses
@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "source.spm", "vocab.json"]
)
@pytest.mark.parametrize("is_cut", [True, False], ids=["cut short", "not fetched"])
def test_a_file_that_is_not_all_there_is_named(name, is_cut, tmp_path):
    """With what to do; no library's own error is shown alone."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "marian"
    model, _ = marian_of(folder, transformers)
    if name == "pytorch_model.bin":
        torch.save(model.state_dict(), folder / name)
        (folder / "model.safetensors").unlink()
    file = folder / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if is_cut else LFS_NOTE)

    with pytest.raises(UserError, match=f"{name} is damaged, or only part of it is there; copy"):
        read_initial_weights(folder)
