"""What is measured of the doctor is judged rightly, and its page is made from the figures alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.doctor import __main__ as runner, first_lines, planted, results
from benchmarks.doctor.commands import LOOPS, PLANTED, RunError, Turns, ms_of
from benchmarks.doctor.options import Options
from benchmarks.doctor.static_look import copy_sources
from benchmarks.doctor.verdicts import (
    is_near,
    lines_that_wait,
    of_lines,
    overhead_of,
    saved_share,
    share_of,
    trial_gain,
)

from benchmarks import programs_of_others


ROOT = Path(__file__).parents[2]


def options(folder, **more):
    chosen = {
        "device": "cpu",
        "cases": (),
        "rounds": 1,
        "is_small": True,
        "folder": folder,
        "judged": None,
    }
    return Options(**chosen | more)


def session(*findings, device="NVIDIA H200", wall_ms=10.0, **more):
    return {
        "device": device,
        "findings": list(findings),
        "steps": {"wall_ms": {"median": wall_ms}, "num_launches": 1200.0},
        "notes": [],
        "verdict": "",
    } | more


def finding(line, *, path="item.py", code="GAP001", **more):
    site = {"path": f"corpus/planted/{path}", "line": line}
    return {"code": code, "site": site, "call": "Tensor.item", "per_step": 1.0, "cause": ""} | more


# ------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("reported", "saved", "right"),
    [
        (0.30, 0.30, True),
        (0.329, 0.30, True),
        (0.331, 0.30, False),
        (0.269, 0.30, False),
        (0.069, 0.05, True),
        (0.071, 0.05, False),
        (0.009, 0.0, True),
        (0.011, 0.0, False),
        (0.011, -0.01, False),
        (0.0, 0.30, False),
    ],
)
def test_a_reported_share_is_near_the_saved_one_or_not(reported, saved, right):
    """Ten percent of it, or two of the step; and what saves nothing is reported as nothing."""
    assert is_near(reported, saved) == right


def test_what_a_wait_costs_is_the_step_without_it():
    """By medians, as a share of the step with it."""
    assert saved_share([10.0, 99.0, 10.0], [7.0, 7.0, 1.0]) == pytest.approx(0.3)


def test_findings_of_the_labelled_line_make_the_share():
    """Those of other lines and other files do not."""
    script = PLANTED / "item.py"
    lines = lines_that_wait(script.read_text())
    (line,) = lines
    found = session(
        finding(line, exposed_ms=2.0, gain_ms=1.5),
        finding(line, exposed_ms=1.0, gain_ms=0.5),
        finding(line + 1, exposed_ms=4.0),
        finding(line, path="other.py", exposed_ms=4.0),
        finding(line) | {"site": None},
    )

    mine = of_lines(found, script, lines)

    assert len(mine) == 2
    assert share_of(found, mine, "exposed_ms") == pytest.approx(0.3)
    assert share_of(found, mine, "gain_ms") == pytest.approx(0.2)
    assert share_of(found, [], "gain_ms") is None


def test_overhead_is_told_from_the_steps_alone():
    """Warm-up and the first step of each phase are left out; what follows the watching is after it."""
    steps = [(99.0, "plain")] * 10 + [(10.0, "plain")] * 5
    steps += [(50.0, "sites")] + [(11.0, "sites")] * 5
    steps += [(70.0, "times")] + [(15.0, "times")] * 3
    steps += [(40.0, "plain")] + [(10.2, "plain")] * 5

    found = overhead_of(steps)

    assert found["before_ms"] == 10.0
    assert found["sites_overhead"] == pytest.approx(0.1)
    assert found["times_overhead"] == pytest.approx(0.5)
    assert found["after_overhead"] == pytest.approx(0.02)


def test_a_script_that_was_not_watched_has_no_overhead():
    """Not one of zero."""
    assert overhead_of([(10.0, "plain")] * 30)["sites_overhead"] is None


def test_the_early_look_is_not_the_beginning_of_the_watching():
    """Plain steps behind it are still the reference."""
    steps = [(10.0, "plain")] * 3 + [(12.0, "sites")] * 3 + [(10.0, "plain")] * 20
    found = overhead_of(steps + [(11.0, "sites")] * 5)

    assert found["before_ms"] == 10.0
    assert found["sites_overhead"] == pytest.approx(0.1)


def test_a_trial_is_found_by_a_word_of_its_name():
    """One that was refused says why."""
    ran = {
        "name": "captured in place",
        "change": "",
        "steps_per_second": {"median": 120.0},
        "baseline": {"median": 100.0},
        "refusal": "",
    }
    refused = ran | {
        "name": "x",
        "change": "Batches again.",
        "steps_per_second": None,
        "refusal": "no loader",
    }
    found = session(trials=[ran, refused])

    assert trial_gain(found, "captur") == (pytest.approx(1.2), "")
    assert trial_gain(found, "batch") == (None, "no loader")
    assert trial_gain(found, "other")[0] is None


# --------------------------------------------------------------------------------- measurements


def turns_of(*ms, of_doctor):
    """Return a process that runs scripts in turns: each step of theirs takes so long."""
    said = [[{"ms_per_step": one, "queue_ms": 1.0, "products": 9}] for one in ms]

    class Process:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, commands, *, doctor=(), **_):
            return said[: len(commands)], of_doctor

    return Process


def test_a_planted_loop_is_judged_by_what_leaving_its_wait_out_saves(monkeypatch, tmp_path):
    """The predicted gain counts before the idle time; a wait that is not found reports nothing."""
    (line,) = lines_that_wait((PLANTED / "item.py").read_text())

    def rights(*findings, **more):
        found = session(*findings, **more)
        monkeypatch.setattr(planted, "Turns", turns_of(10.0, 6.0, of_doctor=found))
        return [one["is_right"] for one in planted.measure(options(tmp_path, cases=("item",)))]

    assert rights(finding(line, exposed_ms=6.0, gain_ms=4.0)) == [True, True]
    assert rights(finding(line, exposed_ms=6.0, gain_ms=None)) == [False, False]
    assert rights() == [False, False]
    assert rights(device="cpu") == [None, None]


def test_a_planted_case_is_chosen_by_its_loop_or_by_its_loop_and_share(monkeypatch, tmp_path):
    """As the table names it."""
    monkeypatch.setattr(planted, "Turns", turns_of(10.0, 10.0, of_doctor=session()))

    def names(*cases):
        return [one["name"] for one in planted.measure(options(tmp_path, cases=cases))]

    assert names("item 0.6") == ["item 0.6"]
    assert names("item", "nonzero 0.3") == ["item 0.3", "item 0.6", "nonzero 0.3"]


def test_the_first_lines_are_those_of_the_report_of_a_program_of_others(monkeypatch, tmp_path):
    """Run from its folder; one that leaves no report is an error."""
    folder = tmp_path / "somebody" / "something"
    folder.mkdir(parents=True)
    folder.joinpath("one.py").write_text("import torch\nprint(torch.ones(2).sum().item())\n")
    program = ["somebody/something", "abc123", "", "one.py", ""]
    monkeypatch.setattr(first_lines, "PROGRAMS", {"one": program})
    monkeypatch.setitem(programs_of_others.PROGRAMS, "one", program)

    (one,) = first_lines.measure(options(tmp_path, programs=tmp_path))

    assert one["name"] == "one"
    assert one["lines"][0].startswith("No step was seen")
    assert "one.py on cpu" in one["lines"]

    program[3] = "--no-such-option"
    with pytest.raises(RunError, match="no report"):
        list(first_lines.measure(options(tmp_path, programs=tmp_path)))


def test_lines_are_copied_until_there_are_enough(tmp_path):
    """Of torch first, in an order that is always the same."""
    num_files, num_lines = copy_sources(tmp_path / "tree", 2000)

    assert 2000 <= num_lines < 40_000
    assert len(list((tmp_path / "tree" / "torch").rglob("*.py"))) == num_files


@pytest.mark.slow
def test_scripts_take_turns_in_one_process():
    """Loops of the benchmark and of the corpus print how long a step took; an error is told."""
    size = ("--num-steps", "6", "--device-ms", "0.1", "--exposed", "0.1")
    commands = [
        (PLANTED / "item.py", size),
        *(
            (LOOPS / f"{name}.py", ("--small",))
            for name in ("slow_batches", "slow_batches_recorded")
        ),
        *(
            (LOOPS / f"{name}.py", ("--small",))
            for name in ("many_layers", "many_layers_captured")
        ),
    ]

    with Turns() as process:
        found, seen = process.run(commands, rounds=2, doctor=[str(commands[0][0]), *size])
        assert [len(turns) for turns in found] == [2] * 5
        assert all(ms > 0.0 for turns in found for ms in ms_of(turns))
        assert seen["step"] == "a call of SGD.step"
        with pytest.raises(RunError, match="missing"):
            process.run([(LOOPS / "missing.py", ())], rounds=1)


# ------------------------------------------------------------------------------------- the page


def test_the_page_is_made_from_the_file_alone():
    """Nobody types a figure: the page in the docs is what the file in the docs gives."""
    folder = ROOT / "docs" / "results"
    file = folder / "doctor.json"
    entries = json.loads(file.read_text()) if file.exists() else []

    assert (folder / "doctor.md").read_text() == results.page(entries)


def test_the_page_has_the_last_entry_of_each_case(tmp_path):
    """Small runs are not in it; what is missing stands there with its command."""
    facts = {"hardware": "H200", "versions": "torch 2.13", "commit": "abc", "date": "2026-11-23"}
    entry = {"part": "static", "is_small": False, **facts, "name": "one core", "files": 9}
    entry |= {"lines": 300_001, "seconds": [11.0], "cpu_seconds": [9.0], "is_right": False}
    last = entry | {"seconds": [8.0, 9.0, 7.5], "is_right": True}
    file = tmp_path / "doctor.json"
    for one in (entry, last, entry | {"is_small": True, "seconds": [0.1]}):
        runner.append(file, one)

    assert runner.main(["--page", str(file), str(tmp_path / "page.md")]) == 0

    text = (tmp_path / "page.md").read_text()
    assert "| one core | 300,001 | 9 | 8.00 | 9.00 | yes |" in text
    assert "11.00" not in text
    assert "H200, torch 2.13, commit abc, 2026-11-23." in text
    assert text.count("Not measured yet: `PYTHONPATH=src python3 -m benchmarks.doctor --only") == 5


def test_the_corpus_stands_in_the_page_as_it_was_judged(tmp_path):
    """Counts by group, and the false alarms of all cases."""
    label = {
        "group": "autograd",
        "required": True,
        "right": True,
        "line": True,
        "sync_debug": False,
    }
    cases = [
        {"case": "a", "right": True, "mistakes": [], "harmless": 3, "labels": [label, label]},
        {
            "case": "b",
            "right": False,
            "mistakes": [["false alarm", "x"]],
            "harmless": 1,
            "labels": [],
        },
        {"case": "c", "right": True, "skipped": "skipped: no lightning", "labels": []},
    ]
    judged, file = tmp_path / "judge.json", tmp_path / "doctor.json"
    judged.write_text(json.dumps(cases))

    arguments = ["--only", "corpus", "--judged", str(judged), "--json", str(file)]
    code = runner.main([*arguments, "--commit", "abc123"])

    text = results.page(json.loads(file.read_text()))
    assert code == 1
    assert "commit abc123" in text
    assert "| autograd | 2 | 2 | 2 | 0 | yes |" in text
    assert "| 1 false alarms, 4 harmless lines |  | 1 of 2 cases |" in text
