"""Settings of a run that takes a second, on a CPU."""

from __future__ import annotations

from gapless.nmt.run.config import make_config


def tiny_config(folder, **settings):
    """Return the settings of a run on `d.tsv` of a folder, in its `run`, with others in their place."""
    return make_config(
        {
            "data": str(folder / "d.tsv"),
            "columns": "en,zh",
            "tokenizer": "none",
            "device": "cpu",
            "workers": 0,
            "d_model": 8,
            "heads": 2,
            "ffn": 8,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "epochs": 1,
            "run_dir": str(folder / "run"),
            **settings,
        }
    )
