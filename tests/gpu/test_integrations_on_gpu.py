"""Real trainers of frameworks train with gapless as they do without it, on a GPU."""

from __future__ import annotations

import os

import pytest

from hazards.harness import GPU
from integrations.cases import CASES
from integrations.harness import judge, judge_the_program_itself


# Read by cuBLAS when it is first used: results repeat themselves.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = pytest.mark.gpu

_DRAWS_ON_THE_HOST = (
    "Marian draws a number on the host for each layer, if only to drop none, which a replay would not "
    "do: it runs as written, and is named"
)
_REFUSED = {
    "hf_evaluating-marian_generates": _DRAWS_ON_THE_HOST,
}


def marks_of(case):
    """Return the mark of a case that does not replay on a GPU, and why."""
    reason = _REFUSED.get(str(case))
    return [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]


ON_A_GPU = [pytest.param(case, id=str(case)) for case in CASES if GPU in case.devices]
JUDGED = [
    pytest.param(case, id=str(case), marks=marks_of(case)) for case in CASES if GPU in case.devices
]


@pytest.mark.parametrize("case", ON_A_GPU)
def test_the_program_equals_itself(case):
    """The program as written gives the same bits twice: nothing but gapless can change it."""
    assert judge_the_program_itself(case, GPU) == []


@pytest.mark.parametrize("case", JUDGED)
def test_on_a_gpu(case):
    """The program gives what it gives as written, and is replayed or not as expected."""
    assert judge(case, GPU) == []
