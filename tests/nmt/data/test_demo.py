"""The embedded demo corpus: what the package's file holds."""

from __future__ import annotations

import re
import zlib

import pytest

from gapless.nmt.data.demo import demo_pairs
from gapless.nmt.run.task import read_corpus
from gapless.nmt.settings.config import make_config


SENTENCE = re.compile(r"[A-Z][A-Za-z0-9,' -]*[a-z0-9]([.?])")
CHINESE = re.compile(r"[\u4e00-\u9fff0-9]+([。？])")


def test_the_corpus_has_not_changed():
    """Runs that are pinned, and figures that are published, are of these pairs in this order."""
    checksums = {
        split: (len(pairs), zlib.crc32(repr(pairs).encode()))
        for split, pairs in demo_pairs().items()
    }

    assert checksums == {
        "train": (20_000, 1614123214),
        "val": (500, 1133478244),
        "test": (500, 4116568080),
    }


def test_a_sentence_has_one_translation_and_stands_in_one_split():
    """Exact match is a fair measure, and held-out sentences are new."""
    pairs = [pair for split in demo_pairs().values() for pair in split]

    assert [len(set(side)) for side in zip(*pairs, strict=True)] == [21_000, 21_000]


def test_sentences_are_well_formed():
    """English starts with a capital and Chinese has no Latin letter; the marks at their ends agree."""
    for split in demo_pairs().values():
        for english, chinese in split:
            left, right = SENTENCE.fullmatch(english), CHINESE.fullmatch(chinese)
            assert left is not None, english
            assert right is not None, chinese
            assert {".": "。", "?": "？"}[left[1]] == right[1]


@pytest.mark.parametrize(("src", "tgt", "at"), [("en", "zh", 0), ("zh", "en", 1)])
def test_a_run_without_data_reads_it_in_either_direction(src, tgt, at):
    """The pairs of a run are those of the file, whatever its seed."""
    corpus = read_corpus(make_config({"src": src, "tgt": tgt, "seed": 5}))

    parts = {"train": corpus.train.read(), "val": corpus.val, "test": corpus.test}
    for split, pairs in demo_pairs().items():
        found = parts[split]
        assert found.src == [pair[at] for pair in pairs]
        assert found.tgt == [pair[1 - at] for pair in pairs]
