"""Precision of float32 products, which torch lets people set in two ways."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.device.environment import environment_readers
from gapless.device.numerics import numerics_restored, set_numerics


pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"), reason="this torch has the old way alone"
)


MIXED = [("highest", "tf32"), ("high", "ieee")]


@pytest.fixture
def products():
    """Torch's new way to set the precision of products on a GPU; put back in the end."""
    products, mkldnn = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    old, new = (
        torch.get_float32_matmul_precision(),
        [products.fp32_precision, mkldnn.fp32_precision],
    )
    yield products
    torch.set_float32_matmul_precision(old)
    products.fp32_precision, mkldnn.fp32_precision = new


def settings(kind):
    return {name: reader() for name, reader in environment_readers(kind)}


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize(("old", "new"), MIXED)
def test_both_ways_are_seen_and_neither_raises(products, kind, old, new):
    """Where they do not agree, torch raises for some who ask in the old way, and lies to others."""
    torch.set_float32_matmul_precision(old)
    before = settings(kind)

    products.fp32_precision = new

    assert settings(kind) != before


def test_torch_raises_for_who_asks_in_the_old_way(products):
    """So it is worth the trouble."""
    torch.set_float32_matmul_precision("highest")
    products.fp32_precision = "tf32"

    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()


@pytest.mark.parametrize(("old", "new"), MIXED)
def test_what_was_set_in_both_ways_is_restored(products, old, new):
    torch.set_float32_matmul_precision(old)
    products.fp32_precision = new
    before = products.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision

    with numerics_restored():
        set_numerics(gapless.find_device("cpu"), "fp32", deterministic=False)
        assert torch.get_float32_matmul_precision() == "highest"

    assert before == (products.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision)
