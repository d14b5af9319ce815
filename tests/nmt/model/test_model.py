"""The parts of the Transformer, alone and together."""

from __future__ import annotations

import math

import pytest
import torch

from gapless.nmt.data.batch import Batch, causal_mask
from gapless.nmt.data.vocab import BOS, EOS, PAD
from gapless.nmt.model.incremental import Cache, Incremental
from gapless.nmt.model.transformer import ModelSizes, Residual, Transformer, sinusoids


SMALL = {"d_model": 16, "heads": 2, "ffn": 24, "encoder_layers": 2, "decoder_layers": 3}


def make_model(**changes):
    torch.manual_seed(0)
    sizes = ModelSizes(**{"src_vocab": 11, "tgt_vocab": 11, **SMALL, **changes})
    return Transformer(sizes, max_positions=30)


def count(model):
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("share", "num_tables"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_the_number_of_parameters_is_that_of_the_paper(norm, share, num_tables):
    """Attention has 4 D² + 4 D weights, feed-forward 2 D F + D + F, a norm 2 D, plus the tables."""
    d, f, vocab = 16, 24, 11
    attention, feed_forward = 4 * d * d + 4 * d, 2 * d * f + d + f
    encoder = 2 * (attention + feed_forward + 2 * 2 * d)
    decoder = 3 * (2 * attention + feed_forward + 3 * 2 * d)
    final_norms = 2 * 2 * d if norm == "pre" else 0

    expected = encoder + decoder + final_norms + num_tables * vocab * d
    assert expected == count(make_model(norm=norm, share=share))


def test_shared_tables_are_one_tensor():
    """`all` trains one table for source, target and output; `none` trains three."""
    tables = {
        share: {
            id(model.src_embedding.table.weight),
            id(model.tgt_embedding.table.weight),
            id(model.generator.weight),
        }
        for share in ("all", "decoder", "none")
        for model in [make_model(share=share)]
    }

    assert [len(found) for found in tables.values()] == [1, 2, 3]


def test_positions_are_sines_and_cosines():
    """Position p at rate i is sin and cos of p / 10000^(2i/D), in halves side by side."""
    table = sinusoids(7, 6)

    for p in range(7):
        angles = [p / 10000 ** (2 * i / 6) for i in range(3)]
        expected = [*map(math.sin, angles), *map(math.cos, angles)]
        assert torch.allclose(torch.tensor(expected), table[p], atol=1e-6)


def test_a_position_does_not_see_what_follows():
    """Changing a later target token leaves every earlier output as it was."""
    model = make_model().eval()
    src = torch.tensor([[4, 5, EOS]])
    mask = (src != PAD).unsqueeze(1)
    one, other = torch.tensor([[BOS, 4, 5, 6]]), torch.tensor([[BOS, 4, 9, 10]])

    outputs = [model(src, trg, mask)[0] for trg in (one, other)]

    assert torch.equal(outputs[0][:2], outputs[1][:2])
    assert not torch.allclose(outputs[0][2:], outputs[1][2:])


def test_the_mask_of_a_target_is_causal_and_without_padding():
    """Row t of the mask allows the positions up to t that hold text."""
    mask = causal_mask(torch.tensor([[BOS, 4, PAD]]))

    assert mask.int().tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]


def test_a_batch_of_tokens_is_cut_for_teacher_forcing():
    """The decoder reads from the begin mark on and predicts up to the end mark."""
    src = torch.tensor([[4, EOS, PAD]])
    batch = Batch.from_tokens(src, torch.tensor([[BOS, 7, 8, EOS]]), torch.tensor(3))

    assert batch.trg.tolist() == [[BOS, 7, 8]]
    assert batch.trg_y.tolist() == [[7, 8, EOS]]
    assert batch.src_mask.tolist() == [[[True, True, False]]]
    assert None is batch.trg_mask


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("share", ["all", "none"])
def test_a_cached_step_equals_the_whole_pass_in_a_padded_batch(norm, share):
    """Logits of every position agree, for sources of different lengths in one batch."""
    model = make_model(norm=norm, share=share).eval()
    src = torch.tensor([[4, 5, 6, EOS], [9, EOS, PAD, PAD]])
    mask = (src != PAD).unsqueeze(1)
    trg = torch.tensor([[BOS, 8, 9, 5, 10], [BOS, 4, 4, 7, 1]])
    whole = model.generator(model(src, trg, mask))
    decoder = Incremental(model, dtype=torch.float32)
    cache = Cache(
        own=torch.zeros(2, decoder.num_layers, 2, decoder.heads, 5, decoder.width),
        past=torch.full((2, 1, 1, 5), -torch.inf),
        source=torch.empty(2, decoder.num_layers, 2, decoder.heads, 4, decoder.width),
        is_source=torch.where(mask.unsqueeze(1), 0.0, -torch.inf),
    )
    steps = []

    with torch.inference_mode():
        decoder.source([model.encode(src, mask)], out=cache.source)
        for at in range(5):
            steps.append(decoder.step(trg[:, at : at + 1], torch.tensor([at]), cache))

    assert torch.allclose(whole, torch.stack(steps, dim=1), atol=1e-4)


def test_dropout_acts_in_training_only():
    """Two passes differ in training mode, and agree bit for bit in evaluation mode."""
    model = make_model(dropout=0.3, attention_dropout=0.1)
    src, trg = torch.tensor([[4, 5, EOS]]), torch.tensor([[BOS, 4]])
    mask = torch.ones(1, 1, 3, dtype=torch.bool)
    training = [model(src, trg, mask) for _ in range(2)]
    model.eval()
    evaluating = [model(src, trg, mask) for _ in range(2)]

    assert not torch.equal(*training)
    assert torch.equal(*evaluating)


def test_padding_gets_no_gradient_and_no_vector():
    """The table's row for padding starts at zero, and the source's row stays zero."""
    model = make_model(share="none")
    src = torch.tensor([[4, EOS, PAD, PAD]])
    model(src, torch.tensor([[BOS, 4]]), (src != PAD).unsqueeze(1)).sum().backward()
    table = model.src_embedding.table.weight

    assert float(table[PAD].abs().sum().detach()) == 0.0
    assert float(table.grad[PAD].abs().sum()) == 0.0
    assert float(table.grad[4].abs().sum()) > 0.0


def test_an_untrained_model_knows_nothing():
    """A fresh model's loss is near that of guessing evenly."""
    model = make_model(d_model=64, heads=4, share="all").eval()
    src = torch.randint(4, 11, (8, 9))
    out = model(src, torch.randint(4, 11, (8, 7)), torch.ones(8, 1, 9, dtype=torch.bool))
    nll = torch.nn.functional.cross_entropy(
        model.generator(out).flatten(0, 1), torch.randint(4, 11, (56,))
    )

    assert 0.6 * math.log(11) < float(nll.detach()) < 2.0 * math.log(11)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_layer_is_normalized_before_or_after_what_it_adds(norm):
    """As its setting says: what goes into the sub-layer, or the sum that comes out."""
    sizes = ModelSizes(src_vocab=9, tgt_vocab=9, d_model=8, heads=2, ffn=8, dropout=0.0, norm=norm)
    residual = Residual(sizes)
    x = torch.linspace(-3.0, 5.0, 16).view(1, 2, 8)

    found = residual(x, lambda inner: 2 * inner)

    expected = x + 2 * residual.norm(x) if norm == "pre" else residual.norm(3 * x)
    assert torch.allclose(found, expected)
