"""The embedded demo corpus: 21,000 English sentences and their Chinese translations.

It needs no download, and it can be judged by exact match: an English sentence has exactly one
Chinese translation in it, and the reverse. `benchmarks/demo_corpus.py` made its file.
"""

from __future__ import annotations

import gzip
from importlib.resources import files


FILE = "demo.tsv.gz"

SPLITS = ("train", "val", "test")


def demo_pairs() -> dict[str, list[tuple[str, str]]]:
    """Return for each split its pairs of an English and a Chinese sentence, in their order."""
    packed = files("gapless.nmt.data").joinpath(FILE).read_bytes()
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for line in gzip.decompress(packed).decode().splitlines():
        split, english, chinese = line.split("\t")
        pairs[split].append((english, chinese))
    return pairs
