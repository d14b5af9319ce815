"""`gapless evaluate`."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.checkpoint.files import replace_file
from gapless.cli.decode_options import add_decode_options
from gapless.cli.extras import require_extra
from gapless.cli.parser import one_of
from gapless.errors import DataError


if TYPE_CHECKING:
    from argparse import Namespace

    from gapless.cli.parser import Parser
    from gapless.nmt.data.corpus import Pairs
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.score import Evaluation


DETAILS = ""


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    add_decode_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", type=Path, metavar="PATH", help="folder or file of pairs; none: the run's own"
    )
    data.add_argument(
        "--split",
        default="test",
        **one_of(("train", "val", "test")),
        help="train, val or test [default: test]",
    )


def run(options: Namespace) -> int:
    """Translate a split, print its scores, and write the translations into the run's folder."""
    require_extra("nmt", "gapless evaluate")
    from gapless.cli.trained_model import decode_settings, load_for_decoding
    from gapless.nmt.run.score import evaluate

    loaded = load_for_decoding(options)
    config = loaded.config
    settings = decode_settings(config, options)
    pairs = _pairs(config, data=options.data, split=options.split)
    result = evaluate(loaded.decoder, loaded.vocabs, pairs, settings, config=config)
    output = options.run / f"hypotheses.{options.split}.txt"
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
    print(json.dumps(figures, ensure_ascii=False) if options.json else _text(figures))
    return 0


def _pairs(config: TrainConfig, *, data: Path | None, split: str) -> Pairs:
    from gapless.nmt.data.corpus import load_split
    from gapless.nmt.run.task import read_corpus

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
    from gapless.nmt.run.score import bleu_tokenizer, score

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
