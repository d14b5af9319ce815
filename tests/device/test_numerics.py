"""Precision, determinism and random numbers of the process."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
import torch

import gapless
from gapless.device.numerics import (
    autocast,
    numerics_restored,
    random_state,
    seed_generators,
    set_numerics,
    set_random_state,
)
from gapless.errors import DeviceError


CPU = gapless.find_device("cpu")


def numerics_of_the_process():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_a_precision_that_needs_a_gpu_is_refused_on_a_cpu(precision):
    """The error names the precision and those that a CPU offers."""
    with pytest.raises(DeviceError, match=f"{precision} .*use fp32$"):
        set_numerics(CPU, precision, deterministic=False)


def test_an_unknown_precision_is_refused():
    """The error lists the precisions."""
    with pytest.raises(DeviceError, match=r"'fp8'.*fp32, tf32, bf16, fp16"):
        set_numerics(CPU, "fp8", deterministic=False)


def test_numerics_are_restored():
    """Behind the body, the process has the settings that it had before."""
    before = numerics_of_the_process()
    with numerics_restored():
        set_numerics(CPU, "fp32", deterministic=True)
        assert numerics_of_the_process() != before
        # Its gradients are wrong.
        assert not torch.backends.cuda.cudnn_sdp_enabled()

    assert numerics_of_the_process() == before


@pytest.mark.parametrize("is_set", [True, False])
@pytest.mark.parametrize("warns", [True, False])
def test_determinism_is_as_asked_whatever_it_was(numerics, is_set, warns):
    """A mode that only warns, which a user may have set, is not enough."""
    torch.use_deterministic_algorithms(is_set, warn_only=warns)

    for deterministic in (True, False):
        set_numerics(CPU, "fp32", deterministic=deterministic)

        assert torch.are_deterministic_algorithms_enabled() == deterministic
        assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_the_compiler_is_not_loaded_where_nothing_changes():
    """Torch would import it, for seconds, before the first sentence of `gapless translate`."""
    script = """
import sys
import gapless
from gapless.device.numerics import numerics_restored, set_numerics
with numerics_restored():
    set_numerics(gapless.find_device("cpu"), "fp32", deterministic=False)
print("torch._dynamo" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"


def test_a_workspace_setting_of_the_user_is_kept(numerics, monkeypatch):
    """A value of CUBLAS_WORKSPACE_CONFIG that was set before is neither replaced nor removed."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with numerics_restored():
        set_numerics(CPU, "fp32", deterministic=True)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"

    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_a_random_state_gives_the_same_numbers_again():
    """A CPU has one generator, that of the host."""
    state = random_state(CPU)
    first = torch.rand(3)
    set_random_state(CPU, state)

    assert torch.equal(torch.rand(3), first)
    assert list(state) == ["cpu"]


def test_a_state_with_a_device_can_be_restored_without_it():
    """A state from a GPU restores the host's generator on a machine without one."""
    state = {**random_state(CPU), "device": torch.zeros(16, dtype=torch.uint8)}
    first = torch.rand(3)
    set_random_state(CPU, state)

    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_autocast_runs_matrix_products_at_the_precision(precision, dtype):
    """Half precision applies inside the body only."""
    x = torch.ones(2, 2)
    with autocast(CPU, precision):
        inside = x @ x

    assert str(inside.dtype) == f"torch.{dtype}"
    assert (x @ x).dtype == torch.float32


def test_without_numpy_only_torch_and_random_are_seeded(monkeypatch):
    """The core does not need numpy: if nothing has loaded it, there is nothing to seed."""
    monkeypatch.delitem(sys.modules, "numpy")

    seed_generators(3)
    first = random.random(), float(torch.rand(()))
    seed_generators(3)

    assert first == (random.random(), float(torch.rand(())))
