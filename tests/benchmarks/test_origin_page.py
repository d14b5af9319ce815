"""The pages about the origin, from made-up files and from those of the results."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.origin_claims import CLAIMS
from benchmarks.origin_page import CHINESE, RESULTS, filled, page_text, read_files

from origin_rows import comparison_of, origins_dream


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


def test_the_pages_are_what_their_files_give():
    """The pages in the documentation are rendered from the files beside them."""
    files = read_files(RESULTS)

    assert (RESULTS / "origin.md").read_text(encoding="utf-8") == page_text(files)
    chinese = CHINESE.read_text(encoding="utf-8")
    assert filled(chinese, files) == chinese
    marks = re.findall(r"<!-- measured: (\w+) -->", chinese)
    assert sorted(marks) == sorted(["state", "plans", "verdicts", "claims", "tuning"])
