"""Which texts are seen to go nowhere but to an output, by the line that makes them."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from gapless.trials.text_uses import goes_to_output


log = logging.getLogger("text uses")
log.setLevel(logging.DEBUG)


class Number:
    """Notes, whenever it is made a text, whether that goes to an output."""

    def __init__(self):
        self.found = []

    def __format__(self, form):
        self.found.append(goes_to_output(sys._getframe(1), [sys.stdout, sys.stderr]))
        return "number"

    def __str__(self):
        self.found.append(goes_to_output(sys._getframe(1), [sys.stdout, sys.stderr]))
        return "number"

    __repr__ = __str__


class Meter:
    def __init__(self, number):
        self.number = number

    def __str__(self):
        return f"mean {self.number:.2f}"


def shown(number):
    return f"<{number:.1f}>"


def same(text):
    return text


def print(*args, **kwargs):  # a script may have one of its own
    """Print as the built-in function does, which it is not."""


def two_parts(x):
    sys.stdout.write(f"a {x:.3f} "
                     f"b {x}\n")  # fmt: skip


def sum_of_texts(x):
    sys.stderr.write("a " + f"{x:.3f}" + " b" + f"{x}" + "\n")


def choice(x):
    sys.stderr.write(f"{x}\n" if x is not None else "none\n")


def form(x):
    sys.stdout.write("{:.3f} {a}\n".format(x, a=x))  # noqa: UP032


def f_string(x):
    sys.stdout.write(f"loss {x:.3f}\n")


def text(x):
    sys.stdout.write(str(x))


def text_of_an_object(x):
    sys.stdout.write(f"{Meter(x)}\n")


def text_of_a_function(x):
    sys.stdout.write(shown(x))


WRITTEN = {
    **{
        one.__name__: one
        for one in (
            *(f_string, two_parts, sum_of_texts, choice, form),
            *(text, text_of_an_object, text_of_a_function),
        )
    },
    "log": lambda x: log.info(f"loss {x:.3f}"),  # noqa: G004
    "root log": lambda x: logging.debug(f"loss {x:.3f}"),  # noqa: G004, LOG015
    "level": lambda x: log.log(logging.INFO, f"loss {x}"),  # noqa: G004
}

USED_OTHERWISE = {
    "kept": lambda x: [f"{x}"],
    "counted": lambda x: [sys.stdout.write(f"{x}")],
    "own print": lambda x: print(f"{x}"),
    "changed": lambda x: sys.stdout.write(f"{x}".upper()),
    "wider": lambda x: sys.stdout.write(f"{x!s:>10}"),
    "wider inside": lambda x: sys.stdout.write(f"{f'{x}':>10}"),
    "wider form": lambda x: sys.stdout.write("{!s:>10}".format(x)),  # noqa: UP032
    "form of a text": lambda x: sys.stdout.write("{:>10}".format(f"{x}")),
    "form by value": lambda x: sys.stdout.write(f"{x:{2}.1f}"),
    "argument": lambda x: same(f"{x}"),
    "argument of an argument": lambda x: sys.stdout.write(same(f"{x}")),
    "length": lambda x: sys.stdout.write("a" * len(f"{x}")),
    "joined": lambda x: sys.stdout.write("-".join([str(x)])),
    "percent": lambda x: sys.stdout.write("%s" % x),  # noqa: UP031
    "elsewhere": lambda x: io.StringIO().write(f"{x}"),
    "argument of a log": lambda x: log.info("%10s", f"{x}"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def handler():
    """Let records go nowhere."""
    added = logging.NullHandler()
    for logger in (log, logging.root):
        logger.addHandler(added)
    yield
    for logger in (log, logging.root):
        logger.removeHandler(added)


@pytest.mark.parametrize("name", WRITTEN)
def test_texts_that_are_only_written(name):
    """Each text of the number goes to an output, and to nothing else."""
    number = Number()

    WRITTEN[name](number)

    assert number.found
    assert all(number.found)


@pytest.mark.parametrize("name", USED_OTHERWISE)
def test_texts_that_something_may_look_at(name):
    """A text that is kept, changed or handed on may not have a late number in it."""
    number = Number()

    USED_OTHERWISE[name](number)

    assert number.found
    assert not any(number.found)
