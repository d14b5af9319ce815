"""Pairs that Python hands over: written whole or not at all, and read back as they were."""

from __future__ import annotations

import errno
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import gapless.nmt
from gapless.checkpoint.files import Disk
from gapless.errors import DataError
from gapless.nmt import write_pairs
from gapless.nmt.data.text_sources import files_of_text, load_split
from power_cut import PowerCuts, RecordedDisk, Synced, put_back


PAIRS = [
    ("A cat sat here.", "一只猫坐在这里。"),
    ('He said: "no", twice.', "他说：“不”，两次。"),
    ("a\u2028b\x85c\td\ne\rf\0 \ufeff", "😀"),
    ("", "没有"),
]


def read(path, *, src="en", tgt="zh", split="train"):
    found = load_split(Path(path), split=split, src=src, tgt=tgt)
    return list(zip(found.src, found.tgt, strict=True))


def many(count):
    """Give so many pairs, one by one."""
    for number in range(count):
        yield f"line {number}", f"第{number}行"


RECORDS = {
    "objects": ([{"en": en, "zh": zh} for en, zh in PAIRS], {}),
    "objects with other keys": ([{"id": 1, "zh": zh, "en": en, "score": 0.5} for en, zh in PAIRS], {}),
    "sides under translation": ([{"id": "1", "translation": {"en": en, "zh": zh}} for en, zh in PAIRS], {}),
    "keys that mean a language": ([{"English": en, "zho_Hans": zh} for en, zh in PAIRS], {}),
    "keys of no language": (
        [{"source": en, "target": zh} for en, zh in PAIRS], {"src": "source", "tgt": "target"}),
    "pairs": (PAIRS, {}),
    "lists": ([list(pair) for pair in PAIRS], {"src": "eng", "tgt": "zho"}),
    "nothing for null": ([{"en": en or None, "zh": zh} for en, zh in PAIRS], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "new/folder/a.jsonl.gz"])
@pytest.mark.parametrize(("records", "sides"), RECORDS.values(), ids=RECORDS)
def test_records_are_read_back_as_they_were(tmp_path, records, sides, name):
    """Of an iterator, which can be read once; either side may be the source of a training."""
    path = tmp_path / name

    count = write_pairs(iter(records), path, **sides)

    src, tgt = sides.get("src", "en"), sides.get("tgt", "zh")
    assert count == len(PAIRS)
    assert read(path, src=src, tgt=tgt) == PAIRS
    assert read(path, src=tgt, tgt=src) == [(zh, en) for en, zh in PAIRS]
    assert list(path.parent.iterdir()) == [path]


@given(
    pairs=st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]))] * 2), min_size=1
    ),
    ending=st.sampled_from([".jsonl", ".jsonl.gz"]),
)
def test_any_text_is_read_back(tmp_path_factory, pairs, ending):
    """Ends of lines, marks and zero bytes of a sentence too."""
    path = tmp_path_factory.mktemp("a") / f"a{ending}"

    write_pairs(pairs, path)

    assert read(path) == pairs


def test_equal_pairs_are_equal_files(tmp_path):
    """So a store of tokenised text is found again when its text was written anew."""
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_pairs(many(10_000), tmp_path / name)

    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert len(gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()) == 10_000


def test_splits_lie_in_one_folder(tmp_path):
    """A folder of files that are named as splits is a corpus."""
    for number, split in enumerate(("train", "val", "test")):
        write_pairs([(split, f"{number}")], tmp_path / f"{split}.jsonl.gz", src="en", tgt="de")

    found = {split: read(tmp_path, tgt="de", split=split) for split in ("train", "val", "test")}

    assert found == {"train": [("train", "0")], "val": [("val", "1")], "test": [("test", "2")]}


def test_memory_does_not_grow_with_the_records(tmp_path):
    """Forty megabytes of text pass through a few."""
    tracemalloc.start()
    try:
        write_pairs((("a" * 1_000, "b" * 1_000) for _ in range(20_000)), tmp_path / "a.jsonl")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (tmp_path / "a.jsonl").stat().st_size > 40_000_000
    assert peak < 40_000_000


class Table:
    """What libraries of tables show in several lines."""

    def __repr__(self):
        return "en  zh\na   b"


# Records, other options, and what is said.
REFUSED = {
    "none": ([], {}, r"`records` holds no pair$"),
    "no text": ([*PAIRS, ("a", 5)], {}, r"`records` number 5 holds 5, expected text$"),
    "half a character": ([*PAIRS, ("a", "\ud800")], {}, r"`records` number 5 is not Unicode text: "),
    "a sentence": (["ab", "cd"], {}, r"`records` number 1 is 'ab', expected a pair such as \{\"en\""),
    "a late sentence": ([*PAIRS, "ab"], {}, r"`records` number 5 is 'ab', expected a pair such as "),
    "a table": ([Table()], {}, r"`records` number 1 is en  zh a   b, expected a pair such as "),
    "a triple": (
        [*PAIRS, ("1", "a", "b")], {},
        r"`records` number 5 holds 3 items, expected source and target: \('1', 'a', 'b'\)$"),
    "a key that is missing": (
        [{"en": "a", "zh": "b"}] * 4 + [{"en": "a"}], {},
        r"`records` number 5 has no 'zh', as the first one has, but 'en'$"),
    "no such side": (
        [{"en": "a", "fr": "b"}], {},
        r"`records` does not say .* none is 'zh'\. It begins with number 1: en: 'a' \| fr: 'b'\. Name two of the "
        r"keys 'en', 'fr' with `src` and `tgt`$"),
    "one side for both": (PAIRS, {"tgt": "en"}, r"source and target are both 'en'; "),
    "several splits": (
        {"train": PAIRS, "test": PAIRS}, {},
        r"`records` is a dict of 'train', 'test', expected one record after the other; write each split "),
}  # fmt: skip


@pytest.mark.parametrize(("records", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_written_is_named(tmp_path, records, options, said):
    """In one line, by the number of the record; no file is left, and an older one as it was."""
    (tmp_path / "a.jsonl").write_text("old")

    with pytest.raises(DataError) as told:
        write_pairs(records, tmp_path / "a.jsonl", **options)

    assert re.search(said, str(told.value)), told.value
    assert "\n" not in str(told.value)
    assert contents(tmp_path) == {"a.jsonl": b"old"}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["a.json", "a", "a.jsonl.zst", "a.tsv.gz"])
def test_a_name_that_would_be_read_as_something_else_is_refused(tmp_path, name):
    """Before any record is read."""
    with pytest.raises(DataError, match=r"expected \.jsonl or \.jsonl\.gz; rename it$"):
        write_pairs(None, tmp_path / name)

    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "error", [ConnectionError("lost"), FileNotFoundError(2, "no", "part7"), KeyboardInterrupt()]
)
def test_records_that_end_in_an_error_leave_nothing(tmp_path, error):
    """The error is theirs, unchanged, and names what it named."""

    def records():
        yield from many(10_000)
        raise error

    before = str(error)
    with pytest.raises(type(error)) as told:
        write_pairs(records(), tmp_path / "train.jsonl")

    assert told.value is error
    assert str(error) == before
    assert contents(tmp_path) == {}


class Full(Disk):
    """A disk without room."""

    def write(self, file, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_nothing(tmp_path):
    """The error of the system, which names the place."""
    with pytest.raises(OSError, match=r"No space left on device: '.*train\.jsonl"):
        write_pairs(PAIRS, tmp_path / "train.jsonl", disk=Full())

    assert contents(tmp_path) == {}


KILLED = """
import os, signal, sys
from gapless.nmt import write_pairs

def records():
    for number in range(1 << 20):
        if number == 100_000:
            os.kill(os.getpid(), signal.SIGKILL)
        yield str(number), "a" * 100

write_pairs(records(), sys.argv[1])
"""


@pytest.mark.parametrize("old", [None, "old"])
def test_what_a_killed_process_has_begun_is_never_read(tmp_path, old):
    """It has a name that no reader of text takes; an older file is as it was."""
    path = tmp_path / "train.jsonl"
    if old is not None:
        write_pairs([(old, old)], path)
    source = str(Path(gapless.nmt.__file__).parents[2])

    done = subprocess.run(
        [sys.executable, "-c", KILLED, path], env={**os.environ, "PYTHONPATH": source}
    )

    begun = [file for file in tmp_path.iterdir() if file != path]
    assert done.returncode == -signal.SIGKILL
    assert [file.stat().st_size > 0 for file in begun] == [True]
    for place in (tmp_path, path):
        assert files_of_text(place) == ([] if old is None else [path])
        if old is None:
            with pytest.raises(DataError):
                read(place)
        else:
            assert read(place) == [(old, old)]


@pytest.mark.parametrize("old", [None, (("old", "old"),)])
def test_after_a_power_cut_a_file_is_whole_or_not_there(tmp_path, old):
    """Or the older one is; the last thing that is waited for is the new one's name."""
    root, after = tmp_path / "root", tmp_path / "after"
    root.mkdir()
    if old is not None:
        write_pairs(old, root / "train.jsonl.gz")
    # What gzip cannot make smaller than three parts to be torn.
    new = tuple((os.urandom(3_000).hex(), str(number)) for number in range(4))
    disk, found = RecordedDisk(root), set()
    write_pairs(new, root / "train.jsonl.gz", disk=disk)
    for cut in PowerCuts(disk, samples=100):
        after.mkdir()
        put_back(cut, after)
        path = after / "train.jsonl.gz"
        found.add(tuple(read(path)) if path.exists() else None)
        shutil.rmtree(after)

    assert found == {old, new}
    assert disk.operations[-1] == Synced(number=0)
