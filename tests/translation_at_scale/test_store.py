"""Text is tokenised once into a store: checksummed, the same for any number of workers, listed and removed."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from translation_at_scale.corpora import pairs, write_folder, write_tsv
from translation_at_scale.harness import SUBWORDS, TINY, WORDS, losses, weights
from translation_at_scale.spelling import (
    STORE_IS_DAMAGED,
    STORE_IS_FOUND,
    STORE_IS_MADE,
    list_stores,
    names_of_stores,
    remove_store,
    store_in,
    store_workers,
)


BRIEF = [*WORDS, "--max-steps", 3, "--max-length", 20]
SHORT = [*WORDS, "--max-steps", 12, "--max-length", 20, "--val-interval", 1]


def files(folder):
    """Return the bytes of all files in a folder, by their paths."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def same_run(one, other):
    """Whether two runs had the same losses and end with the same weights, to the last bit."""
    return losses(one) == losses(other) and weights(one) == weights(other)


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(WORDS, id="words"),
        pytest.param(SUBWORDS, id="subwords", marks=pytest.mark.slow),
    ],
)
def test_any_number_of_workers_makes_the_same_store(gapless, tmp_path, tokens):
    """One worker and three write the same files, and training has the same bits."""
    data = write_tsv(tmp_path / "pairs.tsv", pairs(3_000))
    for count in (1, 3):
        options = [*tokens, *store_in(f"stores{count}"), *store_workers(count), "--max-steps", 5]
        ended = gapless.train(data, f"run{count}", *options)
        assert STORE_IS_MADE.search(ended.out)

    assert files(tmp_path / "stores1") != {}
    assert files(tmp_path / "stores1") == files(tmp_path / "stores3")
    assert same_run(tmp_path / "run1", tmp_path / "run3")


def test_a_second_run_takes_the_store_that_is_there(gapless, table, tmp_path):
    """Another seed and other epochs are the same text: nothing is written, and the same command has the same bits."""
    made = gapless.train(table, "first", *SHORT, *store_in("stores"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "stores").rglob("*")}
    again = gapless.train(table, "again", *SHORT, *store_in("stores"))
    other = gapless.train(table, "other", *SHORT, *store_in("stores"), "--seed", 7)

    assert STORE_IS_MADE.search(made.out)
    for ended in (again, other):
        assert STORE_IS_FOUND.search(ended.out)
        assert not STORE_IS_MADE.search(ended.out)
    stores = [path for path in (tmp_path / "stores").rglob("*") if path.suffix != ".lock"]
    assert {path: path.stat().st_mtime_ns for path in stores if path.is_file()} == {
        path: when for path, when in before.items() if path.is_file() and path.suffix != ".lock"
    }
    assert same_run(tmp_path / "first", tmp_path / "again")


def test_changed_text_is_not_the_stored_text(gapless, table, tmp_path):
    """After one word has changed, training sees the new text, and the list has both stores."""
    gapless.train(table, "before", *SHORT, *store_in("stores"))
    text = table.read_text()
    table.write_text(text.replace("katze", "maus"))
    ended = gapless.train(table, "after", *SHORT, *store_in("stores"))
    gapless.train(table, "fresh", *SHORT, *store_in("others"))

    assert STORE_IS_MADE.search(ended.out)
    assert same_run(tmp_path / "after", tmp_path / "fresh")
    assert len(names_of_stores(gapless(*list_stores("stores")).out)) == 2


def test_stores_are_listed_and_removed(gapless, tmp_path):
    """The list names each store with its text and pairs; one that is removed is gone from list and disk."""
    for seed, name in enumerate(("one", "two")):
        data = write_tsv(tmp_path / f"{name}.tsv", pairs(150, seed=seed))
        gapless.train(data, f"run-{name}", *SHORT, *store_in("stores"))
    listed = gapless(*list_stores("stores")).out
    first, second = names_of_stores(listed)
    size = len(files(tmp_path / "stores"))
    gapless(*remove_store(first, "stores"))

    assert "one.tsv" in listed
    assert "two.tsv" in listed
    assert names_of_stores(gapless(*list_stores("stores")).out) == [second]
    assert len(files(tmp_path / "stores")) < size
    gapless.fails(*remove_store(first, "stores")).check_refused(first)


@pytest.mark.parametrize("harm", ["flipped", pytest.param("cut", marks=pytest.mark.slow)])
def test_a_damaged_store_is_named_and_made_anew(gapless, table, tmp_path, harm):
    """Of each file of a store one byte is changed, or the last one lost: the run says which, and trains as before."""
    gapless.train(table, "first", *SHORT, *store_in("stores"))
    whole = files(tmp_path / "stores")
    harmed = [name for name, content in whole.items() if content]
    for number, name in enumerate(harmed):
        path, content = tmp_path / "stores" / name, whole[name]
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
        path.write_bytes(flipped if harm == "flipped" else content[:-1])
        ended = gapless.train(table, f"run{number}", *SHORT, *store_in("stores"))

        said = [line for line in (ended.out + ended.err).splitlines() if path.name in line]
        assert any(STORE_IS_DAMAGED.search(line) for line in said), (name, ended.out)
        assert same_run(tmp_path / "first", tmp_path / f"run{number}")
        assert files(tmp_path / "stores")[name] == content
    assert harmed != []


@pytest.mark.slow  # Tokenises 30,000 pairs again and again.
def test_a_run_that_is_killed_while_it_stores_can_be_started_again(gapless, tmp_path):
    """Killed at several moments, then started again: the store is that of a run which was not, and nothing is left over."""
    data = write_tsv(tmp_path / "pairs.tsv", pairs(30_000, most=10))
    options = [*BRIEF, *store_workers(2)]
    gapless.train(data, "whole", *options, *store_in("stores"))
    whole, size = files(tmp_path / "stores"), total(tmp_path / "stores")
    for share in (0, 0.3, 0.7, 0.95):
        least = share * size
        running = gapless.start(
            *("train", "--data", data, "--run-dir", "killed", *TINY, *options),
            *store_in("killed-stores"),
        )
        running.until(
            lambda least=least: total(tmp_path / "killed-stores") > least, what="storing"
        )
        running.send_all(signal.SIGKILL)
        running.end()
        shutil.rmtree(tmp_path / "killed", ignore_errors=True)
    gapless.train(data, "restarted", *options, *store_in("killed-stores"))

    assert files(tmp_path / "killed-stores") == whole
    assert same_run(tmp_path / "whole", tmp_path / "restarted")


def total(folder):
    """Return the bytes of all files in a folder; files and folders may be renamed or removed meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += Path(parent, name).stat().st_size
    return size


@pytest.mark.parametrize(
    "removed",
    [
        pytest.param(False, id="store-kept"),
        pytest.param(True, id="store-removed", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_from_the_store_with_the_same_bits(gapless, table, tmp_path, removed):
    """Killed between two saved states, with its store or without: losses and weights as if nothing had been."""
    options = [*WORDS, "--max-steps", 60, "--save-every", 8, "--val-interval", 2]
    gapless.train(table, "whole", *options, *store_in("stores"))
    running = gapless.start(
        *("train", "--data", table, "--run-dir", "killed", *TINY, *options),
        *store_in("stores"),
    )
    saved = tmp_path / "killed" / "checkpoints"
    running.until(lambda: any(saved.glob("step-*")), what="a saved state")
    running.send_all(signal.SIGKILL)
    running.end()
    if removed:
        for name in names_of_stores(gapless(*list_stores("stores")).out):
            gapless(*remove_store(name, "stores"))
    ended = gapless("train", "--resume", "killed")

    said = STORE_IS_MADE if removed else STORE_IS_FOUND
    assert said.search(ended.out)
    assert same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow  # Reads 150,000 pairs.
def test_memory_does_not_grow_with_the_text(gapless, tmp_path):
    """Of 300,000 pairs more, which lists add 104 MiB for, a run needs 60 MiB at most, and to store them 80."""
    made, found = [], []
    for count in (2_000, 302_000):
        rows = pairs(count, most=12)
        held_out, train = rows[:20], rows[20:]
        data = write_folder(tmp_path / str(count), train=train, val=held_out, test=held_out)
        options = [*BRIEF, *store_in("stores")]
        made.append(gapless.train(data, f"made{count}", *options, real=True).out)
        found.append(gapless.train(data, f"found{count}", *options, real=True).out)

    assert all(STORE_IS_FOUND.search(printed) for printed in found)
    assert peak_of(found[1]) - peak_of(found[0]) <= 60
    assert peak_of(made[1]) - peak_of(made[0]) <= 80


def peak_of(printed):
    """Return the MiB of memory that a run says it has needed at most."""
    return int(printed.split("peak memory ")[1].split(" MiB")[0].replace(",", ""))
