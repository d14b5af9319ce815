"""Audits come here as they come to users who say nothing of them."""

from __future__ import annotations

import pytest

from gapless.graphs import audit


@pytest.fixture(autouse=True)
def seldom_audits(monkeypatch):
    """Audit by the schedule."""
    monkeypatch.setattr(audit, "DEFAULT_EVERY", None)


@pytest.fixture
def same_places(monkeypatch):
    """Let audits come at the same places in each run."""

    def begin():
        monkeypatch.setattr(audit._Process, "num_objects", 0)

    return begin
