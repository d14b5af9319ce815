"""Judge one loop with a captured step as the cases of `hazards` are judged, without a place in their list."""

from __future__ import annotations

import itertools

from hazards.captured_harness import (
    EITHER,
    SIMULATED,
    CapturedCase,
    judge,
    judge_the_loop_itself,
    product_of,
    run,
)


_numbers = itertools.count()


def wrong_with(loop, expect, kind=SIMULATED, *, waits=True):
    """Return what is wrong with a loop, as written or with its step captured; nothing if it is right.

    Args:
        loop: takes a `Place`, captures its step by `place.capture`, and returns what is compared.
        expect: the verdict.
        kind: of the device.
        waits: whether the device is waited for after each call of a captured step.
    """
    case = _case(loop, expect, kind, waits=waits)
    return judge_the_loop_itself(case, kind) + judge(case, kind)


def refusals_of(loop, kind=SIMULATED):
    """Return the texts of what forbids to capture the step of a loop."""
    case = _case(loop, EITHER, kind)
    return run(case, product_of(case, kind)).refusals


def _case(loop, expect, kind, *, waits=True):
    # The harness knows cases by their names.
    return CapturedCase(
        name=f"{loop.__name__}_{next(_numbers)}",
        theme="checklist",
        sentence="",
        expect=expect,
        devices=(kind,),
        waits=waits,
        holds_plainly=True,
        raises=False,
        loop=loop,
    )
