"""Torch's warnings of waits are heard by whoever asks, and what else is warned of is as ever."""

from __future__ import annotations

import warnings

import pytest

from gapless.device import cuda_waits, sync_warnings
from gapless.device.sync_warnings import SYNC_WARNING
from gapless.doctor.lines.sites import SitesPass


HERE = "test_sync_warnings.py"


@pytest.fixture(autouse=True)
def mode(sync_debug_mode):
    return sync_debug_mode


def waits(mode):
    """Do what torch does when a C++ function has waited."""
    if mode[0]:
        warnings.warn(f"{SYNC_WARNING} (at X.cpp:1)", UserWarning, stacklevel=2)


def warns():
    warnings.warn("of the script", UserWarning, stacklevel=1)


@pytest.mark.parametrize("action", ["default", "ignore", "error"])
def test_reads_are_heard_whatever_filters_say(mode, action):
    """Each of them, at its line, and the script sees none."""
    sites = []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)
        with cuda_waits.watch_reads(sites.append):
            for _ in range(2):
                waits(mode)
            with warnings.catch_warnings(record=True) as gathered:
                warnings.simplefilter(action)
                waits(mode)
        waits(mode)

    assert [site.partition(":")[0] for site in sites] == [HERE] * 3
    assert (shown, gathered, mode) == ([], [], [0])


def test_a_body_warns_and_changes_filters_as_ever(mode):
    """What it warns of is shown, and the filters that it sets stay set."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with cuda_waits.watch_reads(lambda _: None):
            warns()
            warnings.filterwarnings("ignore", message="of the script")
        warns()

    assert [str(one.message) for one in shown] == ["of the script"]


def test_the_doctor_and_who_watches_a_step_hear_both(mode):
    """One wait each, and the script hears of none."""
    sites, doctor = [], SitesPass()
    with warnings.catch_warnings(record=True) as shown:
        doctor.start()
        waits(mode)
        with cuda_waits.watch_reads(sites.append):
            waits(mode)
        waits(mode)
        doctor.stop()
        waits(mode)

    assert len(sites) == 1
    assert len([wait for wait in doctor.waits if wait.cause not in ("gc", "loader")]) == 3
    assert (shown, mode) == ([], [0])


@pytest.mark.parametrize("ends_first", [0, 1])
def test_whoever_ends_first_takes_nothing_from_the_other(mode, ends_first):
    """Two may begin and end in any order."""
    heard = [[], []]
    both = [sync_warnings.SyncWarnings(one.append, are_wanted=lambda: False) for one in heard]
    mode[0] = 1
    for one in both:
        one.start()
    waits(mode)
    both[ends_first].stop()
    waits(mode)
    both[1 - ends_first].stop()
    both[ends_first].stop()

    assert [len(one) for one in heard] == ([1, 2] if ends_first == 0 else [2, 1])
    assert not sync_warnings._patches.are_in


def test_a_python_without_the_function_hears_as_well(mode, monkeypatch):
    """Through the public one, which a script may replace."""
    sites, shown = [], []
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always")
        patch.setattr(sync_warnings, "SHOW_WARNING", None)
        patch.setattr(warnings, "showwarning", lambda *parts, **more: shown.append(parts))
        with cuda_waits.watch_reads(sites.append):
            waits(mode)
            warns()

    assert len(sites) == 1
    assert [str(message) for message, *_ in shown] == ["of the script"]
