"""`gapless translate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from gapless.cli.decode_options import (
    Average,
    Beam,
    Checkpoint,
    DeviceName,
    EarlyStopping,
    LengthPenalty,
    decode_settings,
    load_for_decoding,
)
from gapless.errors import UserError
from gapless.nmt.data.corpus import check_text, decode_text, read_lines, split_lines
from gapless.nmt.run.score import longest_source, translate_lines


if TYPE_CHECKING:
    from gapless.nmt.run.score import Translation


def translate(
    run: Annotated[Path, typer.Argument(help="Run folder of a trained model.")],
    text: Annotated[
        Optional[list[str]], typer.Argument(help="Sentences; none: read a file or stdin.")
    ] = None,
    file: Annotated[Optional[Path], typer.Option(help="File with one sentence a line.")] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    early_stopping: EarlyStopping = None,
    n_best: Annotated[int, typer.Option(help="Translations of each sentence.")] = 1,
    checkpoint: Checkpoint = None,
    average: Average = None,
    device: DeviceName = "auto",
) -> None:
    """Translate sentences, one a line; order and empty lines are kept.

    With --n-best above 1 each line is: number ||| translation ||| score.
    """
    if file is not None and text:
        raise UserError("give sentences or --file, not both")
    loaded = load_for_decoding(run, device=device, checkpoint=checkpoint, average=average)
    config = loaded.config
    settings = decode_settings(
        config,
        beam=beam,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        n_best=n_best,
    )
    found = translate_lines(
        loaded.decoder,
        loaded.vocabs,
        _lines(text, file),
        settings,
        max_source=longest_source(config),
        on_long=lambda line, tokens: _warn_long(line, tokens, longest_source(config)),
    )
    for number, translations in enumerate(found):
        for translation in translations:
            typer.echo(_line(number, translation, with_score=n_best > 1))


def _lines(text: list[str] | None, file: Path | None) -> list[str]:
    if text:
        return [check_text(line, where=f"sentence {n}") for n, line in enumerate(text, start=1)]
    if file is not None:
        return read_lines(file)
    return split_lines(decode_text(sys.stdin.buffer.read(), name="standard input"))


def _line(number: int, translation: Translation, *, with_score: bool) -> str:
    if not with_score:
        return translation.text
    return f"{number} ||| {translation.text} ||| {translation.score:.4f}"


def _warn_long(line: int, tokens: int, most: int) -> None:
    typer.echo(
        f"gapless: warning: line {line + 1} has {tokens} tokens, more than {most}; "
        "the rest of it is not translated",
        err=True,
    )
