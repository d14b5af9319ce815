"""Tests of vocabularies: lossless subwords, words as they are, the cache by content."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from gapless.errors import DataError, RunFolderError
from gapless.nmt.data.vocab import (
    BOS,
    EOS,
    PAD,
    UNK,
    SubwordVocab,
    WordVocab,
    cache_folder,
    join_subwords,
    load_vocab,
    train_subwords,
)


TEXT = [
    "The cat sat on the mat, and it cost 1234 dollars.",
    "“Why?” she asked (twice); nobody answered!",
    "你好，世界！他说：“是的；为什么？”",
    "（一九二九年四月二十八日）价格是１２３元。",
    "I like tea 😀 and 12:30 is fine.",
] * 10


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def subwords(request, tmp_path_factory):
    """A subword vocabulary of a small mixed text."""
    cache = tmp_path_factory.mktemp("cache")
    return train_subwords(TEXT, size=None, model=request.param, cache=cache)


def round_trip(vocab, sentence):
    (ids,) = vocab.encode([sentence])
    return vocab.decode(ids)


# --- subwords ---


@pytest.mark.parametrize(
    "sentence",
    [
        *TEXT[:5],
        "，。！？；：（）“”‘’《》、…—",
        "ｆｕｌｌ　ｗｉｄｔｈ ０１２３４５６７８９",
        "👨‍👩‍👧 🇨🇳 ☕️ 𠮷",
        "0 00 1.5 2,000 3e-4",
        " leading, trailing and  double ",
        "non\u00a0breaking, e\u0301 and é, \ufb01",
        "<s> </s> <unk> <pad> <0x41>",
        "",
    ],
)
def test_text_comes_back_as_it_was(subwords, sentence):
    """Nothing is normalised, and characters never seen are spelled in bytes."""
    assert sentence == round_trip(subwords, sentence)


# Sentencepiece writes U+2581 for a space, so that sign itself comes back as a space.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2581"))


@given(sentence=ANY_TEXT)
@example(sentence="a  b")
@example(sentence=" \u3000\u2028")
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back_as_it_was(subwords, sentence):
    """Every text without control characters survives, outer and double spaces too."""
    assert sentence == round_trip(subwords, sentence)


@given(sentence=ANY_TEXT)
@settings(max_examples=100, deadline=None)
def test_text_never_becomes_a_special_id(subwords, sentence):
    """No text is padding, begin or end, and no character is unknown."""
    (ids,) = subwords.encode([sentence])

    assert all(EOS < i < len(subwords) for i in ids)


def test_special_ids_are_zero_to_three(subwords):
    """Padding is 0, unknown 1, begin 2 and end 3; decoding leaves them out."""
    (ids,) = subwords.encode(["the cat"])

    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert subwords.decode([BOS, *ids, EOS, PAD, PAD]) == "the cat"


def test_a_cache_that_cannot_be_written_is_told(tmp_path):
    """As in a container whose home is read-only: the vocabulary is made all the same."""
    (tmp_path / "file").touch()

    with pytest.warns(RuntimeWarning, match="cache folder .* cannot be written .*XDG_CACHE_HOME"):
        vocab = train_subwords(TEXT, size=340, model="bpe", cache=tmp_path / "file" / "cache")

    assert len(vocab) == 340


def test_a_size_is_met_exactly(tmp_path):
    """The vocabulary has as many entries as were asked for."""
    assert len(train_subwords(TEXT, size=340, model="bpe", cache=tmp_path)) == 340


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_a_size_beyond_the_text_is_refused(tmp_path, model):
    """The message names the size asked for and the largest possible one."""
    most = len(train_subwords(TEXT, size=None, model=model, cache=tmp_path))

    with pytest.raises(
        DataError, match=f"size 5000 is more than .* is {most}; .* `vocab_size={most}` or less"
    ):
        train_subwords(TEXT, size=5000, model=model, cache=tmp_path)


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_a_size_below_the_characters_is_refused(tmp_path, model):
    """The message names the size asked for and the least possible one, which is accepted."""
    with pytest.raises(DataError, match="size 300 is less than the characters") as refused:
        train_subwords(TEXT, size=300, model=model, cache=tmp_path)
    least = int(re.search(r"use `vocab_size=(\d+)` or more", str(refused.value))[1])

    assert least == len(train_subwords(TEXT, size=least, model=model, cache=tmp_path))


def test_the_default_size_shrinks_to_what_the_text_gives(tmp_path, capfd):
    """Small text gives a small vocabulary, and nothing is printed."""
    vocab = train_subwords(TEXT, size=None, model="bpe", cache=tmp_path)

    assert 256 < len(vocab) < 8000
    assert tuple(capfd.readouterr()) == ("", "")


def test_an_unknown_model_is_refused(tmp_path):
    """The message lists the known models."""
    with pytest.raises(DataError, match="'wordpiece'; the models are bpe and unigram"):
        train_subwords(TEXT, size=None, model="wordpiece", cache=tmp_path)


# --- the cache ---


def test_the_same_text_is_trained_on_once(tmp_path, monkeypatch):
    """A second call reads the vocabulary from the cache."""
    first = train_subwords(TEXT, size=340, model="bpe", cache=tmp_path)
    # Nothing can be trained any more.
    monkeypatch.delattr("sentencepiece.SentencePieceTrainer.train")

    second = train_subwords(TEXT, size=340, model="bpe", cache=tmp_path)

    assert second.file("vocab") == first.file("vocab")


@pytest.mark.parametrize("what", ["garbage", "empty", "another", "cut", "a named pipe", "a link"])
def test_a_damaged_cache(tmp_path, what):
    """A file that is not what was written is made again: no vocabulary comes of damage."""
    first = train_subwords(TEXT, size=340, model="bpe", cache=tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    other = train_subwords(["other text"], size=None, model="bpe", cache=tmp_path / "other")
    file.unlink()
    if what == "a named pipe":
        os.mkfifo(file)
    elif what == "a link":
        file.symlink_to(tmp_path / "nowhere")
    else:
        damaged = {"garbage": b"garbage", "empty": b"", "cut": content[:-9]}
        file.write_bytes(damaged.get(what, other.file("vocab")[1]))

    second = train_subwords(TEXT, size=340, model="bpe", cache=tmp_path)

    assert second.file("vocab") == first.file("vocab")
    assert file.read_bytes() == content


def test_a_user_without_a_home(monkeypatch):
    """Such as a number that no user of a container has: it is said what to set."""

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)

    with pytest.raises(DataError, match="XDG_CACHE_HOME"):
        cache_folder()


def test_text_size_and_model_each_have_a_file(tmp_path):
    """Text, size and model determine the name of the file in the cache."""
    asked = [(TEXT, 340, "bpe"), (TEXT[:-1], 340, "bpe"), (TEXT, 341, "bpe")]
    for text, size, model in (*asked, (TEXT, 340, "unigram"), (TEXT, 340, "bpe")):
        train_subwords(text, size=size, model=model, cache=tmp_path)

    assert 4 == len(list(tmp_path.glob("*.spm"))) == len(list(tmp_path.iterdir()))


def test_the_cache_is_in_the_users_cache_folder(tmp_path, monkeypatch):
    """`XDG_CACHE_HOME` names the folder; without it `~/.cache` is used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    train_subwords(TEXT, size=340, model="bpe")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert len(list((tmp_path / "here" / "gapless" / "vocab").glob("*.spm"))) == 1
    assert tmp_path / ".cache" / "gapless" / "vocab" == cache_folder()


# --- words ---


def test_words_are_used_as_they_are():
    """Words are ranked by count, then by spelling, after the special ones."""
    vocab = WordVocab.of(["b a , b", "Ａ a c@@ d"], size=None)

    assert vocab.encode(["a b d c@@ Ａ"]) == [[4, 5, 8, 7, 9]]
    assert vocab.encode(["  ,   a "]) == [[6, 4]]


def test_an_unknown_word_is_said_to_be_unknown():
    """A translation shows a word that the vocabulary does not have as unknown."""
    vocab = WordVocab.of(["a b"], size=None)

    assert vocab.encode(["a z b"]) == [[4, UNK, 5]]
    assert round_trip(vocab, "a z b") == "a <unk> b"
    assert vocab.decode([BOS, 4, 5, EOS, PAD]) == "a b"


@pytest.mark.parametrize(
    ("split", "joined"),
    [
        ("ein gr@@ oß@@ es haus", "ein großes haus"),
        ("half@@", "half"),
        ("a@b @@ c", "a@b c"),
        ("none at all", "none at all"),
        ("", ""),
    ],
)
def test_subwords_of_subword_nmt_are_joined(split, joined):
    """Subwords of `subword-nmt` are joined again, also at the end of a sentence."""
    assert joined == join_subwords(split)
    assert joined == round_trip(WordVocab.of([split], size=None), split)


def test_the_most_frequent_words_are_kept():
    """A size counts special entries as well; a size beyond the words is refused."""
    sentences = ["a a a b b c"]

    assert WordVocab.of(sentences, size=6).encode(["a b c"]) == [[4, 5, UNK]]
    assert len(WordVocab.of(sentences, size=7)) == 7
    with pytest.raises(DataError, match="size 8 is more than this text can give, which is 7"):
        WordVocab.of(sentences, size=8)


# --- files ---


def test_a_saved_subword_vocabulary_is_the_same(subwords, tmp_path):
    """Ids and text are equal after saving and loading."""
    subwords.save(tmp_path / "vocab.src")
    loaded = load_vocab(tmp_path / "vocab.src")

    assert isinstance(loaded, SubwordVocab)
    assert len(subwords) == len(loaded)
    assert subwords.encode(TEXT) == loaded.encode(TEXT)


def test_a_saved_word_vocabulary_is_the_same(tmp_path):
    """Ids and text are equal after saving and loading, whatever characters a word has."""
    sentences = ["a b b", "词 <unk> \ufeffx x\u200b <s> @@", "\u0341 'quoted'"]
    vocab = WordVocab.of(sentences, size=None)
    vocab.save(tmp_path / "vocab")
    loaded = load_vocab(tmp_path / "vocab")

    assert isinstance(loaded, WordVocab)
    assert len(vocab) == len(loaded)
    assert vocab.encode(sentences) == loaded.encode(sentences)
    assert [vocab.decode(ids) for ids in vocab.encode(sentences)] == [
        loaded.decode(ids) for ids in vocab.encode(sentences)
    ]


def test_a_missing_vocabulary_is_named(tmp_path):
    """A run without its vocabulary cannot be used, and the message names it."""
    message = f"{re.escape(str(tmp_path))} holds no vocabulary vocab.tgt"
    with pytest.raises(RunFolderError, match=message):
        load_vocab(tmp_path / "vocab.tgt")
