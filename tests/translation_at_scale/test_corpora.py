"""Text comes from parquet, arrow and `datasets` folders as from a table; pairs are filtered with an account; corpora have weights."""

from __future__ import annotations

import json
import random
import re
import signal

import pytest

from translation_at_scale.corpora import (
    WORDS as DICTIONARY,
    pairs,
    translated,
    write_folder,
    write_tsv,
)
from translation_at_scale.harness import TINY, WORDS, losses, metrics, weights
from translation_at_scale.spelling import (
    DUPLICATES,
    LANGUAGE,
    LANGUAGE_EXTRA,
    LANGUAGE_LIBRARY,
    LENGTH,
    RATIO,
    corpora,
    dropped,
    filter_duplicates,
    filter_language,
    filter_length,
    filter_ratio,
)


SHORT = [*WORDS, "--max-steps", 12, "--max-length", 30, "--val-interval", 1]


# ------------------------------------------------------------------------------- sources


def write_parquet(folder, splits, *, nested=False):
    """Write a parquet file of each split, as datasets on the Hub have them."""
    from pyarrow import parquet

    folder.mkdir()
    for split, rows in splits.items():
        parquet.write_table(table_of(rows, nested=nested), folder / f"{split}.parquet")
    return folder


def write_arrow(folder, splits):
    """Write an arrow file of each split."""
    import pyarrow as pa

    folder.mkdir()
    for split, rows in splits.items():
        table = table_of(rows)
        with pa.ipc.new_file(folder / f"{split}.arrow", table.schema) as file:
            file.write_table(table)
    return folder


def write_saved_dataset(folder, splits):
    """Write what `DatasetDict.save_to_disk` of the library `datasets` leaves: streams of arrow, in two parts."""
    import pyarrow as pa

    names = {"train": "train", "val": "validation", "test": "test"}
    folder.mkdir()
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(names.values())}))
    for split, rows in splits.items():
        part = folder / names[split]
        part.mkdir()
        half = len(rows) // 2
        files = [f"data-0000{number}-of-00002.arrow" for number in (0, 1)]
        for name, some in zip(files, (rows[:half], rows[half:]), strict=True):
            table = table_of(some, nested=True)
            with pa.ipc.new_stream(part / name, table.schema) as stream:
                stream.write_table(table)
        state = {"_data_files": [{"filename": name} for name in files], "_split": names[split]}
        (part / "state.json").write_text(json.dumps(state))
        text = {"dtype": "string", "_type": "Value"}
        features = {"translation": {"en": text, "de": text}}
        (part / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def table_of(rows, *, nested=False):
    """Return pairs as columns, or as one column of translations, which most data sets of pairs have."""
    import pyarrow as pa

    if nested:
        return pa.table({"translation": [{"en": src, "de": tgt} for src, tgt in rows]})
    return pa.table({"en": [src for src, _ in rows], "de": [tgt for _, tgt in rows]})


SOURCES = {
    "parquet": write_parquet,
    "parquet of translations": lambda *given: write_parquet(*given, nested=True),
    "arrow": write_arrow,
    "saved dataset": write_saved_dataset,
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_table_of_arrow_trains_as_text_does(gapless, splits, tmp_path, source):
    """The same pairs in another form give the same bits."""
    pytest.importorskip("pyarrow")
    rows = pairs(240)
    parts = {"train": rows[:200], "val": rows[200:220], "test": rows[220:]}
    data = SOURCES[source](tmp_path / "tables", parts)
    gapless.train(splits, "text", *SHORT)
    gapless.train(data, "tables-run", *SHORT)

    assert losses(tmp_path / "tables-run") == losses(tmp_path / "text")
    assert weights(tmp_path / "tables-run") == weights(tmp_path / "text")


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_one_file_of_arrow_is_split_as_a_table_is(gapless, table, tmp_path, ending):
    """Validation and test pairs are held out of one file as of a table."""
    pytest.importorskip("pyarrow")
    write = {"parquet": write_parquet, "arrow": write_arrow}[ending]
    write(tmp_path / "tables", {"pairs": pairs(400)})
    gapless.train(table, "text", *SHORT)
    gapless.train(tmp_path / "tables" / f"pairs.{ending}", "run", *SHORT)

    assert losses(tmp_path / "run") == losses(tmp_path / "text")


# ------------------------------------------------------------------------------- filters


GOOD = pairs(160, least=3, most=8)
NUM_LONG, NUM_UNEQUAL, NUM_REPEATED = 5, 7, 4


def dirty():
    """Return the good training pairs, and among them pairs that are too long, unequal or repeated."""
    draw = random.Random(3)
    words = sorted(DICTIONARY)
    train = GOOD[:120]
    long = [draw.choices(words, k=25) for _ in range(NUM_LONG)]
    unequal = [draw.choices(words, k=10) for _ in range(NUM_UNEQUAL)]
    bad = [(" ".join(row), " ".join(translated(row))) for row in long]
    bad += [(" ".join(row), " ".join(translated(row[:2]))) for row in unequal]
    bad += train[:NUM_REPEATED]
    mixed = list(train)
    for number, row in enumerate(bad):
        # Never before the first of its like.
        mixed.insert(10 + 9 * number, row)
    return mixed


FILTERS = {
    LENGTH: (filter_length(2, 12), NUM_LONG),
    RATIO: (filter_ratio(2.5), NUM_UNEQUAL),
    DUPLICATES: (filter_duplicates(), NUM_REPEATED),
}


@pytest.fixture
def dirty_splits(tmp_path):
    """Training text with bad pairs, and a test set with one that is too long."""
    long = " ".join(["the"] * 25), " ".join(["das"] * 25)
    return write_folder(
        tmp_path / "dirty", train=dirty(), val=GOOD[120:140], test=[*GOOD[140:], long]
    )


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_says_how_many_pairs_it_drops(gapless, dirty_splits, name):
    """Each filter alone drops what it is for, and says how many; the others say nothing."""
    options, count = FILTERS[name]
    ended = gapless.train(dirty_splits, "run", *SHORT, *options)

    assert dropped(ended.out) == {name: count}
    assert num_training_pairs(ended.out) == len(dirty()) - count


def test_filtered_text_trains_as_clean_text_does(gapless, dirty_splits, tmp_path):
    """With all filters the account adds up, and training has the bits of the same text without the bad pairs."""
    clean = write_folder(tmp_path / "clean", train=GOOD[:120], val=GOOD[120:140], test=GOOD[140:])
    options = [option for options, _ in FILTERS.values() for option in options]
    ended = gapless.train(dirty_splits, "filtered", *SHORT, *options)
    gapless.train(clean, "clean-run", *SHORT)

    assert dropped(ended.out) == {name: count for name, (_, count) in FILTERS.items()}
    assert num_training_pairs(ended.out) == 120
    assert losses(tmp_path / "filtered") == losses(tmp_path / "clean-run")


def test_no_filter_touches_validation_and_test(gapless, dirty_splits, tmp_path):
    """A test pair that is too long for training is translated and scored all the same."""
    gapless.train(dirty_splits, "run", *SHORT, *filter_length(2, 12))

    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test_sentences"] == 21


def test_a_resumed_run_filters_as_it_began(gapless, dirty_splits, tmp_path):
    """Filters are settings of the run: nobody names them again."""
    options = [option for options, _ in FILTERS.values() for option in options]
    gapless.train(dirty_splits, "whole", *SHORT, *options)
    gapless.train(dirty_splits, "run", *SHORT, *options, "--max-steps", 6)
    ended = gapless("train", "--resume", "run", "--max-steps", 12)

    assert num_training_pairs(ended.out) == 120
    assert max(losses(tmp_path / "run")[0]) == 11


def num_training_pairs(printed):
    return int(re.search(r"([\d,]+) training pairs", printed)[1].replace(",", ""))


TWO_LANGUAGES = [
    ("The weather was so bad that we stayed at home all day.", "Das Wetter war so schlecht, dass wir den ganzen Tag zu Hause blieben."),
    ("She has been working in this hospital for eleven years.", "Sie arbeitet seit elf Jahren in diesem Krankenhaus."),
    ("Nobody knew where the children had hidden the key.", "Niemand wusste, wo die Kinder den Schlüssel versteckt hatten."),
    ("My brother wants to buy a new bicycle next week.", "Mein Bruder möchte nächste Woche ein neues Fahrrad kaufen."),
    ("The train to the city leaves every thirty minutes.", "Der Zug in die Stadt fährt alle dreißig Minuten."),
    ("We would like to thank you for your friendly letter.", "Wir möchten uns für Ihren freundlichen Brief bedanken."),
    ("They built the bridge before the war began.", "Sie bauten die Brücke, bevor der Krieg begann."),
    ("He forgot to close the window and it rained inside.", "Er vergaß, das Fenster zu schließen, und es regnete herein."),
]  # fmt: skip


def test_pairs_in_another_language_are_dropped(gapless, tmp_path):
    """Targets that were not translated, and pairs the wrong way round, are counted and not trained on."""
    pytest.importorskip(LANGUAGE_LIBRARY)
    copied = [(source, source.replace(" the ", " the same ")) for source, _ in TWO_LANGUAGES[:3]]
    turned = [(target, source) for source, target in TWO_LANGUAGES[3:5]]
    data = write_folder(
        tmp_path / "data",
        train=[*TWO_LANGUAGES, *copied, *turned],
        val=TWO_LANGUAGES[:2],
        test=TWO_LANGUAGES[2:4],
    )
    ended = gapless.train(data, "run", *SHORT, *filter_language())

    assert dropped(ended.out) == {LANGUAGE: 5}
    assert num_training_pairs(ended.out) == 8


def test_without_the_library_of_languages_one_line_says_what_to_install(gapless, splits):
    """The filter is in an extra, which the error names."""
    absent = f"import sys; sys.modules[{LANGUAGE_LIBRARY!r}] = None"
    options = ["--data", splits, "--run-dir", "run", *TINY, *SHORT, *filter_language()]
    ended = gapless.fails("train", *options, before=absent, real=True)

    ended.check_refused(LANGUAGE_EXTRA)


# ------------------------------------------------------------------------------- weights


def two_corpora(folder):
    """Return a table of 300 pairs of 2 words, and one of 100 pairs of 29."""
    return (
        write_tsv(folder / "short.tsv", pairs(300, least=2, most=2)),
        write_tsv(folder / "long.tsv", pairs(100, least=29, most=29)),
    )


def share_of_long(run):
    """Return the share of pairs of 29 words among all pairs that were trained on, from the tokens of each update.

    With the end mark such a target has 30 tokens, and a short one 3; an update has at most 8 pairs.
    """
    tokens = [int(row["tokens"]) for row in metrics(run, kind="train")]
    long, short = (
        sum(counts) for counts in zip(*(divmod(count, 30) for count in tokens), strict=True)
    )
    return long / (long + short / 3)


@pytest.mark.parametrize("ratio", [(1, 3), (3, 1), (1, 1)])
def test_corpora_are_seen_by_their_weights(gapless, tmp_path, ratio):
    """Whatever the sizes of two corpora, their pairs are seen in the ratio of their weights."""
    short, long = two_corpora(tmp_path)
    data = corpora({short: ratio[0], long: ratio[1]})
    options = [*WORDS, "--batch-size", 8, "--max-steps", 150, "--max-length", 30]
    gapless.train(data, "run", *options, "--val-interval", 100)

    wanted = ratio[1] / sum(ratio)
    assert share_of_long(tmp_path / "run") == pytest.approx(wanted, abs=0.05)


@pytest.mark.slow  # Trains twice.
def test_weighted_corpora_resume_exactly(gapless, tmp_path):
    """A run of two corpora that is killed goes on with the same batches."""
    data = corpora(dict(zip(two_corpora(tmp_path), (1, 3), strict=True)))
    options = [*WORDS, "--batch-size", 8, "--max-steps", 90, "--max-length", 30]
    options += ["--save-every", 20, "--val-interval", 2]
    gapless.train(data, "whole", *options)
    running = gapless.start("train", *data, "--run-dir", "killed", *TINY, *options)
    saved = tmp_path / "killed" / "checkpoints"
    running.until(lambda: any(saved.glob("step-*")), what="a saved state")
    running.send_all(signal.SIGKILL)
    running.end()
    gapless("train", "--resume", "killed")

    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
