"""What the command line adds to the reader of corpora: flags, counts, errors in one line, text to score.

Which forms are read and what is refused: `data/test_corpus.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from gapless.cli.main import run_command


TINY = [
    *("--device", "cpu", "--workers", "0", "--d-model", "16", "--heads", "2", "--ffn", "16"),
    *("--encoder-layers", "1", "--decoder-layers", "1", "--batch-size", "16", "--beam", "1"),
    *("--vocab-size", "340", "--max-length", "60", "--epochs", "1", "--max-steps", "1"),
]

EN = [f"The cat number {n} sits on the mat." for n in range(40)]
ZH = [f"第{n}只猫坐在垫子上。" for n in range(40)]
DE = [f"Die Katze Nummer {n} sitzt auf der Matte." for n in range(40)]
BY = [f"CC-BY 2.0 (France) #{n}" for n in range(40)]


def lines(sentences):
    return "".join(f"{sentence}\n" for sentence in sentences)


def table(*columns, header=None):
    rows = list(zip(*columns, strict=True))
    return lines("\t".join(row) for row in ([header, *rows] if header else rows))


def put(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def two_files(prefix, src, tgt, *, names=("en", "zh")):
    return {f"{prefix}.{names[0]}": lines(src), f"{prefix}.{names[1]}": lines(tgt)}


EN_ZH = {"a.tsv": table(EN, ZH, header=("en", "zh"))}
EN_DE = {
    **two_files("m/train", EN[:30], DE[:30], names=("en", "de")),
    **two_files("m/val", EN[30:34], DE[30:34], names=("en", "de")),
    **two_files("m/test", EN[34:], DE[34:], names=("en", "de")),
}


@pytest.fixture
def gapless(capsys, monkeypatch, tmp_path):
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = run_command(list(arguments))
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


def pairs_scored(folder, *, split="test"):
    """Return the pairs that `gapless evaluate` wrote down in a folder."""
    texts = [
        Path(folder, f"{name}.{split}.txt").read_text("utf-8").splitlines()
        for name in ("sources", "references")
    ]
    return list(zip(*texts, strict=True))


# Files, what is named, counts of the three splits, the tokenizer of scores, and the pairs.
READ = {
    "three splits, from German": (
        EN_DE, "m --src de --tgt en", (30, 4, 6), "13a", (DE, EN)),
    "a prefix by names of languages": (
        two_files("c/wmt", EN, ZH), "c/wmt --src English --tgt Chinese", (37, 2, 1), "zh", (EN, ZH)),
    "columns in their order": (
        {"t.tsv": table(BY, ZH, EN)}, "t.tsv --columns _,zh,en", (37, 2, 1), "zh", (EN, ZH)),
    "columns over a header with two of one language": (
        {"t.tsv": table(EN, DE, ZH, header=("en", "zh", "zh"))},
        "t.tsv --columns en,_,zh", (37, 2, 1), "zh", (EN, ZH)),
    "names of no language": (
        {"t.tsv": table(EN, ZH, header=("source", "target"))},
        "t.tsv --src source --tgt target --score-tokenizer char", (37, 2, 1), "char", (EN, ZH)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("files", "flags", "counts", "tokenizer", "texts"), READ.values(), ids=READ
)
def test_flags_say_what_is_read_and_scored(
    gapless, tmp_path, files, flags, counts, tokenizer, texts
):
    """Counts and tokenizer are printed; the test pairs that are scored are those of the text."""
    put(tmp_path, files)

    shown = gapless("train", "--data", *flags.split(), *TINY, "--dry-run")
    assert not Path("runs").exists()
    done = gapless("train", "--data", *flags.split(), *TINY, "--run-dir", "run")
    scored = gapless("evaluate", "run", "--max-length", "4", "--device", "cpu")

    assert (shown.code, done.code, scored.code) == (0, 0, 0), shown.err + done.err + scored.err
    for count, name in zip(counts, ("training", "validation", "test"), strict=True):
        assert f"{count} {name}" in shown.out
    assert f"tokenizer {tokenizer}" in shown.out
    assert ("held out" in shown.out) == (counts != (30, 4, 6))
    assert f"tok:{tokenizer}|" in scored.out
    found = pairs_scored("run")
    assert len(found) == counts[-1]
    assert set(found) <= set(zip(*texts, strict=True))


# What is named, and what the error says.
REFUSED = {
    "no header": ("t.tsv", r"t\.tsv.*The cat number 0.*--columns en,zh .*--src and --tgt"),
    "another language": ("m --tgt fr", r"m has train\.en, expected both .*train\.fr.*--src and --tgt"),
    "one side for both": ("a.tsv --tgt English", "--src"),
    "more columns than there are": ("t.tsv --columns _,_,_,en,zh", r"line 1 has 3 columns, expected 5"),
    "a side that no column has": ("t.tsv --columns en,zh --tgt fr", "--columns en,zh names none.*'fr'"),
    "no file": ("absent.tsv", "absent.tsv does not exist"),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_has_one_error_that_names_flags(gapless, tmp_path, flags, said):
    """Exit code 2, nothing printed, no folder made."""
    put(tmp_path, {**EN_ZH, **EN_DE, "t.tsv": table(EN, ZH, BY)})

    done = gapless("train", "--data", *flags.split(), *TINY, "--dry-run")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("gapless: error: ")
    assert done.err.count("error:") == 1
    assert re.search(said, " ".join(done.err.split())), done.err
    assert not Path("runs").exists()


def test_pairs_with_nothing_to_see_are_counted(gapless, tmp_path):
    """Two of 40 pairs are left out, and a line says so."""
    text = [*EN[:9], "\u200b", *EN[10:20], "", *EN[21:]]
    put(tmp_path, two_files("train", text, ZH))

    done = gapless("train", "--data", ".", *TINY, "--dry-run")

    assert done.code == 0, done.err
    assert "36 training" in done.out
    assert re.search(r"\b2 (?:empty|without)", done.out), done.out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run from English to Chinese, scored by characters."""
    folder = tmp_path_factory.mktemp("corpora")
    put(folder, EN_ZH)
    names = ["--data", str(folder / "a.tsv"), "--run-dir", str(folder / "run")]

    assert run_command(["train", *names, *TINY, "--score-tokenizer", "char"]) == 0

    return str(folder / "run")


# Flags of `evaluate`, the tokenizer of its scores, and the pairs that it scores.
EVALUATED = {
    "as trained": ("", "char", (EN, ZH)),
    "the same name of the target": ("--tgt zh", "char", (EN, ZH)),
    "another target": ("--data g.tsv --tgt German", "13a", (EN, DE)),
    "another target, and its tokenizer": (
        "--data g.tsv --tgt German --score-tokenizer intl", "intl", (EN, DE)),
    "another tokenizer": ("--score-tokenizer zh", "zh", (EN, ZH)),
    "the other direction": ("--data z.tsv --src zh --tgt en", "13a", (ZH, EN)),
    "columns": ("--data t.tsv --columns _,zh,en", "char", (EN, ZH)),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "tokenizer", "texts"), EVALUATED.values(), ids=EVALUATED)
def test_evaluate_scores_what_its_flags_say(gapless, run, tmp_path, flags, tokenizer, texts):
    """A target that is named anew is scored as its language is, unless a tokenizer is named too."""
    files = {
        "g.tsv": table(EN[:3], DE[:3], header=("en", "de")),
        "z.tsv": table(ZH[:3], EN[:3], header=("zh", "en")),
        "t.tsv": table(BY[:3], ZH[:3], EN[:3]),
    }
    put(tmp_path, files)
    split = "train" if "--data" in flags else "test"
    sizes = ["--split", split, "--max-length", "4", "--device", "cpu"]

    done = gapless("evaluate", run, *flags.split(), *sizes, "--json", "--out", ".")

    assert done.code == 0, done.err
    assert f"tok:{tokenizer}|" in json.loads(done.out)["bleu_signature"]
    found = pairs_scored(".", split=split)
    assert found
    assert set(found) <= set(zip(*texts, strict=True))


# Lines that hold nothing to see.
UNSEEN = ["", "  ", "\u00a0", "\u3000", "\u200b", "\u200b\u200b", "\u200b \u200b", "\ufeff"]


@pytest.mark.parametrize("beam", [1, 2])
def test_a_line_to_translate_with_nothing_to_see_is_an_empty_line(gapless, run, tmp_path, beam):
    """Its translations and their scores are those of the empty line, and lines keep their order."""
    (tmp_path / "text").write_text(lines([EN[0], *UNSEEN, EN[0]]), encoding="utf-8")
    sizes = ["--beam", str(beam), "--n-best", str(beam), "--device", "cpu"]

    done = gapless("translate", run, "--file", "text", *sizes)

    assert done.code == 0, done.err
    rows = done.out.split("\n")[:-1]
    if beam == 1:
        told = rows
        assert told[1] == ""
    else:
        numbered = [row.split(" ||| ", 1) for row in rows]
        told = [[rest for at, rest in numbered if at == str(n)] for n in range(len(UNSEEN) + 2)]
        assert all(told)
    assert len(told) == len(UNSEEN) + 2
    assert told[1:-1] == [told[1]] * len(UNSEEN)
    assert told[0] == told[-1] != told[1]
