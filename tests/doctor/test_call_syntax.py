"""What a line of the user calls, by the instruction that is at work."""

from __future__ import annotations

import sys

import pytest

from gapless.doctor.lines.call_syntax import operation_at


class Records:
    """Notes what the caller of any of its methods is doing."""

    def __init__(self):
        self.doing = []

    def note(self, *_):
        frame = sys._getframe(1)
        self.doing.append(operation_at(frame.f_code, frame.f_lasti))
        return self

    nonzero = all = __getitem__ = __radd__ = __lt__ = __call__ = note

    def __str__(self):
        self.note_of(sys._getframe(1))
        return ""

    def note_of(self, frame):
        self.doing.append(operation_at(frame.f_code, frame.f_lasti))


USES = {
    "nonzero": lambda x: x.nonzero(),
    "all": lambda x: x.nonzero().all(
        1,
    ),
    "indexing": lambda x: x[0],
    "arithmetic": lambda x: 1 + x,
    "comparison": lambda x: x < 1,
    "format": lambda x: "a %s" % x,  # noqa: UP031  # what is tested
    "x": lambda x: x(),
}


@pytest.mark.parametrize("expected", USES)
def test_an_operation_has_the_name_that_the_line_gives_it(expected):
    """The last name of a call, or the kind of an operation; also over several lines."""
    x = Records()
    USES[expected](x)

    assert x.doing[-1] == expected


def test_code_without_a_source_has_no_name():
    """Text that is executed is in no file."""
    x = Records()
    exec("x.nonzero()", {"x": x})

    assert x.doing == [""]
