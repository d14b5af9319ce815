"""`gapless translate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from gapless.cli.output import fitting, print_result, warn, write, write_utf8
from gapless.cli.parser import UsageError, file_or_folder, flag
from gapless.cli.progress import Translating
from gapless.cli.requirements import require_extra
from gapless.cli.shared_options import add_decode_options, decode_settings, make_translator


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from gapless.cli.parser import Parser
    from gapless.nmt.data.text_files import ByteStream
    from gapless.nmt.model.decode_settings import Sampling
    from gapless.nmt.run.translator import Translation


# Lines of a file that are translated at a time: enough for batches of similar lengths, and few to lose when
# the command is interrupted.
FILE_LINES = 5_000

# Lines that warnings name; the count of all comes at the end.
MOST_NAMED = 3

DETAILS = f"""
Standard input is answered as it comes, and a file {FILE_LINES:,} lines at a time. Each
line gives one line: where the model writes line ends or control characters,
spaces or replacement characters are printed. Files and pipes get them in UTF-8.

With --n-best above 1 each line is: number ||| translation ||| score. With
--sample these are so many samples, and a seed gives a line the same ones
whatever the batches. A sentence that begins with a hyphen stands behind --.
"""


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless translate [options] RUN [TEXT ...]"
    decoding = add_decode_options(parser)
    decoding.add_argument(
        "--n-best",
        type=int,
        default=1,
        metavar="N",
        help="translations of each sentence [default: 1]",
    )
    sampling = parser.add_group("sampling")
    sampling.add_argument(
        "--sample", action="store_true", help="draw translations instead of searching the best"
    )
    sampling.add_argument(
        "--temperature",
        type=float,
        metavar="NUMBER",
        help="divides the model's scores; below 1 likely tokens become likelier [default: 1]",
    )
    sampling.add_argument(
        "--top-k", type=int, metavar="N", help="draw among so many likeliest tokens; none: all"
    )
    sampling.add_argument(
        "--top-p",
        type=float,
        metavar="SHARE",
        help="draw among the fewest likeliest tokens of this probability together [default: 1]",
    )
    sampling.add_argument("--seed", type=int, metavar="N", help="of what is drawn [default: 0]")
    text = parser.add_group("text")
    # argparse takes a * for required unless it has a default.
    text.add_argument(
        "text",
        nargs="*",
        default=None,
        metavar="TEXT",
        help="sentences; none: read a file or standard input",
    )
    text.add_argument(
        "--file", type=file_or_folder, metavar="FILE", help="file with one sentence a line"
    )


def run(options: Namespace) -> int:
    """Print the translations."""
    if options.file is not None and options.text:
        raise UsageError("give sentences or --file, not both")
    write_utf8(sys.stdout)
    require_extra("nmt", "gapless translate")
    from gapless.nmt.data.text_files import read_lines

    translator = make_translator(options)
    settings = decode_settings(
        translator, options, n_best=options.n_best, sampling=_sampling(options)
    )
    most = translator.longest_source
    of_file = None if options.file is None else read_lines(options.file)
    num_done = num_cut = num_long = 0

    def warn_long(line: int, tokens: int) -> None:
        nonlocal num_long
        num_long += 1
        if num_long <= MOST_NAMED:
            warn(
                f"line {num_done + line + 1} has {tokens} tokens, more than {most}; "
                "the rest of it is not translated"
            )

    with Translating(of=None if of_file is None else len(of_file)) as shown:
        for lines in _lines(options.text, of_file):
            found = translator.search(
                lines, settings, first=num_done, on_long=warn_long, on_done=shown.add
            )
            shown.clear()
            for translations in found:
                for translation in translations:
                    print_result(_line(num_done, translation, with_score=options.n_best > 1))
                num_done += 1
                if translations[0].is_cut:
                    num_cut += 1
                    _warn_cut(num_done, num_cut, most=settings.max_length)
            shown.done = num_done
    if num_long > MOST_NAMED:
        warn(f"{num_long} lines have more than {most} tokens; the rest of them is not translated")
    if num_cut:
        warn(f"{num_cut} of {num_done} translations are cut; --max-length lets them be longer")
    return 0


def _sampling(options: Namespace) -> Sampling | None:
    """Return how translations are drawn; None: they are searched."""
    from gapless.nmt.model.decode_settings import Sampling

    drawing = _given(options, "temperature", "top_k", "top_p", "seed")
    searching = _given(options, "beam", "early_stopping")
    if drawing and not options.sample:
        raise UsageError(f"{flag(next(iter(drawing)))} is of samples; give --sample too")
    if searching and options.sample:
        raise UsageError(
            f"{flag(next(iter(searching)))} is of a search; leave it out, or --sample"
        )
    return Sampling(**drawing) if options.sample else None


def _given(options: Namespace, *names: str) -> dict[str, Any]:
    """Return those of some options that the command line gives."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _lines(text: list[str], of_file: list[str] | None) -> Iterator[list[str]]:
    """Yield all sentences, some lines of a file, or those of standard input that have arrived."""
    from gapless.nmt.data.text_files import arriving_lines, check_text

    if text:
        yield [check_text(line, where=f"sentence {n}") for n, line in enumerate(text, start=1)]
    elif of_file is not None:
        for first in range(0, len(of_file), FILE_LINES):
            yield of_file[first : first + FILE_LINES]
    elif sys.stdin is not None:
        if sys.stdin.isatty():
            prompt = "reading sentences from the keyboard, one a line; Ctrl-D ends"
            write(sys.stderr, f"{fitting(prompt, sys.stderr)}\n")
        yield from arriving_lines(cast("ByteStream", sys.stdin.buffer), name="standard input")


def _line(number: int, translation: Translation, *, with_score: bool) -> str:
    if not with_score:
        return translation.text
    return f"{number} ||| {translation.text} ||| {translation.score:.4f}"


def _warn_cut(line: int, num_cut: int, *, most: int) -> None:
    if num_cut <= MOST_NAMED:
        warn(f"the translation of line {line} is cut at {most} tokens")
