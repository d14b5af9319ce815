"""What `gapless train --data` reads: every form of a corpus as people have them, and every mistake.

All of it goes through the command itself; cases are data, so that another reader can be judged by them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gapless.cli.main import run_command


SRC = Path(__file__).parents[2] / "src"

TINY = [
    *("--device", "cpu", "--workers", "0", "--d-model", "16", "--heads", "2", "--ffn", "16"),
    *("--encoder-layers", "1", "--decoder-layers", "1", "--batch-size", "16", "--beam", "1"),
    *("--vocab-size", "340", "--max-length", "60", "--epochs", "1", "--max-steps", "1"),
]

EN = [f"The cat number {n} sits on the mat." for n in range(40)]
ZH = [f"第{n}只猫坐在垫子上。" for n in range(40)]
DE = [f"Die Katze Nummer {n} sitzt auf der Matte." for n in range(40)]
JA = [f"{n}番の猫がマットに座っています。" for n in range(40)]
KO = [f"고양이 {n}번이 매트에 앉아 있다." for n in range(40)]
PT = [f"O gato número {n} está no tapete." for n in range(40)]
BY = [f"CC-BY 2.0 (France) Attribution: tatoeba.org #{n}" for n in range(40)]

# Lines that hold nothing to see: the mark of byte order stands inside the file.
UNSEEN = {
    "empty": "",
    "space": "  ",
    "no-break space": "\u00a0",
    "ideographic space": "\u3000",
    "zero-width space": "\u200b",
    "two zero-width spaces": "\u200b\u200b",
    "zero-width spaces apart": "\u200b \u200b",
    "mark of byte order": "\ufeff",
}


def lines(sentences):
    return "".join(f"{sentence}\n" for sentence in sentences)


def table(*columns, header=None, by="\t"):
    rows = [by.join(row) for row in zip(*columns, strict=True)]
    return lines([by.join(header), *rows] if header else rows)


def quoted(*columns, header):
    cells = [",".join(f'"{cell}"' for cell in row) for row in zip(*columns, strict=True)]
    return lines([",".join(header), *cells])


def objects(src, tgt, *, names=("en", "zh"), inside=None):
    rows = [dict(zip(names, pair, strict=True)) for pair in zip(src, tgt, strict=True)]
    return [{"id": n, inside: row} for n, row in enumerate(rows)] if inside else rows


def json_lines(rows):
    return lines(json.dumps(row, ensure_ascii=False) for row in rows)


@dataclass(frozen=True)
class Read:
    """A corpus that is read: its files, the flags, and what comes out."""

    name: str
    files: dict[str, str | bytes]
    data: str
    flags: str = ""
    src: list[str] = field(default_factory=lambda: EN)
    tgt: list[str] = field(default_factory=lambda: ZH)
    splits: tuple[int, int, int] | None = None  # None: val and test are held out
    tokenizer: str = "zh"


@dataclass(frozen=True)
class Refused:
    """A corpus that is refused: its files, the flags, and patterns that the error has."""

    name: str
    files: dict[str, str | bytes]
    data: str
    says: tuple[str, ...]
    flags: str = ""


def put(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)


def sides(prefix="train", *, src="en", tgt="zh", texts=(EN, ZH), end="", part=slice(None)):
    return {
        f"{prefix}.{name}{end}": lines(text[part])
        for name, text in ((src, texts[0]), (tgt, texts[1]))
    }


def three(**options):
    """Three splits of the 40 pairs: 30, 4 and 6."""
    return {
        **sides("train", part=slice(30), **options),
        **sides("val", part=slice(30, 34), **options),
        **sides("test", part=slice(34, 40), **options),
    }


def three_tables(ending, make):
    parts = {"train": slice(30), "val": slice(30, 34), "test": slice(34, 40)}
    return {f"c/{name}{ending}": make(EN[part], ZH[part]) for name, part in parts.items()}


SPLITS = (30, 4, 6)
EN_DE = {"tgt": DE, "tokenizer": "13a"}
CSV_EN = [f'He said, "no {n}",\nand left.' for n in range(40)]
TSV = table(EN, ZH, header=("en", "zh"))

READ = [
    # ---- folders of two files ----
    Read("Multi30k: three splits", {f"m/{k}": v for k, v in three(tgt="de", texts=(EN, DE)).items()},
         "m", "--src en --tgt de", splits=SPLITS, **EN_DE),
    Read("Multi30k: test_2016_flickr",
         {f"m/{k.replace('test', 'test_2016_flickr')}": v
          for k, v in three(tgt="de", texts=(EN, DE)).items()},
         "m", "--src en --tgt de", splits=SPLITS, **EN_DE),
    Read("Multi30k: the other direction",
         {f"m/{k}": v for k, v in three(tgt="de", texts=(EN, DE)).items()},
         "m", "--src de --tgt en", src=DE, tgt=EN, splits=SPLITS, tokenizer="13a"),
    Read("a folder with train alone", sides("c/train"), "c"),
    Read("a folder, gzip", {f"c/{k}": v for k, v in three(end=".gz").items()}, "c", splits=SPLITS),
    Read("a folder with train and test",
         {**sides("c/train", part=slice(30)), **sides("c/test", part=slice(30, 40))}, "c",
         splits=(-1, -1, 10)),
    Read("file endings pt-BR", sides("c/train", tgt="pt-BR", texts=(EN, PT)), "c",
         "--src en --tgt pt-BR", tgt=PT, tokenizer="13a"),
    Read("file endings zh-Hans", sides("c/train", tgt="zh-Hans"), "c", "--src en --tgt zh-Hans"),
    Read("files asked for by names of languages", sides("c/train"), "c",
         "--src English --tgt Chinese"),
    # ---- prefixes ----
    Read("a prefix", sides("corpus/wmt", tgt="de", texts=(EN, DE)), "corpus/wmt",
         "--src en --tgt de", **EN_DE),
    Read("a prefix, gzip", sides("corpus/wmt", end=".gz"), "corpus/wmt"),
    Read("a prefix that has a dot", sides("corpus/news.v16"), "corpus/news.v16"),
    Read("a prefix that a folder next to it begins with",
         {**sides("corpus/wmt"), "corpus/wmt19/readme": "none\n"}, "corpus/wmt"),
    Read("the prefix train", sides("corpus/train"), "corpus/train"),
    # ---- tables ----
    Read("TSV with codes in its header", {"a.tsv": TSV}, "a.tsv"),
    Read("TSV, gzip", {"a.tsv.gz": TSV}, "a.tsv.gz"),
    Read("TSV with the columns the other way round",
         {"a.tsv": table(ZH, EN, header=("zh", "en"))}, "a.tsv"),
    Read("TSV in the direction from Chinese", {"a.tsv": TSV}, "a.tsv", "--src zh --tgt en",
         src=ZH, tgt=EN, tokenizer="13a"),
    Read("TSV with a third column in between",
         {"a.tsv": table(EN, BY, ZH, header=("en", "source", "zh"))}, "a.tsv"),
    Read("TSV with names of languages in its header",
         {"a.tsv": table(EN, ZH, header=("English", "Chinese"))}, "a.tsv"),
    Read("TSV asked for by names", {"a.tsv": TSV}, "a.tsv", "--src English --tgt Chinese"),
    Read("names in any letter case", {"a.tsv": table(EN, ZH, header=("EN", "ZH"))}, "a.tsv",
         "--src english --tgt CHINESE"),
    Read("a name of a language in its own letters",
         {"a.csv": table(EN, ZH, header=("English", "中文"), by=",")}, "a.csv",
         "--src English --tgt 中文"),
    Read("TSV with zh-Hans in its header", {"a.tsv": table(EN, ZH, header=("en", "zh-Hans"))},
         "a.tsv", "--src en --tgt zh-Hans"),
    Read("TSV with pt-BR in its header", {"a.tsv": table(EN, PT, header=("en", "pt-BR"))}, "a.tsv",
         "--src en --tgt pt-BR", tgt=PT, tokenizer="13a"),
    Read("Japanese", {"a.tsv": table(EN, JA, header=("en", "ja"))}, "a.tsv", "--src en --tgt ja",
         tgt=JA, tokenizer="ja-mecab|char"),
    Read("Korean", {"a.tsv": table(EN, KO, header=("en", "ko"))}, "a.tsv",
         "--src en --tgt Korean", tgt=KO, tokenizer="ko-mecab|char"),
    Read("Tatoeba: no header, attribution last", {"t.tsv": table(EN, ZH, BY)}, "t.tsv",
         "--columns en,zh"),
    Read("Tatoeba, columns the other way round", {"t.tsv": table(ZH, EN, BY)}, "t.tsv",
         "--columns zh,en"),
    Read("a column to skip", {"t.tsv": table(BY, EN, ZH)}, "t.tsv", "--columns _,en,zh"),
    Read("no header, another language", {"t.tsv": table(EN, DE)}, "t.tsv",
         "--columns en,de --src en --tgt de", **EN_DE),
    Read("CSV", {"a.csv": table(EN, ZH, header=("en", "zh"), by=",")}, "a.csv"),
    Read("CSV, gzip", {"a.csv.gz": table(EN, ZH, header=("en", "zh"), by=",")}, "a.csv.gz"),
    Read("CSV whose header says source,target",
         {"a.csv": table(EN, ZH, header=("source", "target"), by=",")}, "a.csv",
         "--src source --tgt target", tokenizer="13a"),
    Read("CSV with commas in quotes",
         {"a.csv": quoted([f"Yes, {n}, it is." for n in range(40)], ZH, header=("en", "zh"))},
         "a.csv", src=[f"Yes, {n}, it is." for n in range(40)]),
    Read("CSV with commas, quotes and line ends in quotes",
         {"a.csv": quoted([text.replace('"', '""') for text in CSV_EN], ZH, header=("en", "zh"))},
         "a.csv", src=CSV_EN),
    Read("a folder of TSV", three_tables(".tsv", lambda e, z: table(e, z, header=("en", "zh"))),
         "c", splits=SPLITS),
    Read("a folder of CSV, gzip",
         three_tables(".csv.gz", lambda e, z: table(e, z, header=("en", "zh"), by=",")),
         "c", splits=SPLITS),
    Read("a folder of TSV without headers", three_tables(".tsv", table), "c", "--columns en,zh",
         splits=SPLITS),
    # ---- JSON ----
    Read("JSON lines", {"a.jsonl": json_lines(objects(EN, ZH))}, "a.jsonl"),
    Read("JSON lines, gzip", {"a.jsonl.gz": json_lines(objects(EN, ZH))}, "a.jsonl.gz"),
    Read("JSON lines of Hugging Face",
         {"a.jsonl": json_lines(objects(EN, ZH, inside="translation"))}, "a.jsonl"),
    Read("JSON lines of Hugging Face, gzip, German",
         {"a.jsonl.gz": json_lines(objects(EN, DE, names=("en", "de"), inside="translation"))},
         "a.jsonl.gz", "--src en --tgt de", **EN_DE),
    Read("a JSON list", {"a.json": json.dumps(objects(EN, ZH))}, "a.json"),
    Read("a JSON list, gzip", {"a.json.gz": json.dumps(objects(EN, ZH))}, "a.json.gz"),
    Read("a JSON list of Hugging Face",
         {"a.json": json.dumps(objects(EN, ZH, inside="translation"), indent=1)}, "a.json"),
    Read("JSON keys by names of languages",
         {"a.jsonl": json_lines(objects(EN, ZH, names=("English", "Chinese")))}, "a.jsonl"),
    Read("a folder of JSON lines", three_tables(".jsonl", lambda e, z: json_lines(objects(e, z))),
         "c", splits=SPLITS),
    Read("a folder of JSON lines of Hugging Face, gzip",
         three_tables(".jsonl.gz", lambda e, z: json_lines(objects(e, z, inside="translation"))),
         "c", splits=SPLITS),
    # ---- what editors and other systems write ----
    Read("a mark of byte order in a TSV", {"a.tsv": "\ufeff" + TSV}, "a.tsv"),
    Read("a mark of byte order in a CSV",
         {"a.csv": "\ufeff" + table(EN, ZH, header=("en", "zh"), by=",")}, "a.csv"),
    Read("a mark of byte order in both files",
         {name: "\ufeff" + text for name, text in sides("c/train").items()}, "c"),
    Read("a mark of byte order in JSON lines",
         {"a.jsonl": "\ufeff" + json_lines(objects(EN, ZH))}, "a.jsonl"),
    Read("CRLF in a TSV", {"a.tsv": TSV.replace("\n", "\r\n")}, "a.tsv"),
    Read("CRLF in a CSV",
         {"a.csv": table(EN, ZH, header=("en", "zh"), by=",").replace("\n", "\r\n")}, "a.csv"),
    Read("CRLF in both files",
         {name: text.replace("\n", "\r\n") for name, text in sides("c/train").items()}, "c"),
    Read("CRLF in one file alone",
         {"c/train.en": lines(EN).replace("\n", "\r\n"), "c/train.zh": lines(ZH)}, "c"),
    Read("no line end at the end", {"a.tsv": TSV.rstrip("\n")}, "a.tsv"),
    Read("blank lines at the end of a TSV", {"a.tsv": TSV + "\n\n"}, "a.tsv"),
    Read("quotes in a TSV are signs like others",
         {"a.tsv": table([f'"No {n}' for n in range(40)], ZH, header=("en", "zh"))}, "a.tsv",
         src=[f'"No {n}' for n in range(40)]),
    # ---- what is named is read as named, whatever it holds ----
    Read("a header that names the sides the other way round",
         {"a.tsv": table(ZH, EN, header=("en", "zh"))}, "a.tsv", src=ZH, tgt=EN),
    Read("--columns the other way round", {"a.tsv": table(EN, ZH)}, "a.tsv", "--columns zh,en",
         src=ZH, tgt=EN),
    Read("the same text on both sides", {"a.tsv": table(EN, EN, header=("en", "zh"))}, "a.tsv",
         tgt=EN),
    Read("numbers on a side", {"a.tsv": table(EN, [str(n) for n in range(40)], header=("en", "zh"))},
         "a.tsv", tgt=[str(n) for n in range(40)]),
]  # fmt: skip

ROWS = (re.escape(EN[0]), re.escape(EN[1]))
# What says which side is which.
FLAG = "--columns|--src"

REFUSED = [
    Refused("no header, three columns", {"t.tsv": table(EN, ZH, BY)}, "t.tsv",
            (*ROWS, re.escape(BY[0]), "--columns", r"t\.tsv")),
    Refused("no header, two columns", {"t.tsv": table(EN, ZH)}, "t.tsv",
            (*ROWS, re.escape(ZH[0]), "--columns", r"t\.tsv")),
    Refused("no header, two columns of other languages", {"t.tsv": table(EN, DE)}, "t.tsv",
            (*ROWS, "--columns"), "--src en --tgt fr"),
    Refused("no header, gzip", {"t.tsv.gz": table(EN, ZH, BY)}, "t.tsv.gz", (*ROWS, "--columns")),
    Refused("no header, CSV", {"t.csv": table(EN, ZH, BY, by=",")}, "t.csv", (*ROWS, "--columns")),
    Refused("a header that names no language",
            {"a.csv": table(EN, ZH, header=("source", "target"), by=",")}, "a.csv",
            ("source", "target", ROWS[0], FLAG)),
    Refused("a header of three that names no language",
            {"a.tsv": table(BY, EN, ZH, header=("id", "text", "label"))}, "a.tsv",
            ("id", "text", "label", ROWS[0], FLAG)),
    Refused("two columns of one name",
            {"a.tsv": table(EN, DE, ZH, header=("en", "en", "zh"))}, "a.tsv", ("'?en'?", FLAG)),
    Refused("a header with other languages", {"a.tsv": table(EN, DE, header=("en", "de"))},
            "a.tsv", ("'?en'?", "'?de'?", "'?zh'?", "--tgt|--columns")),
    Refused("a column that does not exist",
            {"a.tsv": table(EN, ZH, BY, header=("en", "zh", "source"))}, "a.tsv",
            ("French", "'?en'?", "'?zh'?", "'?source'?", "--tgt|--columns"),
            "--src en --tgt French"),
    Refused("a side that --columns does not name", {"a.tsv": table(EN, ZH)}, "a.tsv",
            ("fr", "en", "zh", "--columns"), "--columns en,zh --src en --tgt fr"),
    Refused("more --columns than there are", {"a.tsv": table(EN, ZH)}, "a.tsv",
            (r"a\.tsv", "column"), "--columns _,_,en,zh"),
    Refused("JSON keys that name no language",
            {"a.jsonl": json_lines(objects(EN, ZH, names=("q", "a")))}, "a.jsonl",
            (r"\bq\b", r"\ba\b", ROWS[0], FLAG)),
    Refused("one side for both", {"a.tsv": TSV}, "a.tsv", ("en", "--src|--tgt"),
            "--src en --tgt English"),
    Refused("different line counts",
            {"c/train.en": lines(EN), "c/train.zh": lines(ZH[:37])}, "c",
            (r"train\.en", r"train\.zh", r"\b40\b", r"\b37\b")),
    Refused("different line counts in a split that is there",
            {**sides("c/train"), "c/val.en": lines(EN[:9]), "c/val.zh": lines(ZH[:7])}, "c",
            (r"val\.en", r"val\.zh", r"\b9\b", r"\b7\b")),
    Refused("different line counts of a prefix",
            {"c/wmt.en": lines(EN), "c/wmt.zh": lines(ZH[:36])}, "c/wmt",
            (r"wmt\.en", r"wmt\.zh", r"\b40\b", r"\b36\b")),
    Refused("a missing side", {"c/train.en": lines(EN)}, "c", (r"train\.en", r"train\.zh")),
    Refused("a missing side of a prefix", {"c/wmt.en": lines(EN)}, "c/wmt",
            (r"wmt\.en", r"wmt\.zh")),
    Refused("a missing side of val",
            {**sides("c/train"), "c/val.en": lines(EN[:5])}, "c", (r"val\.en", r"val\.zh")),
    Refused("a folder with val alone", sides("c/val"), "c", ("train", r"val\.en")),
    Refused("an empty folder", {"c/readme": "none\n"}, "c", ("train", "readme")),
    Refused("no such path", {}, "nowhere/wmt", ("nowhere/wmt",)),
    Refused("not UTF-8, one of two files",
            {"c/train.en": lines(EN), "c/train.zh": (lines(ZH[:-1])).encode() + b"\xc4\xe3\xba\xc3\n"},
            "c", (r"train\.zh", r"line 40\b", "UTF-8")),
    Refused("not UTF-8, a TSV",
            {"a.tsv": TSV.encode() + b"late\t\xc4\xe3\xba\xc3\n"}, "a.tsv",
            (r"a\.tsv", r"line 42\b", "UTF-8")),
    Refused("not UTF-8, gzip",
            {"a.tsv.gz": TSV.encode() + b"late\t\xc4\xe3\xba\xc3\n"}, "a.tsv.gz",
            (r"a\.tsv\.gz", r"line 42\b", "UTF-8")),
    Refused("an empty TSV", {"a.tsv": ""}, "a.tsv", (r"a\.tsv", "empty|no (?:\\w+ )?(?:pair|row)")),
    Refused("an empty JSON list", {"a.json": "[]"}, "a.json", (r"a\.json", "empty|no ")),
    Refused("an empty side", {"c/train.en": "", "c/train.zh": ""}, "c", (r"train\.en", "empty|no ")),
    Refused("a header without rows", {"a.tsv": "en\tzh\n"}, "a.tsv", (r"a\.tsv", "empty|no ")),
    Refused("nothing to see on a side",
            {"a.tsv": table(EN[:9], ["\u200b"] * 9, header=("en", "zh"))}, "a.tsv",
            (r"a\.tsv", "empty|no |without")),
    Refused("broken JSON lines",
            {"a.jsonl": json_lines(objects(EN, ZH)) + '{"en": "x", \n'}, "a.jsonl",
            (r"a\.jsonl", r"line 41\b")),
    Refused("JSON that is no text", {"a.jsonl": '{"en": 1, "zh": ["x"]}\n'}, "a.jsonl",
            (r"a\.jsonl", "line 1\\b|item 1\\b|first")),
    Refused("a broken archive", {"a.tsv.gz": ""}, "a.tsv.gz", (r"a\.tsv\.gz",)),
]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def counts(self):
        """Return training, validation and test pairs that the line of the data names."""
        found = [
            re.search(rf"([\d,]+) {name}", self.out) for name in ("training", "validation", "test")
        ]
        assert all(found), self.out
        return tuple(int(match[1].replace(",", "")) for match in found if match)

    @property
    def left_out(self):
        """Return how many pairs are said to be left out, as nothing is to see on a side."""
        said = r"([\d,]+) [^,;:.\d]*(?:empty|without|blank|invisible|no text|no visible|dropped|left out)"
        found = re.search(said, self.out + self.err)
        return int(found[1].replace(",", "")) if found else 0


@pytest.fixture
def train(capsys, monkeypatch, tmp_path):
    """Run `gapless train` in a folder of its own, on a model of no size."""
    monkeypatch.chdir(tmp_path)

    def call(data, *flags):
        code = run_command(["train", "--data", data, *TINY, *flags])
        return Outcome(code, *capsys.readouterr())

    return call


def pairs_scored(run):
    """Return the test pairs of a run, as its scores are taken on them."""
    assert (
        run_command(["evaluate", run, "--beam", "1", "--max-length", "4", "--device", "cpu"]) == 0
    )
    written = [
        Path(run, f"{name}.test.txt").read_bytes().decode().removesuffix("\n").split("\n")
        for name in ("sources", "references")
    ]
    return [(plain(src), plain(tgt)) for src, tgt in zip(*written, strict=True)]


def plain(text):
    return " ".join(text.split())


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_a_corpus_is_counted_in_full(case, train, tmp_path):
    """No line is lost, no header is a pair, and the tokenizer of scores is that of the language."""
    put(tmp_path, case.files)

    done = train(case.data, *case.flags.split(), "--dry-run")

    assert done.code == 0, done.err
    assert sum(done.counts) == 40
    if case.splits is None:
        assert min(done.counts) >= 1
    else:
        known = [pair for pair in zip(case.splits, done.counts, strict=True) if pair[0] >= 0]
        assert [want for want, _ in known] == [found for _, found in known]
    assert re.search(rf"tokenizer (?:{case.tokenizer})\b", done.out)
    assert not Path("runs").exists()


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_each_sentence_stands_on_its_side_beside_its_own_translation(case, train, tmp_path):
    """The test pairs that `gapless evaluate` writes down are pairs of the corpus, source first."""
    put(tmp_path, case.files)

    done = train(case.data, *case.flags.split(), "--run-dir", "run")

    assert done.code == 0, done.err
    found = pairs_scored("run")
    pairs = [(plain(src), plain(tgt)) for src, tgt in zip(case.src, case.tgt, strict=True)]
    assert [pair for pair in found if pair not in pairs] == []
    if case.splits is not None:
        assert found == pairs[-case.splits[2] :]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_corpus_that_cannot_be_read_has_one_error_that_says_what_to_give(case, train, tmp_path):
    """Exit code 2 and one error, without a traceback; a question of sides shows rows and the flag."""
    put(tmp_path, case.files)
    if case.name == "a broken archive":
        (tmp_path / case.data).write_bytes(gzip.compress(TSV.encode())[:-9])

    done = train(case.data, *case.flags.split(), "--dry-run")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("gapless: error: ")
    assert done.err.count("error:") == 1
    assert "warning:" not in done.err
    assert "Traceback" not in done.err
    said = done.err.replace(str(tmp_path), "")
    assert [part for part in case.says if not re.search(part, said)] == []
    assert not Path("runs").exists()


@pytest.mark.quick_cases(16)
@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.parametrize("side", ["en", "zh"])
@pytest.mark.parametrize("form", ["files", "tsv", "jsonl"])
def test_a_pair_with_nothing_to_see_on_a_side_is_left_out_and_counted(
    name, side, form, train, tmp_path
):
    """Of 40 pairs three are such pairs, so that 37 are read and three are told."""
    text = {"en": list(EN), "zh": list(ZH)}
    for at in (4, 17, 30):
        text[side][at] = UNSEEN[name]
    files = {
        "files": sides("c/train", texts=(text["en"], text["zh"])),
        "tsv": {"c/train.tsv": table(text["en"], text["zh"], header=("en", "zh"))},
        "jsonl": {"c/train.jsonl": json_lines(objects(text["en"], text["zh"]))},
    }
    put(tmp_path, files[form])

    done = train("c", "--dry-run")

    assert done.code == 0, done.err
    assert (sum(done.counts), done.left_out) == (37, 3)


def test_lines_that_are_blank_in_both_files_are_left_out_and_counted(train, tmp_path):
    """They do not shift the lines below them."""
    texts = [[*text[:20], "", "\u200b", *text[20:]] for text in (EN, ZH)]
    put(tmp_path, {**sides("c/train", texts=texts)})

    done = train("c", "--dry-run")

    assert done.code == 0, done.err
    assert (sum(done.counts), done.left_out) == (40, 2)


def test_blank_lines_between_rows_of_a_table_are_no_pairs(train, tmp_path):
    """A reader of tables passes over them."""
    rows = TSV.splitlines(keepends=True)
    put(tmp_path, {"a.tsv": "".join([*rows[:9], "\n", *rows[9:21], "\n", *rows[21:]])})

    done = train("a.tsv", "--dry-run")

    assert done.code == 0, done.err
    assert sum(done.counts) == 40


@pytest.mark.parametrize(
    ("name", "raw"), [("a.tsv", TSV + "only one\n"), ("a.csv", table(EN, ZH, header=("en", "zh"), by=",") + "only one\n")]
)  # fmt: skip
def test_a_row_with_too_few_columns_is_named_or_counted(name, raw, train, tmp_path):
    """It is no reason for a wrong pair, and it does not vanish in silence."""
    put(tmp_path, {name: raw})

    done = train(name, "--dry-run")

    assert "Traceback" not in done.err
    if done.code == 0:
        assert (sum(done.counts), done.left_out) == (40, 1)
    else:
        assert done.code == 2
        assert re.search(rf"{re.escape(name)}.*\b42\b", done.err)


@pytest.mark.parametrize(
    ("files", "held"),
    [
        (sides("c/train"), ("validation", "test")),
        ({**sides("c/train"), **sides("c/test", texts=(DE, ZH))}, ("validation",)),
        ({**sides("c/train"), **sides("c/val", texts=(DE, ZH))}, ("test",)),
    ],
)
def test_missing_splits_are_held_out_of_train_and_that_is_said(files, held, train, tmp_path):
    """Held-out pairs are taken from the training pairs; a split with files is as it is."""
    put(tmp_path, files)

    done = train("c", "--dry-run")

    assert done.code == 0, done.err
    counts = dict(zip(("training", "validation", "test"), done.counts, strict=True))
    assert counts["training"] + sum(counts[name] for name in held) == 40
    assert [counts[name] for name in ("validation", "test") if name not in held] == [40] * (
        2 - len(held)
    )
    assert re.search(r"\bh[eo]ld\b.{0,10}\bout\b", done.out + done.err)


def test_what_is_held_out_is_the_same_each_time(train, tmp_path):
    """Scores of two runs on one file compare."""
    put(tmp_path, {"a.tsv": TSV})
    assert train("a.tsv", "--run-dir", "one").code == 0
    assert train("a.tsv", "--run-dir", "two").code == 0

    assert pairs_scored("one") == pairs_scored("two")


def test_a_line_to_translate_with_nothing_to_see_is_an_empty_line(train, tmp_path, capsys):
    """Its translations and their scores are those of the empty line, and lines keep their order."""
    put(tmp_path, {"a.tsv": TSV})
    assert train("a.tsv", "--run-dir", "run").code == 0
    (tmp_path / "text").write_text(lines([EN[0], *UNSEEN.values(), EN[0]]), encoding="utf-8")

    flags = ["--file", "text", "--n-best", "1", "--device", "cpu"]
    assert run_command(["translate", "run", *flags]) == 0
    single = capsys.readouterr().out.split("\n")[:-1]
    flags[3] = "2"
    assert run_command(["translate", "run", *flags, "--beam", "2"]) == 0
    several = capsys.readouterr().out.splitlines()

    assert len(single) == len(UNSEEN) + 2
    assert single[1:-1] == [""] * len(UNSEEN)
    assert single[0] == single[-1]
    told = {}
    for row in several:
        number, _, rest = row.partition(" ||| ")
        told.setdefault(int(number), []).append(rest)
    _, *unseen, _ = (told[number] for number in sorted(told))
    assert {
        name: rows for name, rows in zip(UNSEEN, unseen, strict=True) if rows != unseen[0]
    } == {}


def dry_run(folder, *arguments, blocked=()):
    """Run the command in a process of its own in which some packages cannot be imported."""
    stub = folder / "stub"
    stub.mkdir()
    (stub / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({list(blocked)!r}))\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "gapless", "train", *arguments, *TINY, "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(stub), str(SRC)])},
    )


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({"a.tsv": TSV}, ["--data", "a.tsv"]),
        ({"t.tsv": table(EN, ZH, BY)}, ["--data", "t.tsv", "--columns", "en,zh"]),
    ],
)
def test_a_table_with_two_named_columns_needs_no_names_of_languages(files, arguments, tmp_path):
    """Codes that are written in the file or on the command line are understood without `langcodes`."""
    put(tmp_path, files)

    done = dry_run(tmp_path, *arguments, blocked=["langcodes", "language_data"])

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    outcome = Outcome(done.returncode, done.stdout, done.stderr)
    assert sum(outcome.counts) == 40
    assert "tokenizer zh" in done.stdout


def test_a_name_that_needs_langcodes_says_so_where_it_is_missing(tmp_path):
    """One line with the code to give or the package to install, and no traceback."""
    put(tmp_path, {"a.tsv": table(EN, PT, header=("en", "pt"))})

    done = dry_run(
        tmp_path, "--data", "a.tsv", "--tgt", "Portuguese", blocked=["langcodes", "language_data"]
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "Portuguese" in done.stderr
    assert "langcodes" in done.stderr


@pytest.mark.parametrize(
    ("files", "arguments", "code", "said"),
    [
        (
            {f"m/{name}": text for name, text in three(tgt="de", texts=(EN, DE)).items()},
            ["--data", "m", "--src", "en", "--tgt", "de"],
            0,
            "30 training",
        ),
        ({"t.tsv": table(EN, ZH, BY)}, ["--data", "t.tsv", "--columns", "en,zh"], 0, "training"),
        (sides("corpus/wmt"), ["--data", "corpus/wmt"], 0, "training"),
        ({"t.tsv": table(EN, ZH, BY)}, ["--data", "t.tsv"], 2, "--columns"),
    ],
)
def test_the_command_itself_reads_and_refuses(files, arguments, code, said, tmp_path):
    """What the other cases see in this process is what a user sees."""
    put(tmp_path, files)

    done = dry_run(tmp_path, *arguments)

    assert done.returncode == code, done.stderr
    assert said in (done.stderr if code else done.stdout)
    assert "Traceback" not in done.stderr
