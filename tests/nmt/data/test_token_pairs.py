"""Sentences as flat arrays, gathered into batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import BOS, EOS


sentences = st.lists(st.integers(4, 99), max_size=9)


def rows_of(rows):
    """Return the same as lists, one a row."""
    return [part.tolist() for part in np.split(rows.ids, np.cumsum(rows.lengths)[:-1])]


@given(pairs=st.lists(st.tuples(sentences, sentences), min_size=1, max_size=9), data=st.data())
def test_any_pairs_can_be_taken_in_any_order(pairs, data):
    """Any pairs can be taken, also repeatedly, with marks and positions of their tokens."""
    src, tgt = ([pair[side] for pair in pairs] for side in (0, 1))
    numbers = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=12))

    found_src, found_tgt = TokenPairs(src, tgt).take(np.array(numbers))

    assert rows_of(found_src) == [[*src[number], EOS] for number in numbers]
    assert rows_of(found_tgt) == [[BOS, *tgt[number], EOS] for number in numbers]
    assert rows_of(found_tgt.without_first()) == [[*tgt[number], EOS] for number in numbers]
    assert rows_of(found_tgt.without_last()) == [[BOS, *tgt[number]] for number in numbers]
    places = np.concatenate([np.arange(len(src[number]) + 1) for number in numbers])
    assert found_src.positions().tolist() == places.tolist()


def test_lengths_count_what_a_model_reads_and_predicts():
    """The end mark is read and predicted; the begin mark is not predicted."""
    pairs = TokenPairs([[5, 6], []], [[7], [8, 9, 10]])

    assert len(pairs) == 2
    assert pairs.src_lengths.tolist() == [3, 1]
    assert pairs.tgt_lengths.tolist() == [2, 4]


def test_one_very_long_sentence_is_as_long_as_it_is():
    """Lengths take 16 bits each where they suffice, and more where one does not fit."""
    src, tgt = [[5], [5] * 40_000, []], [[6], [6] * 32_767, [6] * 32_766]

    pairs = TokenPairs(src, tgt)

    assert pairs.src_lengths.tolist() == [2, 40_001, 1]
    assert pairs.tgt_lengths.tolist() == [2, 32_768, 32_767]
    assert TokenPairs(src[::2], tgt[::2]).tgt_lengths.dtype == np.int16


def test_the_entropy_of_targets():
    """That of their frequencies, the end mark included and the begin mark left out."""
    pairs = TokenPairs([[5], [5]], [[7, 8], []])

    assert pairs.target_entropy() == pytest.approx(1.5 * math.log(2))
