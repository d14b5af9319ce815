"""The benchmark of attention kernels: it runs where kernels are missing, and says so."""

from __future__ import annotations

import json

from benchmarks.attention import KERNELS, main


def test_a_kernel_that_is_not_there_has_its_reason_in_the_table(tmp_path, capsys):
    """The others are measured; on a CPU what gapless does is padded rows."""
    assert main(["--device", "cpu", "--tiny", "--rounds", "1", "--out", str(tmp_path)]) == 0

    found = json.loads((tmp_path / "attention.json").read_text(encoding="utf-8"))["cases"]
    assert list(found) == ["tiny", "tiny, causal"]
    for rows in found.values():
        assert list(rows) == list(KERNELS)
        assert "_flash_attention_forward" in rows["flash"]["problem"]
        assert rows["span"]["largest_error"] < 1e-5
        assert rows["padded rows"]["forward_ms"] > 0
    assert capsys.readouterr().out.startswith("# Attention to packed sentences")
