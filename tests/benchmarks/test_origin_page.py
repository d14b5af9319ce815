"""The pages about the origin, from made-up files and from those of the results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.origin_claims import CLAIMS
from benchmarks.origin_page import CHINESE, RESULTS, filled, main, page_text, read_files

from origin_rows import comparison_of, make, origins_dream


ROOT = Path(__file__).parents[2]
FACTS = {
    "hardware": "NVIDIA H200",
    "host": "x86_64, 16 cores, Python 3.12",
    "versions": "torch 2.11.0",
    "commit": "abc1234",
    "date": "2026-11-23",
    "command": "python -m benchmarks.origin",
}


def file_of(rows=None, **changed):
    found = comparison_of(origins_dream() if rows is None else rows) | {"facts": FACTS}
    for row in found["rows"]:
        row["facts"] = FACTS
    return found | changed


def test_the_page_has_every_plan_and_every_claim():
    """Each plan is a row of the table, and each claim has its place in a line below its plan."""
    text = page_text({"fp32": file_of()})

    assert "| `blocking` | 优化前 (before) | yes | 2.00 | 62% | 70% | 70% |" in text
    assert (
        "| `events-interval` | 方案 2+3, 阶段 1 (plans 2+3, stage 1) | yes | 0.12 | 83% |" in text
    )
    assert "| 93.10 | 0 | 1.07x |" in text
    assert (
        "Under `blocking` a step takes 100.0 ms; launching it takes the host 1.0 ms, its kernels take "
        "70.0, and the host waits 25.0. The fastest of the origin's plans is `full` with 1.19x"
    ) in text
    lines = dict.fromkeys(claim.plan for claim in CLAIMS)
    for plan in lines:
        (lines[plan],) = re.findall(rf"^`{plan}`\n\n((?:\* .+\n)+)", text, re.MULTILINE)
    for claim in CLAIMS:
        place = f"{claim.document}:{claim.lines.replace(' ', '')}"
        assert re.search(rf"[(;]{re.escape(place)}[;)]", lines[claim.plan])
    assert "NVIDIA H200, x86_64, 16 cores, Python 3.12, torch 2.11.0, commit abc1234" in text
    assert "* fp32: " in text
    assert "* bf16: not measured yet" in text


def test_each_precision_has_its_verdict_and_each_reason_a_letter():
    """A verdict that both precisions share is said once; `why` leads to a sentence below the table."""
    rows = origins_dream()
    rows["events-interval"] = make("events-interval", 99.0)

    text = page_text({"fp32": file_of(), "bf16": file_of(rows)})

    line = next(line for line in text.splitlines() if "(000:183,219;" in line)
    assert ": **confirmed** -4.0%, **refuted** +2.1%<; " in line
    assert f"\n* {line[-1]}: " in text
    assert "* no memory leaks (000:188): **confirmed** +0.00 MiB, +0.00 MiB; " in text


def test_a_page_without_figures_says_so_first_and_has_no_empty_table():
    """The line under the title says what is measured; as long as nothing is, a line stands for a table."""
    nothing, one, both = ({}, {"fp32": file_of()}, {"fp32": file_of(), "bf16": file_of()})

    assert page_text(nothing).splitlines()[2].startswith("**Nothing on this page is measured yet.")
    assert "|---" not in page_text(nothing)
    assert "none of them measured" not in page_text(one)
    assert page_text(one).splitlines()[2] == "**Measured so far: fp32. Not yet: bf16.**"
    assert "**" not in page_text(both).splitlines()[2]


def test_what_failed_or_was_measured_apart_is_said():
    """A plan that could not be measured, other conditions, other bits and a wide spread are named."""
    rows = origins_dream()
    rows["events"] = replace(rows["events"], identical=False)
    del rows["full"]
    found = file_of(rows, problems={"full": "OutOfMemoryError: no room"})
    found["rows"][1]["facts"] = FACTS | {"date": "2026-11-24"}
    found["rows"][2]["ms_per_step"] |= {"min": 80.0, "max": 100.0}

    text = page_text({"fp32": found})

    assert "Not measured, full: OutOfMemoryError: no room." in text
    assert "Timed in another call than the others: deferred-loss." in text
    assert "read with care: events." in text
    assert "| `events` | 方案 2 (plan 2) | NO |" in text


def test_intervals_are_bold_where_they_are_fastest_or_equal():
    """The fastest interval is bold, and one whose rounds overlap with its own."""
    items = [
        {"interval": n, "ms": ms, "q1": ms - 0.1, "q3": ms + 0.1}
        for n, ms in ((1, 12.0), (10, 10.0), (20, 10.1))
    ]
    found = {"tuning": [{"sentences": 16, "intervals": items}], "tuning_facts": FACTS}

    text = page_text({"bf16": found})

    assert "| sentences a batch | every 1 | every 10 | every 20 |" in text
    assert "| 16 | 12.00 | **10.00** | **10.10** |" in text
    assert (
        "not measured yet: `PYTHONPATH=src python3 -m benchmarks.origin --precision bf16" in text
    )


def test_the_chinese_page_is_filled_between_its_marks():
    """What stands between marks is replaced, what stands around them stays, and twice is once."""
    page = "甲\n<!-- measured: claims -->\nold\n<!-- end -->\n乙\n<!-- measured: plans -->\n<!-- end -->\n"
    files = {"fp32": file_of()}

    once = filled(page, files)

    assert "old" not in once
    assert once.startswith(
        "甲\n<!-- measured: claims -->\n\n数字依次是 fp32, bf16。\n\n`blocking`\n"
    )
    assert "\n<!-- end -->\n乙\n" in once
    assert "* 004:157,282「GPU 利用率：提升 5-10%」：**属实** +6, 尚未测量；" in once
    assert "| `four-stream` | 方案 1, 阶段 2 | 是 |" in once
    assert filled(once, files) == once


def test_the_chinese_page_is_chinese_where_all_is_measured():
    """Its first part is not empty, and what was noted of the rounds is in its language."""
    page = "<!-- measured: state -->\n<!-- end -->\n<!-- measured: plans -->\n<!-- end -->\n"
    found = file_of(notes=["The time limit allowed 4 of 5 rounds."])

    text = filled(page, {"fp32": found, "bf16": found})

    assert text.startswith("<!-- measured: state -->\n\n下面的方案和说法都已测量：fp32、bf16。\n")
    assert "因为限时，5 轮里只做了 4 轮。" in text
    assert "time limit" not in text
    assert "The time limit allowed 4 of 5 rounds." in page_text({"fp32": found})


@pytest.mark.parametrize(
    "page", ["<!-- measured: plans -->\n", "<!-- measured: x -->\n<!-- end -->"]
)
def test_a_mark_that_cannot_be_filled_is_refused(page):
    """A mark without an end, or of no part, is an error and no silent gap."""
    with pytest.raises(ValueError, match="is no mark"):
        filled(page, {})


def test_the_pages_are_what_their_files_give():
    """The pages in the documentation are rendered from the files beside them."""
    files = read_files(RESULTS)

    assert (RESULTS / "origin.md").read_text(encoding="utf-8") == page_text(files)
    chinese = CHINESE.read_text(encoding="utf-8")
    assert filled(chinese, files) == chinese
    marks = re.findall(r"<!-- measured: (\w+) -->", chinese)
    assert sorted(marks) == sorted(["state", "plans", "verdicts", "claims", "tuning"])


def test_the_program_renders_a_folder_without_torch(tmp_path):
    """The page needs the files alone."""
    (tmp_path / "origin-bf16.json").write_text(json.dumps(file_of()))

    subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.origin_page", str(tmp_path)],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env={"PYTHONIOENCODING": "utf-8"},
    )

    written = (tmp_path / "origin.md").read_text(encoding="utf-8")
    assert written == page_text({"bf16": file_of()})


def test_a_file_that_is_no_result_is_refused(tmp_path, capsys):
    """The folder is named in one line, and the exit code is 2."""
    (tmp_path / "origin-fp32.json").write_text("{")

    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path} cannot be rendered" in capsys.readouterr().err
