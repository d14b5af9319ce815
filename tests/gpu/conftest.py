"""Fixtures for the tests of this room."""

from __future__ import annotations

import pytest
import torch

from backward_thread import forget_leads


@pytest.fixture(autouse=True)
def numerics_are_restored(numerics):
    """Tests set precision and determinism of the process."""


@pytest.fixture(autouse=True)
def leads_are_forgotten(numerics_are_restored):
    """Tests let one of autograd's threads lead, or leave it open which of them does: nothing is captured then."""
    forget_leads(torch.device("cuda", 0))


@pytest.fixture(autouse=True, scope="session")
def own_cache_of_compiler(tmp_path_factory):
    """Let no other process choose anew, by its clock, what Inductor has chosen here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield
