"""Batches padded to a few fixed shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gapless.nmt.data.fixed_layout import FixedLayout, choose_fixed_layout
from gapless.nmt.data.padded_layout import PaddedLayout, PaddedShape
from gapless.nmt.data.sampler import MicrobatchSampler, PairBatches
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import BOS, EOS, PAD


lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=200)


def arrays(pairs):
    return np.array([src for src, _ in pairs]), np.array([tgt for _, tgt in pairs])


@settings(deadline=None, max_examples=30)
@given(pairs=lengths, budget=st.integers(1, 400), max_shapes=st.integers(1, 12))
def test_every_pair_fits_into_its_shape(pairs, budget, max_shapes):
    """Shapes are few, take their pairs, and keep the budget unless they have a single row."""
    src, tgt = arrays(pairs)
    found = choose_fixed_layout(src, tgt, max_tokens=budget, max_shapes=max_shapes)

    assert 1 <= len(found.shapes) <= max_shapes
    for number, (src_len, tgt_len) in enumerate(pairs):
        shape = found.shapes[found.of_pair[number]]
        assert src_len <= shape.src_len
        assert tgt_len <= shape.tgt_len
        assert shape.rows == 1 or shape.rows * max(shape.src_len, shape.tgt_len) <= budget


@settings(deadline=None, max_examples=30)
@given(pairs=lengths, rows=st.integers(1, 20), seed=st.integers(0, 5))
def test_an_epoch_has_every_pair_once(pairs, rows, seed):
    """Pairs that do not fill a batch move to a larger shape; none is lost or repeated."""
    src, tgt = arrays(pairs)
    found = choose_fixed_layout(src, tgt, max_sentences=rows)
    order = np.random.default_rng(seed).permutation(len(pairs))

    batches = found.batches(order)

    assert sorted(np.concatenate([chosen for chosen, _ in batches])) == list(range(len(pairs)))
    for chosen, shape in batches:
        assert shape in found.shapes
        assert 1 <= len(chosen) <= shape.rows
        assert src[chosen].max() <= shape.src_len
        assert tgt[chosen].max() <= shape.tgt_len


def padding_share(layout, src, tgt):
    positions = sum(shape.num_tokens for _, shape in layout.batches(np.arange(len(src))))
    return 1.0 - (src.sum() + tgt.sum()) / positions


def test_more_shapes_mean_less_padding():
    """Splitting continues until the share of padding is small enough, and then stops."""
    draw = np.random.default_rng(1)
    src = draw.integers(3, 60, 4000)
    tgt = np.clip(src + draw.integers(-3, 4, 4000), 1, None)
    shares = [
        padding_share(choose_fixed_layout(src, tgt, max_sentences=32, max_shapes=count), src, tgt)
        for count in (1, 4, 16, 64)
    ]

    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.4
    layout = choose_fixed_layout(src, tgt, max_sentences=32, max_padding=0.2)
    assert padding_share(layout, src, tgt) <= 0.21
    assert len(layout.shapes) < 16


def test_what_is_left_over_goes_to_the_next_larger_shape():
    """Rows that do not fill a batch join the first shape that takes them."""
    shapes = [PaddedShape(rows=2, src_len=4, tgt_len=8), PaddedShape(rows=2, src_len=8, tgt_len=4)]
    shapes += [PaddedShape(rows=3, src_len=8, tgt_len=8)]
    layout = FixedLayout(shapes=shapes, of_pair=np.array([0, 0, 0, 1, 2]))

    batches = [(pairs.tolist(), shape) for pairs, shape in layout.batches(np.arange(5))]

    assert batches == [([0, 1], shapes[0]), ([3, 2, 4], shapes[2])]


def test_filled_up_rows_hold_nothing_to_predict():
    """A batch has its fixed shape; rows without a sentence have one token to attend to."""
    pairs = TokenPairs([[5, 6, 7]] * 5, [[8, 9]] * 5)
    layout = choose_fixed_layout(pairs.src_lengths, pairs.tgt_lengths, max_sentences=3)
    sampler = MicrobatchSampler(pairs, layout, shuffle=False)
    batches = [PairBatches(pairs)[micro] for micro in sampler]

    assert [tuple(batch.src.shape) for batch in batches] == [(3, 4), (3, 4)]
    assert [tuple(batch.tgt.shape) for batch in batches] == [(3, 5), (3, 5)]
    assert batches[1].src[2].tolist() == [EOS, PAD, PAD, PAD]
    assert batches[1].tgt[2].tolist() == [BOS, PAD, PAD, PAD, PAD]
    assert [batch.ntokens.item() for batch in batches] == [9, 6]
    assert sampler.describe() == "padded to 1 shapes, 27.1% padding"


def test_one_batch_of_each_shape():
    """There is one example of each shape, and two where only some batches end an update."""
    pairs = TokenPairs([[5] * (1 + n % 30) for n in range(400)], [[6] * 3] * 400)
    lengths = pairs.src_lengths, pairs.tgt_lengths
    layout = choose_fixed_layout(*lengths, max_sentences=8)
    sampler = MicrobatchSampler(pairs, layout, accumulate=2)

    found = {(micro.shape, micro.ends_update) for micro in sampler.one_of_each()}

    assert len(sampler.one_of_each()) == 2 * len(layout.shapes) == len(found)
    assert {(micro.shape, micro.ends_update) for micro in sampler} <= found
    assert all(len(PairBatches(pairs)[micro].src) == 8 for micro in sampler.one_of_each())
    padded = PaddedLayout(*lengths, max_sentences=8)
    assert MicrobatchSampler(pairs, padded).one_of_each() == []


def test_nothing_to_choose_from_is_refused():
    """Without pairs, or without a budget, no shape can be chosen."""
    empty = np.array([], dtype=np.int64)
    with pytest.raises(ValueError, match=r"at least one pair.*max_tokens.*max_sentences"):
        choose_fixed_layout(empty, empty, max_tokens=10)
    with pytest.raises(ValueError, match=r"at least one pair.*max_tokens.*max_sentences"):
        choose_fixed_layout(np.array([1]), np.array([1]))
