"""The benchmark of loops of frameworks runs, and says whether bits are the same."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import integrations


pytest.importorskip("transformers")
pytest.importorskip("accelerate")


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loop", integrations.LOOPS)
def test_a_loop_is_compared(loop, tmp_path, monkeypatch, capsys):
    """A line on the screen and one in the file; without a difference it ends with 0."""
    file = tmp_path / "rows.jsonl"
    options = ["--only", loop, "--device", "cpu", "--size", "tiny", "--steps", "6"]
    options += ["--proof-steps", "12", "--rounds", "1", "--json", str(file)]
    # The script sets the first, Lightning the second.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    monkeypatch.setattr(sys, "argv", ["integrations", *options])
    with pytest.raises(SystemExit) as ended:
        integrations.main()

    (row,) = json.loads(file.read_text())["rows"]
    assert ended.value.code == 0
    assert row["same_log"]
    assert row["same_weights"]
    assert "OTHER" not in capsys.readouterr().out
