"""`gapless train --report`, as a user runs it."""

from __future__ import annotations

import os
import random

from cli.conftest import SMALL


TINY = [*SMALL, "--tokenizer", "none"]


def table(folder):
    """Write a hundred short pairs, and return their file."""
    draw = random.Random(3)
    words = ["red", "cat", "sees", "old", "dog", "tree"]
    rows = [" ".join(draw.choices(words, k=draw.randint(3, 6))) for _ in range(100)]
    (folder / "d.tsv").write_text("".join(f"{row}\t{row}\n" for row in rows))
    return folder / "d.tsv"


SIDES = ["--src", "en", "--tgt", "de", "--columns", "en,de"]


def test_a_run_leaves_a_page_of_its_course(process, tmp_path):
    """The last line says where; a name that is no UTF-8 is shown with escapes, as on a terminal."""
    ended = process(
        "train", "--data", table(tmp_path), *SIDES, *TINY, "--epochs", "2",
        "--run-dir", os.fsdecode(b"r\xff"), "--report", "page.html",
    )  # fmt: skip
    page = (tmp_path / "page.html").read_text(encoding="utf-8")

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.rstrip().endswith("report: page.html, for a browser")
    assert [
        part for part in (r"r\udcff", "Loss of each batch", "epoch_end") if part not in page
    ] == []
    assert "resumed" not in page


def test_a_page_that_cannot_be_written_is_refused_before_training(gapless):
    """The line names the option and what is wrong with the place."""
    gapless("train", "--report", "absent/p.html").check_refused(
        "--report absent/p.html", "not exist"
    )
    gapless("train", "--dry-run", "--report", "p.html").check_refused("--report", "--dry-run")
