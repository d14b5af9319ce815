"""The options that `translate` and `evaluate` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gapless.cli.parser import file_or_folder


if TYPE_CHECKING:
    from gapless.cli.parser import Group, Parser
    from gapless.nmt.model.decode import DecodeSettings
    from gapless.nmt.run.translator import Translator


def add_decode_options(parser: Parser) -> Group:
    """Add the model, the search and the device; return the group of the search."""
    model = parser.add_group("model")
    model.add_argument(
        "run", type=file_or_folder, metavar="RUN", help="run folder of a trained model"
    )
    model.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="name in the run's checkpoints, such as epoch-0003; none: final, or else best",
    )
    model.add_argument(
        "--average",
        type=int,
        metavar="N",
        help="number of newest epoch checkpoints to average",
    )
    search = parser.add_group("decoding")
    search.add_argument("--beam", type=int, metavar="N", help="hypotheses; none: as trained")
    search.add_argument(
        "--length-penalty",
        type=float,
        metavar="NUMBER",
        help="exponent a in score / length ** a; none: as trained",
    )
    search.add_argument(
        "--early-stopping",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="end a search when as many as the beam have ended; none: as trained",
    )
    search.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="most tokens of a translation; none: as trained",
    )
    search.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="most sentences on the device at once; none: as suits their lengths",
    )
    add_device_option(parser)
    return search


def make_translator(options: argparse.Namespace) -> Translator:
    """Return the translator of the run that the options name.

    Sync: Blocks the host while weights are copied.
    """
    from gapless.nmt.run.translator import Translator

    return Translator(
        options.run,
        device=options.device,
        checkpoint=options.checkpoint,
        average=options.average,
    )


def decode_settings(
    translator: Translator, options: argparse.Namespace, *, n_best: int = 1
) -> DecodeSettings:
    """Return how to search: as the options say, or else as the run was trained."""
    return translator.settings(
        beam=options.beam,
        length_penalty=options.length_penalty,
        early_stopping=options.early_stopping,
        max_length=options.max_length,
        batch=options.batch,
        n_best=n_best,
    )


def add_device_option(parser: Parser) -> Group:
    """Add `--device` in a group of its own, and return that."""
    group = parser.add_group("device")
    group.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto, cpu, cuda or cuda:N [default: auto]",
    )
    return group
