"""The search for translations on a GPU: captured steps, late reads, and the hypotheses of a CPU."""

from __future__ import annotations

import random

import pytest
import torch

from gapless.device.find import find_device
from gapless.nmt.data.vocab import EOS
from gapless.nmt.model.decode import Decoder
from gapless.nmt.model.decode_settings import DecodeSettings, Sampling
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.pipeline.host_waits import HostWaits


pytestmark = pytest.mark.gpu

VOCAB = 90


def make_model():
    """Return a model with large random weights; some of its translations end early."""
    torch.manual_seed(2)
    sizes = ModelSizes(
        src_vocab=VOCAB,
        tgt_vocab=VOCAB,
        d_model=64,
        heads=4,
        ffn=64,
        encoder_layers=1,
        decoder_layers=2,
        share="none",
    )
    model = Transformer(sizes, max_positions=80).eval()
    for weight in model.parameters():
        weight.data.mul_(2.0)
    model.generator.weight.data[EOS] *= 1.8
    return model


@pytest.mark.parametrize("sampling", [None, Sampling(seed=3, top_k=9, top_p=0.9)])
def test_replayed_steps_find_what_a_cpu_finds(sampling, monkeypatch):
    """In float32, in every round: the first runs most steps without graphs, the later ones replay them."""
    draw = random.Random(0)
    texts = [[draw.randrange(4, VOCAB) for _ in range(draw.randrange(20))] for _ in range(150)]
    search = DecodeSettings(beam=4, n_best=3, max_length=40, sampling=sampling)
    model, gpu, cpu = make_model(), find_device("cuda"), find_device("cpu")
    expected = Decoder(model, device=cpu, host_waits=HostWaits(cpu)).translate(texts, search)
    captured = []
    capture = type(gpu).capture
    monkeypatch.setattr(
        type(gpu), "capture", lambda *a, **k: captured.append(a) or capture(*a, **k)
    )

    decoder = Decoder(model.to(gpu.torch_device), device=gpu, host_waits=HostWaits(gpu))
    rounds = [decoder.translate(texts, search) for _ in range(3)]

    ids = [[[one.ids for one in found] for found in results] for results in (*rounds, expected)]

    assert captured
    assert ids[0] == ids[1] == ids[2]
    # Two hypotheses whose scores differ in the last digits alone may change places.
    same = sum(ours == theirs for ours, theirs in zip(ids[0], ids[3], strict=True))
    assert same >= 0.97 * len(texts)
