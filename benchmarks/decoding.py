"""Time a beam search beside CTranslate2's, in float32 on a CPU; or alone, on a GPU.

    PYTHONPATH=src python3 -m benchmarks.decoding RUN        # a trained run, its test sentences
    PYTHONPATH=src python3 -m benchmarks.decoding --base     # Transformer base, random weights
    PYTHONPATH=src python3 -m benchmarks.decoding RUN --device cuda --precision bf16 --times 20 --kernels 30

The random model never ends a translation: both searches take as many steps as `--max-length` says.
Rounds alternate between the two; the first, which captures on a GPU, is not in the medians. Tokens are those of the best
translations with their end marks, seconds of the processor are of all threads together.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import sacrebleu
import torch

from benchmarks.peers.profiling import KernelTimes, watch_kernels
from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.nmt.data.vocab import EOS, Vocabs, WordVocab
from gapless.nmt.exchange.ctranslate2_model import write_ctranslate2
from gapless.nmt.model.decode import Decoder
from gapless.nmt.model.decode_settings import DecodeSettings
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.nmt.run.task import prepare
from gapless.nmt.run.translator import load_model
from gapless.pipeline.host_waits import HostWaits


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device


_BASE_VOCAB = 32_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each search."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = find_device(options.device)
    # As the commands do: torch's choice of attention depends on it.
    set_numerics(device, options.precision, deterministic=None)
    vocabs, model, sources, references = (
        _base(device) if options.base else _trained(options.run, device)
    )
    sources = sources[: options.sentences] * options.times
    references = references[: options.sentences] * options.times
    searches = {"gapless": _ours(model, sources, options, device)}
    with tempfile.TemporaryDirectory() as folder:
        if not device.is_accelerator:
            write_ctranslate2(model, vocabs, Path(folder))
            searches["CTranslate2"] = _theirs(folder, vocabs, sources, options)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in searches}
        ids: dict[str, list[list[int]]] = {}
        for _ in range(options.rounds + 1):
            for name, search in searches.items():
                wall, own = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
                ids[name] = search()
                own = resource.getrusage(resource.RUSAGE_SELF).ru_utime - own
                found[name].append((time.perf_counter() - wall, own))
    for name, rounds in found.items():
        tokens = sum(len(one) + 1 for one in ids[name])
        wall, own = (median(row[at] for row in rounds[1:]) for at in range(2))
        line = f"{name:<12} {tokens:,} tokens, {wall:.2f} s, {own:.2f} s of the processor"
        line += f", {tokens / wall:,.0f} tokens/s, {tokens / rounds[0][0]:,.0f} in the first round"
        if references:
            bleu = sacrebleu.corpus_bleu(
                [vocabs.tgt.decode(one) for one in ids[name]],
                [references],
                tokenize=options.tokenize,
            )
            line += f", BLEU {bleu.score:.2f}"
        print(line, flush=True)
    if len(found) > 1:
        ours, theirs = (median(row[1] for row in rounds[1:]) for rounds in found.values())
        same = sum(a == b for a, b in zip(*ids.values(), strict=True)) / len(sources)
        print(
            f"ratio {ours / theirs:.2f} of processor seconds; {same:.1%} of the translations are equal"
        )
    if options.kernels:
        _print_kernels(searches["gapless"], options.kernels)
    return 0


def _print_kernels(search: Callable[[], object], count: int) -> None:
    """Run a search once more, and print the kernels that take most of it."""
    times = KernelTimes()
    start = time.perf_counter()
    with watch_kernels(times):
        search()
        wall = time.perf_counter() - start
    print(
        f"watched: {wall:.2f} s, busy {times.busy_ms / 1e3:.2f} s, {times.num_kernels:,} kernels"
    )
    for kernel in times.costliest(count):
        print(f"{kernel['ms']:9.1f} ms {kernel['share']:6.1%}  {kernel['kernel']}")


def _ours(
    model: Transformer, sources: list[list[int]], options: Any, device: Device
) -> Callable[[], list[list[int]]]:
    settings = DecodeSettings(
        beam=options.beam, max_length=options.max_length, early_stopping=options.early_stopping
    )
    decoder = Decoder(
        model, device=device, host_waits=HostWaits(device), precision=options.precision
    )
    return lambda: [best.ids for best, *_ in decoder.translate(sources, settings)]


def _theirs(
    folder: str, vocabs: Vocabs, sources: list[list[int]], options: Any
) -> Callable[[], list[list[int]]]:
    import ctranslate2

    translator = ctranslate2.Translator(
        folder,
        device="cpu",
        compute_type="float32",
        inter_threads=1,
        intra_threads=options.threads,
    )
    names = vocabs.src.tokens()
    numbers = {token: number for number, token in enumerate(vocabs.tgt.tokens())}
    texts = [[names[number] for number in source] for source in sources]

    def search() -> list[list[int]]:
        found = translator.translate_batch(
            texts,
            beam_size=options.beam,
            max_batch_size=options.their_batch,
            max_decoding_length=options.max_length,
            min_decoding_length=0,
        )
        return [[numbers[token] for token in one.hypotheses[0]] for one in found]

    return search


def _trained(run: Path, device: Device) -> tuple[Vocabs, Transformer, list[list[int]], list[str]]:
    config, vocabs, model = load_model(run, device=device)
    pairs = prepare(config, vocabs=vocabs).corpus.test
    return vocabs, model.eval(), vocabs.src.encode(pairs.src), list(pairs.tgt)


def _base(device: Device) -> tuple[Vocabs, Transformer, list[list[int]], list[str]]:
    """Return a model that never ends a translation, and sources of 8 to 40 tokens."""
    torch.manual_seed(0)
    words = WordVocab([f"w{number}" for number in range(_BASE_VOCAB - EOS - 1)])
    sizes = ModelSizes(src_vocab=len(words), tgt_vocab=len(words), share="none")
    model = Transformer(sizes, max_positions=256).eval()
    with torch.no_grad():
        model.generator.weight[EOS] = 0.0
    draw = random.Random(0)
    sources = [
        [draw.randrange(EOS + 1, len(words)) for _ in range(draw.randint(8, 40))]
        for _ in range(1_000)
    ]
    return Vocabs(src=words, tgt=words), model.to(device.torch_device), sources, []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decoding", description=__doc__.splitlines()[0]
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("run", nargs="?", type=Path, help="folder of a trained run")
    what.add_argument("--base", action="store_true", help="Transformer base, random weights")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--times", type=int, default=1, help="each sentence so many times")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32", help="of gapless")
    parser.add_argument("--kernels", type=int, default=0, help="name so many of the costliest")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=28)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--their-batch", type=int, default=32, help="sentences CTranslate2 takes at once"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenize", default="13a")
    parser.add_argument(
        "--early-stopping",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end a search when as many as the beam have ended, as CTranslate2 does",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
