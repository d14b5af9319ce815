"""What a terminal shows of a session: the verdict, the step, what costs most and what to write."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from doctor.any_session import sessions
from gapless.records.comparison import Spread
from gapless.records.finding import Site, Trial
from gapless.report.session_text import session_text
from gapless.report.terminal_text import display_width
from made_up_session import CLIP, COPY, ITEM, UNKNOWN, made_up_session


def session(*findings, **changed):
    return replace(made_up_session(num_steps=2), findings=findings, **changed)


def block_of(text, code):
    """Return the lines from a code to the next empty one."""
    lines = text.splitlines()
    (start,) = (at for at, line in enumerate(lines) if code in line)
    return lines[start : lines.index("", start)] if "" in lines[start:] else lines[start:]


@given(sessions, st.integers(40, 200), st.booleans())
@settings(deadline=None, max_examples=25)
def test_any_session_has_a_text_that_a_terminal_only_shows(found, columns, is_coloured):
    """No name in it can move the cursor or colour the rest, and all of it can be written."""
    text = session_text(found, columns=columns, is_coloured=is_coloured)

    plain = text.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert all(line.isprintable() for line in plain.splitlines())
    assert is_coloured or plain == text
    text.encode("utf-8")


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_lines_fit_and_use_the_room(columns):
    """Text is broken at spaces, source is cut; the columns of Chinese count twice."""
    chinese = replace(
        ITEM,
        site=replace(ITEM.site, source="损失 = 模型(输入)" * 20),
        cause="等待 设备 完成 " * 20 + ".",
        mend="以后 再 读取 " * 30 + ".",
    )
    text = session_text(session(chinese, COPY, CLIP, UNKNOWN), columns=columns)

    widest = max(map(display_width, text.splitlines()))
    assert columns - 6 <= widest <= columns


def test_the_verdict_stands_first_and_notes_last():
    """Who reads one line reads the one that counts."""
    lines = session_text(made_up_session(), columns=400).splitlines()

    assert lines[0] == made_up_session().verdict
    assert lines[-1] == f"- {made_up_session().notes[-1]}"


def test_what_to_change_first_stands_below_the_verdict_unless_nothing_helps():
    """In one line, before any figure; where the device is busy no change does."""
    steps = replace(made_up_session(num_steps=2).steps, busy_ms=5.0, idle_ms=5.0)
    lines = session_text(session(COPY, ITEM, steps=steps), columns=400).splitlines()
    busy = replace(steps, busy_ms=9.5, idle_ms=0.5)
    (first,) = (line for line in lines if line.startswith("First, "))

    assert lines.index(first) == lines.index("") - 1
    assert first == "First, train.py:49 in train: Let the loader pin its batches."
    assert "First, " not in session_text(session(COPY, steps=busy))
    assert "First, " not in session_text(session(steps=steps))
    assert "First, " not in session_text(
        session(COPY, steps=steps, verdict="DEVICE-BOUND: something else has the device")
    )


@pytest.mark.parametrize(
    ("verdict", "first"),
    [
        ("LAUNCH-BOUND: the device is idle", "the whole step: Capture the step."),
        ("LOADER-BOUND: batches take", "train.py:3: Let workers make them."),
        ("HOST WAITS: without all waits", "train.py:49 in train: Let the loader pin its batches."),
        ("No step was seen", "the whole step: Capture the step."),
    ],
)
def test_what_to_change_first_is_what_the_verdict_is_about(verdict, first):
    """Though another finding costs more."""
    launches = replace(COPY, code="GAP017", site=None, mend="Capture the step.")
    loader = replace(
        COPY,
        code="GAP016",
        site=Site(path="train.py", line=3),
        mend="Let workers make them. Or not.",
    )
    text = session_text(session(launches, loader, COPY, steps=None, verdict=verdict), columns=200)

    assert f"First, {first}\n" in text


def test_waited_and_idle_have_columns_of_their_own():
    """Beside the share of the step that idle time is, how often, the code and the line."""
    text = session_text(session(ITEM))

    assert "   waited ms  idle ms  of a step  count\n" in text
    assert "1       6.84     1.92    <= 12 %      1  GAP001  train.py:57 in train\n" in text


def test_the_predicted_gain_has_a_column_where_there_is_one():
    """Else it is left out, as all columns are in which nothing is known."""
    with_gain = session_text(session(replace(ITEM, gain_ms=1.5)))
    without = session_text(session(replace(ITEM, waited_ms=None, exposed_ms=None, share=None)))

    assert "waited ms  idle ms  gain ms  of a step" in with_gain
    assert "gain: predicted" in with_gain
    assert "   count\n" in without
    assert "waited" not in without


def test_the_source_stands_under_the_line_then_cause_and_mend_with_its_code():
    """What is there, what happens, what to write."""
    block = block_of(session_text(session(COPY), columns=100), "GAP005")

    assert block[1] == f"        {COPY.site.source}"
    assert block[2] == f"    {COPY.cause}"
    assert block[3] == "    Instead: Let the loader pin its batches."
    assert block[4] == "        DataLoader(..., pin_memory=True)"


def test_a_mend_that_came_before_is_not_repeated():
    """Twenty lines with one mend say it once."""
    text = session_text(session(COPY, ITEM, replace(ITEM, site=replace(ITEM.site, line=99))))

    assert text.count("DeferredLoss") == 1
    assert text.count("    Instead: as for 2.\n") == 1


def test_the_thread_the_forward_line_and_the_process_are_named():
    """A wait in the backward pass belongs to a line of the forward pass."""
    text = session_text(session(replace(CLIP, rank=3)), columns=200)

    assert (
        "    On thread autograd, in the backward pass of src/model/block.py:31: "
        "x = self.mlp(self.norm(x)), in process 3.\n"
    ) in text


def test_what_nobody_can_attribute_is_listed():
    """A blocking call without a line is not dropped."""
    assert "  GAP021  line unknown\n" in session_text(session(UNKNOWN))


def test_what_no_line_is_to_blame_for_belongs_to_the_whole_step():
    """Its line is not unknown: there is none."""
    assert "  GAP017  the whole step\n" in session_text(session(replace(UNKNOWN, code="GAP017")))


def test_what_the_syntax_shows_is_marked():
    """Nobody has seen it wait."""
    surely = replace(ITEM, certainty="surely")
    maybe = replace(ITEM, certainty="maybe")
    text = session_text(session(surely, maybe), columns=100)

    assert "GAP001  train.py:57" in text
    assert "GAP001 maybe  train.py:57" in text
    assert "  What was not timed would wait on a GPU, as the syntax shows.\n" in text
    assert "  maybe: the syntax does not show whether the value is on the GPU.\n" in text
    assert "syntax" not in session_text(session(ITEM))
    assert "maybe" not in session_text(session(surely))


@pytest.mark.parametrize(
    ("limit", "shown", "said"),
    [
        (10, 10, "... and 3 more findings, with 5.76 ms of idle time together.\n"),
        (12, 12, "... and 1 more finding, with 1.92 ms of idle time together.\n"),
        (13, 13, None),
        (None, 13, None),
    ],
)
def test_ten_are_shown_and_the_others_counted(limit, shown, said):
    """With what they cost together; None shows all."""
    many = [replace(ITEM, site=replace(ITEM.site, line=line)) for line in range(100, 113)]
    text = session_text(session(*many), limit=limit)

    assert text.count("GAP001") == shown
    assert (said in text) if said else ("... and" not in text)


@pytest.mark.parametrize(
    ("busy", "verdict", "times"),
    [
        (9.5, "The device is the bottleneck.", 1),
        (9.5, "Removing these will not help.", 1),
        (8.0, "The host is late.", 0),
    ],
)
def test_where_the_device_is_busy_it_says_that_removing_waits_will_not_help(busy, verdict, times):
    """Once: the verdict may have said so."""
    steps = replace(made_up_session(num_steps=2).steps, busy_ms=busy, idle_ms=10.0 - busy)
    text = session_text(session(ITEM, steps=steps, verdict=verdict))

    assert text.count("will not help") == times


def test_the_parts_of_a_step_add_up():
    """What is left of the host's time is shown as something else."""
    steps = replace(
        made_up_session(num_steps=2).steps,
        wall_ms=Spread.of([10.0]),
        data_ms=1.0,
        wait_ms=2.0,
        launch_ms=3.0,
        busy_ms=None,
        compute_ms=None,
    )
    text = session_text(session(steps=steps))

    assert "A step takes 10.0 ms\n" in text
    assert re.search(r"the host does something else +4\.00 ms +40 %\n", text)
    assert "has work" not in text


def test_shares_are_of_the_mean_which_is_shown_where_a_few_steps_are_long():
    """The parts are means: of a median they could be more than all."""
    steps = replace(
        made_up_session(num_steps=2).steps, wall_ms=Spread.of([1.0, 1.0, 7.0]), data_ms=1.5
    )
    text = session_text(session(steps=steps))

    assert "A step takes 1.00 (1.00 to 7.00) ms, 3.00 on average\n" in text
    assert re.search(r"the host waits for the loader +1\.50 ms +50 %\n", text)


def test_trials_have_their_spread_and_what_is_not_clear_is_said():
    """A gain within the noise is none."""
    fast, slow = Spread.of([12.0, 12.1]), Spread.of([10.0, 10.1])
    trials = (
        Trial(name="a", change="A.", steps_per_second=fast, baseline=slow),
        Trial(name="b", change="B.", steps_per_second=slow, baseline=slow, details=("So.",)),
        Trial(name="c", change="C.", steps_per_second=None, baseline=None, refusal="why"),
    )
    text = session_text(session(trials=trials), columns=120)

    assert "a: 12.1 (12.0 to 12.1) instead of 10.1 (10.0 to 10.1): 19.9 % faster\n    A.\n" in text
    assert "b: 10.1 (10.0 to 10.1) instead of 10.1 (10.0 to 10.1): no clear difference\n" in text
    assert "    B.\n    So.\n" in text
    assert "c: not measured: why\n" in text


def test_findings_are_parted_by_an_empty_line():
    """Each is a block of its own."""
    block = block_of(session_text(session(ITEM, COPY), columns=100), "GAP001")

    assert not [line for line in block if "GAP005" in line]


def test_small_shares_and_negative_rests_are_not_shown_as_nothing_or_less():
    """Parts that were measured one by one may add up to more than the whole."""
    steps = replace(
        made_up_session(num_steps=2).steps,
        wall_ms=replace(Spread.of([3.0]), rounds=()),
        launch_ms=9.0,
        data_ms=0.01,
    )
    text = session_text(session(replace(ITEM, share=0.001), steps=steps))

    assert re.search(r"the host does something else +0\.00 ms +0 %\n", text)
    assert re.search(r"the host waits for the loader +0\.01 ms +< 1 %\n", text)
    assert "  < 1 %      1  GAP001" in text


def test_a_note_of_several_lines_is_one():
    """Such as the message of an exception."""
    assert "\n- No profiler: a; b\n" in session_text(session(notes=("No profiler: a;\nb",)))


def test_several_processes_are_named():
    """Figures are of all of them."""
    assert " on NVIDIA H200, 4 processes\n" in session_text(session(num_ranks=4))
    assert "processes" not in session_text(session())


def test_without_findings_it_says_so():
    """Nothing that costs time is a result as well."""
    text = session_text(session(verdict="", steps=None))

    assert text.startswith("Nothing was found that costs time.\n")
    assert "\nNo findings.\n" in text
    assert session_text(session(ITEM, COPY, verdict="")).startswith("2 findings\n")
