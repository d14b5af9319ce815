"""Verdicts on cases whose replays are audited are the right ones."""

from __future__ import annotations

import pytest

from gapless.graphs import audit
from hazards import verdicts


def run_of(form, name):
    """Return a function that gives the verdict on one case under `asap`."""
    (found,) = [
        (run, arguments)
        for key, run, arguments in verdicts.all_runs()
        if key == (form, name, "asap", 0)
    ]
    return lambda: found[0](*found[1])[0]


@pytest.mark.parametrize(
    ("form", "name", "verdict"),
    [
        ("captured step", "captured_forms-returns_nothing", "right"),
        ("captured step", "captured_batch-batch_from_an_iterator", "refused"),
        ("in place", "in_place_forms-returns_a_dataclass", "right"),
        ("footgun, in_place", "patched_libraries-patched_function_of_math", "told"),
        ("channel", "closure", "right"),
        ("channel", "file_contents", "refused"),
    ],
)
def test_a_verdict(form, name, verdict, monkeypatch):
    monkeypatch.setattr(audit, "DEFAULT_EVERY", 1)

    assert run_of(form, name)() == verdict


def test_without_audits_what_no_guard_sees_is_silent(monkeypatch):
    """And told with them."""
    run = run_of("channel", "patched_math")

    assert run() == "silent"
    monkeypatch.setattr(audit, "DEFAULT_EVERY", 1)
    assert run() == "told"
