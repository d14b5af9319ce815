"""Tests of reading parallel text: every accepted form, and what a line is."""

from __future__ import annotations

import gzip
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gapless.errors import DataError
from gapless.nmt.data.corpus import Pairs, load_corpus, load_split, notes_of_placeholders
from gapless.nmt.data.text_files import decode_text, read_lines


PAIRS = [
    ("A cat sat here.", "一只猫坐在这里。"),
    ('He said: "no", twice.', "他说：“不”，两次。"),
    ("It costs 1,234.50 dollars 😀", "价格是１２３４元！"),
    ("a b c", "一 二 三"),
]
FORMS = ("folder", "tsv", "json", "json-objects", "json-translation", "jsonl", "jsonl-pairs")


def as_pairs(rows):
    return Pairs(src=[src for src, _ in rows], tgt=[tgt for _, tgt in rows])


def as_lines(rows):
    return "".join(f"{row}\n" for row in rows)


def table(form, rows):
    """Return the ending and the text of some pairs in one form of a single file."""
    objects = [{"id": n, "en": src, "zh": tgt} for n, (src, tgt) in enumerate(rows)]
    if form == "tsv":
        return "tsv", as_lines(f"{src}\t{tgt}\tsomebody\t7" for src, tgt in rows)
    if form == "json":
        return "json", json.dumps(rows)
    if form == "json-objects":
        return "json", json.dumps(objects, ensure_ascii=False, indent=1)
    if form == "json-translation":
        return "json", json.dumps([{"id": "x", "translation": item} for item in objects])
    if form == "jsonl":
        return "jsonl", as_lines(json.dumps(item, ensure_ascii=False) for item in objects)
    return "jsonl", as_lines(map(json.dumps, rows)) + "\n"


def write_split(folder, form, rows, *, split="train", packed=False):
    """Write one split of a folder in an accepted form."""
    folder.mkdir(exist_ok=True)
    if form == "folder":
        texts = {"en": as_lines(src for src, _ in rows), "zh": as_lines(tgt for _, tgt in rows)}
    else:
        ending, text = table(form, rows)
        texts = {ending: text}
    for ending, text in texts.items():
        name = f"{split}.{ending}" + (".gz" if packed else "")
        raw = text.encode()
        (folder / name).write_bytes(gzip.compress(raw) if packed else raw)
    return folder


def write_sides(folder, rows, *, split="train", src="en", tgt="zh"):
    folder.mkdir(exist_ok=True)
    for side, name in enumerate((src, tgt)):
        (folder / f"{split}.{name}").write_text(as_lines(row[side] for row in rows), "utf-8")
    return folder


def read(path, **options):
    return load_split(path, split="train", **{"src": "en", "tgt": "zh", **options})


# --- every accepted form ---


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_pairs(tmp_path, form, packed):
    """A folder in any form, plain or packed, gives the pairs as they were written."""
    folder = write_split(tmp_path / "d", form, PAIRS, packed=packed)

    assert as_pairs(PAIRS) == read(folder)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("form", FORMS[1:])
def test_a_file_can_be_named_itself(tmp_path, form, packed):
    """A file in any form of table gives the pairs as they were written."""
    (file,) = write_split(tmp_path / "d", form, PAIRS, packed=packed).iterdir()

    assert as_pairs(PAIRS) == read(file)


@pytest.mark.parametrize("form", ["tsv", "json", "jsonl-pairs"])
def test_columns_name_the_first_two_in_order(tmp_path, form):
    """Where the target comes first, naming the columns puts the sides right."""
    folder = write_split(tmp_path / "d", form, [(tgt, src) for src, tgt in PAIRS])

    assert as_pairs(PAIRS) == read(folder, columns=("zh", "en"))


@pytest.mark.parametrize("form", FORMS)
def test_both_directions_can_be_read(tmp_path, form):
    """Exchanging the names of the sides exchanges the sides."""
    folder = write_split(tmp_path / "d", form, PAIRS)
    columns = None if form in ("folder", "json-objects") else ("en", "zh")

    there = read(folder)
    back = read(folder, src="zh", tgt="en", columns=columns)

    assert (there.src, there.tgt) == (back.tgt, back.src)


@pytest.mark.parametrize(
    "name",
    [
        *("val", "valid", "validation", "dev", "eval", "Dev"),
        *("dev2010", "validation_set", "valid_2016", "val2", "dev-clean", "valset", "devData"),
    ],
)
@pytest.mark.parametrize("form", ["folder", "tsv"])
def test_the_validation_split_has_several_names(tmp_path, form, name):
    """Each usual name of a validation file is found, also with a year or a source beside it."""
    folder = write_split(tmp_path / "d", form, PAIRS, split=name)

    assert as_pairs(PAIRS) == load_split(folder, split="val", src="en", tgt="zh")


@pytest.mark.parametrize("names", [("train.TSV",), ("Train.tsv.GZ",), ("TRAIN.EN", "Train.zh")])
def test_capital_letters_of_a_name_mean_nothing(tmp_path, names):
    """As some systems write the names of files."""
    form = "tsv" if len(names) == 1 else "folder"
    folder = write_split(tmp_path / "d", form, PAIRS, packed=names[0].endswith("GZ"))
    for path, name in zip(sorted(folder.iterdir()), names, strict=True):
        path.rename(folder / name)

    assert as_pairs(PAIRS) == load_split(folder, split="train", src="en", tgt="zh")


def test_names_of_a_published_data_set_are_found(tmp_path):
    """The files of Multi30k's task 1 load as they are named when they are fetched."""
    sides = {"src": "lc.norm.tok.en", "tgt": "lc.norm.tok.de"}
    for split in ("train", "val", "test_2016_flickr"):
        rows = [(f"{split} {n}", f"der {split} {n}") for n in range(3)]
        write_sides(tmp_path, rows, split=split, **sides)

    corpus = load_corpus(tmp_path, **sides)

    assert corpus.train.src == ["train 0", "train 1", "train 2"]
    assert corpus.val.src == ["val 0", "val 1", "val 2"]
    assert corpus.test.tgt[2] == "der test_2016_flickr 2"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["OPUS.de-en.de", "OPUS.de-en.en"],
            "give OPUS.de-en.en and OPUS.de-en.de the names train",
        ),
        (
            ["train.en.txt.gz", "train.de.txt.gz"],
            "give train.en.txt.gz and train.de.txt.gz the names",
        ),
        (
            ["a.en", "a.de", "b.en", "b.de"],
            "a.en and a.de the names train.en and train.de if they are the training text",
        ),
        (["train.cs", "train.fr"], "name the sides with `src` and `tgt`"),
        (["a.en", "b.de"], "write the sides of the training text to train.en and train.de"),
        (["test_2016.en", "test_2016.de"], "the sides of the training text to train.en and"),
        (["train.txt"], "a line `source<tab>target` for each pair to train.tsv"),
        (["en.txt", "de.txt"], "give en.txt and de.txt the names train.en and train.de"),
        (["text_en.txt", "text_de.txt"], "give text_en.txt and text_de.txt the names train.en"),
        (["training.tsv", "valid.tsv"], "give training.tsv the name train.tsv"),
        (["train/part.tsv"], "name the folder {folder}/train itself"),
    ],
)
def test_files_of_published_corpora_are_named(tmp_path, names, said):
    """Which of them are both sides, and what they are to be called."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a\n")

    with pytest.raises(DataError) as caught:
        read(tmp_path, tgt="de")

    assert said.format(folder=tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["value", "device", "develop", "evaluator", "1val", "devtest"])
def test_a_word_that_begins_like_val_is_no_validation_split(tmp_path, name):
    """It is told instead."""
    write_sides(tmp_path, PAIRS, split=name)

    assert load_split(tmp_path, split="val", src="en", tgt="zh") is None


def test_names_of_another_published_data_set_are_found(tmp_path):
    """Those of IWSLT, whose test sets are called tst; of several years the first is read."""
    for n, name in enumerate(("train", "dev2010", "tst2011", "tst2010")):
        write_sides(tmp_path, [(f"{name} {m}", f"{n} {m}") for m in range(3)], split=name)

    corpus = load_corpus(tmp_path, src="en", tgt="zh")

    assert corpus.val.src == [f"dev2010 {n}" for n in range(3)]
    assert corpus.test.src == [f"tst2010 {n}" for n in range(3)]
    (note,) = corpus.notes
    assert "has tst2011.en and tst2011.zh beside tst2010.en and tst2010.zh, and only" in note


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["newstest2019.en", "newstest2019.zh"], "newstest2019.en and newstest2019.zh"),
        (["heldout.tsv"], "heldout.tsv"),
        (["train_dev.jsonl.gz"], "train_dev.jsonl.gz"),
        (["a.tsv", "b.en", "b.zh", "c.csv", "d.json"], "a.tsv, c.csv, d.json and 1 more"),
        # No pairs, one side, other languages, more training text, which has a line of its own.
        *((["notes.csv"], None), (["mono.en"], None), (["x.de", "x.fr"], None)),
        *((["train2.tsv"], None), (["log.tsv"], None), (["vocab.json"], None)),
    ],
)
@pytest.mark.parametrize("has_splits", [True, False])
def test_pairs_that_no_split_reads_are_told(tmp_path, names, told, has_splits):
    """Else pairs are held out of the training text, and nobody sees that the scores are of these."""
    rows = [(f"Dog {n} barks.", f"狗{n}叫。") for n in range(20)]
    for name in ("train", "val", "test")[: 3 if has_splits else 1]:
        write_sides(tmp_path, [(f"{name}: {en}", zh) for en, zh in rows], split=name)
    for name in names:
        text = {
            "log": "".join(f"{n}\t0.{n}\n" for n in range(20)),
            "notes": "one, two\nthree\n",
            "vocab": '{"a": 1}',
        }.get(name.partition(".")[0])
        if text is None and name.endswith((".json", ".jsonl.gz")):
            lines = [json.dumps(row) for row in rows]
            text = f"[{','.join(lines)}]" if name.endswith("json") else "\n".join(lines)
        if text is None:
            separator = "," if name.endswith("csv") else "\t"
            text = "".join(f"{en}{separator}{zh}\n" for en, zh in rows)
        raw = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)

    notes = load_corpus(tmp_path, src="en", tgt="zh").notes

    expected = f"{tmp_path} has {told}, which no split reads; call files of validation pairs val.*"
    assert [note.startswith(expected) for note in notes if "no split" in note] == [True] * (
        told is not None
    )


def test_a_plain_test_file_wins_over_one_with_a_year(tmp_path):
    """`test` is taken before `test_2016`, and of two years the first."""
    write_sides(tmp_path, [("2017", "乙")], split="test_2017")
    write_sides(tmp_path, [("2016", "甲")], split="test_2016")
    first = load_split(tmp_path, split="test", src="en", tgt="zh")
    write_sides(tmp_path, [("plain", "丙")], split="test")
    plain = load_split(tmp_path, split="test", src="en", tgt="zh")

    assert (first.src, plain.src) == (["2016"], ["plain"])


def test_sides_of_two_test_sets_are_not_mixed(tmp_path):
    """Both sides of a test set have one name; those of different years are no translations."""
    write_sides(tmp_path, [("2016", "甲")], split="test_2016")
    write_sides(tmp_path, [("2017", "乙")], split="test_2017")
    (tmp_path / "test_2016.zh").unlink()

    assert as_pairs([("2017", "乙")]) == load_split(tmp_path, split="test", src="en", tgt="zh")


def test_an_absent_split_is_none_and_half_of_one_is_refused(tmp_path):
    """A folder may have no validation split, but not one side of it alone."""
    write_sides(tmp_path, PAIRS)
    assert load_split(tmp_path, split="val", src="en", tgt="zh") is None

    (tmp_path / "val.en").write_text("a\n")
    with pytest.raises(DataError, match=r"no val\.en and val\.zh"):
        load_split(tmp_path, split="val", src="en", tgt="zh")


SENTENCES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t\ufeff"), min_size=1
)
ROWS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=8)


@given(rows=ROWS, form=st.sampled_from(FORMS), packed=st.booleans())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_text_reads_back_as_it_was_written(tmp_path_factory, rows, form, packed):
    """No character but those that end lines and columns means anything in any form."""
    folder = write_split(tmp_path_factory.mktemp("rows"), form, rows, packed=packed)

    assert as_pairs(rows) == read(folder)


# --- what a line is ---


@pytest.mark.parametrize("form", ["folder", "tsv", "jsonl"])
def test_windows_line_ends_are_line_ends(tmp_path, form):
    """A carriage return before the line feed belongs to the line end, in every form."""
    folder = write_split(tmp_path / "d", form, PAIRS)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert as_pairs(PAIRS) == read(folder)


@pytest.mark.parametrize("form", FORMS)
def test_a_byte_order_mark_is_not_text(tmp_path, form):
    """A mark at the beginning of a file is dropped, in every form."""
    folder = write_split(tmp_path / "d", form, PAIRS)
    for path in folder.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert as_pairs(PAIRS) == read(folder)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_other_separators_do_not_end_a_line(tmp_path, form, mark):
    """Separators at which Python's `splitlines` cuts may occur in a sentence."""
    rows = [(f"one{mark}two", f"一{mark}二"), (f"a{mark}", f"{mark}b")]

    assert as_pairs(rows) == read(write_split(tmp_path / "d", form, rows))


def test_empty_lines_and_a_missing_last_line_end_are_kept(tmp_path):
    """Every line counts, so that both sides stay side by side."""
    (tmp_path / "t").write_bytes(b"a\n\n b \n\nc")

    assert read_lines(tmp_path / "t") == ["a", "", " b ", "", "c"]


def test_bytes_that_are_not_utf8_are_named():
    """The first bad byte, its offset and its line are in the message."""
    with pytest.raises(DataError, match=r"^x is not UTF-8: byte 0xff at offset 7, line 3;"):
        decode_text(b"ok\nb\xc3\xa9\n\xff\n", name="x")


GERMAN = "ein schöner Tag für Grüße\n"


@pytest.mark.parametrize(
    ("raw", "advice"),
    [
        (GERMAN.encode("cp1252") * 3, "by iconv -f CP1252 -t UTF-8"),
        ("你好，世界。\n".encode("gbk") * 3, "by iconv -f GBK -t UTF-8"),
        (GERMAN.encode("utf-16"), "by iconv -f UTF-16 -t UTF-8"),
        (GERMAN.encode("utf-32"), "by iconv -f UTF-32 -t UTF-8"),
        ("你好，世界。\n".encode("utf-32") * 3, "by iconv -f UTF-32 -t UTF-8"),
        (
            GERMAN.encode() * 3 + b"ok\n" + GERMAN.encode("cp1252"),
            "3 lines .* UTF-8 and 1 are not",
        ),
    ],
)
def test_the_advice_suits_what_is_not_utf8(raw, advice):
    """A whole file is converted, but not one of which only some lines are bad."""
    with pytest.raises(DataError, match=advice):
        decode_text(raw, name="x")


def test_lines_that_end_in_a_carriage_return_alone_are_refused(tmp_path):
    """The file would be one line."""
    (tmp_path / "t").write_bytes(b"a\tb\rc\td\r")

    with pytest.raises(DataError, match=r"t is one line with 2 carriage returns"):
        read_lines(tmp_path / "t")


# --- what is left out, and held out ---


def test_blank_lines_of_a_table_are_no_pairs(tmp_path):
    """Blank lines between pairs and at the end of a table are skipped."""
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"a{n}\tb{n}\n\n" for n in range(40)) + "  \n", encoding="utf-8")

    corpus = load_corpus(path, src="en", tgt="zh", columns=None, seed=1)

    assert sum(len(split.src) for split in (corpus.train, corpus.val, corpus.test)) == 40
    assert corpus.dropped_empty == 0


def test_pairs_with_an_empty_side_are_dropped_and_counted(tmp_path):
    """Training leaves out pairs without text on a side; validation and test keep theirs."""
    rows = [("a", "一"), ("", "二"), ("c", "  "), ("\u3000", ""), ("e", "五")]
    for split in ("train", "val", "test"):
        write_sides(tmp_path, rows, split=split)

    corpus = load_corpus(tmp_path, src="en", tgt="zh")

    assert as_pairs([rows[0], rows[4]]) == corpus.train
    assert corpus.dropped_empty == 3
    assert (as_pairs(rows), as_pairs(rows)) == (corpus.val, corpus.test)
    assert "3 of 5 test pairs have no text on one side, and count in scores" in corpus.notes


def test_pairs_that_repeat_others_are_counted(tmp_path):
    """Another translation of a source is another pair."""
    rows = [("a", "一"), ("a", "一"), ("a", "二"), ("b", "一")]
    for split, part in (("train", rows), ("val", [("c", "三")]), ("test", [("d", "四")])):
        write_sides(tmp_path, part, split=split)

    corpus = load_corpus(tmp_path, src="en", tgt="zh")

    assert (corpus.num_repeated, corpus.notes) == (1, ())


@pytest.mark.parametrize("seen", ["a29", " a29 ", "A29"])
def test_a_test_set_that_is_trained_on_is_told(tmp_path, seen):
    """Its scores would be those of memory; outer spaces and capitals make no other sentence."""
    rows = [(f"a{n}", f"b{n}") for n in range(40)]
    val = [(seen, "b29"), *rows[30:]]
    for split, part in (("train", rows[:30]), ("val", val), ("test", rows[30:])):
        write_sides(tmp_path, part, split=split)

    (note,) = load_corpus(tmp_path, src="en", tgt="zh").notes

    assert note.startswith("1 of 11 val sources are training sources too")


@pytest.mark.parametrize(
    ("split", "more", "said"),
    [
        (
            "test_2017",
            None,
            "has test_2017.en and test_2017.zh beside test.en and test.zh, and only",
        ),
        (
            "train",
            "train.tsv",
            "has train.en and train.zh beside train.tsv, and only train.tsv is read",
        ),
        (
            "train",
            "train.csv",
            "has train.en and train.zh beside train.csv, and only train.csv is read",
        ),
        (
            "dev",
            None,
            "has dev.en and dev.zh beside val.en and val.zh, and only val.en and val.zh are",
        ),
    ],
)
def test_a_split_that_is_there_twice_is_told(tmp_path, split, more, said):
    """Which text is learned and which scores are of what must not be a guess."""
    rows = [(f"a{n}", f"b{n}") for n in range(30)]
    for name, part in (("train", rows[:10]), ("val", rows[10:20]), ("test", rows[20:])):
        write_sides(tmp_path, part, split=name)
    if more is None:
        write_sides(tmp_path, [("c d", "e")], split=split)
    else:
        text = "en,zh\na b,c\n" if more.endswith("csv") else "a b\tc\n"
        (tmp_path / more).write_text(text)

    (note,) = load_corpus(tmp_path, src="en", tgt="zh").notes

    assert said in note


ENGLISH = [f"The train number {n} is late." for n in range(12)]
CHINESE = [f"第{n}次列车又晚点了。" for n in range(12)]
GERMAN = [f"Der Zug Nummer {n} ist zu spät." for n in range(12)]


def test_a_split_whose_sides_are_exchanged_is_refused(tmp_path):
    """Its scores would be those of the other direction; without checks that is only told."""
    write_sides(tmp_path, list(zip(ENGLISH, CHINESE, strict=True)))
    write_sides(tmp_path, list(zip(CHINESE, ENGLISH, strict=True)), split="val")

    with pytest.raises(DataError, match=r"sides of the val pairs of .* source side looks Chinese"):
        load_corpus(tmp_path, src="en", tgt="zh", checks=True)
    notes = load_corpus(tmp_path, src="en", tgt="zh").notes
    assert notes[0].startswith("the source side of the val pairs looks Chinese")


def test_a_split_in_another_script_is_told(tmp_path):
    """It is another text than the one that is learned."""
    new = [f"{line} Again." for line in ENGLISH]
    for split, src, tgt in (
        ("train", ENGLISH, CHINESE),
        ("val", new, CHINESE),
        ("test", new, GERMAN),
    ):
        write_sides(tmp_path, list(zip(src, tgt, strict=True)), split=split)

    (note,) = load_corpus(tmp_path, src="en", tgt="zh").notes

    assert note.startswith(
        "the target side of the test pairs is written in Latin letters, and that"
    )


@pytest.mark.parametrize(("missing", "is_told"), [(12, True), (9, False)])
def test_one_text_beside_many_others_is_told(tmp_path, missing, is_told):
    """As pandas writes nan for what is missing; a phrase that comes often is no such text."""
    rows = [(f"a{n}", "nan" if n < missing else f"b{n}") for n in range(90)]
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows))

    corpus = load_corpus(tmp_path / "a.tsv", src="en", tgt="zh")

    found = [note for note in corpus.notes if "have the same target, 'nan', beside" in note]
    assert len(found) == is_told


def test_empty_sides_are_no_text_that_stands_for_others():
    """They are told as empty; the text that is most frequent beside them still counts."""
    pairs = Pairs(src=[f"a{n}" for n in range(60)], tgt=[""] * 30 + ["nan"] * 20 + ["b"] * 10)

    (note,) = notes_of_placeholders(pairs, split="test")

    assert note.startswith("20 of 60 test pairs have the same target, 'nan', beside")
    assert notes_of_placeholders(pairs.take(range(30)), split="test") == ()


def test_a_pipe_is_refused(tmp_path):
    """It can be read only once."""
    os.mkfifo(tmp_path / "pairs.tsv")

    with pytest.raises(
        DataError, match=r"pairs\.tsv is a pipe or a device, expected a folder or a file"
    ):
        load_corpus(tmp_path / "pairs.tsv", src="en", tgt="de")


def test_a_corpus_of_empty_pairs_is_refused(tmp_path):
    """Nothing to learn from is an error that names the data."""
    write_sides(tmp_path, [("", "一"), ("b", "")])

    with pytest.raises(DataError, match="no training pair with text on both sides"):
        load_corpus(tmp_path, src="en", tgt="zh")


@pytest.fixture
def repetitive(tmp_path):
    """A table without splits, where each source sentence has three translations."""
    rows = [(f"sentence {n % 100}", f"第{n}句") for n in range(300)]
    path = tmp_path / "pairs.tsv"
    path.write_text(as_lines(f"{src}\t{tgt}" for src, tgt in rows), "utf-8")
    return path, rows


def test_held_out_pairs_share_no_source_with_training(repetitive):
    """All translations of a sentence are on the same side of the split, and no pair is lost."""
    path, rows = repetitive

    corpus = load_corpus(path, src="en", tgt="zh")
    train, val, test = (set(part.src) for part in (corpus.train, corpus.val, corpus.test))

    assert all(0 < len(part) <= 15 for part in (corpus.val, corpus.test))
    assert set() == (train & val) | (train & test) | (val & test)
    parts = [corpus.train, corpus.val, corpus.test]
    assert sorted(rows) == sorted(
        pair for part in parts for pair in zip(part.src, part.tgt, strict=True)
    )


def test_holding_out_follows_the_seed_alone(repetitive):
    """The same seed holds out the same pairs, another seed others."""
    path, _ = repetitive

    first, again, other = (load_corpus(path, src="en", tgt="zh", seed=s) for s in (1, 1, 2))

    assert first == again
    assert first.test != other.test


@pytest.mark.parametrize(
    "copied",
    [
        *("{} ", "{}\u00a0", "{}\u200b", "\u00ad{}", "\ufeff{}"),
        *(str.upper, str.title, lambda text: text.replace(" ", "  ")),
        *(lambda text: text.replace(" ", "\u00a0"), lambda text: text.replace(" ", "\u3000")),
        *(lambda text: text.replace("é", "e\u0301"), lambda text: text.replace("!", "\uff01")),
    ],
)
def test_near_copies_of_a_source_are_the_same_sentence(tmp_path, copied):
    """None slips from validation or test pairs into the training text, so nobody is told that some did."""
    copy = copied.format if isinstance(copied, str) else copied
    sources = [f"un café {n}!" for n in range(40)]
    write_sides(tmp_path, [(s, f"{n}") for n, s in enumerate([*sources, *map(copy, sources)])])

    corpus = load_corpus(tmp_path, src="en", tgt="zh")
    original = {copy(source): source for source in sources}
    parts = [
        {original.get(s, s) for s in part.src} for part in (corpus.train, corpus.val, corpus.test)
    ]

    assert list(map(len, parts)) == [37, 2, 1]
    assert len(set().union(*parts)) == 40
    assert corpus.notes == ()


def test_what_is_held_out_of_text_without_near_copies_stays(tmp_path):
    """A run can be resumed with a later version, and its scores compared."""
    write_sides(tmp_path, [(f"{'aB'[n % 2]} {n} Ä，", f"{n}") for n in range(60)])

    corpus = load_corpus(tmp_path, src="en", tgt="zh")

    assert corpus.val.tgt == ["12", "23", "40"]
    assert corpus.test.tgt == ["19", "50"]


def test_only_what_is_missing_is_held_out(tmp_path):
    """A given validation split stays as it is when the test split is held out."""
    write_sides(tmp_path, [(f"s{n}", f"{n}") for n in range(40)])
    write_sides(tmp_path, PAIRS, split="dev")

    corpus = load_corpus(tmp_path, src="en", tgt="zh")

    assert as_pairs(PAIRS) == corpus.val
    assert len(corpus.train) + len(corpus.test) == 40


def test_too_few_sentences_to_hold_out_are_refused(tmp_path):
    """Two sentences cannot be split in three; the message says which file to add."""
    write_sides(tmp_path, [("a", "一"), ("b", "二"), ("a", "三")])

    with pytest.raises(DataError, match=r"only 2 different source .* add .*val"):
        load_corpus(tmp_path, src="en", tgt="zh")


# --- tables that are not pairs ---


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "x\ty\nz\n", r"a\.tsv line 2 has one column"),
        ("a.json", '[["x", "y"], ["z"]]', r"a\.json item 1 is not a pair"),
        ("a.json", '[["x", 3]]', r"a\.json item 0 is not a pair"),
        ("a.json", '[\n["x", "y"],\n[}]', r"a\.json is not JSON at line 3, column 2"),
        ("a.json", '{"en": "x"}', r"a\.json holds .*, expected a list"),
        ("a.json", "[]", r"a\.json holds no pair"),
        ("a.jsonl", '{"en": "x", "zh": "y"}\n\n{"en": "x", "de": "y"}\n', r"line 3 is not a pair"),
        ("a.jsonl", '["x", "y"]\n["x"\n', r"a\.jsonl is not JSON at line 2"),
        ("a.txt", "x,y\n", r"a\.txt .*, expected \.tsv, \.csv, \.json, \.jsonl"),
        ("a.tsv", "", r"a\.tsv is empty"),
        ("a.json", " \n", r"a\.json is empty"),
    ],
)
def test_a_table_that_is_not_pairs_is_refused(tmp_path, name, text, message):
    """The file, the place in it and what was expected are in the message."""
    (tmp_path / name).write_text(text)

    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_a_side_that_no_column_has_is_refused(tmp_path):
    """Naming columns without the sides asked for is a mistake."""
    (tmp_path / "a.tsv").write_text("x\ty\n")

    with pytest.raises(DataError, match="side 'zh' is not among the columns 'en' and 'de'"):
        read(tmp_path / "a.tsv", columns=("en", "de"))


@pytest.mark.parametrize("text", ['[["\\ud800", "y"]]', "[" * 200_000])
def test_json_that_python_reads_badly_is_refused(tmp_path, text):
    """Half a surrogate pair and endless nesting are named, not raised as they come."""
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(DataError, match=r"a\.json"):
        read(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("a pipe", "is a pipe or a device"),
        ("a link", "is a link that leads nowhere"),
        ("a folder", "is a folder"),
    ],
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_side_that_is_no_file(tmp_path, split, what, said):
    """It is named with what it is. A split never counts as one that nobody has."""
    for name in ("train", "val"):
        for side, text in (("en", "a b\n" * 9), ("zh", "一 二\n" * 9)):
            (tmp_path / f"{name}.{side}").write_text(text, encoding="utf-8")
    side = tmp_path / f"{split}.en"
    side.unlink()
    if what == "a pipe":
        os.mkfifo(side)
    elif what == "a link":
        side.symlink_to(tmp_path / "nowhere")
    else:
        side.mkdir()

    with pytest.raises(DataError, match=f"{split}.en {said}"):
        load_split(tmp_path, split=split, src="en", tgt="zh")
