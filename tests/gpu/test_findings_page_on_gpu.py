"""The examples of docs/findings.md wait on a GPU before the edit, and hardly after it."""

from __future__ import annotations

import pytest
import torch

from doctor.findings_page import run
from gapless.doctor.advice.explanations import CODES


pytestmark = pytest.mark.gpu

# Those whose waits torch's own debug mode sees.
SEEN = ["GAP001", "GAP002", "GAP003", "GAP004", "GAP006", "GAP007", "GAP008", "GAP009", "GAP010"]

EDITS = [
    (code, kind)
    for code in SEEN
    for kind in ("after", "with_gapless")
    if getattr(CODES[code], kind)
]


@pytest.mark.parametrize(("code", "kind"), EDITS)
def test_an_example_waits_in_each_step_before_its_edit_and_not_after(code, kind):
    """Twenty steps; once for what is read or made outside of the loop."""
    before = run(CODES[code].before, "cuda")
    after = run(getattr(CODES[code], kind), "cuda")

    assert before.num_waits >= 20
    assert after.num_waits <= 3
    torch.testing.assert_close(after.weights, before.weights, rtol=1e-4, atol=1e-5)
