"""Footguns have the verdicts on a GPU that they have on the simulated device."""

from __future__ import annotations

import pytest
import torch

from gapless.device.find import find_device
from gapless.graphs import audit
from graphs.audits.footgun_classes import FOOTGUNS
from graphs.audits.footguns import FORMS, judged


pytestmark = pytest.mark.gpu


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(audit, "DEFAULT_EVERY", None)
    yield find_device("cuda")
    torch.cuda.synchronize()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("footgun", FOOTGUNS, ids=str)
def test_on_a_gpu(footgun, form, tmp_path, device):
    """Nothing passes in silence, and what is guarded, refused or captured is."""
    assert judged(footgun, form, tmp_path, device=device) == []
