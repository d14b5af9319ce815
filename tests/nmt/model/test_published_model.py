"""The Transformer, its loss and schedule, and the search for translations."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.device.find import find_device
from gapless.nmt.data.batch import causal_mask
from gapless.nmt.data.vocab import BOS, EOS, PAD
from gapless.nmt.model.decode import Decoder
from gapless.nmt.model.decode_settings import DecodeSettings
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.pipeline.host_waits import HostWaits


def make_model(vocab=12, seed=0, **changes):
    torch.manual_seed(seed)
    sizes = ModelSizes(
        src_vocab=vocab,
        tgt_vocab=vocab,
        d_model=16,
        heads=2,
        ffn=32,
        encoder_layers=2,
        decoder_layers=2,
        dropout=0.1,
        **changes,
    )
    model = Transformer(sizes, max_positions=40).eval()
    for weight in model.parameters():
        weight.data.mul_(2.0)  # a sharper model than a fresh one, so that choices differ
    return model


def make_decoder(model):
    device = find_device("cpu")
    return Decoder(model, device=device, host_waits=HostWaits(device))


def test_the_published_tiny_model_has_its_number_of_parameters():
    """Sizes of the Multi30k recipe give 2,568,192 parameters."""
    model = Transformer(
        ModelSizes(
            src_vocab=9712,
            tgt_vocab=9712,
            d_model=128,
            heads=4,
            ffn=256,
            encoder_layers=4,
            decoder_layers=4,
            norm="post",
            share="all",
        )
    )

    assert sum(weight.numel() for weight in model.parameters()) == 2_568_192


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_full_target_mask_equals_the_causal_path(norm):
    """With padding at the end both masks give the same outputs where there is text."""
    model = make_model(norm=norm)
    src = torch.tensor([[4, 5, 6, EOS], [7, EOS, PAD, PAD]])
    trg = torch.tensor([[BOS, 4, 5], [BOS, 6, PAD]])
    batch = gapless.nmt.Batch.from_tokens(src, torch.cat((trg, trg[:, :1]), 1), torch.tensor(5))

    causal = model(src, trg, batch.src_mask)
    full = model(src, trg, batch.src_mask, causal_mask(trg))

    text = trg != PAD
    assert torch.allclose(causal[text], full[text], atol=1e-5)


def test_padding_does_not_change_a_sentence():
    """A sentence in a padded batch gets the output it gets alone."""
    model = make_model()
    alone = torch.tensor([[7, EOS]])
    padded = torch.tensor([[7, EOS, PAD, PAD]])
    trg = torch.tensor([[BOS, 6]])

    outputs = [model(src, trg, (src != PAD).unsqueeze(1)) for src in (alone, padded)]

    assert torch.allclose(*outputs, atol=1e-5)


def test_a_confident_model_is_not_cut_short_by_its_beam():
    """A wider beam never returns a translation that scores less than the greedy one."""
    for seed in range(8):
        model = make_model(seed=seed)
        sources = [[4, 5, 6, 7, 8], [9, 4]]
        greedy = make_decoder(model).translate(sources, DecodeSettings(beam=1, max_length=12))
        wide = make_decoder(model).translate(sources, DecodeSettings(beam=4, max_length=12))

        for one, many in zip(greedy, wide, strict=True):
            assert many[0].score >= one[0].score - 1e-4
