"""Tests of vocabularies: lossless subwords, and words as they are."""

from __future__ import annotations

import re

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
    join_subwords,
    train_subwords,
    vocab_in,
)


TEXT = [
    "The cat sat on the mat, and it cost 1234 dollars.",
    "“Why?” she asked (twice); nobody answered!",
    "你好，世界！他说：“是的；为什么？”",
    "（一九二九年四月二十八日）价格是１２３元。",
    "I like tea 😀 and 12:30 is fine.",
] * 10


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def subwords(request):
    """A subword vocabulary of a small mixed text."""
    return train_subwords(TEXT, size=None, model=request.param)


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
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back_as_it_was(subwords, sentence):
    """Every text without control characters survives, outer and double spaces too."""
    assert sentence == round_trip(subwords, sentence)


@given(sentence=ANY_TEXT)
@settings(max_examples=40, deadline=None)
def test_text_never_becomes_a_special_id(subwords, sentence):
    """No text is padding, begin or end, and no character is unknown."""
    (ids,) = subwords.encode([sentence])

    assert all(EOS < i < len(subwords) for i in ids)


def test_special_ids_are_zero_to_three(subwords):
    """Padding is 0, unknown 1, begin 2 and end 3; decoding leaves them out."""
    (ids,) = subwords.encode(["the cat"])

    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert subwords.decode([BOS, *ids, EOS, PAD, PAD]) == "the cat"


def test_a_size_is_met_exactly():
    """The vocabulary has as many entries as were asked for."""
    assert len(train_subwords(TEXT, size=340, model="bpe")) == 340


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_a_size_beyond_the_text_is_refused(model):
    """The message names the size asked for and the largest possible one."""
    most = len(train_subwords(TEXT, size=None, model=model))

    with pytest.raises(
        DataError, match=f"size 5000 is more than .* is {most}; .* `vocab_size={most}` or less"
    ):
        train_subwords(TEXT, size=5000, model=model)


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_a_size_below_the_characters_is_refused(model):
    """The message names the size asked for and the least possible one, which is accepted."""
    with pytest.raises(DataError, match="size 300 is less than the characters") as refused:
        train_subwords(TEXT, size=300, model=model)
    least = int(re.search(r"use `vocab_size=(\d+)` or more", str(refused.value))[1])

    assert least == len(train_subwords(TEXT, size=least, model=model))


def test_the_default_size_shrinks_to_what_the_text_gives(capfd):
    """Small text gives a small vocabulary, and nothing is printed."""
    vocab = train_subwords(TEXT, size=None, model="bpe")

    assert 256 < len(vocab) < 8000
    assert tuple(capfd.readouterr()) == ("", "")


def test_an_unknown_model_is_refused():
    """The message lists the known models."""
    with pytest.raises(DataError, match="'wordpiece'; the models are bpe and unigram"):
        train_subwords(TEXT, size=None, model="wordpiece")


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


def test_a_subword_vocabulary_in_a_file_is_the_same(subwords, tmp_path):
    """Ids and text are equal when it is read again."""
    loaded = vocab_in(dict([subwords.file("vocab.src")]), "vocab.src", where=tmp_path)

    assert isinstance(loaded, SubwordVocab)
    assert len(subwords) == len(loaded)
    assert subwords.encode(TEXT) == loaded.encode(TEXT)


def test_a_word_vocabulary_in_a_file_is_the_same(tmp_path):
    """Ids and text are equal when it is read again, whatever characters a word has."""
    sentences = ["a b b", "词 <unk> \ufeffx x\u200b <s> @@", "\u0341 'quoted'"]
    vocab = WordVocab.of(sentences, size=None)
    loaded = vocab_in(dict([vocab.file("vocab")]), "vocab", where=tmp_path)

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
        vocab_in({}, "vocab.tgt", where=tmp_path)
