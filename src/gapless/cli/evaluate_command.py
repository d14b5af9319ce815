"""`gapless evaluate`."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

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
from gapless.errors import DataError
from gapless.files import replace_file
from gapless.nmt.data.corpus import load_split
from gapless.nmt.run.score import bleu_tokenizer, evaluate as evaluate_pairs, score
from gapless.nmt.run.task import read_corpus


if TYPE_CHECKING:
    from gapless.nmt.data.corpus import Pairs
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.score import Evaluation


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder of a trained model.")],
    data: Annotated[
        Optional[Path], typer.Option(help="Folder or file of pairs; none: the run's own.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    early_stopping: EarlyStopping = None,
    checkpoint: Checkpoint = None,
    average: Average = None,
    device: DeviceName = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a run: BLEU and chrF with their signatures, and exact match."""
    loaded = load_for_decoding(run, device=device, checkpoint=checkpoint, average=average)
    config = loaded.config
    settings = decode_settings(
        config, beam=beam, length_penalty=length_penalty, early_stopping=early_stopping
    )
    pairs = _pairs(config, data=data, split=split)
    result = evaluate_pairs(loaded.decoder, loaded.vocabs, pairs, settings, config=config)
    output = run / f"hypotheses.{split}.txt"
    replace_file(output, "".join(f"{line}\n" for line in result.hypotheses).encode())
    figures = {
        **asdict(result.scores),
        **_without_width(result, config),
        "beam": settings.beam,
        "length_penalty": settings.length_penalty,
        "early_stopping": settings.early_stopping,
        "length_penalty_formula": "score / length ** length_penalty",
        "hypotheses": str(output),
    }
    typer.echo(json.dumps(figures, ensure_ascii=False) if as_json else _text(figures))


def _pairs(config: TrainConfig, *, data: Path | None, split: str) -> Pairs:
    if split not in ("train", "val", "test"):
        raise DataError(f"unknown split {split!r}; the splits are train, val and test")
    if data is None:
        pairs: Pairs = getattr(read_corpus(config), split)
        return pairs
    found = load_split(
        data, split=split, src=config.src, tgt=config.tgt, columns=config.column_names()
    )
    if found is None:
        raise DataError(f"{data} has no {split} split for {config.src} and {config.tgt}")
    return found


def _without_width(result: Evaluation, config: TrainConfig) -> dict[str, Any]:
    """Return BLEU of Chinese with full-width marks made plain on both sides, labelled as such."""
    if bleu_tokenizer(config.tgt, tokenised=config.tokenizer == "none") != "zh":
        return {}
    scores = score(
        [unicodedata.normalize("NFKC", line) for line in result.hypotheses],
        [unicodedata.normalize("NFKC", line) for line in result.references],
        tgt_lang=config.tgt,
        tokenised=False,
    )
    return {"bleu_nfkc_both_sides": scores.bleu}


def _text(figures: dict[str, Any]) -> str:
    lines = [
        f"BLEU  {figures['bleu']:.2f}  {figures['bleu_signature']}",
        f"chrF  {figures['chrf']:.2f}  {figures['chrf_signature']}",
        f"exact match {figures['exact_match']:.1%} of {figures['count']} pairs",
        f"beam {figures['beam']}, score / length ** {figures['length_penalty']:g}",
    ]
    if figures["note"]:
        lines.append(f"note: {figures['note']}")
    if "bleu_nfkc_both_sides" in figures:
        lines.append(f"BLEU with NFKC on both sides: {figures['bleu_nfkc_both_sides']:.2f}")
    lines.append(f"hypotheses: {figures['hypotheses']}")
    return "\n".join(lines)
