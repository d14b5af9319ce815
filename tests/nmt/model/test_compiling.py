"""What is compiled, and what is not worth it."""

from __future__ import annotations

import random
from contextlib import contextmanager

import pytest
import torch

from gapless.cli.main import run_command
from gapless.nmt.data.batch import Batch
from gapless.nmt.model.compiling import compile_layers, declared_compiles
from gapless.nmt.model.loss import LabelSmoothing
from gapless.nmt.model.transformer import ModelSizes, Transformer


# Torch's compiler looks at whatever may warn; as errors those stop it.
@pytest.mark.filterwarnings("ignore")
def test_layers_are_compiled_for_training_alone(tmp_path, monkeypatch):
    """Validations and the final test run eagerly; all epochs run the code compiled at first."""
    draw, had_gradients = random.Random(1), []
    rows = [" ".join(draw.choice("abcd") for _ in range(draw.randint(2, 5))) for _ in range(40)]
    (tmp_path / "d.tsv").write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows))
    make = torch.compile

    def note(graph, inputs):
        del inputs
        had_gradients.append(torch.is_grad_enabled())
        return graph.forward

    def compile_layer(call, **options):
        del options
        return make(call, backend=note) if hasattr(call, "__self__") else call

    monkeypatch.setattr(torch, "compile", compile_layer)
    command = [
        "train",
        "--data",
        str(tmp_path / "d.tsv"),
        "--columns",
        "en,zh",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    command += ["--d-model", "16", "--ffn", "16", "--heads", "2", "--tokenizer", "none"]
    command += ["--encoder-layers", "1", "--decoder-layers", "1", "--compile", "--device", "cpu"]
    command += ["--epochs", "3", "--val-interval", "1", "--workers", "0"]

    assert run_command(command) == 0

    # A graph for each of the two kinds of layers.
    assert had_gradients == [True, True]


@pytest.mark.filterwarnings("ignore")
def test_the_first_shape_is_compiled_for_all(monkeypatch):
    """Each kind of layers once, whatever lengths come; nothing of the loss."""
    compiled, make = [], torch.compile

    def note(graph, inputs, **options):
        del inputs, options
        compiled.append(graph)
        return graph.forward

    def compile_it(call, **options):
        return make(call, backend=note, **options)

    monkeypatch.setattr(torch, "compile", compile_it)
    torch.compiler.reset()
    sizes = ModelSizes(
        src_vocab=9, tgt_vocab=9, d_model=8, heads=2, ffn=8, encoder_layers=2, decoder_layers=2
    )
    model = Transformer(sizes)
    compile_layers(model)
    loss = LabelSmoothing(0.1)
    for src_length, tgt_length in ((5, 7), (6, 7), (6, 9), (4, 3)):
        src, tgt = (torch.full((3, length), 5) for length in (src_length, tgt_length + 1))
        batch = Batch.from_tokens(src, tgt, torch.tensor(1))
        out = model(batch.src, batch.trg, batch.src_mask)
        loss.of_hidden(out, model.generator, batch.trg_y).backward()

    assert len(compiled) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_compilation_is_declared():
    """While it lasts, also that for a later shape; not when the code is there, nor afterwards."""
    told = []

    @contextmanager
    def declared():
        told.append("begins")
        yield
        told.append("ends")

    def backend(graph, inputs):
        del inputs
        told.append("compiles")
        return graph.forward

    compiled = torch.compile(lambda x: x.sin(), backend=backend, dynamic=False)
    with declared_compiles(declared):
        compiled(torch.ones(2))
        compiled(torch.ones(2))
        compiled(torch.ones(3))
    compiled(torch.ones(4))

    assert told == [*["begins", "compiles", "ends"] * 2, "compiles"]
