"""What `gapless train` and `gapless evaluate` do about the language of the target side."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gapless.cli import language_question


SRC = str(Path(__file__).parents[2] / "src")

FLAGS = [
    *("--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--vocab-size", "300", "--warmup", "5", "--beam", "1"),
    *("--device", "cpu", "--workers", "0", "--batch-size", "16", "--max-length", "20"),
    *("--epochs", "1", "--average", "1", "--run-dir", "r"),
]


@pytest.fixture
def table(tmp_path, tiny_data):
    """The training pairs of `tiny_data` as a table with a header, or the other way round."""
    lines = [
        (tiny_data / f"train.{side}").read_text("utf-8").splitlines() for side in ("en", "zh")
    ]

    def write(*header, turned=False, name="pairs.tsv"):
        rows = list(zip(*(lines[::-1] if turned else lines), strict=True))
        text = "".join("\t".join(row) + "\n" for row in [*([header] if header else []), *rows])
        (tmp_path / name).write_text(text, encoding="utf-8")
        return ["--data", tmp_path / name]

    return write


@pytest.fixture
def answers(monkeypatch):
    """Lets somebody sit at the terminal who answers so."""

    def give(*lines):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(language_question, "_is_terminal", lambda: True)
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return give


def settings(run="r"):
    return yaml.safe_load((Path(run) / "config.yaml").read_text("utf-8"))


def test_names_of_columns_lead_to_a_question(gapless, table):
    """Without a terminal the question is an error, which says what to add; nothing is trained."""
    words = [*table("source", "target"), "--src", "source", "--tgt", "target"]

    outcome = gapless("train", *words, *FLAGS)

    outcome.check_refused("'target' is not known", "--tgt-language zh", "--score-tokenizer zh")


def test_a_misspelt_language_has_a_hint(gapless, table):
    """Without a header nothing else says what was meant."""
    outcome = gapless("train", *table(), "--tgt", "中闻", *FLAGS)

    outcome.check_refused("'中闻' is not known (did you mean 中文?)", "--tgt-language zh")


def test_whoever_sits_at_the_terminal_answers(gapless, table, answers):
    """What is no language is asked again; the answer is kept with the run."""
    words = [*table("source", "target"), "--src", "source", "--tgt", "target"]
    answers("gibberish", "Chinese")

    outcome = gapless("train", *words, *FLAGS)

    assert outcome.code == 0, outcome.err
    assert "The language of the target side 'target' is not known" in outcome.err
    assert max(map(len, outcome.err.splitlines()[:2])) <= 80
    assert "Which language is the text of the target side in? [zh] " in outcome.err
    assert "'gibberish' is not a language" in outcome.err
    assert "tok:zh" in outcome.out
    assert settings()["tgt_language"] == "Chinese"
    assert "tok:zh" in gapless("evaluate", "r").out


def test_an_empty_answer_takes_the_suggestion(gapless, table, answers):
    """The text's script is proposed, and Enter takes it."""
    answers("")

    outcome = gapless("train", *table("src", "tgt"), "--src", "src", "--tgt", "tgt", *FLAGS)

    assert outcome.code == 0, outcome.err
    assert settings()["tgt_language"] == "zh"


def test_a_dry_run_asks_as_well(gapless, table, answers):
    """What it estimates is what the run would do."""
    words = [*table("source", "target"), "--src", "source", "--tgt", "target", "--dry-run"]
    answers("zh")

    outcome = gapless("train", *words, *FLAGS[:-2])

    assert outcome.code == 0, outcome.err
    assert "Which language is the text of the target side in? [zh] " in outcome.err


def test_no_answer_is_an_error(gapless, table, answers):
    """The end of the input, as of a terminal that went away, ends the command."""
    answers()

    outcome = gapless("train", *table("src", "tgt"), "--src", "src", "--tgt", "tgt", *FLAGS)

    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].endswith("with --score-tokenizer zh")
    assert not Path("r").exists()


def test_sides_that_are_exchanged_are_refused(gapless, table):
    """A table whose first column is Chinese is not trained on as English to Chinese."""
    words = [*table(turned=True), "--src", "en", "--tgt", "zh"]

    outcome = gapless("train", *words, *FLAGS)

    outcome.check_refused(
        "would be Chinese, but its text is written in Latin letters", "--columns"
    )


@pytest.mark.parametrize(("turned", "columns"), [(True, "en,zh"), (False, "zh,en")])
def test_columns_name_the_sides_too(gapless, table, turned, columns):
    """Whoever names the columns in another order than they have is told, without `--tgt` as well."""
    outcome = gapless("train", *table(turned=turned), "--columns", columns, *FLAGS)

    outcome.check_refused("would be Chinese, but its text is written in Latin letters")


def test_a_source_that_is_named_alone_is_compared_with_its_text(gapless, table):
    """The target side shows that the sides are exchanged, or that the text is another."""
    exchanged = gapless("train", *table(turned=True), "--src", "en", *FLAGS)
    other = gapless("train", *table(), "--src", "ru", *FLAGS)
    right = gapless("train", *table(), "--src", "en", *FLAGS[:-1], "s")

    exchanged.check_refused(
        "the source side 'en' would be English, but its text looks Chinese, and that of the target side "
        "is written in Latin letters: name both --src and --tgt"
    )
    assert other.code == right.code == 0, other.err + right.err
    told = "the source side 'ru' would be Russian, but its text is written in Latin letters; look"
    assert told in other.err
    assert "or give --src its name" in other.err
    assert "would be" not in right.err


def test_a_source_of_another_script_is_told_where_both_sides_are_named(gapless, table):
    """Nobody else would say that it is the wrong text."""
    outcome = gapless("train", *table(), "--src", "ru", "--tgt", "zh", *FLAGS)

    assert outcome.code == 0, outcome.err
    assert "the source side 'ru' would be Russian, but its text is written in Latin" in outcome.err


@pytest.mark.parametrize(("turned", "tokenizer"), [(False, "zh"), (True, "13a")])
def test_with_no_flag_at_all_the_text_decides(gapless, table, turned, tokenizer):
    """A table without header is trained from its first column to its second, and scored so."""
    outcome = gapless("train", *table(turned=turned), *FLAGS)
    evaluated = gapless("evaluate", "r")

    assert outcome.code == 0, outcome.err
    assert f"BLEU with tokenizer {tokenizer}" in outcome.out
    assert f"tok:{tokenizer}" in outcome.out
    assert f"tok:{tokenizer}" in evaluated.out
    assert ("warning: nobody named the target side: it counts as zh" in outcome.err) == turned
    kept = "zh" if tokenizer == "zh" else "auto:13a"
    assert settings()["tgt_language"] == kept


def test_an_older_run_is_asked_about_when_it_is_evaluated(gapless, tiny_run, tmp_path, answers):
    """Flags of `evaluate` answer, or whoever sits there."""
    refused = gapless("evaluate", tiny_run, "--tgt-language", "kr", "--out", tmp_path / "o")
    refused.check_refused("'kr' is not known (the code of Kanuri and of Korea)", "--tgt-language")
    answers("zh")
    asked = gapless("evaluate", tiny_run, "--tgt-language", "kr", "--out", tmp_path / "o")
    chosen = gapless(
        "evaluate", tiny_run, "--score-tokenizer", "char", "--out", tmp_path / "o", "--json"
    )

    assert "tok:zh" in asked.out
    assert "tok:char" in chosen.out


def test_a_language_given_to_evaluate_wins_over_the_tokenizer_of_the_run(gapless, table):
    """A run that counts characters is scored anew in its language."""
    assert gapless("train", *table(), "--score-tokenizer", "char", *FLAGS).code == 0

    assert "tok:char" in gapless("evaluate", "r").out
    assert "tok:zh" in gapless("evaluate", "r", "--tgt-language", "Chinese").out


def test_columns_without_text_are_refused_until_they_are_wanted(gapless, tmp_path):
    """`--no-check-columns` trains on what does not look like text."""
    rows = "".join(f"{n}\t{n + 1}\n" for n in range(40))
    (tmp_path / "n.tsv").write_text(rows)
    words = ["--data", tmp_path / "n.tsv", "--tokenizer", "none", "--vocab-size", "20"]

    gapless("train", *words, *FLAGS).check_refused("holds numbers", "--no-check-columns")
    flags = [flag for flag in FLAGS if flag not in ("--vocab-size", "300")]
    assert gapless("train", *words[:-2], "--no-check-columns", *flags).code == 0


@pytest.mark.slow
def test_a_real_terminal_is_asked(tiny_data, tmp_path, table):
    """The question goes to the terminal, and a line typed there answers it."""
    master, slave = os.openpty()
    words = [*table("source", "target"), "--src", "source", "--tgt", "target", *FLAGS]
    with subprocess.Popen(
        [sys.executable, "-m", "gapless", "train", *map(str, words)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SRC},
        stdin=slave,
        stderr=slave,
        stdout=subprocess.DEVNULL,
    ) as running:
        os.close(slave)
        seen = b""
        while b"[zh] " not in seen:
            seen += os.read(master, 1 << 12)
        os.write(master, b"\n")
        code = running.wait(timeout=300)
    os.close(master)

    assert code == 0
    assert settings(tmp_path / "r")["tgt_language"] == "zh"


def test_a_target_that_is_named_anew_is_scored_as_its_language_is(gapless, table, tiny_data):
    """What a run has settled by its text is no setting of another one's."""
    gapless("train", *table(turned=True, name="turned.tsv"), *FLAGS)
    turned = settings()

    again = gapless(
        *("train", "--config", "r/config.yaml", *table("en", "zh")),
        *("--src", "en", "--tgt", "zh", "--dry-run"),
    )

    assert turned["tgt_language"] == "auto:13a"
    assert "BLEU with tokenizer zh" in again.out


def test_a_tokenizer_that_the_text_of_a_run_asked_for_is_not_kept_for_other_text(gapless, table):
    """New, resumed and evaluated runs see how other text is written, or are told its language."""
    latin, chinese = table(turned=True, name="turned.tsv"), table()
    gapless("train", *latin, *FLAGS)
    rest = [*chinese, "--allow-changed-data", "--no-check-columns", "--epochs", "2"]

    new = gapless("train", "--config", "r/config.yaml", *chinese, "--dry-run")
    scored = gapless("evaluate", "r", *chinese, "--out", "o")
    told = gapless("evaluate", "r", *chinese, "--score-tokenizer", "13a", "--out", "o")
    resumed = gapless("train", "--resume", "r", *rest, "--tgt-language", "Chinese")

    assert "BLEU with tokenizer zh" in new.out
    assert "tok:zh" in scored.out
    assert "tok:13a" in told.out
    assert "warning: --score-tokenizer is 13a, which does not divide" in told.err
    assert "BLEU with tokenizer zh" in resumed.out
    assert "tok:zh" in resumed.out


def test_sources_in_another_script_are_told_by_evaluate(gapless, table):
    """BLEU of a model that is given the other language says nothing."""
    gapless("train", *table("en", "zh"), *FLAGS)

    scored = gapless(
        *("evaluate", "r", *table("zh", "en", turned=True, name="turned.tsv")),
        *("--columns", "en,zh", "--tgt-language", "English", "--no-check-columns"),
    )
    told = gapless(
        *("evaluate", "r", *table(turned=True, name="bare.tsv"), "--tgt-language", "English")
    )

    assert "warning" not in scored.err
    assert "the run translates from English, but the source side looks Chinese" in told.err
