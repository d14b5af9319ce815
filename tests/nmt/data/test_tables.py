"""Tables as people bring them: which are read, and what is said of the others."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gapless.errors import DataError
from gapless.nmt.data.corpus import load_split
from gapless.nmt.data.demo import demo_pairs
from gapless.nmt.data.text_columns import why_no_pair, why_no_text


CASES = tomllib.loads(
    (Path(__file__).parents[2] / "cli" / "columns.toml").read_text(encoding="utf-8")
)["case"]
# Its sides are read; the question about the languages is asked later.
ASKED = "columns whose names are no languages lead to a question about the languages"

WORDS = [
    "a",
    "red",
    "dog",
    "sees",
    "two",
    "big",
    "trees",
    "and",
    "some",
    "small",
    "birds",
    "near",
    "our",
    "old",
    "house",
    "today",
]


def one_space(text):
    return re.sub(r"\s+", " ", text).strip()


def read(path, *, src="en", tgt="zh", **options):
    return load_split(path, split="train", src=src, tgt=tgt, checks=True, **options)


def refusal(path, **options):
    with pytest.raises(DataError) as caught:
        read(path, **options)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_table_is_read_whole_or_refused_with_what_was_found(tmp_path, case):
    """Every table of the list has its verdict: its pairs, or an error that names what to look at."""
    raw = case["text"].encode(case.get("encoding", "utf-8"))
    path = tmp_path / case["file"]
    path.write_bytes(gzip.compress(raw) if case.get("gzip") else raw)
    options = dict(zip(case["options"][::2], case["options"][1::2], strict=True))
    sides = {"src": options["--src"], "tgt": options["--tgt"]}

    try:
        pairs = read(path, **sides)
    except DataError as error:
        text = str(error).replace(str(tmp_path), "")
        missing = [part for part in case["names"] if not re.search(part, text, re.IGNORECASE)]
        assert missing == [], text
        return
    rows = [
        [one_space(src), one_space(tgt)] for src, tgt in zip(pairs.src, pairs.tgt, strict=True)
    ]
    rows = [row for row in rows if all(row)]
    if case["name"] == ASKED:
        assert len(rows) == 5
        return
    assert (case["pairs"], case["first"], case["last"]) == (len(rows), rows[0], rows[-1])
    assert case.get("contains", rows[0]) in rows


CELLS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\ufeff"), min_size=1
)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8)


@given(rows=ROWS, delimiter=st.sampled_from(",;"), packed=st.booleans())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_csv_reads_back_as_it_was_written(tmp_path_factory, rows, delimiter, packed):
    """Quotes, separators and line ends within a cell survive; a line end becomes a space."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("en", "id", "zh"), *rows])
    raw = text.getvalue().encode()
    path = tmp_path_factory.mktemp("csv") / f"p.csv{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    expected = [row for row in rows if any(cell.strip() for cell in row)]

    if not expected:
        assert "holds no pair" in refusal(path)
        return
    pairs = load_split(path, split="train", src="en", tgt="zh")
    assert pairs.src == [row[0].replace("\n", " ") for row in expected]
    assert pairs.tgt == [row[2].replace("\n", " ") for row in expected]


def test_a_comma_outside_of_quotes_is_not_cut_off(tmp_path):
    """A row with more columns than the first is refused: its text would be cut at the comma."""
    path = tmp_path / "p.csv"
    path.write_text("en,zh\nYes.,是。\nWell, yes.,嗯。\n", encoding="utf-8")

    assert "line 3 has 3 columns, but line 1 has 2; text with a ',' must stand" in refusal(path)


@pytest.mark.parametrize(
    ("lines", "columns", "expected"),
    [
        (
            ["a b\t甲", "c\td\t乙", "e f\t丙\t"],
            None,
            "column 2, and 1 of 3 rows .* line 2 with '乙'",
        ),
        (["a\t甲\tby A", "b\t乙\tby B"], None, "column 2, and 2 of 2 rows .* line 1 with 'by A'"),
        (["en\tzh\tnote", "a\t甲\tby A\tand C"], None, "column 3, and 1 of 1 .* with 'and C'"),
        (["1\ta\t甲", "2\tb\t乙\tmore"], "_,en,zh", "column 3, and 1 of 2 rows .* line 2"),
        (["a\t甲\tby A", "b\t乙\tby B"], "en,zh,_", None),
        (["en\tzh\tnote", "a\t甲\tby A"], None, None),
        (["a\t甲\t", "b\t乙\t \t"], None, None),
    ],
)
def test_text_after_the_columns_that_are_read_is_counted(tmp_path, lines, columns, expected):
    """A tab inside a sentence, or a column that nobody named, is not left out in silence."""
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    names = None if columns is None else tuple(columns.split(","))

    notes = load_split(path, split="train", src="en", tgt="zh", columns=names).notes

    assert len(notes) == (expected is not None)
    assert all(re.search(expected, note) for note in notes)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['"a"\t"甲"', '"b, c"\t"乙"'], "2 of 2 rows"),
        (["a\t甲", '"b ""c"""\t乙'], "1 of 2 rows .* such as '\"b"),
        (["a\t甲", '"b"\t"乙"'], None),
        (["a\t甲", '"b" or "c"\t乙'], None),
    ],
)
def test_quotes_of_a_csv_in_a_tsv_are_told(tmp_path, lines, expected):
    """They would be learned as text; what somebody says in quotes is text."""
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    notes = load_split(path, split="train", src="en", tgt="zh").notes

    assert len(notes) == (expected is not None)
    assert all(re.search(expected, note) for note in notes)
    if notes:
        renamed = path.rename(tmp_path / "p.csv")
        pairs = load_split(renamed, split="train", src="en", tgt="zh")
        assert pairs.src[1] in ("b, c", 'b "c"')


def test_the_advice_of_a_refusal_reads_the_right_columns(tmp_path):
    """What the message proposes is taken, and gives the text."""
    rows = [(str(n), f"{word} {n}", "x", f"{word.upper()} {n}") for n, word in enumerate(WORDS)]
    path = tmp_path / "p.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    columns = re.search(r"`columns=(\S+)`", refusal(path)).group(1)

    pairs = read(path, columns=tuple(columns.split(",")))

    assert columns == "_,en,_,zh"
    assert (pairs.src, pairs.tgt) == ([row[1] for row in rows], [row[3] for row in rows])


def test_the_advice_for_named_columns(tmp_path):
    """Other columns of a header, or keys, are proposed by their names."""
    rows = [
        {"en": n, "zh": n, "first": f"{w} {n}", "the other": f"{w} {n}!"}
        for n, w in enumerate(WORDS)
    ]
    texts = [{**row, "en": str(row["en"]), "zh": f"id-{row['zh']}"} for row in rows]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))

    message = refusal(tmp_path / "p.jsonl")

    assert "column 'en'" in message
    assert "`src=first` `tgt='the other'`" in message


@pytest.mark.parametrize(
    "first", ["no\tsi", "a 0\tb 0", "English\t英语", "hello\tbonjour", "I\t我"]
)
def test_a_first_pair_of_words_is_a_pair(tmp_path, first):
    """Single words, and names of one language twice, are no header."""
    path = tmp_path / "p.tsv"
    path.write_text(f"{first}\nTwo words.\t二\n", encoding="utf-8")
    if first == "no\tsi":
        assert "has the columns 'no', 'si'" in refusal(path)
        assert read(path, src="no", tgt="si").src == ["Two words."]
    else:
        assert len(read(path)) == 2


@pytest.mark.parametrize(
    ("header", "is_header"),
    [
        ("sentence1\tsentence2", True),
        ("source_text\ttarget text", True),
        ("id\ttranslation", True),
        ("Source (1)\tTarget (2)", True),
        ("source[0]\ttarget[0]", True),
        ("src.txt\ttgt.txt", True),
        ("s1\ts2", True),
        ("utt (1)\tutt (2)", True),
        ("Name?\tTime?", False),
        ("Source.\tTarget.", False),
        ("Room 1\tRaum 2", False),
        ("s1\ts1", False),
        ("12\t13", False),
        ("a 0\tb 0", False),
        *(("no no no\tne ne ne", False), ("Ha, ha\tHe, he", False), ("it it\tda da", False)),
        *(("Psalm 23\tPsalm 22", False), ("iPhone 11\tiPhone 12", False), ("v1\tv2", False)),
        *(("Input/Output\tInput / Output", False), ("Date/Time\tDate / Time", False)),
        *(("question/answer\tQuestion / Answer", False), ("SRC.TXT\tTGT.TXT", True)),
    ],
)
def test_words_for_columns_are_a_header(tmp_path, header, is_header):
    """With `columns` a header need not name the sides; what may be a pair is one."""
    path = tmp_path / "p.tsv"
    path.write_text(f"{header}\nTwo words.\t两个词\n", encoding="utf-8")

    assert len(read(path, columns=("en", "zh"))) == (1 if is_header else 2)


@pytest.mark.parametrize(
    "header",
    [
        "# en\tzh",
        '"en"\t"zh"',
        "#\tEnglish\tChinese",
        "\tEnglish\tChinese",
        "No.\tEnglish\tChinese",
        "Unnamed: 0\tEnglish\tChinese",
        "EN:\tZH:",
        "EN [src]\tZH [tgt]",
        "<en>\t<zh>",
        "en.txt\tzh.txt",
        "英文(en)\t中文(zh)",
    ],
)
def test_marks_and_row_numbers_belong_to_a_header(tmp_path, header):
    """They stand around names, or above numbers; a header that is read as a pair is trained on."""
    rows = [("A dog.", "狗。"), ("A cat.", "猫。"), ("A tree.", "树。")]
    numbered = [(str(n), *row) if header.count("\t") > 1 else row for n, row in enumerate(rows)]
    path = tmp_path / "p.tsv"
    path.write_text("\n".join([header, *map("\t".join, numbered), ""]), encoding="utf-8")

    assert read(path).src == [src for src, _ in rows]
    columns = ("_", "en", "zh") if header.count("\t") > 1 else ("en", "zh")
    assert read(path, columns=columns).src == [src for src, _ in rows]


ROWS_OF_TEXT = [
    ("A dog barks.", "狗叫。"),
    ("Is it a cat?", "是猫吗？"),
    ("A tree grows!", "树在长！"),
    ('He said "no."', "他说“不。”"),
    ("We go home.", "我们回家。"),
    ("It is late.", "很晚了。"),
]


def write_rows(path, *heads, columns=2):
    rows = [(*row, "x y")[:columns] for row in ROWS_OF_TEXT]
    if columns == 3:
        rows = [(str(n), *row[:2]) for n, row in enumerate(rows)]
    path.write_text("\n".join([*heads, *map("\t".join, rows), ""]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "header",
    [
        *("编号\t英文\t中文", "条目\t英文\t中文", "ID 1\tEnglish\tChinese", "条目\ten\tzh"),
        *("条目\t英文原文\t中文译文", "条目\t英语（原文）\t译文"),
    ],
)
@pytest.mark.parametrize("columns", [None, ("_", "en", "zh")])
def test_two_names_of_languages_are_a_header_whatever_stands_beside_them(
    tmp_path, header, columns
):
    """Other columns may be called anything, in any language."""
    path = write_rows(tmp_path / "p.tsv", header, columns=3)

    pairs = read(path, columns=columns)

    assert list(zip(pairs.src, pairs.tgt, strict=True)) == ROWS_OF_TEXT
    assert pairs.notes == ()


def test_columns_leave_out_a_header_by_the_cells_that_they_name(tmp_path):
    """What stands above the other columns may look like no name."""
    path = write_rows(tmp_path / "p.tsv", "条目？\t原句\t译句", columns=3)

    assert read(path, columns=("_", "en", "zh")).src == [src for src, _ in ROWS_OF_TEXT]


def test_two_languages_that_were_not_asked_for_are_named(tmp_path):
    """The first two columns would be read, one of which holds no sentences of theirs."""
    path = write_rows(tmp_path / "p.tsv", "条目\t法文\t中文", columns=3)

    assert "has the columns '条目', '法文', '中文', but no 'en'" in refusal(path)


@pytest.mark.parametrize(
    "header",
    [
        *("原文\t译文", "源语言\t目标语言", "源文\t目标", "英文\t译文"),
        *("src\ttgt", "Quelle\tZiel", "Original\tÜbersetzung"),
        *("Source\tCible", "Original\tTraduction", "Origen\tDestino", "Original\tTraducción"),
        *("Origine\tDestinazione", "Origem\tDestino", "Fonte\tAlvo", "Bron\tDoel", "Źródło\tCel"),
        *("Источник\tПеревод", "Оригинал\tПеревод", "Джерело\tПереклад", "Kaynak\tHedef"),
        *("原文\t訳文", "英語原文\t訳文", "원문\t번역문", "المصدر\tالهدف"),
        "Texte source\tTexte cible",
    ],
)
def test_words_for_source_and_target_are_a_header(tmp_path, header):
    """They say which column is which side, in either order."""
    turned = "\t".join(header.split("\t")[::-1])
    rows = [(tgt, src) for src, tgt in ROWS_OF_TEXT]
    other = tmp_path / "turned.tsv"
    other.write_text("\n".join([turned, *map("\t".join, rows), ""]), encoding="utf-8")

    for path in (write_rows(tmp_path / "p.tsv", header), other):
        pairs = read(path)
        assert list(zip(pairs.src, pairs.tgt, strict=True)) == ROWS_OF_TEXT


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # One word of each says which side it is; the others are the same.
        *(("caption_de", "caption_en"), ("textDe", "textEn"), ("deText", "enText")),
        *(("de2", "en2"), ("multi30k_de", "multi30k_en"), ("id.de.txt", "id.en.txt")),
        *(("Satz DE", "Satz EN"), ("german sentence", "english sentence"), ("de_x", "x_en")),
        *(("Target segment", "Source segment"), ("targetText", "sourceText")),
        # Or they are words for columns.
        *(("translatedText", "originalText"), ("Übersetzung (DE)", "Ausgangstext (EN)")),
        # Marks around them.
        *(("de.", "en."), ("@de", "@en"), ("\ufeff\ufeffde", "en"), ("\u200bde", "\u2060en")),
        *(("\u200ede\u200e", "en\u200b"), ("d\u00ade", "en")),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_word_of_a_name_says_which_side_a_column_is(tmp_path, first, second, is_turned):
    """Two languages of one script cannot be told apart, so nobody else would see the wrong direction."""
    rows = [(german, english) for english, german in GERMAN_ROWS]
    turned = [row[::-1] if is_turned else row for row in [(first, second), *rows]]
    path = tmp_path / "p.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in turned), encoding="utf-8")

    pairs = read(path, tgt="de")

    assert (list(zip(pairs.src, pairs.tgt, strict=True)), pairs.notes) == (GERMAN_ROWS, ())


def test_columns_that_contradict_a_word_of_the_header_are_refused(tmp_path):
    """As they are where the whole name is that of a language."""
    path = tmp_path / "p.tsv"
    path.write_text("caption_de\tcaption_en\nHund.\tDog.\n", encoding="utf-8")

    message = refusal(path, tgt="de", columns=("en", "de"))

    assert "is 'caption_de' by its header, but 'en' by `columns`; leave" in message
    assert read(path, tgt="de", columns=("de", "en")).src == ["Dog."]


GERMAN_ROWS = [(f"Dog {n} barks.", f"Hund {n} bellt.") for n in range(6)]


@pytest.mark.parametrize(
    ("first", "src", "tgt"),
    [
        # One side, both sides in one name, or none.
        *(
            (("English", "Englisch"), "en", "de"),
            (("From German", "Aus dem Deutschen"), "en", "de"),
        ),
        (("German to English", "Deutsch nach Englisch"), "en", "de"),
        (("a name as any", "ein Name"), "en", "de"),
        # Codes are words: of and it, one and none.
        *(
            (("¿De qué color es?", "Welche Farbe ist es?"), "es", "de"),
            (("de aqui", "es da"), "es", "de"),
        ),
        *((("Har du en hund", "No dog"), "no", "en"), (("HAR DU EN HUND", "NO DOG"), "no", "en")),
        # Sentences.
        (("Do you all speak English here", "Nein, nur Deutsch"), "en", "de"),
        (("Open the source.", "Open the target."), "en", "de"),
    ],
)
def test_text_that_mentions_a_language_is_a_pair(tmp_path, first, src, tgt):
    """Codes and names of languages are words of sentences as well."""
    path = tmp_path / "p.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in [first, *GERMAN_ROWS]), "utf-8")

    pairs = read(path, src=src, tgt=tgt)

    assert list(zip(pairs.src, pairs.tgt, strict=True)) == [first, *GERMAN_ROWS]


@pytest.mark.parametrize("first", [("Auf Deutsch", "In English"), ("Satz (DE)", "Phrase (EN)")])
def test_a_row_that_may_be_a_header_or_a_pair_is_refused_until_columns_say(tmp_path, first):
    """It names both languages beside other words: nobody can know."""
    path = tmp_path / "p.tsv"
    rows = [first, *[row[::-1] for row in GERMAN_ROWS]]
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")

    message = refusal(path, tgt="de")

    assert f"begins with {first[0]!r}, {first[1]!r}, which may name the columns or be" in message
    assert "as in `columns=de,en`, and take the row out if it is no pair" in message
    assert read(path, tgt="de", columns=("de", "en")).tgt == [row[0] for row in rows]


def test_two_languages_in_words_of_names_that_were_not_asked_for_are_named(tmp_path):
    """Whoever forgets `--tgt de` is not given the columns in the order that they have."""
    path = tmp_path / "p.tsv"
    path.write_text("caption_de\tcaption_en\nHund.\tDog.\n", encoding="utf-8")

    assert "has the columns 'caption_de', 'caption_en', but no 'zh'" in refusal(path)


def test_a_word_of_a_key_says_which_side_it_is(tmp_path):
    """Also where the object with the sides stands under a key."""
    for name, item in (("p", "{}"), ("q", '{{"id": "7", "pair": {}}}')):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(
            item.format('{"caption_zh": "狗。", "caption_en": "Dog."}') + "\n", "utf-8"
        )
        assert (read(path).src, read(path).tgt) == (["Dog."], ["狗。"])


def test_the_order_is_asked_for_before_a_first_row_is_taken_out(tmp_path):
    """Without the row nobody could see any more which column is which."""
    path = write_rows(tmp_path / "p.tsv", "response\tprompt")

    (before,) = read(path).notes
    (after,) = read(path, columns=("en", "zh")).notes

    assert before.endswith("if it names the columns, name them in their order with `columns`")
    assert after.endswith("if it names the columns, take it out")


@pytest.mark.parametrize(
    "first",
    [
        *("text\t文本", "target\t目标", "Translation\t翻译", "source\tQuelle", "Origen\tsource"),
        *("target\tcible", "translation\ttraduction", "original\toriginale", "doel\tcel"),
        *("перевод\tпереклад", "источник\t원문", "translation\tперевод"),
    ],
)
def test_a_word_for_columns_and_its_translation_are_a_pair(tmp_path, first):
    """A list of words may begin with any."""
    path = tmp_path / "p.tsv"
    path.write_text(f"{first}\ndog\t狗\n", encoding="utf-8")

    assert len(read(path)) == 2


@pytest.mark.parametrize(
    ("first", "is_told"),
    [
        ("Satz\tÜbersetzung", True),
        ("A dog\t狗", True),
        ("X1\tY1", True),
        ("column (left)\tcolumn [rechts]", True),
        ("part.a\tTeil.b", True),
        ("A dog.\t狗", False),
        ("2 dogs\t两只狗", False),
        ("A dog that is called by a very long name\t狗", False),
    ],
)
def test_a_first_row_that_may_name_the_columns_is_told(tmp_path, first, is_told):
    """It is read as a pair, and nobody else would say so."""
    path = write_rows(tmp_path / "p.tsv", first)

    pairs = read(path)

    assert len(pairs) == len(ROWS_OF_TEXT) + 1
    cells = ", ".join(map(repr, first.split("\t")))
    expected = f"{path} line 1 is read as a pair, {cells}, and the rows after it are sentences"
    assert [note.startswith(expected) for note in pairs.notes] == [True] * is_told


# Text without marks at its ends, as of chats and of titles.
UNMARKED = [(f"the dog barks at cat {n}", f"狗对着猫叫了{n}次") for n in range(60)]


@pytest.mark.parametrize(
    ("first", "short", "is_told"),
    [
        (("Satz", "Übersetzung"), 0, True),
        (("Spalte 2", "Spalte 1"), 0, True),
        (("Satz", "例句"), 1, True),
        # Others of one word are there as well.
        (("Satz", "例句"), 2, False),
        # Words for a side, in whatever is no header.
        (("the sentence", "译文"), 0, True),
        (("the sentence", "例句"), 0, False),
        (("the dog barks", "狗叫了很久"), 0, False),
    ],
)
def test_a_first_row_of_two_words_is_told_where_others_are_longer(tmp_path, first, short, is_told):
    """It may name the columns, though the rows do not end as sentences do."""
    path = tmp_path / "p.tsv"
    rows = [first, *UNMARKED, *[(f"cat{n}", "猫") for n in range(short)]]
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows), encoding="utf-8")

    cells = ", ".join(map(repr, first))
    expected = f"{path} line 1 is read as a pair, {cells}, and the rows after it are longer"
    assert [note.startswith(expected) for note in read(path).notes] == [True] * is_told


@pytest.mark.parametrize("begin", ["", "source\tQuelle\n"])
@pytest.mark.parametrize("gloss", ["{0}", "{0} {0}", "to {0} or not to {0}"])
def test_a_list_of_words_has_no_first_row_that_is_told(tmp_path, begin, gloss):
    """All of its rows are a few words, or a word and what it means."""
    path = tmp_path / "p.tsv"
    path.write_text(
        begin + "".join(f"{a}{b}\t{gloss.format(b)}\n" for a in WORDS[1:] for b in WORDS)
    )

    assert read(path).notes == ()


def test_a_first_row_below_a_header_is_not_told(tmp_path):
    """It names no columns, which have their names."""
    path = tmp_path / "p.tsv"
    rows = [("en", "zh"), ("dog", "狗"), *UNMARKED]
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows), encoding="utf-8")

    assert read(path).notes == ()


@pytest.mark.parametrize("columns", [None, ("en", "zh")])
def test_one_column_for_both_sides_is_named_with_the_other_one(tmp_path, columns):
    """`--tgt 英语` leaves the default source, which is the same column."""
    heads = ["en\tzh"] if columns is None else []
    path = write_rows(tmp_path / "p.tsv", *heads)

    message = refusal(path, tgt="英语", columns=columns)

    assert "source 'en' and target '英语' would both be the column 'en' of 'en', 'zh'" in message
    assert "as in `src=en` `tgt=zh` or `src=zh` `tgt=en`" in message


def test_one_language_for_both_sides_is_refused_without_a_header(tmp_path):
    """Text of the first column would be called by the language of the second."""
    path = tmp_path / "p.tsv"
    path.write_text("狗。\tA dog.\n", encoding="utf-8")

    message = refusal(path, tgt="英语")

    assert "source and target would both be English, as 'en' and '英语' are; give both" in message
    assert read(path, src="zh", tgt="英语").src == ["狗。"]


def test_columns_are_found_by_their_language(tmp_path):
    """As they are in a header."""
    path = write_rows(tmp_path / "p.tsv")

    assert read(path, src="英文", tgt="Chinese", columns=("en", "zh")).tgt[0] == "狗叫。"
    assert read(path, src="Chinese", tgt="英文", columns=("en", "zh")).src[0] == "狗叫。"


@pytest.mark.parametrize(
    ("wanted", "meant"), [("Englsh", "English"), ("中闻", "中文"), ("sentense2", "sentence2")]
)
@pytest.mark.parametrize("columns", [None, ("sentence1", "sentence2")])
def test_a_misspelt_side_has_a_hint(tmp_path, wanted, meant, columns):
    """At a language, or at a name of the file's own."""
    path = write_rows(tmp_path / "p.tsv", "sentence1\tsentence2")

    message = refusal(path, src="sentence1", tgt=wanted, columns=columns)

    assert repr(wanted) in message
    assert f" (did you mean {meant}?); " in message


def test_a_title_above_the_header_is_no_pair(tmp_path):
    """Where no header follows, a row of one cell is a pair without translation."""
    path = tmp_path / "p.tsv"
    path.write_text("My words\t\nEnglish\tChinese\nA dog.\t狗。\n", encoding="utf-8")
    assert read(path).src == ["A dog."]

    path.write_text("My words\t\nA dog.\t狗。\n", encoding="utf-8")
    assert read(path).src == ["My words", "A dog."]


def test_headers_of_joined_files_are_no_pairs(tmp_path):
    """`cat a.tsv b.tsv` leaves one in the middle."""
    path = tmp_path / "p.tsv"
    path.write_text("en\tzh\nA dog.\t狗。\nen\tzh\nA cat.\t猫。\n", encoding="utf-8")

    assert read(path).src == ["A dog.", "A cat."]


@pytest.mark.parametrize("marks", ["\ufeff", "\ufeff\ufeff"])
@pytest.mark.parametrize("ending", ["tsv", "csv"])
def test_byte_order_marks_of_joined_files_are_no_text(tmp_path, ending, marks):
    """Each file that a spreadsheet writes begins with one, and two that one program passed to another."""
    part = f"{marks}A dog.,狗。\n"
    text = part + part.replace("dog", "cat")
    path = tmp_path / f"p.{ending}"
    path.write_text(text.replace(",", "\t") if ending == "tsv" else text, encoding="utf-8")

    assert read(path).src == ["A dog.", "A cat."]


def test_columns_that_contradict_the_header_are_refused(tmp_path):
    """Each side would be learned as the other."""
    path = tmp_path / "p.tsv"
    path.write_text("zh\ten\n狗。\tA dog.\n", encoding="utf-8")

    message = refusal(path, columns=("en", "zh"))

    assert f"column 1 of {path} is 'zh' by its header, but 'en' by `columns`" in message
    assert read(path, columns=("zh", "en")).src == ["A dog."]


@pytest.mark.parametrize("name", ["p.TSV", "p.tsv.GZ", "p.tsv"])
def test_endings_in_capitals_and_archives_without_one(tmp_path, name):
    """A file is read by what it is."""
    raw = "A dog.\t狗。\n".encode()
    (tmp_path / name).write_bytes(raw if name == "p.TSV" else gzip.compress(raw))

    assert read(tmp_path / name).src == ["A dog."]


def test_a_zip_archive_is_no_text(tmp_path):
    """Its bytes are in no encoding."""
    (tmp_path / "p.csv").write_bytes(b"PK\x03\x04\x14\x00")

    assert "is a zip archive or a workbook, expected text; extract" in refusal(tmp_path / "p.csv")


def test_a_number_names_no_column(tmp_path):
    """The first two columns would be read in place of those that were counted."""
    (tmp_path / "p.tsv").write_text("a b\t甲\tc d\n", encoding="utf-8")
    (tmp_path / "p.jsonl").write_text('["a b", "甲", "c d"]\n', encoding="utf-8")

    for name in ("p.tsv", "p.jsonl"):
        message = refusal(tmp_path / name, src="2", tgt="3")
        assert "has no names of columns, so '2' names none" in message
        assert "`columns=_,en,zh`" in message


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Yes, please;是，请\nNo, thanks;不，谢谢\n", ("Yes, please", "是，请")),
        ("sep=;\nid;en;zh\n1;Yes, please;是\n", ("Yes, please", "是")),
        ("en|zh\nYes, please|是\nNo|不\n", ("Yes, please", "是")),
        ('en, zh\n"Yes, please", "是, 请"\n"No", "不"\n', ("Yes, please", "是, 请")),
        ('en, zh\n"Yes, please", "是"\n"No", "不"\n', ("Yes, please", "是")),
    ],
    ids=[
        *("commas in all sentences", "declared", "bars", "spaces before quotes"),
        "spaces before quotes without commas",
    ],
)
def test_what_separates_the_columns_of_a_csv(tmp_path, text, first):
    """A comma in every sentence cuts none, and what a spreadsheet declares is no row."""
    path = tmp_path / "p.csv"
    path.write_text(text, encoding="utf-8")

    pairs = read(path)

    assert (pairs.src[0], pairs.tgt[0]) == first


def test_the_object_with_the_sides_is_found_under_any_key(tmp_path):
    """Where it is the only one that has them, and the item has not."""
    rows = [
        {"id": n, "meta": {"by": "me"}, "texts": {"en": "A dog.", "zh": "狗。"}} for n in range(2)
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read(path).tgt == ["狗。", "狗。"]

    path.write_text(
        json.dumps({"en": "A dog.", "zh": "狗。", "old": {"en": "a", "zh": "b"}}) + "\n"
    )
    assert read(path).src == ["A dog."]


def test_a_column_in_another_script_is_named(tmp_path):
    """It is not taken for the one that was asked for, and the user sees why."""
    path = tmp_path / "p.tsv"
    path.write_text("en\tzh-TW\n" + "A dog runs.\t一隻狗在跑。\n" * 3, encoding="utf-8")

    assert "no 'zh-CN' (zh-TW is another script)" in refusal(path, tgt="zh-CN")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.json", '{"en": "a", "zh": "b"}\n' * 2, "the ending .jsonl if it has one pair a line"),
        (
            "p.jsonl",
            '[{"en": "a", "zh": "b"}]',
            "line 1 is a list of pairs, .* the ending .json if",
        ),
        ("p.jsonl", '[\n{"en": "a", "zh": "b"}\n]\n', "the ending .json if it is one list"),
        (
            "p.jsonl",
            '{"en": "a"}\n{"en": "a", "zh": "b"}\n',
            "line 1 has the keys 'en', but no 'zh'",
        ),
        ("p.jsonl", '{"id": ' + "9" * 5000 + ', "en": "a", "zh": "b"}\n', "thousands of digits"),
    ],
)
def test_json_in_another_form_says_what_to_do(tmp_path, name, text, said):
    """One list and one pair a line are taken for each other; all that Python cannot read is named."""
    (tmp_path / name).write_text(text)

    assert re.search(said, refusal(tmp_path / name))


def test_labels_in_every_row_are_no_header(tmp_path):
    """The names of the sides stand in the first row, but in the second as well."""
    rows = [("en", f"{word} {n}", "zh", f"{word} {n}!") for n, word in enumerate(WORDS)]
    path = tmp_path / "p.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))

    message = refusal(path)

    assert f"column 1 of {path} holds the same in {len(rows)} of {len(rows)} rows, 'en'" in message
    assert "`columns=_,en,_,zh`" in message


def test_one_file_is_not_both_sides(tmp_path):
    """`--src zh --tgt zh-CN` does not find train.zh-CN twice."""
    (tmp_path / "train.zh-CN").write_text("狗。\n", encoding="utf-8")

    assert "has no train.zh and train.zh-CN" in refusal(tmp_path, src="zh", tgt="zh-CN")


def test_sides_in_files_are_found_by_their_language(tmp_path):
    """`--src en --tgt zh` finds train.eng and train.zh-CN."""
    (tmp_path / "train.eng").write_text("A dog.\n")
    (tmp_path / "train.zh-CN").write_text("狗。\n", encoding="utf-8")

    assert read(tmp_path) == load_split(tmp_path, split="train", src="eng", tgt="zh-CN")


@pytest.mark.parametrize("name", ["valid", "dev2010", "Dev"])
def test_the_other_side_of_a_file_is_named_as_it_is(tmp_path, name):
    """A file of another name than the usual one would be no other side of it."""
    (tmp_path / f"{name}.en").write_text("A dog.\n")

    with pytest.raises(DataError) as told:
        load_split(tmp_path, split="val", src="en", tgt="zh")
    assert f"; {name}.zh, the file of the target side, is missing: add it, or" in str(told.value)


def test_the_file_of_one_side_that_is_missing_is_named(tmp_path):
    """Whoever has one file need not name it."""
    (tmp_path / "train.en").write_text("A dog.\n")
    assert "train.zh, the file of the target side, is missing: add it, or" in refusal(tmp_path)

    (tmp_path / "train.en").rename(tmp_path / "train.zh")
    assert "train.en, the file of the source side, is missing: add it, or" in refusal(tmp_path)

    (tmp_path / "train.zh").unlink()
    assert "it holds nothing; write the sides of the training text to train.en and" in refusal(
        tmp_path
    )


def test_one_file_for_both_sides_is_named(tmp_path):
    """`--tgt 英语` leaves the default source, which is the same file."""
    for side in ("en", "zh"):
        (tmp_path / f"train.{side}").write_text("A dog.\n")

    assert "both sides would be train.en; name the sides" in refusal(tmp_path, tgt="英语")


def test_files_that_hold_no_text_are_refused(tmp_path):
    """A file of a side is looked at as a column is."""
    for side in ("en", "zh"):
        (tmp_path / f"train.{side}").write_text("".join(f"{n}\n" for n in range(9)))

    assert "train.en holds numbers, such as '0', '1', '2'" in refusal(tmp_path)


# --- what is text ---

SENTENCES = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=2, max_size=8).map(" ".join), min_size=5, max_size=40
)
ODD = {
    "numbers": lambda draw, n: f"{draw.randint(0, 10**6)}" if n % 2 else f"{draw.random():.4f}",
    "addresses": lambda draw, n: f"https://example.org/{draw.randint(0, 10**6)}.html",
    "times or dates": lambda draw, n: f"202{n % 7}-0{1 + n % 9}-11 12:33:{10 + n % 50}",
    "keys": lambda draw, n: f"{draw.choice(WORDS)}-{n:06}",
    "names of files": lambda draw, n: f"clips/{draw.choice(WORDS)}{n}.wav",
    "no letters": lambda draw, n: "*" * (1 + n),
}


@given(sentences=SENTENCES)
def test_sentences_are_text(sentences):
    """Sentences of several words are text, unless nearly all are one."""
    most = max(map(sentences.count, sentences))

    found = why_no_text(sentences)

    assert (found is None) == (most <= 0.9 * len(sentences))


@given(kind=st.sampled_from(sorted(ODD)), seed=st.integers(0, 1000), count=st.integers(5, 60))
def test_what_is_no_text_is_named(kind, seed, count):
    """Columns of numbers, keys, times, addresses and files are named, with an example."""
    draw = random.Random(seed)
    cells = [ODD[kind](draw, n) for n in range(count)]

    found = why_no_text(cells)

    assert f"holds {kind}" in found
    assert repr(cells[0]) in found


@given(sentences=SENTENCES, share=st.floats(0, 1))
def test_a_column_is_empty_where_most_cells_are(sentences, share):
    """More than half of the rows must have text."""
    num_empty = int(share * len(sentences))
    cells = [""] * num_empty + sentences[num_empty:]

    found = why_no_text(cells)

    if 2 * num_empty > len(cells):
        assert f"is empty in {num_empty} of {len(cells)} rows" == found
    else:
        assert found is None or "empty" not in found


@given(sentences=SENTENCES, num_copied=st.integers(0, 40))
def test_sides_are_alike_where_nearly_all_rows_are(sentences, num_copied):
    """Up to nine rows in ten may be the same on both sides, as names are."""
    num_copied = min(num_copied, len(sentences))
    other = sentences[:num_copied] + [f"{line}." for line in sentences[num_copied:]]

    found = why_no_pair(sentences, other)

    assert (found is not None) == (num_copied > 0.9 * len(sentences))


NAMES = [f"{first} {last}" for first in ("Ann", "Bo", "Cy") for last in ("Li", "Ng", "Oz", "Wu")]
LONG = [f"The {animal} of number {n} barks." for animal in ("dog", "cat") for n in range(6)]


@pytest.mark.parametrize(
    ("values", "num_rows", "is_text"),
    [
        (["positive", "negative", "neutral"], 300, False),
        (["positive", "negative", "neutral"], 150, False),
        (["positive", "negative", "neutral"], 60, False),
        (["positive", "negative", "neutral"], 57, True),
        (["positive", "negative"], 40, False),
        (["positive", "negative"], 39, True),
        (NAMES, 300, False),
        (NAMES, 240, False),
        (NAMES, 239, True),
        (LONG[:10], 200, False),
        (LONG[:10], 199, True),
        # More than ten sentences may repeat as often as they like.
        (LONG, 300, True),
        (LONG, 12_000, True),
    ],
)
def test_values_that_come_again_and_again_are_labels(values, num_rows, is_text):
    """Names of classes or speakers are no sentences; repeated sentences in a small table are."""
    cells = (values * num_rows)[:num_rows]

    found = why_no_text(cells)

    told = f"holds only {len(values)} values in {num_rows} rows, {values[0]!r}"
    assert (found is None) == is_text
    assert is_text or told in found


def test_the_embedded_corpus_is_text():
    """Its sentences are made of templates, and repeat."""
    for pairs in demo_pairs().values():
        assert [why_no_text(side) for side in zip(*pairs, strict=True)] == [None, None]
