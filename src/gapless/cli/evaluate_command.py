"""`gapless evaluate`."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gapless.checkpoint.files import replace_file
from gapless.cli.output import is_unicode, print_result, print_wrapped, warn
from gapless.cli.parser import file_or_folder, one_of
from gapless.cli.progress import Translating
from gapless.cli.requirements import make_folder, require_extra
from gapless.cli.shared_options import add_decode_options, decode_settings, make_translator
from gapless.errors import DataError, UserError


if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from gapless.cli.parser import Parser
    from gapless.nmt.data.corpus import Corpus
    from gapless.nmt.data.sentences import Pairs
    from gapless.nmt.run.scores import Evaluation
    from gapless.nmt.run.translator import Translator
    from gapless.nmt.settings.config import TrainConfig


DETAILS = ""

# Files of what was translated, compared and found.
_WRITTEN = ("sources", "references", "hypotheses")

# What a run calls its splits where it keeps which pairs they had.
_KEPT_AS = {"train": "training", "val": "validation", "test": "test"}


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless evaluate [options] RUN"
    add_decode_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    data = parser.add_group("data")
    data.add_argument(
        "--data",
        type=file_or_folder,
        metavar="PATH",
        help="folder or file of pairs; none: the run's own",
    )
    data.add_argument(
        "--split",
        default="test",
        **one_of(("train", "val", "test")),
        help="train, val or test [default: test]",
    )
    data.add_argument("--src", metavar="TEXT", help="source side of --data; none: as trained")
    data.add_argument("--tgt", metavar="TEXT", help="target side of --data; none: as trained")
    data.add_argument(
        "--columns",
        metavar="TEXT",
        help="names of the first columns of --data without a header, in order; none: as trained",
    )
    scores = parser.add_group("scores")
    scores.add_argument(
        "--score-tokenizer",
        metavar="NAME",
        help="sacrebleu tokenizer of BLEU; none: as trained",
    )
    scores.add_argument(
        "--comet",
        type=file_or_folder,
        metavar="MODEL",
        help="score with this COMET model too, a checkpoint or the folder of one",
    )
    scores.add_argument(
        "--out",
        type=file_or_folder,
        metavar="DIR",
        help="folder for sources, references and hypotheses; none: the run folder, or one in it that is named "
        "after --data",
    )


def run(options: Namespace) -> int:
    """Translate a split, print its scores, and write sources, references and translations."""
    require_extra("nmt", "gapless evaluate")
    from gapless.device.find import find_device
    from gapless.nmt.data.corpus import notes_of_empty
    from gapless.nmt.run.comet_score import Comet
    from gapless.nmt.run.out_of_memory import naming_phase
    from gapless.nmt.run.scores import evaluate
    from gapless.nmt.settings.score_tokenizer import choose_score_tokenizer

    comet = None
    if options.comet is not None:
        uses_gpu = find_device(options.device).is_accelerator
        comet = Comet(options.comet, uses_gpu=uses_gpu)
    translator = make_translator(options)
    config = _with_options(translator.config, options)
    settings = decode_settings(translator, options)
    if options.data is None:
        pairs = _own_pairs(config, translator, options)
    else:
        pairs = _other_pairs(config, data=options.data, split=options.split)
    empty = notes_of_empty(pairs, split=options.split)
    for note in (*pairs.notes, *empty):
        warn(note)
    score_tokenizer = choose_score_tokenizer(config)
    folder = options.out or options.run
    if options.out is None and options.data is not None:
        # Do not overwrite the files of the run's own text.
        folder = options.run / "evaluated" / options.data.resolve().name
    make_folder(folder)
    naming = naming_phase("translating", lower="`batch` or `beam`")
    with Translating(of=len(pairs)) as shown, naming:
        result = evaluate(
            translator.decoder,
            translator.vocabs,
            pairs,
            settings,
            max_source=translator.longest_source,
            score_tokenizer=score_tokenizer,
            on_done=shown.add,
        )
    figures = {
        **asdict(result.scores),
        **({} if comet is None else {"comet": comet.score(*_texts(result, pairs))}),
        "cut": [number + 1 for number in result.cut],
        "long": [number + 1 for number in result.long],
        "max_length": settings.max_length,
        "longest_source": translator.longest_source,
        "beam": settings.beam,
        "length_penalty": settings.length_penalty,
        "early_stopping": settings.early_stopping,
        "length_penalty_formula": "score / length ** length_penalty",
    }
    try:
        written = _write(result, pairs, folder=folder, split=options.split)
    except OSError as error:
        _print({**figures, **dict.fromkeys(_WRITTEN)}, as_json=options.json)
        raise UserError(
            f"the scores stand, but the translations could not be written to {folder}: "
            f"{error.strerror or error}; free some space or name another folder with --out DIR, and "
            "run again"
        ) from error
    _print({**figures, **written}, as_json=options.json)
    return 0


def _print(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        # Escapes of another encoding would be none of JSON's.
        print_result(json.dumps(figures, ensure_ascii=not is_unicode(sys.stdout)))
    else:
        print_wrapped(_text(figures))


def _with_options(config: TrainConfig, options: Namespace) -> TrainConfig:
    """Return the settings of a run with those of this evaluation.

    As in training, a target that is named anew is not scored with the tokenizer that the run names.
    """
    names = ("src", "tgt", "columns", "score_tokenizer")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if given.get("tgt", config.tgt) != config.tgt:
        given.setdefault("score_tokenizer", None)
    if options.data is not None:
        given["data"] = str(options.data)
    return replace(config, **given)


def _write(result: Evaluation, pairs: Pairs, *, folder: Path, split: str) -> dict[str, str]:
    """Write what was translated, compared and found, a sentence a line; return the paths."""
    from gapless.nmt.run.translator import one_line

    sources, hypotheses, references = _texts(result, pairs)
    texts = dict(zip(_WRITTEN, (sources, references, hypotheses), strict=True))
    paths = {name: folder / f"{name}.{split}.txt" for name in texts}
    for name, path in paths.items():
        replace_file(path, "".join(f"{one_line(line)}\n" for line in texts[name]).encode())
    return {name: str(path) for name, path in paths.items()}


def _texts(result: Evaluation, pairs: Pairs) -> tuple[list[str], list[str], list[str]]:
    """Return sources, translations and references."""
    return list(pairs.src), list(result.hypotheses), list(result.references)


def _own_pairs(config: TrainConfig, translator: Translator, options: Namespace) -> Pairs:
    """Return a split of the text that the run recorded; warn if that is other text now.

    Raises:
        DataError: it is not there, or cannot be used.
    """
    from gapless.nmt.run.task import read_recorded

    corpus = read_recorded(config, run_dir=options.run)
    pairs: Pairs = (
        corpus.train.read() if options.split == "train" else getattr(corpus, options.split)
    )
    if config.data is not None:
        _warn_of_changed(corpus, pairs, translator, options)
    return pairs


def _warn_of_changed(
    corpus: Corpus, pairs: Pairs, translator: Translator, options: Namespace
) -> None:
    """Warn if the pairs to score are not those that the run had."""
    from gapless.nmt.run.task import fingerprint_of, prepare
    from gapless.nmt.run_folder.checkpoints import newest_meta

    meta = newest_meta(options.run)
    if meta is None:
        return
    part, had = _KEPT_AS[options.split], meta["pairs"]
    now = {"count": len(pairs)}
    if part != "training":
        now = fingerprint_of(pairs)
    else:
        # Text that is all too long for the run is no reason not to score it.
        with suppress(DataError):
            task = prepare(translator.config, corpus=corpus, vocabs=translator.vocabs)
            now = task.fingerprint[part]
    if now != had[part]:
        warn(
            f"{translator.config.data_name()}, the path of its text that {options.run} recorded, holds other "
            f"text now: the {now['count']:,} {part} pairs are not the {had[part]['count']:,} that the run "
            "had; name the text to score with --data"
        )


def _other_pairs(config: TrainConfig, *, data: Path, split: str) -> Pairs:
    from gapless.nmt.data.text_sources import load_split

    found = load_split(
        data,
        split=split,
        src=config.src,
        tgt=config.tgt,
        columns=config.column_names(),
    )
    if found is None:
        raise DataError(f"{data} has no {split} split for {config.src} and {config.tgt}")
    return found


def _cut_line(cut: list[int], *, of: int, most: int) -> str:
    return (
        f"{len(cut)} of {of} hypotheses are cut at {most} tokens, in lines {_some(cut)}; "
        "--max-length lets them be longer"
    )


def _long_line(long: list[int], *, of: int, most: int) -> str:
    return (
        f"{len(long)} of {of} sources have more than {most} tokens, in lines {_some(long)}; the rest of "
        "them is not translated, and the whole references count"
    )


def _some(lines: list[int]) -> str:
    return ", ".join(map(str, lines[:10])) + (", ..." if len(lines) > 10 else "")


def _text(figures: dict[str, Any]) -> str:
    lines = [
        f"BLEU  {figures['bleu']:.2f}  {figures['bleu_signature']}",
        f"chrF  {figures['chrf']:.2f}  {figures['chrf_signature']}",
        f"exact match {figures['exact_match']:.1%} of {figures['count']} pairs",
        f"beam {figures['beam']}, score / length ** {figures['length_penalty']:g}",
    ]
    if "comet" in figures:
        lines.insert(2, f"COMET {figures['comet']:.4f}")
    if figures["long"]:
        most = figures["longest_source"]
        lines.append(_long_line(figures["long"], of=figures["count"], most=most))
    if figures["cut"]:
        lines.append(_cut_line(figures["cut"], of=figures["count"], most=figures["max_length"]))
    if figures["note"]:
        lines.append(f"note: {figures['note']}")
    lines += [f"{name}: {figures[name]}" for name in _WRITTEN if figures[name] is not None]
    return "\n".join(lines)
