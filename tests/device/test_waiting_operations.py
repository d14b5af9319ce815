"""Which copies between the host and a device make the host wait."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from gapless.device.waiting_operations import MAX_INLINE_COPY_BYTES, Copy, is_dense, why_it_blocks


BIG = MAX_INLINE_COPY_BYTES + 1
GOOD = {"is_pinned": True, "is_direct": True, "num_bytes": BIG}


@pytest.mark.parametrize(
    ("to_device", "non_blocking", "changes", "expected"),
    [
        (True, False, {}, "copy"),
        (False, False, {}, "cpu"),
        (True, False, {"num_bytes": 0}, None),
        (True, False, {"num_bytes": 4}, "copy"),
        (True, True, {}, None),
        (False, True, {}, None),
        (True, True, {"is_pinned": False}, "pageable copy"),
        (True, True, {"is_pinned": False, "num_bytes": BIG - 1}, None),
        (False, True, {"is_pinned": False, "num_bytes": 4}, "pageable copy"),
        (True, True, {"is_direct": False}, "strided copy"),
        (True, True, {"is_direct": False, "num_bytes": 4}, None),
        (False, True, {"is_direct": False}, "strided copy"),
        (False, True, {"is_pinned": False, "num_bytes": 0}, None),
    ],
)
def test_a_copy_blocks_for_one_reason(to_device, non_blocking, changes, expected):
    """By direction, by what was asked, by the memory of the host, by layout and size."""
    found = GOOD | changes
    copy = Copy(
        to_device=to_device,
        non_blocking=non_blocking,
        num_bytes=found["num_bytes"],
        is_pinned=lambda: found["is_pinned"],
        is_direct=lambda: found["is_direct"],
    )

    assert why_it_blocks(copy) == expected


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
        lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))
    )
)
def test_any_order_of_dimensions_is_dense(shape_and_order):
    """A permuted view of a whole tensor lies side by side; with a hole it does not."""
    shape, order = shape_and_order
    whole = torch.zeros(shape).permute(order)
    holes = torch.zeros([*shape, 2])[..., 0].permute(order)

    assert is_dense(whole.shape, whole.stride())
    assert is_dense(holes.shape, holes.stride()) == (holes.numel() == 1)


def test_an_expanded_tensor_is_not_dense():
    """Its elements lie on top of each other."""
    wide = torch.zeros(3, 1).expand(3, 4)

    assert not is_dense(wide.shape, wide.stride())
