"""Which way packed rows are attended to: by the kernels, or as padded rows."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from gapless.nmt.model import attention
from gapless.nmt.model.attention import Packed, PackedRows, _attend_packed, _attend_padded


def queries(*, width=64, dtype=torch.bfloat16, is_cuda=True):
    return SimpleNamespace(shape=(5, 2, width), dtype=dtype, is_cuda=is_cuda)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_the_kernels_attend_on_a_gpu_with_triton(monkeypatch, dtype, width):
    """In 16 bits and in float32, with heads of 16, 32, 64 or 128."""
    monkeypatch.setattr(attention, "HAS_TRITON", True)

    assert attention._is_for_kernel(queries(width=width, dtype=dtype), 0.0)


@pytest.mark.parametrize(
    ("case", "dropout", "has_kernel"),
    [
        (queries(is_cuda=False), 0.0, True),
        (queries(width=24), 0.0, True),
        (queries(dtype=torch.float64), 0.0, True),
        (queries(), 0.1, True),
        (queries(), 0.0, False),
    ],
    ids=["on a CPU", "other width", "float64", "dropout", "no Triton"],
)
def test_padded_rows_attend_elsewhere(monkeypatch, case, dropout, has_kernel):
    """Off a GPU, without Triton, with other widths or types, and with dropout."""
    monkeypatch.setattr(attention, "HAS_TRITON", has_kernel)

    assert not attention._is_for_kernel(case, dropout)


def test_the_kernels_get_rows_and_starts_of_both_sides(monkeypatch):
    """Queries and keys have rows of their own, found once for all layers."""
    asked = []
    kernels = SimpleNamespace(attend=lambda *parts: (asked.append(parts), None)[::-1])
    monkeypatch.setattr(attention, "span_attention", kernels, raising=False)
    monkeypatch.setattr(attention, "_is_for_kernel", lambda *_: True)
    starts = [torch.tensor(start, dtype=torch.int32) for start in ([0, 2, 2, 5], [0, 1, 1, 3])]
    sides = [PackedRows.of(start, num_tokens=int(start[-1]), longest=4) for start in starts]

    _attend_packed(torch.ones(5, 2, 16), torch.ones(3, 2, 2, 16), Packed(*sides, True), 0.0)

    ((_, _, query_rows, query_starts, key_rows, key_starts, is_causal),) = asked
    assert (query_rows.tolist(), key_rows.tolist()) == ([0, 0, 2, 2, 2], [0, 2, 2])
    assert query_starts is starts[0]
    assert key_starts is starts[1]
    assert is_causal
    assert query_rows.dtype == key_rows.dtype == torch.int32


def test_rows_attend_to_those_of_the_same_number():
    """A query sees all keys of its row and no others, where both sides differ in length."""
    starts = [torch.tensor(start, dtype=torch.int32) for start in ([0, 2, 2, 5], [0, 1, 1, 3])]
    sides = [PackedRows.of(start, num_tokens=int(start[-1]), longest=4) for start in starts]
    keys_values = torch.zeros(3, 2, 1, 8)
    keys_values[:, 1] = torch.tensor([1.0, 2.0, 4.0])[:, None, None]

    out = _attend_padded(torch.ones(5, 1, 8), keys_values, Packed(*sides), 0.0)

    assert out[:, 0, 0].tolist() == [1.0, 1.0, 3.0, 3.0, 3.0]


def test_without_triton_the_model_can_be_imported():
    """As with a torch for a CPU."""
    program = (
        "import sys; sys.modules['triton'] = None; "
        "from gapless.nmt.model import attention; assert not attention.HAS_TRITON"
    )

    subprocess.run([sys.executable, "-c", program], check=True)
