"""The marks of tests that were written before what they test."""

from __future__ import annotations

import pytest


# Take it off a file as soon as all of the file passes.
NOT_BUILT = pytest.mark.xfail(strict=False, reason="not built yet")

# For a test that takes its whole time limit as long as what it tests is not there.
NOT_BUILT_AND_SLOW = pytest.mark.xfail(strict=False, run=False, reason="not built yet")
