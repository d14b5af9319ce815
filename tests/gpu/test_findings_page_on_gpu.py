"""The examples of findings.md wait on a GPU before the edit, and hardly after it."""

from __future__ import annotations

import pytest
import torch

from doctor.findings_page import edits, run


pytestmark = pytest.mark.gpu

# Those whose waits torch's own debug mode sees.
SEEN = ["GAP001", "GAP002", "GAP003", "GAP004", "GAP006", "GAP007", "GAP008", "GAP009", "GAP010"]

EDITS = [one for one in edits() if one[0] in SEEN]


@pytest.mark.parametrize(("code", "before", "after"), EDITS, ids=lambda one: one[:6])
def test_an_example_waits_in_each_step_before_its_edit_and_not_after(code, before, after):
    """Twenty steps; once for what is read or made outside of the loop."""
    before = run(before, "cuda")
    after = run(after, "cuda")

    assert before.num_waits >= 20
    assert after.num_waits <= 3
    torch.testing.assert_close(after.weights, before.weights, rtol=1e-4, atol=1e-5)
