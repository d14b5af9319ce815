"""Tests of reading parallel text: sets of one name, held-out pairs, broken files."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import subprocess
import zipfile
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from gapless.errors import DataError
from gapless.nmt.data.corpus import Corpus, load_corpus, load_split
from gapless.nmt.data.text_files import read_lines, read_text


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


Rows = list[tuple[str, str]]
PACKED = gzip.compress(bytes(range(256)) * 4)


def write_sides(folder: Path, name: str, rows: Rows) -> None:
    """Write the two text files of one split."""
    (folder / f"{name}.en").write_text("".join(f"{en}\n" for en, _ in rows), "utf-8")
    (folder / f"{name}.zh").write_text("".join(f"{zh}\n" for _, zh in rows), "utf-8")


def write_table(folder: Path, rows: Rows) -> Path:
    """Write pairs as one TSV file."""
    path = folder / "p.tsv"
    path.write_text("".join(f"{en}\t{zh}\n" for en, zh in rows), "utf-8")
    return path


def rows_of(path: Path, split: str) -> Rows:
    """Return one split as tuples."""
    pairs = load_split(path, split=split, src="en", tgt="zh")
    assert pairs is not None
    return list(zip(pairs.src, pairs.tgt, strict=True))


def load(path: Path, *, seed: int = 0) -> Corpus:
    """Return the corpus in a path."""
    return load_corpus(path, src="en", tgt="zh", seed=seed)


def refusal(path: Path) -> str:
    """Return the message with which a corpus is refused, which must be one line."""
    with pytest.raises(DataError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("split", "half", "whole"), [("test", "test_2016", "test_2017"), ("val", "val", "dev")]
)
def test_both_sides_come_from_one_set(tmp_path: Path, split: str, half: str, whole: str) -> None:
    """A side without its partner is never paired with the other side of another set."""
    (tmp_path / f"{half}.en").write_text("alone\n")
    write_sides(tmp_path, whole, [("six", "六")])

    assert rows_of(tmp_path, split) == [("six", "六")]


def test_a_test_set_named_just_test_wins_in_any_form(tmp_path: Path) -> None:
    """Text files named exactly `test` come before a table of a longer name."""
    write_sides(tmp_path, "test", [("six", "六")])
    (tmp_path / "test_2016.tsv").write_text("other\t别\n", "utf-8")

    assert rows_of(tmp_path, "test") == [("six", "六")]


@pytest.mark.parametrize(("count", "sizes"), [(3, (1, 1, 1)), (100, (91, 5, 4))])
def test_held_out_sizes(tmp_path: Path, count: int, sizes: tuple[int, int, int]) -> None:
    """Each split is 5 % of what is left, at least 1; three sources are enough."""
    corpus = load(write_table(tmp_path, [(f"s{n}", f"句{n}") for n in range(count)]))

    assert sizes == (len(corpus.train), len(corpus.val), len(corpus.test))


def test_held_out_splits_have_at_most_a_thousand_pairs(tmp_path: Path) -> None:
    """Of a large corpus each split gets 1000 pairs."""
    corpus = load(write_table(tmp_path, [(f"s{n}", f"句{n}") for n in range(24_000)]))

    assert (len(corpus.val), len(corpus.test)) == (1_000, 1_000)


def test_a_frequent_sentence_does_not_swell_a_split(tmp_path: Path) -> None:
    """A source that makes up most of the corpus stays in train, for any seed."""
    rows = [("yes", f"是{n}") for n in range(900)] + [(f"s{n}", f"句{n}") for n in range(100)]
    path = write_table(tmp_path, rows)

    for seed in range(40):
        corpus = load(path, seed=seed)

        assert corpus.train.src.count("yes") == 900
        assert max(len(corpus.val), len(corpus.test)) <= 50


@given(
    sources=st.lists(
        st.sampled_from(["a", " a", "a ", "b", "c", "d", "e\u3000", "e"]), min_size=3
    ).filter(lambda sources: len({source.strip() for source in sources}) >= 3),
    seed=st.integers(0, 3),
)
def test_no_source_is_in_two_splits(
    tmp_path_factory: pytest.TempPathFactory, sources: list[str], seed: int
) -> None:
    """Sources equal up to outer space stay together, no pair is lost, no split is empty."""
    rows = [(source, f"句{n}") for n, source in enumerate(sources)]

    corpus = load(write_table(tmp_path_factory.mktemp("d"), rows), seed=seed)
    parts = [corpus.train, corpus.val, corpus.test]
    found = [{line.strip() for line in part.src} for part in parts]

    assert all(found)
    assert len(set().union(*found)) == sum(map(len, found))
    assert Counter(rows) == Counter(
        pair for part in parts for pair in zip(part.src, part.tgt, strict=True)
    )


def test_too_few_sources_names_both_missing_splits(tmp_path: Path) -> None:
    """The message has the count of the file, and names both files to add."""
    path = write_table(tmp_path, [("a", "一"), (" a", "二"), ("b", "三")])

    message = refusal(path)

    assert f"{path} has no val or test split and only 2 different source sentences" in message
    assert "expected 3 or more; add a val file and add a test file" in message


def test_a_text_under_the_key_translation_is_no_nested_pair(tmp_path: Path) -> None:
    """An object whose `translation` is text is read by its own keys."""
    path = tmp_path / "p.json"
    path.write_text('[{"en": "six", "zh": "六", "translation": "human"}]', "utf-8")

    assert rows_of(path, "train") == [("six", "六")]


@pytest.mark.parametrize("item", ['{"translation": "b"}', '{"translation": null}', "7", "null"])
def test_a_json_item_that_is_no_pair(tmp_path: Path, item: str) -> None:
    """The message names the file, the item, and the keys that a pair needs."""
    path = tmp_path / "p.json"
    path.write_text(f'[["a", "一"], {item}]', "utf-8")

    message = refusal(path)

    assert f"{path} item 1 is not a pair" in message
    assert "an object with the keys 'en' and 'zh'" in message


def test_an_empty_json_file_is_said_to_be_empty(tmp_path: Path) -> None:
    """An empty file is called empty, and not broken JSON at some line and column."""
    path = tmp_path / "p.json"
    path.write_bytes(b"")

    assert f"{path} is empty, expected a JSON list of pairs" == refusal(path)


@pytest.mark.parametrize(
    ("name", "part"), [("pairs", "nothing known"), ("p.gz", ".gz"), ("a.txt", ".txt")]
)
def test_an_unknown_ending(tmp_path: Path, name: str, part: str) -> None:
    """The message names the ending found and those accepted."""
    path = tmp_path / name
    path.write_text("a\t一\n", "utf-8")

    assert f"{path} ends in {part}, expected .tsv, .csv, .json, .jsonl (each also" in refusal(path)


@pytest.mark.parametrize("ending", [".xlsx", ".XLS", ".ods"])
def test_a_workbook_is_to_be_exported(tmp_path, ending):
    """Another ending would not make it text."""
    path = tmp_path / f"pairs{ending}"
    path.write_bytes(b"PK")

    assert refusal(path).endswith("; export it as CSV in UTF-8")


def test_an_offset_counts_the_byte_order_mark(tmp_path: Path) -> None:
    """Offsets are those of the unpacked bytes, with the mark that is dropped from the text."""
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfabc\r\nd\xffe\n"))

    with pytest.raises(DataError, match="is not UTF-8: byte 0xff at offset 9, line 2"):
        read_lines(path)


# Named, because an archive holds the time at which it was made.
@pytest.mark.parametrize(
    "raw",
    [PACKED[:-9], PACKED[:5], PACKED[:40] + bytes(8) + PACKED[48:]],
    ids=["its end is missing", "hardly begun", "damaged within"],
)
def test_a_broken_archive(tmp_path: Path, raw: bytes) -> None:
    """The message names an archive that is cut off or damaged."""
    path = tmp_path / "p.tsv.gz"
    path.write_bytes(raw)

    assert f"{path} is not a whole gzip file" in refusal(path)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    """A folder cannot be read as text."""
    with pytest.raises(DataError, match="is a folder, expected a text file"):
        read_lines(tmp_path)


HOUSES = [
    (f"the {n} houses", f"die {n} Häuser") for n in ("two", "old", "red", "new", "wide", "low")
]


def write_split(folder: Path, name: str, rows: list[tuple[str, ...]]) -> None:
    """Write the rows of a split as a TSV file."""
    (folder / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")


@pytest.mark.parametrize(
    ("header", "order"),
    [
        (("de", "en"), (1, 0)),
        (("id", "de", "en"), (1, 0)),
        (("de", "id", "en"), (1, 0)),
        (("id", "en", "de"), (0, 1)),
    ],
)
@pytest.mark.parametrize("split", ["val", "test"])
def test_a_split_without_a_header_has_the_order_of_the_training_file(
    tmp_path: Path, header: tuple[str, ...], order: tuple[int, int], split: str
) -> None:
    """Two columns, and as many as have names there; who reads them otherwise than by order is told."""
    rows = [tuple({"en": en, "de": de, "id": "7"}[name] for name in header) for en, de in HOUSES]
    write_split(tmp_path, "train", [header, *rows])

    for found in (rows, [(row[order[0]], row[order[1]]) for row in HOUSES]):
        write_split(tmp_path, split, found)
        corpus = load_corpus(tmp_path, src="en", tgt="de", checks=True)
        pairs = getattr(corpus, split)
        told = [note for note in corpus.notes if "has no names of columns" in note]
        at = [found[0].index(side) for side in HOUSES[0]]
        assert list(zip(pairs.src, pairs.tgt, strict=True)) == HOUSES
        assert len(told) == (at != [0, 1])
        assert all(f"column {at[0] + 1} 'en' and column {at[1] + 1} 'de'" in note for note in told)


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        # What only one of the files has, or only some rows.
        (("id", "en", "de", "by"), lambda en, de, n: ("7", en, de)),
        (("en", "de"), lambda en, de, n: (en, de, "")),
        (("en", "de"), lambda en, de, n: (en, de, "CC-BY by ann")),
        (("en", "de"), lambda en, de, n: (en, de, "stray") if n == 1 else (en, de)),
        (("en", "de", "score", "by"), lambda en, de, n: (en, de, "0.5")),
        (("id", "en", "de"), lambda en, de, n: (en, de, "CC-BY by ann")),
        # The order in which people write pairs, and not that of the training file.
        (("de", "en"), lambda en, de, n: (en, de)),
        (("en", "de"), lambda en, de, n: (de, en)),
    ],
)
def test_the_text_tells_the_columns_of_a_split_without_a_header(
    tmp_path: Path, header: tuple[str, ...], rows: Callable[[str, str, int], tuple[str, ...]]
) -> None:
    """The sides are where words are those of the training text."""
    named = [{"en": en, "de": de, "id": "7", "score": "1", "by": "me"} for en, de in HOUSES]
    write_split(
        tmp_path, "train", [header, *(tuple(one[name] for name in header) for one in named)]
    )
    write_split(tmp_path, "test", [rows(en, de, n) for n, (en, de) in enumerate(HOUSES)])

    corpus = load_corpus(tmp_path, src="en", tgt="de", checks=True)

    assert list(zip(corpus.test.src, corpus.test.tgt, strict=True)) == HOUSES


TURNED = [row[::-1] for row in HOUSES]


def write_sides_in(folder: Path, name: str, rows: list[tuple[str, ...]]) -> None:
    """Write English and German text files of one split."""
    for number, side in enumerate(("en", "de")):
        (folder / f"{name}.{side}").write_text(
            "".join(f"{row[number]}\n" for row in rows), "utf-8"
        )


@pytest.mark.parametrize("train", ["two files", "no header", "JSON lists", "JSON objects"])
@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("form", ["tsv", "json"])
def test_a_split_without_names_has_the_order_of_any_training_text(
    tmp_path: Path, train: str, split: str, form: str
) -> None:
    """In whatever form that is, and whether or not it names its sides."""
    if train == "two files":
        write_sides_in(tmp_path, "train", HOUSES)
    elif train == "no header":
        write_split(tmp_path, "train", HOUSES)
    else:
        items = [[en, de] if train == "JSON lists" else {"de": de, "en": en} for en, de in HOUSES]
        (tmp_path / "train.json").write_text(json.dumps(items), "utf-8")
    path = tmp_path / f"{split}.{form}"
    for rows in (TURNED, HOUSES):
        write_split(tmp_path, split, rows)
        if form == "json":
            (tmp_path / f"{split}.tsv").unlink()
            path.write_text(json.dumps(rows), "utf-8")
        corpus = load_corpus(tmp_path, src="en", tgt="de", checks=True)
        pairs = getattr(corpus, split)
        told = [note for note in corpus.notes if f"{path} has no names of columns" in note]
        assert list(zip(pairs.src, pairs.tgt, strict=True)) == HOUSES
        assert len(told) == (rows == TURNED)
        advice = "objects with keys" if form == "json" else "begin it with a header"
        assert all(f"{advice} if that is wrong" in note for note in told)


@pytest.mark.parametrize("form", ["two files", "header", "columns"])
def test_a_split_with_the_words_of_the_other_sides_is_refused(tmp_path: Path, form: str) -> None:
    """Names say which side is which, and the training text says that they are wrong."""
    write_split(tmp_path, "train", HOUSES if form == "columns" else [("en", "de"), *HOUSES])
    if form == "two files":
        write_sides_in(tmp_path, "test", TURNED)
    else:
        write_split(tmp_path, "test", TURNED if form == "columns" else [("en", "de"), *TURNED])
    columns = ("en", "de") if form == "columns" else None

    with pytest.raises(
        DataError, match=r"sides of the test pairs of .* are exchanged: their source"
    ):
        load_corpus(tmp_path, src="en", tgt="de", columns=columns, checks=True)
    notes = load_corpus(tmp_path, src="en", tgt="de", columns=columns).notes
    assert any(
        note.startswith("the sides of the test pairs seem to be exchanged") for note in notes
    )


def test_a_split_of_a_model_of_both_directions_is_not_called_exchanged(tmp_path: Path) -> None:
    """Tags say the direction of a row, and most of the training text may be of the other one."""
    rows = [(f"e{one} e{one}{one}", f"d{one} d{one}{one}") for one in "abcdefghij"]
    there = [(f"<2de> {en}", de) for en, de in rows]
    back = [(f"<2en> {de}", en) for en, de in rows]
    write_split(tmp_path, "train", [("en", "de"), *there, *back[:3]])
    write_split(tmp_path, "test", [("en", "de"), *back])

    corpus = load_corpus(tmp_path, src="en", tgt="de", checks=True)

    assert corpus.test.tgt == [en for en, _ in rows]


def test_a_training_file_that_cannot_be_read_says_nothing_of_the_test_set(tmp_path: Path) -> None:
    """Whoever scores a split may have anything beside it."""
    (tmp_path / "train.tsv").write_bytes(b"")
    write_split(tmp_path, "test", HOUSES)

    found = load_split(tmp_path, split="test", src="en", tgt="de")

    assert found is not None
    assert list(zip(found.src, found.tgt, strict=True)) == HOUSES


SENTENCES = [(f"Number {n} is red.", f"{n}号是红的。") for n in range(60)]


def mixed(count: int) -> list[tuple[str, str]]:
    """Return sentences of which the last are the other way round."""
    return [*SENTENCES[: 60 - count], *((zh, en) for en, zh in SENTENCES[60 - count :])]


@pytest.mark.parametrize("count", [15, 30, 29])
def test_files_joined_in_both_directions_are_refused(tmp_path: Path, count: int) -> None:
    """The count and the first lines are named, in a table and in two files, and a flag reads them."""
    write_split(tmp_path, "train", [("en", "zh"), *mixed(count)])
    for file in (0, 1):
        if file:
            (tmp_path / "train.tsv").unlink()
            write_sides(tmp_path, "train", mixed(count))
        with pytest.raises(DataError) as caught:
            load_corpus(tmp_path, src="en", tgt="zh", checks=True)
        first = 60 - count + 2 - file
        assert f"{count} of 60 rows of {tmp_path / 'train'}" in str(caught.value)
        assert f"such as line {first}, line {first + 1}, line {first + 2}: " in str(caught.value)
        assert "the source side looks Chinese, and the target side is written in Latin" in str(
            caught.value
        )
        notes = load_corpus(tmp_path, src="en", tgt="zh", checks=False).notes
        assert any(f"{count} of 60 rows of " in note for note in notes)


TAGGED = [row for en, zh in SENTENCES[:30] for row in ((f"<2zh> {en}", zh), (f"<2en> {zh}", en))]
SERBIAN = [(f"Dobar dan, kuća {n}.", f"Добар дан, кућа {n}.") for n in range(20)]


@pytest.mark.parametrize(
    ("sides", "rows"),
    [
        (("en", "zh"), TAGGED),
        (("sr", "bs"), SERBIAN + [row[::-1] for row in SERBIAN]),
    ],
)
def test_what_is_meant_to_have_both_directions_is_read(
    tmp_path: Path, sides: tuple[str, str], rows: list[tuple[str, str]]
) -> None:
    """Sources that say into which language, and languages that are written in either script."""
    write_split(tmp_path, "train", rows)

    corpus = load_corpus(tmp_path, src=sides[0], tgt=sides[1], checks=True)

    assert not any("other way round" in note for note in corpus.notes)


def test_the_names_of_the_sides_tell_which_rows_are_wrong(tmp_path: Path) -> None:
    """Not what most rows are; a test set of both directions is only told of."""
    write_split(tmp_path, "train", [*((zh, en) for en, zh in SENTENCES), *SENTENCES[:30]])
    with pytest.raises(
        DataError, match=r"60 of 90 rows of .* than `src` and `tgt` say, such as line 1,"
    ):
        load_corpus(tmp_path, src="en", tgt="zh", checks=True)

    write_split(tmp_path, "train", SENTENCES)
    write_split(tmp_path, "test", mixed(30))
    notes = load_corpus(tmp_path, src="en", tgt="zh", checks=True).notes
    assert any("30 of 60 rows of " in note for note in notes)


def test_few_rows_the_other_way_round_are_told(tmp_path: Path) -> None:
    """A few among many are no reason to refuse the others; fewer are not worth a line."""
    many = [(f"{en[:-1]}, {n}.", zh) for n in range(10) for en, zh in SENTENCES]
    for count in (4, 5):
        write_split(tmp_path, "train", [*many, *((zh, en) for en, zh in SENTENCES[:count])])
        notes = load_corpus(tmp_path, src="en", tgt="zh", checks=True).notes
        assert [f"5 of 605 rows of {tmp_path / 'train.tsv'} are" in n for n in notes] == [True] * (
            count == 5
        )


@pytest.mark.parametrize(
    ("name", "is_test"),
    [
        *(("test_2016", True), ("test2016", True), ("test-a", True), ("tests", True)),
        *(("testset_b", True), ("testimony", False), ("testament_1", False), ("tester", False)),
        *(("testA", True), ("testnews", True), ("testen", True), ("testcorpus", True)),
    ],
)
def test_a_word_that_begins_like_test_is_no_test_set(
    tmp_path: Path, name: str, is_test: bool
) -> None:
    """Text of any other kind may lie in the folder."""
    write_split(tmp_path, name, HOUSES)

    assert (load_split(tmp_path, split="test", src="en", tgt="de") is not None) == is_test


COMMANDS = {"bz2": "bzip2 -dc", "xz": "xz -dc", "zst": "zstd -dc", "zip": "unzip -p"}


@pytest.mark.parametrize(
    "name", ["train.tsv.bz2", "train.zip", "val.en.xz", "test_2016.zh.zst", "dev.csv.zip"]
)
def test_files_that_must_be_unpacked_are_named(tmp_path: Path, name: str) -> None:
    """Otherwise pairs would be held out in their place, or nothing be found."""
    (tmp_path / name).write_bytes(b"any")
    if not name.startswith("train"):
        write_sides(tmp_path, "train", [(f"a b {n}", f"{n}号") for n in range(10)])

    packed = tmp_path / name
    unpack = (
        f"unpack it, such as by {COMMANDS[packed.suffix[1:]]} {packed} > {packed.with_suffix('')}"
    )
    assert f"{packed} is packed, expected text or gzip; {unpack}" in refusal(tmp_path)
    assert unpack in refusal(packed)


@pytest.mark.parametrize(
    ("inside", "unpacked"),
    [(["a.tsv"], "p.tsv"), (["a.csv", "x/b.csv"], "p.csv"), (["a.en", "a.zh"], "p")],
)
def test_what_is_unpacked_keeps_the_ending_of_the_files_inside(
    tmp_path: Path, inside: list[str], unpacked: str
) -> None:
    """By it the next command reads the file; of several endings none is right."""
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for name in inside:
            archive.writestr(name, "any")

    assert refusal(tmp_path / "p.zip").endswith(f"{tmp_path / 'p.zip'} > {tmp_path / unpacked}")


@pytest.mark.parametrize("name", ["test_images.zip", "val.zip", "test.d.7z/x"])
def test_an_archive_beside_the_text_is_no_text(tmp_path: Path, name: str) -> None:
    """One that may hold a split is told of; pairs are held out."""
    write_split(tmp_path, "train", SENTENCES)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"any")

    corpus = load_corpus(tmp_path, src="en", tgt="zh", checks=True)

    assert len(corpus.val) == 3
    told = [note.split(" is packed and not read")[0] for note in corpus.notes if "packed" in note]
    assert told == [f"{tmp_path / name}"] * (name == "val.zip")


def test_unpacking_as_told_gives_the_text(tmp_path: Path) -> None:
    """Whatever the name of the file is."""
    path = tmp_path / "my pairs.tsv"
    path.write_bytes(bz2.compress(b"a b\tc d\n" * 9))
    found = re.search("such as by (.*)$", refusal(path))
    assert found is not None

    subprocess.run(found[1], shell=True, check=True)

    assert (tmp_path / "unpacked-my pairs.tsv").read_bytes() == b"a b\tc d\n" * 9


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
def test_a_packed_file_of_another_name_is_told(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """By its first bytes: a name may lack the ending."""
    path = tmp_path / "p.tsv"
    path.write_bytes(pack(b"a\tb\n" * 9))

    assert "is packed as ." in refusal(path)
    assert "expected text or gzip; unpack it, such as by " in refusal(path)


@pytest.mark.parametrize("num", range(8, 12))
def test_zeros_in_utf_8_make_no_utf_16(tmp_path: Path, num: int) -> None:
    """As where each line ends in one, and all lines have an even number of bytes."""
    path = tmp_path / "p.tsv"
    path.write_bytes("".join(f"abc{n % 10}\t车\x00\n" for n in range(num)).encode())

    assert read_lines(path) == [f"abc{n % 10}\t车\x00" for n in range(num)]


def test_text_that_begins_as_a_packed_file_does_is_text(tmp_path: Path) -> None:
    """A few letters are no proof."""
    path = write_table(tmp_path, [("BZhanov came.", "布赞诺夫来了。")])

    assert read_lines(path) == ["BZhanov came.\t布赞诺夫来了。"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    "row", ["Number {} is red.\t{}号是红的。\n", "One {}.\tEin {}.\n", "{}号在一桌子上\t红{}的\n"]
)
def test_a_wide_encoding_without_a_mark_is_named(tmp_path: Path, encoding: str, row: str) -> None:
    """Text in Latin letters would be read, with a zero beside each letter, and other text as GBK."""
    path = tmp_path / "p.tsv"
    path.write_bytes("".join(row.format(n, n) for n in range(40)).encode(encoding))

    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    assert f"is {name} without a mark that says so, expected UTF-8; convert it" in refusal(path)
    assert f"iconv -f {name} -t UTF-8" in refusal(path)


def test_a_stray_zero_is_a_character_like_others(tmp_path: Path) -> None:
    """Also at the end of every line, it is no sign of another encoding."""
    path = tmp_path / "p.tsv"
    for text in ("\0a\tb\n" * 5, "x" + "".join(f"a{n}\tb\0\n" for n in range(10, 51))):
        path.write_text(text, "utf-8")
        assert len(read_lines(path)) == text.count("\n")


def test_text_that_was_unpacked_under_way(tmp_path: Path) -> None:
    """Some downloads unpack a file and leave its name."""
    path = tmp_path / "p.tsv.gz"
    path.write_bytes("en\tzh\na cat\t一只猫\n".encode())

    assert read_text(path) == "en\tzh\na cat\t一只猫\n"


def test_an_archive_in_an_archive(tmp_path: Path) -> None:
    """To unpack it once more helps, to convert it to UTF-8 does not."""
    path = tmp_path / "p.tsv.gz"
    path.write_bytes(gzip.compress(PACKED))

    assert f"{path} is packed by gzip twice" in refusal(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.tsv", "a cat,一只猫\na dog,一只狗\n", "give it the ending .csv if commas do"),
        ("p.json", '{"data": [{"en": "a", "zh": "b"}]}', "holds one JSON object, expected a list"),
    ],
)
def test_text_in_another_form(tmp_path: Path, name: str, text: str, said: str) -> None:
    """The message says what was found and what helps."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")

    assert said in refusal(path)


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.symlink_to(tmp_path / "absent")

    assert f"{path} is a link that leads nowhere" in refusal(path)


# --- parts, and quotes of other kinds ---


SOME_ROWS = [(f"sentence number {at} is here", f"第{at}句话在这里") for at in range(80)]


@pytest.mark.parametrize(
    "parts",
    [
        ["train2.tsv"],
        ["train-00001-of-00002.tsv", "train_part3.csv"],
        ["Train.2.tsv.gz"],
        ["train2.en", "train2.zh"],
    ],
)
def test_parts_beside_the_training_text_are_told(tmp_path, parts):
    """Nobody joins files by chance, nor leaves most of the text out in silence."""
    write_sides(tmp_path, "train", SOME_ROWS)
    for part in parts:
        (tmp_path / part).write_text("a\tb\n", "utf-8")

    (note,) = [note for note in load(tmp_path).notes if "join" in note]
    assert all(part in note for part in parts)
    assert len(load(tmp_path).train.src) < len(SOME_ROWS)


@pytest.mark.parametrize("other", ["training.log", "train.vocab", "trained.tsv", "train.tok.txt"])
def test_other_files_beside_the_training_text_are_no_parts(tmp_path, other):
    write_sides(tmp_path, "train", SOME_ROWS)
    (tmp_path / other).write_text("a\tb\n", "utf-8")

    assert load(tmp_path).notes == ()


def test_parts_without_a_whole_are_to_be_joined(tmp_path):
    """A name for the sides would not help."""
    for at in (1, 2):
        (tmp_path / f"train.{at}.tsv").write_text("a\tb\n", "utf-8")

    assert "join train.1.tsv and the other parts to one file, train.tsv" in refusal(tmp_path)


def test_a_test_set_is_not_to_be_renamed_to_training_text(tmp_path):
    write_sides(tmp_path, "test", SOME_ROWS)

    assert "the names train.en and train.zh" not in refusal(tmp_path)


def test_single_quotes_around_all_cells_are_told(tmp_path):
    """They mark no cell, so that a model would learn them."""
    path = tmp_path / "p.csv"
    rows = [("en", "zh"), *SOME_ROWS]
    path.write_text("".join(f"'{en}','{zh}'\n" for en, zh in rows), "utf-8")

    assert any("single quotes" in note for note in load(path).notes)
    path.write_text("".join(f"{en},'{zh}'\n" for en, zh in rows), "utf-8")
    assert not any("single quotes" in note for note in load(path).notes)


def test_null_is_no_text(tmp_path):
    """Its key is there."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"en": "a cat", "zh": null}\n' * 20, "utf-8")

    assert "or it is null" in refusal(path)
