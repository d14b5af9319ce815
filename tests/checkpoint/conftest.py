"""The launcher of processes, for tests of a store among processes."""

from __future__ import annotations

from faults.conftest import launcher, launcher_of_session  # noqa: F401  # pytest finds them here
