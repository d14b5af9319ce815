"""Reading parallel text: each accepted form, what is refused and with which words, and what is held out."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from gapless.errors import DataError
from gapless.nmt.data.corpus import load_corpus
from gapless.nmt.data.text_files import is_blank, read_lines
from gapless.nmt.data.text_sources import files_of_text, find_corpus, load_split


PAIRS = [
    ("A cat sat here.", "一只猫坐在这里。"),
    ('He said: "no", twice.', "他说：“不”，两次。"),
    ("It costs 1,234.50 dollars 😀", "价格是１２３４元！"),
    ("a\u2028b\x85c d", "一 二 三"),
]
EN = "".join(f"{src}\n" for src, _ in PAIRS)
ZH = "".join(f"{tgt}\n" for _, tgt in PAIRS)
TSV = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)
OBJECTS = [{"id": n, "en": src, "zh": tgt} for n, (src, tgt) in enumerate(PAIRS)]
NESTED = [{"id": 1, "translation": item} for item in OBJECTS]


def quoted(rows):
    return "".join(
        ",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) + "\n" for row in rows
    )


def lines(items):
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


def write(folder, files):
    """Write files, each packed by gzip if its name says so."""
    for name, text in files.items():
        raw = text if isinstance(text, bytes) else text.encode()
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)


def read(path, *, split="train", src="en", tgt="zh", columns=None):
    found = load_split(path, split=split, src=src, tgt=tgt, columns=columns)
    return None if found is None else list(zip(found.src, found.tgt, strict=True))


def corpus_of(path, *, src="en", tgt="zh", columns=None, **options):
    return load_corpus(find_corpus(path, src=src, tgt=tgt, columns=columns), **options)


# What is in the folder, what is named with --data in it, and other options.
ACCEPTED = {
    "two files": ({"train.en": EN, "train.zh": ZH}, "", {}),
    "two files, packed": ({"train.en.gz": EN, "train.zh.gz": ZH}, "", {}),
    "one of two packed": ({"train.en": EN, "train.zh.gz": ZH}, "", {}),
    "other capitals": ({"Train.EN": EN, "Train.Zh": ZH}, "", {}),
    "the begin of names": ({"news.en": EN, "news.zh": ZH, "newsletter.en": "no"}, "news", {}),
    "the begin of names of splits": ({"a.train.en": EN, "a.train.zh": ZH, "a.test.en": "x"}, "a", {}),
    "the name of a split": ({"train.en": EN, "train.zh": ZH}, "train", {}),
    "the begin of names with a point": ({"news.v16.en": EN, "news.v16.zh": ZH}, "news.v16", {}),
    "the begin of a folder's name too": ({"news.en": EN, "news.zh": ZH, "news19/a": ""}, "news", {}),
    "marks in both files": ({"train.en": f"\ufeff{EN}", "train.zh": f"\ufeff{ZH}"}, "", {}),
    "the ends of lines of Windows in one": ({"train.en": EN.replace("\n", "\r\n"), "train.zh": ZH}, "", {}),
    "no end of the last line": ({"train.en": EN[:-1], "train.zh": ZH}, "", {}),
    "endings as codes with scripts": ({"train.en_US": EN, "train.zh-Hans": ZH}, "", {}),
    "endings of three letters": ({"train.eng": EN, "train.zho": ZH}, "", {}),
    "a text beside it in another form": (
        {"train.en": EN, "train.zh": ZH, "train.lc.tok.en": "no", "train.lc.tok.zh": "no"},
        "",
        {},
    ),
    "that form by its whole ending": (
        {"train.en": "no", "train.zh": "no", "train.lc.en": EN, "train.lc.zh": ZH},
        "",
        {"src": "lc.en", "tgt": "lc.zh"},
    ),
    "a TSV with a header": ({"train.tsv": f"en\tzh\n{TSV}"}, "", {}),
    "a TSV with a mark": ({"train.tsv": f"\ufeffen\tzh\n{TSV}"}, "", {}),
    "a TSV with the ends of lines of Windows": ({"p.tsv": f"en\tzh\n{TSV}".replace("\n", "\r\n")}, "p.tsv", {}),
    "a TSV with empty lines": ({"p.tsv": f"en\tzh\n\n{TSV}\n\n"}, "p.tsv", {}),
    "a TSV with the columns named": ({"p.tsv.gz": TSV}, "p.tsv.gz", {"columns": ("en", "zh")}),
    "a TSV with a header and the columns named": (
        {"p.tsv": f"English\t中文\n{TSV}"},
        "p.tsv",
        {"columns": ("en", "zh")},
    ),
    "columns that are not read": (
        {"p.tsv": "".join(f"1\t{src}\t{tgt}\tby me\n" for src, tgt in PAIRS)},
        "p.tsv",
        {"columns": ("_", "en", "zh")},
    ),
    "columns over a header with two of one language": (
        {"p.tsv": "en\tzh\tzh\n" + "".join(f"{src}\tno\t{tgt}\n" for src, tgt in PAIRS)},
        "p.tsv",
        {"columns": ("en", "_", "zh")},
    ),
    "a header in other capitals": ({"p.tsv": f"EN\tZh\n{TSV}"}, "p.tsv", {}),
    "a header that is wrong": ({"p.tsv": f"zh\ten\n{TSV}"}, "p.tsv", {"src": "zh", "tgt": "en"}),
    "a header in the other order": (
        {"p.csv": quoted([("zh", "id", "en"), *((tgt, "1", src) for src, tgt in PAIRS)])},
        "p.csv",
        {},
    ),
    "a header of names": ({"p.tsv": f"English\tChinese\n{TSV}"}, "p.tsv", {}),
    "names as options": ({"p.tsv": f"en\tzh\n{TSV}"}, "p.tsv", {"src": "Englisch", "tgt": "中文"}),
    "columns by their own names": (
        {"p.tsv": f"source\ttarget\n{TSV}"},
        "p.tsv",
        {"src": "source", "tgt": "target"},
    ),
    "a CSV": ({"train.csv.gz": quoted([("en", "zh"), *PAIRS])}, "", {}),
    "a CSV with spaces": ({"p.csv": quoted([("en", "zh"), *PAIRS]).replace('","', '", "')}, "p.csv", {}),
    "a CSV with the ends of lines of Windows": (
        {"p.csv": quoted([("en", "zh"), *PAIRS]).replace("\n", "\r\n")}, "p.csv", {}),
    "a CSV with ends of lines in its cells": (
        {"p.csv": quoted([("en", "zh"), *PAIRS]).replace(" ", "\n")}, "p.csv", {}),
    "a JSON list of objects": ({"train.json": json.dumps(OBJECTS)}, "", {}),
    "a JSON list of pairs": ({"train.json": json.dumps(PAIRS)}, "", {"columns": ("en", "zh")}),
    "JSON under translation": ({"p.json": json.dumps(NESTED)}, "p.json", {}),
    "JSON lines": ({"train.jsonl.gz": lines(OBJECTS)}, "", {}),
    "JSON lines with a mark": ({"p.jsonl": f"\ufeff{lines(OBJECTS)}"}, "p.jsonl", {}),
    "JSON lines under translation": ({"p.jsonl": f"{lines(NESTED)}\n"}, "p.jsonl", {"columns": ("a", "b")}),
}  # fmt: skip


@pytest.mark.parametrize(("files", "data", "options"), ACCEPTED.values(), ids=ACCEPTED)
def test_every_form_holds_the_same_pairs(tmp_path, files, data, options):
    """Whatever the form, the pairs are those that were written, character by character."""
    write(tmp_path, files)

    assert read(tmp_path / data if data else tmp_path, **options) == PAIRS


BEGIN = r"does not say which column is 'en' and which is 'zh'.*begins with line 1: 'a cat' \| '猫'"
ROWS = "a cat\t猫\na dog\t狗\na cow\t牛\n"
# What is in the folder, what is named, other options, and what the error must say.
REFUSED = {
    "no header": ({"p.tsv": ROWS}, "p.tsv", {}, rf"p\.tsv {BEGIN}; line 2: .*; line 3: .*`columns=en,zh`.*`src` and `tgt`"),
    "half a header": ({"p.tsv": "en\tb\nc\td\n"}, "p.tsv", {}, "none is 'zh'.*Name two of its columns 'en' \\| 'b' with `src` and `tgt`"),
    "columns of other languages": ({"p.tsv": ROWS}, "p.tsv", {"columns": ("en", "_", "de")}, "Name two of 'en', 'de' with `src` and `tgt`"),
    "semicolons": ({"p.csv": "en;zh\na;b\n"}, "p.csv", {}, "Its first row is one column; write a comma between two"),
    "one column": ({"p.tsv": "en zh\na b\n"}, "p.tsv", {}, "Its first row is one column; write a tab between two"),
    "two columns of one name": ({"p.tsv": "en\ten\tzh\n" * 2}, "p.tsv", {}, "several are 'en'"),
    "two columns of one language": ({"p.tsv": "en\tzh-CN\tzh-TW\n" * 2}, "p.tsv", {}, "several are 'zh'"),
    "another script": ({"p.tsv": "en\tzh-Hans\n" * 2}, "p.tsv", {"tgt": "zh-Hant"}, "none is 'zh-Hant'"),
    "one column for both": ({"p.tsv": "en\tzh\n" * 2}, "p.tsv", {"src": "Chinese"}, "both 'Chinese' and 'zh' would be 'zh'"),
    "one name for both": ({"p.tsv": "en\tzh\n" * 2}, "p.tsv", {"src": "zh"}, "are both 'zh'; give both `src` and `tgt`"),
    "columns without a side": ({"p.tsv": ROWS}, "p.tsv", {"columns": ("de", "zh")}, "`columns=de,zh` names none that can be 'en'"),
    "columns against the header": ({"p.tsv": "zh\ten\n猫\tcat\n"}, "p.tsv", {"columns": ("en", "zh")}, "its header names other columns.*Give `columns` in the order of the header"),
    "a header alone": ({"p.tsv": "en\tzh\n"}, "p.tsv", {}, "no pair under its header"),
    "a missing tab": ({"p.tsv": "en\tzh\na\tb\nc d\n"}, "p.tsv", {}, "line 3 has 1 column, expected 2 or more: 'c d'"),
    "too few columns": ({"p.tsv": "x\ty\n"}, "p.tsv", {"columns": ("_", "en", "zh")}, "line 1 has 2 columns, expected 3 or more"),
    "a quote that nobody closes": ({"p.csv": 'en,zh\na,b\n"c,d\ne,f\n'}, "p.csv", {}, "line 3 is not CSV.*written twice"),
    "a quote that is closed much later": ({"p.csv": 'en,zh\n"a cat,b\n' + "c,d\n" * 200 + 'a dog",e\n'}, "p.csv", {}, "line 2: a row goes on for 202 lines, expected 100 at most; close its quote"),
    "a key that is missing later": ({"p.json": '[{"en":"a","zh":"b"},{"en":"c","de":"d"}]'}, "p.json", {}, "item 2 has no 'zh', as the first one has, but 'en', 'de'"),
    "keys of other names": ({"p.jsonl": '{"input": "a", "output": "b"}\n'}, "p.jsonl", {}, "none is 'en'.*input: 'a' \\| output: 'b'.*keys 'input', 'output' with `src` and `tgt`"),
    "a number for a text": ({"p.jsonl": '{"en":"a","zh":7}\n'}, "p.jsonl", {}, "line 1 holds 7, expected text"),
    "a lone surrogate": ({"p.jsonl": '{"en":"a","zh":"\\ud800"}\n'}, "p.jsonl", {}, "line 1 is not Unicode text"),
    "an object and a list": ({"p.json": '[{"en":"a","zh":"b"},["c","d"]]'}, "p.json", {}, "item 2 is not a pair as the first one is"),
    "a list and an object": ({"p.json": '[["a","b"],{"en":"a"}]'}, "p.json", {"columns": ("en", "zh")}, "item 2 is not a pair as the first one is"),
    "a text as a pair": ({"p.json": '["a b"]'}, "p.json", {}, "item 1 is 'a b', expected a pair"),
    "an object in JSON": ({"p.json": '{"data": []}'}, "p.json", {}, "no JSON list of pairs"),
    "lines in JSON": ({"p.json": lines(OBJECTS)}, "p.json", {}, "line 2 is not JSON.*ending .jsonl"),
    "a list in JSON lines": ({"p.jsonl": "[\n1]\n"}, "p.jsonl", {}, "line 1 is not JSON.*ending .json if"),
    "half a line of JSON": ({"p.jsonl": '{"en":"a","zh":"b"}\n{"en":"c\n'}, "p.jsonl", {}, "line 2 is not JSON: Unterminated string starting at column 7"),
    "deep JSON": ({"p.json": "[" * 100_000}, "p.json", {}, "is no JSON of pairs"),
    "an empty list": ({"p.json": "[]"}, "p.json", {}, "holds no pair"),
    "an empty file": ({"p.tsv": ""}, "p.tsv", {}, "is empty, expected one sentence a line"),
    "another encoding": ({"p.tsv": b"en\tzh\n" + "狗".encode("gbk")}, "p.tsv", {}, r"p\.tsv is not UTF-8: byte 0xb9 at offset 6, line 2; convert it"),
    "another encoding, packed": ({"p.tsv.gz": b"en\tzh\n" + "狗".encode("gbk")}, "p.tsv.gz", {}, r"p\.tsv\.gz is not UTF-8: .*line 2"),
    "UTF-16 without a mark": ({"p.tsv": "en\tde\na\tb\n".encode("utf-16-le")}, "p.tsv", {}, "holds a zero byte, line 1, as UTF-16 does"),
    "half an archive": ({"p.tsv": gzip.compress(TSV.encode())[:-9]}, "p.tsv", {}, "is not a whole gzip file"),
    "another ending": ({"p.xlsx": "any"}, "p.xlsx", {}, r"ends in \.xlsx, expected \.tsv, \.csv, \.json, \.jsonl"),
    "fewer lines": ({"train.en": "a\nb\n", "train.zh": "c\n"}, "", {}, r"train\.en has 2 lines, but .*train\.zh has 1"),
    "fewer lines of a validation set": ({"train.en": EN, "train.zh": ZH, "val.en": "a\nb\n", "val.zh": "c\n"}, "", {}, r"val\.en has 2 lines, but .*val\.zh has 1"),
    "carriage returns": ({"train.en": "a\nb\nc\n", "train.zh": "d\re\rf\n"}, "", {}, r"train\.zh is one line with 2 carriage returns"),
    "some carriage returns": ({"train.en": "a\nb\nc\n", "train.zh": "d\re\nf\n"}, "", {}, r"has 2; .*train\.zh has 1 carriage returns within"),
    "one side": ({"train.en": EN, "train.de": EN}, "", {}, r"has train\.en, expected both train\.en and train\.zh"),
    "one side of a test set": ({"train.en": EN, "train.zh": ZH, "test.zh": ZH}, "", {}, r"has test\.zh, expected both test\.en and test\.zh"),
    "one side by the begin of names": ({"news.en": EN}, "news", {}, r"has news\.en, expected both news\.en and news\.zh"),
    "a validation set alone": ({"val.en": EN, "val.zh": ZH}, "", {}, r"has no train\.en and train\.zh.*it holds val\.en, val\.zh"),
    "empty sides": ({"train.en": "", "train.zh": ""}, "", {}, r"train\.en is empty"),
    "two training texts": ({"train.tsv": TSV, "train.en": EN, "train.zh": ZH}, "", {}, r"several training texts: train\.en and train\.zh, train\.tsv; join them"),
    "parts": ({"train-00000-of-00002.tsv": TSV, "train-00001-of-00002.tsv": TSV}, "", {}, "several training texts: train-00000-of-00002.tsv, train-00001"),
    "parts with a point": ({"train.tsv": TSV, "train.2.tsv": TSV}, "", {}, r"several training texts: train\.tsv, train\.2\.tsv"),
    "no training text": ({"corpus.tsv": TSV, "testimony.en": EN}, "", {}, r"has no train\.en and train\.zh, nor train\.tsv.*it holds corpus\.tsv, testimony\.en; name"),
    "an empty folder": ({"a/b": ""}, "a/c", {}, "a/c does not exist"),
    "nothing of that name": ({"newsletter.en": EN, "newsletter.zh": ZH}, "news", {}, "news does not exist"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "data", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_named(tmp_path, files, data, options, said):
    """One error says what was found and where, and what to give."""
    write(tmp_path, files)

    with pytest.raises(DataError) as caught:
        corpus_of(tmp_path / data if data else tmp_path, **options)

    assert re.search(said, str(caught.value), re.DOTALL)


def test_rows_that_are_shown_are_cut_to_width(tmp_path):
    """A sentence of a thousand words does not fill the screen, nor do a thousand columns."""
    write(tmp_path, {"p.tsv": "\t".join(["word " * 1000] * 1000) + "\n"})

    with pytest.raises(DataError) as caught:
        read(tmp_path / "p.tsv")

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to(path.parent / "absent"), "is a link that leads nowhere"),
        (os.mkfifo, "is a pipe or a device"),
    ],
)
def test_what_is_no_file_is_named(tmp_path, make, said):
    """A pipe would be read to its end by the first look at it."""
    make(tmp_path / "p.tsv")

    with pytest.raises(DataError, match=f"p.tsv {said}"):
        read(tmp_path / "p.tsv")


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    """Lines to translate come from a file."""
    with pytest.raises(DataError, match="is a folder, expected a text file"):
        read_lines(tmp_path)


@pytest.fixture
def without_langcodes(monkeypatch):
    """Let an import of `langcodes` fail, as where it is not installed."""
    from gapless.nmt.data.languages import find_language

    find_language.cache_clear()
    for name in ("langcodes", "language_data"):
        monkeypatch.setitem(sys.modules, name, None)
    yield
    find_language.cache_clear()


@pytest.mark.parametrize(
    ("header", "src", "tgt"),
    [("en\tzh", "en", "zh"), ("en-US\tzh_CN", "en", "zh"), ("English\t中文", "English", "中文")],
)
def test_plain_columns_need_no_table_of_languages(tmp_path, without_langcodes, header, src, tgt):
    """Codes and a column's own name are read where `langcodes` cannot be imported."""
    write(tmp_path, {"p.tsv": f"{header}\n{TSV}"})

    assert read(tmp_path / "p.tsv", src=src, tgt=tgt) == PAIRS


def test_names_of_languages_need_one(tmp_path, without_langcodes):
    """Without `langcodes` a name that is no column and no plain code says what reads it."""
    write(tmp_path, {"p.tsv": f"en\tzh\n{TSV}"})

    with pytest.raises(DataError, match="none of en, zh is 'Chinese', and langcodes"):
        read(tmp_path / "p.tsv", tgt="Chinese")


# --- lines ---


INVISIBLE = ["", " ", "\u00a0", "\u3000", "\u200b", "\ufeff", "\u2060", "\u200d\u200c", "\u00ad",
             "\u3164", "\u2800", "\ufe0f", "\x1f", "\u200b \u3000\ufeff", "\u2028"]  # fmt: skip


@pytest.mark.parametrize("text", INVISIBLE, ids=ascii)
@pytest.mark.parametrize("side", [0, 1])
def test_a_line_that_nobody_sees_is_no_sentence(tmp_path, text, side):
    """Its pair is left out of training, and counted; what holds a letter beside such signs stays."""
    rows = [[f"{text}a{n}", f"b{n}{text}"] for n in range(30)]
    rows[7][side] = text
    write(tmp_path, {f"train.{name}": "".join(f"{row[n]}\n" for row in rows) for n, name in enumerate(("en", "zh"))})  # fmt: skip

    corpus = corpus_of(tmp_path)

    assert is_blank(text)
    assert corpus.dropped_empty == 1
    assert len(corpus.train) + len(corpus.val) + len(corpus.test) == 29


@pytest.mark.parametrize(
    "text", [".", "一", "e\u0301", "👍\ufe0f", "\u200ba", "\u1160ㅏ"], ids=ascii
)
def test_a_sign_that_is_seen_is_text(text):
    """Accents and selectors beside letters are parts of them."""
    assert not is_blank(text)


def test_null_in_json_is_an_empty_side(tmp_path):
    """It is left out as other empty sides are."""
    items = [{"en": f"a{n}", "zh": None if n == 3 else f"b{n}"} for n in range(20)]
    write(tmp_path, {"p.json": json.dumps(items)})

    assert corpus_of(tmp_path / "p.json").dropped_empty == 1


def test_pairs_without_text_alone_are_refused(tmp_path):
    """Nothing is left to train on."""
    write(tmp_path, {"p.tsv": "en\tzh\na\t\u200b\n \tb\n"})

    with pytest.raises(DataError, match="holds no training pair with text on both sides"):
        corpus_of(tmp_path / "p.tsv")


def test_empty_lines_of_scored_text_stay_and_are_told(tmp_path):
    """Translations of a test set are compared line by line."""
    write(tmp_path, {"train.tsv": TSV, "test.tsv": "a\t甲\n\u200b\t乙\n", "val.tsv": TSV})

    corpus = corpus_of(tmp_path, columns=("en", "zh"))

    assert corpus.test.src == ["a", "\u200b"]
    assert [note for note in corpus.notes if "no text on one side" in note] == [
        "1 of 2 test pairs have no text on one side, and count in scores"
    ]


def test_lines_end_in_line_feeds_alone(tmp_path):
    """Other separators of Unicode may stand in a sentence; the last line may have no end."""
    write(tmp_path, {"a": "\ufeffa\u2028b\x0bc\r\n\n\ufeffd\x85e"})

    assert read_lines(tmp_path / "a") == ["a\u2028b\x0bc", "", "d\x85e"]


# --- splits ---


@pytest.mark.parametrize(
    ("split", "name"),
    [*(("val", name) for name in ("val", "valid", "validation", "dev", "Val", "dev2010", "val_a")),
     *(("test", name) for name in ("test", "test_2016_flickr", "test2016", "TEST-b"))],
)  # fmt: skip
def test_splits_have_the_names_that_people_give(tmp_path, split, name):
    """Others often carry a year or a source beside it."""
    write(tmp_path, {"train.en": "a\n", "train.zh": "b\n", f"{name}.en.gz": EN, f"{name}.zh": ZH})

    assert read(tmp_path, split=split) == PAIRS


@pytest.mark.parametrize("name", ["value", "testimony", "device", "my_test", "eval"])
def test_words_that_begin_alike_are_no_splits(tmp_path, name):
    """A split that is not there is held out."""
    write(tmp_path, {"train.tsv": TSV, f"{name}.tsv": TSV})

    assert [read(tmp_path, split=split) for split in ("val", "test")] == [None, None]


def test_of_several_test_sets_the_plain_one_is_read_and_told(tmp_path):
    """A test set in two files is never made of two."""
    names = ("test_2018", "test", "test_2016", "test_2017")
    write(tmp_path, {"train.tsv": TSV} | {f"{name}.tsv": f"en\tzh\n{name}\tb\n" for name in names})
    write(tmp_path, {"test_2015.en": "a\n", "test_2014.zh": "b\n"})

    found = load_split(tmp_path, split="test", src="en", tgt="zh")

    assert found.src == ["test"]
    assert found.notes == (
        "test.tsv is read as the test text, and test_2016.tsv, test_2017.tsv, test_2018.tsv is not",
    )


def test_of_several_corpora_the_first_one_is_scored_and_the_others_are_told(tmp_path):
    """Whoever adds a corpus sees that its validation pairs are not read."""
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        write(folder, {f"{split}.tsv": TSV for split in ("train", "val", "test")})

    folders = (tmp_path / "a", tmp_path / "b")
    found = find_corpus(*folders, src="en", tgt="zh", columns=("en", "zh"))

    assert [text.files for text in found.train] == [
        (tmp_path / name / "train.tsv",) for name in "ab"
    ]
    for split, text in found.scored.items():
        assert text.files == (tmp_path / "a" / f"{split}.tsv",)
        assert text.notes == (
            f"{tmp_path}/a/{split}.tsv is read as the {split} text, and {tmp_path}/b/{split}.tsv is not",
        )
        assert set(text.notes) <= set(load_corpus(found).notes)


def test_files_of_text_are_those_of_splits(tmp_path):
    """Ranks on several hosts compare them before they train."""
    write(
        tmp_path,
        {"train.en": "", "dev.en.gz": "", "notes.md": "", "model.bin": "", "p.train.en": ""},
    )

    assert [path.name for path in files_of_text(tmp_path)] == ["dev.en.gz", "train.en"]
    assert [path.name for path in files_of_text(tmp_path / "p")] == ["p.train.en"]
    assert files_of_text(tmp_path / "notes.md") == [tmp_path / "notes.md"]
    assert files_of_text(tmp_path / "absent") == files_of_text(tmp_path / "a" / "b") == []


def load(folder, rows, *, seed=0):
    write(folder, {"p.tsv": "".join(f"{src}\t{tgt}\n" for src, tgt in rows)})
    return corpus_of(folder / "p.tsv", columns=("en", "zh"), seed=seed)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(3, (1, 1, 1)), (20, (18, 1, 1)), (100, (91, 5, 4)), (24_000, (22_000, 1_000, 1_000))],
)
def test_each_missing_split_gets_a_twentieth(tmp_path, count, sizes):
    """At least one pair and at most a thousand."""
    corpus = load(tmp_path, [(f"s{n}", f"句{n}") for n in range(count)])

    assert (len(corpus.train), len(corpus.val), len(corpus.test)) == sizes
    assert corpus.held_out == ("val", "test")


def test_only_what_is_missing_is_held_out(tmp_path):
    """A split that is there is read whole."""
    write(tmp_path, {"train.tsv": "".join(f"a{n}\tb{n}\n" for n in range(40)), "dev.tsv": TSV})

    corpus = corpus_of(tmp_path, columns=("en", "zh"))

    assert (len(corpus.train), len(corpus.val), len(corpus.test)) == (38, 4, 2)
    assert corpus.held_out == ("test",)


def test_a_frequent_sentence_does_not_swell_a_split(tmp_path):
    """A source that makes up most of the corpus stays in train, for any seed."""
    rows = [("yes", f"是{n}") for n in range(900)] + [(f"s{n}", f"句{n}") for n in range(100)]

    for seed in range(10):
        corpus = load(tmp_path, rows, seed=seed)

        assert corpus.train.read().src.count("yes") == 900
        assert max(len(corpus.val), len(corpus.test)) <= 50


@given(
    sources=st.lists(
        st.sampled_from(["a", " A", "ａ", "\u200ba ", "b", "c", "d", "e\u3000", "E"]), min_size=3
    ).filter(lambda sources: len({text.strip("\u200b \u3000").casefold() for text in sources} - {"ａ"}) > 2),
    seed=st.integers(0, 3),
)  # fmt: skip
def test_no_source_is_in_two_splits(tmp_path_factory, sources, seed):
    """Sources that differ in capitals, forms of characters and spaces alone stay together; no pair is lost."""
    rows = [(source, f"句{n}") for n, source in enumerate(sources)]

    corpus = load(tmp_path_factory.mktemp("d"), rows, seed=seed)
    parts = [corpus.train.read(), corpus.val, corpus.test]
    owners = {}
    for part in parts:
        for source in part.src:
            plain = source.replace("ａ", "a").strip("\u200b \u3000").casefold()
            assert owners.setdefault(plain, id(part)) == id(part)

    assert all(map(len, parts))
    assert Counter(tgt for part in parts for tgt in part.tgt) == Counter(tgt for _, tgt in rows)


def test_which_pairs_are_held_out_is_pinned(tmp_path):
    """A run that is resumed must find the pairs that it began with."""
    rows = [(f"Line {n % 70}" if n % 3 else f"LINE {n % 70} ", f"句{n}") for n in range(200)]

    held_out = {seed: load(tmp_path, rows, seed=seed).val.tgt for seed in (0, 1)}

    assert held_out == {
        0: [f"句{n}" for n in (26, 41, 66, 96, 111, 136, 166, 181)],
        1: [f"句{n}" for n in (11, 28, 39, 81, 98, 109, 151, 168, 179)],
    }


def test_too_few_sentences_to_hold_out_are_refused(tmp_path):
    """The line names what is missing."""
    with pytest.raises(
        DataError, match="no val or test split and only 2 different source sentences"
    ):
        load(tmp_path, [("a", "b"), ("c", "d"), ("a", "e")])


@pytest.mark.parametrize(("count", "is_told"), [(0, False), (2, False), (3, True)])
def test_a_test_set_that_is_trained_on_is_told(tmp_path, count, is_told):
    """A few sentences occur in any text."""
    rows = [f"a{n}\tb{n}\n" for n in range(40)]
    others = [f"c{n}\td{n}\n" for n in range(40 - count)]
    write(tmp_path, {"train.tsv": "".join(rows), "val.tsv": "x\ty\n", "test.tsv": "".join([*others, *rows[:count]]).upper()})  # fmt: skip

    notes = corpus_of(tmp_path, columns=("en", "zh")).notes

    assert (
        any(f"{count} of 40 test sources are training sources too" in note for note in notes)
        == is_told
    )


def test_pairs_that_repeat_others_are_counted(tmp_path):
    """They are trained on all the same."""
    corpus = load(tmp_path, [("a", "b")] * 5 + [(f"s{n}", "t") for n in range(30)])

    assert corpus.num_repeated + corpus.val.src.count("a") + corpus.test.src.count("a") == 4
