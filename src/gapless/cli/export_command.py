"""`gapless export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gapless.cli.output import print_result
from gapless.cli.parser import one_of
from gapless.cli.requirements import require_extra
from gapless.cli.shared_options import add_model_options


if TYPE_CHECKING:
    from argparse import Namespace

    from gapless.cli.parser import Parser


_FORMATS = ("ctranslate2", "huggingface", "marian")

DETAILS = """
  ctranslate2  read by ctranslate2.Translator; needs the extra ctranslate2
  huggingface  read by transformers: a Marian model where the layer norm is
               after each sub-layer, else a Pegasus model, with the tokenizer
               of Marian
  marian       the same, and refused where it would not be a Marian model
"""


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless export [options] RUN OUT"
    add_model_options(parser)
    out = parser.add_group("what is written")
    out.add_argument("out", type=Path, metavar="OUT", help="folder to write, new or empty")
    out.add_argument(
        "--format",
        default=_FORMATS[0],
        **one_of(_FORMATS),
        help=f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} [default: {_FORMATS[0]}]",
    )


def run(options: Namespace) -> int:
    """Write the model, and say where."""
    require_extra("nmt", "gapless export")
    from gapless.nmt.run.export import export_run

    export_run(
        options.run,
        options.out,
        form=options.format,
        checkpoint=options.checkpoint,
        average=options.average,
    )
    print_result(f"{options.format} model: {options.out}")
    return 0
