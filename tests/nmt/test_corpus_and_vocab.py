"""Reading pairs, and turning text into ids and back."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gapless.errors import DataError
from gapless.nmt.corpus import load_corpus, load_split, read_lines
from gapless.nmt.vocab import UNK, WordVocab, load_vocab, train_subwords


CHINESE = ["你好，世界！", "他说：“今天（星期一）很冷；对吗？”", "３个ＡＢＣ…", "这是一本书。"]
TEXT = CHINESE + [f"line {n} says «hello», it's {n * 37}%" for n in range(60)]

line = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).filter(
    lambda text: text.strip() and not text.startswith("\ufeff")
)


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(line, line), min_size=1, max_size=6))
def test_every_form_reads_back_what_was_written(tmp_path, pairs):
    """Text survives each form unchanged, also with separators that only Unicode knows."""
    for side, name in enumerate(("en", "zh")):
        (tmp_path / f"train.{name}").write_bytes(
            "".join(f"{pair[side]}\r\n" for pair in pairs).encode()
        )
    tsv, packed = tmp_path / "a.tsv", tmp_path / "b.json.gz"
    tsv.write_bytes("".join(f"{a}\t{b}\tx\n" for a, b in pairs).encode())
    packed.write_bytes(gzip.compress(json.dumps(pairs).encode()))

    for path in (tmp_path, tsv, packed):
        found = load_split(path, split="train", src="en", tgt="zh")
        assert pairs == list(zip(found.src, found.tgt, strict=True))


def test_names_of_splits_and_sides_may_hold_dots_and_years(tmp_path):
    """`test_2016_flickr.lc.norm.tok.en` is the test split of side `lc.norm.tok.en`."""
    for name in ("train", "dev", "test_2016_flickr"):
        for side in ("en", "lc.norm.tok.en", "lc.norm.tok.de"):
            (tmp_path / f"{name}.{side}").write_text(f"{name} {side}\n")

    corpus = load_corpus(tmp_path, src="lc.norm.tok.en", tgt="lc.norm.tok.de")

    assert corpus.test.src == ["test_2016_flickr lc.norm.tok.en"]
    assert corpus.val.tgt == ["dev lc.norm.tok.de"]


def test_translation_objects_and_swapped_columns(tmp_path):
    """Nested objects are read by key; columns say which side is which."""
    rows = [{"translation": {"en": f"e{n}", "zh": f"z{n}"}} for n in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.tsv").write_text("".join(f"e{n}\tz{n}\n" for n in range(3)))

    nested = load_split(tmp_path / "a.jsonl", split="train", src="zh", tgt="en")
    swapped = load_split(
        tmp_path / "b.tsv", split="train", src="zh", tgt="en", columns=("en", "zh")
    )

    assert (nested.src, nested.tgt) == (["z0", "z1", "z2"], ["e0", "e1", "e2"])
    assert nested == swapped
    with pytest.raises(DataError, match="'fr' is not among the columns 'en' and 'zh'"):
        load_split(tmp_path / "b.tsv", split="train", src="fr", tgt="en", columns=("en", "zh"))


def test_held_out_pairs_share_no_source_with_training(tmp_path):
    """All pairs of a source sentence go to one side, the same on every call."""
    rows = [f"source {n % 70}\ttarget {n}\n" for n in range(200)] + ["\tempty\n"]
    (tmp_path / "a.tsv").write_text("".join(rows))

    first = load_corpus(tmp_path / "a.tsv", src="en", tgt="zh", seed=4)
    again = load_corpus(tmp_path / "a.tsv", src="en", tgt="zh", seed=4)

    assert first == again
    assert first.dropped_empty == 1
    assert len(first.train) + len(first.val) + len(first.test) == 200
    sides = [set(first.train.src), set(first.val.src), set(first.test.src)]
    assert sum(map(len, sides)) == len(set.union(*sides))


def test_lines_keep_everything_but_their_ends(tmp_path):
    """A byte order mark goes; empty lines and odd separators stay."""
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffa\u2028b\r\n\n c\x85\n".encode())

    assert read_lines(path) == ["a\u2028b", "", " c\x85"]


@pytest.fixture(scope="module")
def subwords(tmp_path_factory):
    return train_subwords(TEXT, size=None, model="bpe", cache=tmp_path_factory.mktemp("cache"))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), max_size=20))
def test_subwords_lose_nothing(subwords, text):
    """Any text comes back as it was, also characters that were never seen."""
    text = text.replace("\u2581", "")  # sentencepiece's own mark for a space
    (ids,) = subwords.encode([text])

    assert text == subwords.decode(ids)


@pytest.mark.parametrize("text", CHINESE)
def test_full_width_punctuation_comes_back_as_it_was(subwords, text):
    """No normalisation turns Chinese marks into ASCII, which would cost BLEU."""
    assert text == subwords.decode(subwords.encode([text])[0])


def test_a_vocabulary_is_made_once_for_the_same_text(tmp_path):
    """The cache is by content: the same text gives the file, another text another one."""
    train_subwords(TEXT, size=None, model="bpe", cache=tmp_path)
    (first,) = tmp_path.iterdir()
    written = first.stat().st_mtime_ns
    train_subwords(TEXT, size=None, model="bpe", cache=tmp_path)
    unchanged = first.stat().st_mtime_ns
    train_subwords([*TEXT, "more"], size=None, model="bpe", cache=tmp_path)

    assert written == unchanged
    assert len(list(tmp_path.iterdir())) == 2


def test_words_are_used_as_they_are(tmp_path):
    """Pre-tokenised text is cut at spaces only; subword-nmt's joints are closed."""
    vocab = WordVocab.of(["a@@ b c", "c d"], size=None)
    vocab.save(tmp_path / "vocab")
    loaded = load_vocab(tmp_path / "vocab")

    (ids,) = loaded.encode(["a@@ b new d"])
    assert UNK in ids
    assert loaded.decode(ids) == "ab <unk> d"
    assert len(vocab) == len(loaded) == 8


def test_a_saved_subword_vocabulary_is_the_same(subwords, tmp_path):
    """What a run keeps encodes as what it trained with."""
    subwords.save(tmp_path / "vocab")

    assert subwords.encode(TEXT) == load_vocab(tmp_path / "vocab").encode(TEXT)
