"""The judge of the doctor tells each kind of mistake; on a GPU, the doctor makes none."""

from __future__ import annotations

import json
import os

import pytest

from doctor.judge import Ran, judge, judge_run, judge_static, run_all, say
from doctor.labels import all_cases, read_case


SCRIPT = """
from _helper import keep
for step in range(60):  # step
    total = (
        loss
        .item()  # waits: item, static surely
    )
    flag = x.shape  # harmless: a size
    y = z[mask]  # waits: shape, in autograd
    keep(loss)
    if now:  # waits: bool, 1/2 a step, static no
        pass
    maybe()  # waits: optimizer, 0-2 a step
    print("no label")
"""
HELPER = "def keep(x):\n    return x.cpu()  # waits: cpu, in other\n"


@pytest.fixture
def case(tmp_path):
    (tmp_path / "_helper.py").write_text(HELPER)
    (tmp_path / "case.py").write_text(SCRIPT)
    return read_case(tmp_path / "case.py")


def finding(line, code="GAP001", *, path="case.py", thread="main", per_step=1.0, **more):
    site = {"path": f"somewhere/{path}", "line": line} if line else None
    return {
        "code": code,
        "site": site,
        "thread": thread,
        "per_step": per_step,
        "certainty": "seen",
        "forward": None,
    } | more


def session(*findings, device="NVIDIA H200"):
    return {"version": 1, "device": device, "findings": findings, "steps": {"num_steps": 20}}


def right():
    """Return the findings that the labels ask for: of any line of a statement, and of a forward line."""
    return [
        finding(5),
        finding(99, "GAP007", thread="autograd", forward={"path": "case.py", "line": 9}),
        finding(2, "GAP003", path="_helper.py", thread="pin thread"),
        finding(11, per_step=0.5),
    ]


def mistakes(case, *findings, **more):
    return judge(case, session(*findings), **more)["mistakes"]


def test_a_doctor_that_finds_all_is_right(case):
    """A label that may wait or not may be found or not; costs and what is seldom are no alarm."""
    found = judge(case, session(*right()))
    again = judge(
        case,
        session(
            *right(),
            finding(13, "GAP010", per_step=2.0),
            finding(3, "GAP016"),
            finding(14, per_step=0.05),
            finding(8, certainty="maybe"),
        ),
    )

    assert found["right"], found
    assert again["right"], again
    assert [label["line"] for label in found["labels"]] == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("place", "wrong", "kind", "text"),
    [
        (0, None, "missed", "case.py:6 item in main"),
        (0, finding(14), "wrong line", "GAP001 at case.py:14 in main"),
        (0, finding(6, thread="autograd"), "wrong thread", "GAP001 at case.py:6 in autograd"),
        (0, finding(6, per_step=3.0), "count", "3.00 a step, labelled 1 to 1"),
        (3, finding(11, per_step=1.0), "count", "1.00 a step, labelled 0.5 to 0.5"),
        (1, finding(10, "GAP007", thread="autograd"), "wrong line", "case.py:10"),
        (2, finding(2, "GAP003", path="_helper.py"), "wrong thread", "_helper.py:2"),
    ],
)
def test_each_kind_of_mistake_with_a_label_is_told(case, place, wrong, kind, text):
    """Once, as what it is, with what was found in its place."""
    findings = right()
    findings[place : place + 1] = [wrong] if wrong else []

    ((told, why),) = mistakes(case, *findings)

    assert told == kind
    assert text in why


@pytest.mark.parametrize(
    ("extra", "kind", "text"),
    [
        (finding(8, "GAP003"), "false alarm", "which is harmless: a size"),
        (finding(14, "GAP011"), "false alarm", "which has no label"),
        (finding(14, certainty="surely"), "false alarm", "which has no label"),
        (finding(None, "GAP021"), "unattributed", "GAP021 at no line"),
    ],
)
def test_what_does_not_wait_must_not_be_reported(case, extra, kind, text):
    """Neither a line that looks harmless, nor one without a label, nor a wait of nobody."""
    ((told, why),) = mistakes(case, *right(), extra)

    assert told == kind
    assert text in why


def test_what_the_profiler_saw_too_is_no_false_alarm(case):
    """A label that is missing is the corpus' mistake."""
    truth = {"labels": [], "unlabelled": [{"line": "case.py:14", "thread": "main"}]}

    assert mistakes(case, *right(), finding(14), truth=truth) == []
    assert mistakes(case, *right(), finding(14, thread="autograd"), truth=truth) != []


def test_a_cost_must_be_found_with_its_code(case):
    """On whatever line."""
    case.path.write_text(SCRIPT + "for batch in loader:  # costs: loader\n    pass\n")
    slow = read_case(case.path)

    assert mistakes(slow, *right()) == [["cost", "case.py:15 loader in main was not found"]]
    assert mistakes(slow, *right(), finding(None, "GAP016")) == []


def test_only_proportions_count_where_no_optimizer_makes_steps(case):
    """A window of time may hold any number of the loop's steps, but the same for each line."""
    case.path.write_text(SCRIPT.replace("# step", "# step of no optimizer"))
    free = read_case(case.path)
    tenfold = [one | {"per_step": one["per_step"] * 10} for one in right()]

    assert mistakes(free, *tenfold) == []
    assert mistakes(case, *tenfold) != []
    assert [kind for kind, _ in mistakes(free, *tenfold[:3], finding(11))] == ["count"]


def test_the_run_itself_is_judged(case):
    """A doctor that fails, an exit code of its own, an output of its own: each is told."""
    plain = Ran(code=0, stdout="step 3 loss 0.25\ntensor(1.5)\n")
    same = Ran(code=0, stdout="step 7 loss 1e-05\ntensor(nan, device='cuda:0')\n")
    text = json.dumps(session(*right()))

    def kinds(ran, written):
        return [kind for kind, _ in judge_run(case, ran, plain, written, None)["mistakes"]]

    assert kinds(same, text) == []
    assert kinds(Ran(code=1, stdout=same.stdout), text) == ["exit code"]
    assert kinds(Ran(code=0, stdout=same.stdout + "GAP001 x.py:3\n"), text) == ["output"]
    assert kinds(Ran(code=0, stdout=plain.stdout.replace("loss", "less")), text) == ["output"]
    assert kinds(Ran(code=-1000, stdout="", stderr="over 150 s"), None) == [
        "exit code",
        "output",
        "crashed",
    ]
    assert kinds(same, "{}") == ["crashed"]


def test_without_an_accelerator_no_label_is_judged(case):
    """And the table says so: nothing was shown."""
    found = judge(case, session(device="cpu"))

    assert found["right"]
    assert "1 cases ran without an accelerator" in say([found])


def test_the_look_at_the_syntax_is_judged_by_its_own_labels(case):
    """ "surely" must be said where it can be known; what cannot be known may be said or not."""
    good = [
        finding(6, certainty="surely"),
        finding(9, "GAP007", certainty="maybe"),
        finding(2, "GAP003", path="_helper.py", certainty="surely"),
        finding(13, certainty="maybe"),
        finding(8, certainty="maybe"),
    ]
    less = [good[0] | {"certainty": "maybe"}, *good[1:3], good[3], finding(8, certainty="surely")]

    (right_one,) = judge_static([case], session(*good))
    (wrong_one,) = judge_static([case], session(*less))

    assert right_one["right"], right_one
    assert [kind for kind, _ in wrong_one["mistakes"]] == ["missed", "false alarm"]


def test_mistakes_and_counts_are_said(case):
    """One line a mistake; the table counts labels, not findings."""
    text = say([judge(case, session(*right()[:2], finding(14, "GAP011")))])

    assert "case: missed: case.py:11 bool in main" in text
    assert "case: false alarm: GAP011 at case.py:14" in text
    assert text.splitlines()[-1].startswith("0 of 1 cases are right, with 4 lines that wait")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_doctor_finds_every_wait_of_the_corpus(tmp_path):
    """With its line, thread and count, and reports no line that does not wait."""
    cases = [case for case in all_cases() if case.apart != "planted"]

    results = run_all(cases, tmp_path / "judge.json", jobs=min(12, os.cpu_count() or 1), truth={})

    assert all(one["right"] for one in results), say(results)
