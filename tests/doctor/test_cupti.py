"""The driver's profiling library is let go of when a profile ends."""

import os

import pytest

from gapless.doctor.trace import cupti
from gapless.doctor.trace.cupti import cupti_let_go, is_cupti_let_go


VARIABLE = "TEARDOWN_CUPTI"


@pytest.fixture
def cuda(monkeypatch):
    """Return a function that sets the version of CUDA, and what the script has set."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def put(version, value=None):
        monkeypatch.setattr(cupti, "cuda_version", lambda: version)
        if value is not None:
            monkeypatch.setenv(VARIABLE, value)

    return put


@pytest.mark.parametrize(
    ("version", "value", "within"),
    [
        ("13.0", None, "1"),
        ("14.1", None, "1"),
        ("12.8", None, None),
        ("", None, None),
        ("13.0", "0", "0"),
        ("12.8", "1", "1"),
    ],
)
def test_the_profiler_is_asked_where_that_is_safe(cuda, version, value, within):
    """Not before CUDA 13, and never against what the script or torch's compiler has set."""
    cuda(version, value)

    assert is_cupti_let_go() == (within == "1")
    with cupti_let_go():
        assert os.environ.get(VARIABLE) == within
    assert os.environ.get(VARIABLE) == value
