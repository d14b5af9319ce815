"""Fixtures for the tests of this room."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def numerics_are_restored(numerics):
    """Runs set precision and determinism of the process."""
