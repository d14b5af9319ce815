"""BPE-dropout: the same text, cut otherwise in each epoch."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gapless.errors import UserError
from gapless.nmt.data.bpe_dropout import BpeDropout
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import BOS, EOS, Vocabs, train_subwords
from gapless.nmt.settings.config import make_config


@pytest.fixture(scope="module")
def pairs():
    draw = random.Random(2)
    words = ["umbrella", "kitchen", "window", "straße", "猫", " "]
    rows = [" ".join(draw.choice(words) for _ in range(draw.randint(1, 6))) for _ in range(50)]
    vocab = train_subwords(rows, size=300, model="bpe", nearest=True)
    ids = vocab.encode(rows)
    return rows, TokenPairs(ids, ids), Vocabs(src=vocab, tgt=vocab)


def drawn(pairs, epoch, *, max_length=100):
    rows, tokens, vocabs = pairs
    cut = BpeDropout(tokens, vocabs, share=0.4, max_length=max_length, seed=1)
    found = cut.of_epoch(epoch)
    src, tgt = found.take(np.arange(len(rows)))
    return found, src, tgt


def test_the_text_stays_and_its_tokens_change(pairs):
    """In each epoch and on each side otherwise; a run that is resumed in an epoch finds the same ones."""
    rows, tokens, vocabs = pairs
    found, src, tgt = drawn(pairs, 3)
    again, _, _ = drawn(pairs, 3)
    other, _, _ = drawn(pairs, 4)
    split = np.split(src.ids, np.cumsum(src.lengths)[:-1])

    assert [vocabs.src.decode(ids.tolist()) for ids in split] == rows
    assert all(ids[-1] == EOS and BOS not in ids for ids in split)
    assert found.checksum() == again.checksum()
    assert len({one.checksum() for one in (found, other, tokens)}) == 3
    assert found.src_lengths.sum() > 1.2 * tokens.src_lengths.sum()
    assert src.lengths.tolist() != (tgt.lengths - 1).tolist()


def test_a_sentence_that_would_be_too_long_keeps_its_tokens(pairs):
    """So that no batch is larger than the settings say."""
    _, tokens, _ = pairs
    most = int(tokens.src_lengths.max()) - 1
    found, _, _ = drawn(pairs, 0, max_length=most)

    assert found.src_lengths.max() == tokens.src_lengths.max()
    assert found.src_lengths.sum() > tokens.src_lengths.sum()


@pytest.mark.parametrize("settings", [{"tokenizer": "none"}, {"vocab_model": "unigram"}], ids=str)
def test_subwords_that_bpe_has_not_made_have_no_merges(settings):
    """Refused before anything is read."""
    with pytest.raises(UserError, match="`bpe_dropout` needs subwords made by bpe"):
        make_config({"data": "d.tsv", "bpe_dropout": 0.1, **settings})


def test_a_subword_is_cut_where_bpe_joined_it(pairs):
    """Its parts give its text, and were joined before it; each is whole with the chance that all its merges stay."""
    _, tokens, vocabs = pairs
    names, splits = vocabs.src.tokens(), vocabs.src.splits()
    cut = [number for number in range(len(names)) if splits[number, 0] >= 0]

    assert len(cut) > 10
    for number in cut:
        left, right = splits[number]
        assert names[left] + names[right] == names[number]
    assert all(splits[number, 0] < 0 for number in range(len(names)) if len(names[number]) == 1)
    (whole,) = [n for n in cut if names[n] == "▁umbrella"]
    found = sum(int((drawn(pairs, epoch)[0].src.ids == whole).sum()) for epoch in range(20)) / (
        20 * int((tokens.src.ids == whole).sum())
    )
    assert found == pytest.approx(0.6 ** (len("▁umbrella") - 1), abs=0.02)
