"""Stores of tokenised pairs, what is kept in their folder, and batches that are cut from them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from gapless.errors import DataError, UserError
from gapless.nmt.data import sampler as sampler_module, selection, token_pairs
from gapless.nmt.data.corpus import load_corpus
from gapless.nmt.data.filters import Filters
from gapless.nmt.data.packed_layout import choose_packed_layout
from gapless.nmt.data.padded_layout import PaddedLayout
from gapless.nmt.data.sampler import MicrobatchSampler, weighted
from gapless.nmt.data.sentences import in_order
from gapless.nmt.data.stores import StoreFolder
from gapless.nmt.data.text_sources import find_corpus
from gapless.nmt.data.token_pairs import TokenPairs


def random_pairs(count, *, seed=1, most=90):
    draw = np.random.default_rng(seed)
    sides = [
        [draw.integers(4, most, length) for length in draw.integers(1, 30, count)]
        for _ in range(2)
    ]
    return TokenPairs(*sides)


def save(stores, pairs, *, name="a", most_ids=100, text=0):
    return stores.save({"version": 1, "name": name}, [(text, pairs)], most_ids=most_ids, files={})


@pytest.mark.parametrize("most_in_memory", [0, 1 << 26])
@pytest.mark.parametrize(("most", "dtype"), [(90, np.uint16), (200_000, np.uint32)])
def test_a_store_holds_the_pairs_that_were_put_into_it(
    tmp_path, monkeypatch, most, dtype, most_in_memory
):
    """In 16 bits a token where they suffice; with the checksum that the same pairs have in memory."""
    monkeypatch.setattr(token_pairs, "_MOST_IN_MEMORY", most_in_memory)
    pairs = random_pairs(50, most=most)
    store = save(StoreFolder(path=tmp_path / "s"), pairs, most_ids=most)

    numbers = np.array([3, 49, 0, 3])
    for found, wanted in zip(store.pairs.take(numbers), pairs.take(numbers), strict=True):
        assert found.ids.tolist() == wanted.ids.tolist()
        assert found.lengths.tolist() == wanted.lengths.tolist()
    assert store.pairs.src.ids.dtype == dtype
    assert store.pairs.checksum() == pairs.checksum()
    assert store.pairs.target_entropy() == pairs.target_entropy()


@pytest.mark.parametrize("most_in_memory", [0, 1 << 26])
def test_pairs_are_sent_to_another_process_whole_or_by_name(tmp_path, monkeypatch, most_in_memory):
    """Small ones as they are, since another host need not have the store; large ones by their files."""
    monkeypatch.setattr(token_pairs, "_MOST_IN_MEMORY", most_in_memory)
    store = save(StoreFolder(path=tmp_path / "s"), random_pairs(50))

    sent = pickle.dumps(store.pairs)

    assert (len(sent) < 1_000) == (most_in_memory == 0)
    assert pickle.loads(sent).checksum() == store.pairs.checksum()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what of a file is in memory")
def test_nothing_of_a_large_store_stays_in_memory(tmp_path, monkeypatch):
    """Neither when all of it was counted, nor what batches were cut from: in an epoch that would be all."""
    monkeypatch.setattr(token_pairs, "_MOST_IN_MEMORY", 0)
    store = save(StoreFolder(path=tmp_path / "s"), random_pairs(9_000))
    store.pairs.target_entropy()
    before = resident(store.path)
    for start in range(0, 9_000, 100):
        store.pairs.take(np.arange(start, start + 100))

    assert before == resident(store.path) == 0


def resident(folder):
    """Return the KiB of files in a folder that this process has mapped and in memory."""
    size, is_one = 0, False
    with Path("/proc/self/smaps").open(encoding="utf-8") as file:
        for line in file:
            if "-" in line.split(" ")[0]:
                is_one = str(folder) in line
            elif is_one and line.startswith("Rss:"):
                size += int(line.split()[1])
    return size


def test_stores_that_were_used_least_lately_make_room(tmp_path):
    """The new one stays in any case, and nothing else in the folder is touched."""
    stores = StoreFolder(path=tmp_path)
    (tmp_path / "mine").mkdir()
    made = [save(stores, random_pairs(200), name=name) for name in "abc"]
    for number, store in enumerate(made):
        os.utime(store.path, (number, number))
    size = stores.list()[0].size
    stores.find({"name": "a"})

    stores.most_bytes = 2.5 * size
    new = save(stores, random_pairs(200), name="d")
    assert {item.path for item in stores.list()} == {new.path, made[0].path}
    stores.most_bytes = 0
    newest = save(stores, random_pairs(200), name="e")
    assert [item.path for item in stores.list()] == [newest.path]
    assert (tmp_path / "mine").is_dir()


def test_a_store_that_another_process_removes_meanwhile_is_left_out(tmp_path):
    """A name whose folder is gone is no error, for a list and for the run that makes room."""
    stores = StoreFolder(path=tmp_path / "stores")
    first = save(stores, random_pairs(20))
    (stores.path / "0123456789abcdef").symlink_to(tmp_path / "gone")

    second = save(stores, random_pairs(20), name="b")

    assert {item.path for item in stores.list()} == {first.path, second.path}


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_left_alone(tmp_path):
    """A living writer holds a lock on what it writes."""
    from gapless.checkpoint.lock import FolderLock

    left = [tmp_path / f".{'0' * 16}.{number}.tmp" for number in (1, 2)]
    for folder in left:
        folder.mkdir()
    with FolderLock(left[1]):
        save(StoreFolder(path=tmp_path), random_pairs(5))

    assert [folder.exists() for folder in left] == [False, True]


def test_a_store_that_cannot_be_written_leaves_nothing(tmp_path):
    """An error of the text on its way ends it."""

    def parts():
        yield 0, random_pairs(5)
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        StoreFolder(path=tmp_path).save({"name": "a"}, parts(), most_ids=9, files={})

    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_stores_is_named(tmp_path):
    """It may be that of the text itself, given to the wrong option."""
    (tmp_path / "p.tsv").write_text("")
    with pytest.raises(UserError, match=r"kept in .*p\.tsv, as .*p\.tsv is a file.*`store`$"):
        save(StoreFolder(path=tmp_path / "p.tsv"), random_pairs(1))


def test_a_place_that_cannot_be_written_is_named_with_the_way_out(tmp_path, monkeypatch):
    """As a home in a container: the folder of the stores is not there yet."""
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path}/stores, .* as `store`$"):
        save(StoreFolder(path=tmp_path / "stores"), random_pairs(5))


# --- large corpora: the same code with its limits made small ---


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_large_corpus_is_laid_out_pool_by_pool(monkeypatch, layout):
    """Each pair is in one batch of an epoch, and only one batch of a pool is not full."""
    pairs = random_pairs(1_000)
    lengths = pairs.src_lengths, pairs.tgt_lengths
    made = {
        "padded": lambda: PaddedLayout(*lengths, max_sentences=10),
        "packed": lambda: choose_packed_layout(*lengths, max_tokens=256),
    }[layout]()
    monkeypatch.setattr(sampler_module, "_POOL", 250)
    sampler = MicrobatchSampler(pairs, made, seed=1)

    seen = np.concatenate([micro.pairs for micro in sampler])

    assert sorted(seen.tolist()) == list(range(1_000))
    if layout == "padded":
        assert len(sampler) == 100


def write(path, rows):
    path.write_text("en\tzh\n" + "".join(f"{src}\t{tgt}\n" for src, tgt in rows), encoding="utf-8")
    return find_corpus(path, src="en", tgt="zh")


@pytest.mark.parametrize("workers", [1, 3])
def test_of_a_large_text_some_sources_stand_for_all(tmp_path, monkeypatch, workers):
    """Pairs are held out of them, all of a source together, and no pair is lost."""
    monkeypatch.setattr(selection, "_MOST_CANDIDATES", 60)
    monkeypatch.setattr(selection, "_MOST_ROWS", 70)
    monkeypatch.setattr("gapless.nmt.data.text_sources.CHUNK", 100)
    rows = [(f"line {n // 2}", f"句{n}") for n in range(1_000)]

    corpus = load_corpus(write(tmp_path / "p.tsv", [*rows, *rows[:9]]), workers=workers)

    parts = [corpus.train.read(), corpus.val, corpus.test]
    assert sorted(tgt for part in parts for tgt in part.tgt) == sorted(
        tgt for _, tgt in [*rows, *rows[:9]]
    )
    sources = [set(part.src) for part in parts]
    assert len(set.union(*sources)) == sum(map(len, sources))
    assert 1 <= len(corpus.val) <= 10
    held_out = len({*rows[:9]} & {*zip(parts[0].src, parts[0].tgt, strict=True)})
    assert corpus.num_repeated == held_out


def test_a_vocabulary_is_made_of_evenly_spaced_pairs(tmp_path, monkeypatch):
    """Of those that may have few enough tokens, counted over all parts of the text."""
    monkeypatch.setattr(selection, "MOST_SAMPLED", 10)
    monkeypatch.setattr("gapless.nmt.data.text_sources.CHUNK", 7)
    (tmp_path / "d").mkdir()
    rows = [(f"{n}" if n % 4 else "long" * 9, "a") for n in range(40)]
    for split, some in (("train", rows), ("val", [("v", "a")]), ("test", [("t", "a")])):
        write(tmp_path / "d" / f"{split}.tsv", some)
    files = find_corpus(tmp_path / "d", src="en", tgt="zh")

    train = load_corpus(files, longest=20).train

    short = [src for src, _ in rows if len(src) <= 20]
    assert train.num_learnable == 30
    assert train.sample.src == short[::3]


def test_work_in_processes_keeps_its_order_and_its_errors():
    """The first error is raised where its item stands."""

    def half(number):
        if number == 70:
            raise DataError("of seventy")
        return number / 2

    done = in_order(half, range(100), workers=3)

    assert [next(done) for _ in range(70)] == [(n, n / 2) for n in range(70)]
    with pytest.raises(DataError, match="of seventy"):
        next(done)


@pytest.mark.parametrize(("count", "processes"), [(1, 0), (2, 2), (50, 5)])
def test_no_more_processes_begin_than_a_small_corpus_has_work_for(count, processes):
    """They are forked all at once, however many cores there are."""
    done = in_order(str, range(count), workers=5)

    assert next(done) == (0, "0")
    assert len(multiprocessing.active_children()) == processes
    assert [result for _, result in done] == [str(n) for n in range(1, count)]


# --- filters and weights ---


def test_words_of_languages_without_spaces_are_characters():
    """A Chinese sentence is one word else."""
    filters = Filters(src="en", tgt="zh", length=(2, 5), ratio=2.0)

    assert filters.why_not("a small cat", "一只小猫") == 0
    assert filters.why_not("a cat", "一只小猫在这里") == 2
    assert filters.why_not("a cat", "一只小猫在") == 3


def test_the_first_reason_counts():
    """The account of all filters adds up."""
    filters = Filters(src="en", tgt="de", length=(2, 5), ratio=2.0)

    assert filters.why_not("a", "\u200b") == 1
    assert filters.why_not("a", "b c d e f g h") == 2
    assert filters.account({2: 5, 3: 1_000}, num_repeated=0) == {
        "filter length": "5 with a side of fewer than 2 or more than 5 words",
        "filter ratio": "1,000 with one side more than 2 times as long as the other",
    }


@pytest.mark.parametrize("weights", [(1.0, 3.0), (0.5, 0.1), (2.0, 2.0)])
def test_an_epoch_has_pairs_in_the_ratio_of_weights(weights):
    """As many as there are, each of a corpus as often as another of it, or once more."""
    numbers = weighted((30, 70), weights, np.random.default_rng(1))

    times = np.bincount(numbers, minlength=100)
    assert len(numbers) == 100
    assert times[:30].sum() == pytest.approx(100 * weights[0] / sum(weights), abs=1)
    assert all(part.max() - part.min() <= 1 for part in (times[:30], times[30:]))


def test_pairs_that_come_again_in_a_batch_order_are_laid_out_as_often(tmp_path):
    """A corpus with a large weight has its pairs more than once in an epoch."""
    pairs = random_pairs(100)
    layout = choose_packed_layout(pairs.src_lengths, pairs.tgt_lengths, max_tokens=128)
    for made in (layout, PaddedLayout(pairs.src_lengths, pairs.tgt_lengths, max_sentences=8)):
        sampler = MicrobatchSampler(pairs, made, counts=(10, 90), weights=(1, 1), seed=1)
        seen = np.bincount(np.concatenate([micro.pairs for micro in sampler]), minlength=100)
        assert seen[:10].tolist() == [5] * 10
        assert seen[10:].sum() == 50
