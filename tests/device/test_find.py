"""Devices by name, and the protocol that all of them satisfy."""

from __future__ import annotations

import inspect

import pytest
import torch

import gapless
from gapless.device.base import Device, Instruments
from gapless.device.cpu import CpuDevice
from gapless.device.cuda import CudaDevice
from gapless.errors import DeviceError
from gapless.testing import SimulatedDevice, poisoned


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu:1", "", 0, None])
def test_an_unknown_device_is_refused(name):
    """The error lists the names that exist."""
    with pytest.raises(DeviceError, match="auto, cpu, cuda and cuda:N"):
        gapless.find_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_gpu_that_is_absent_is_refused(name):
    """The error names the device and a device that works here."""
    with pytest.raises(DeviceError, match=f"{name} .*cpu"):
        gapless.find_device(name)


def test_a_name_always_gives_the_same_device():
    """Streams are shared by name, so there is one object for each device."""
    cpu = gapless.find_device("cpu")

    assert gapless.find_device("cpu") is cpu
    assert gapless.find_device(torch.device("cpu")) is cpu
    assert gapless.find_device(torch.device("cpu", 0)) is cpu
    assert gapless.find_device(cpu) is cpu


def test_the_cpu_is_shared_by_processes():
    """It has no name of its own, by which two of them on one device could be found out."""
    assert gapless.find_device("cpu").uuid() is None


@pytest.mark.multi_gpu
def test_each_gpu_has_a_name_of_its_own_and_can_be_the_current_one():
    """Memory that names no GPU is of the current one."""
    first, second = (gapless.find_device(f"cuda:{number}") for number in range(2))

    try:
        second.make_current()
        index = torch.ones(1, device="cuda").device.index
    finally:
        first.make_current()

    assert index == 1
    assert first.uuid() != second.uuid()


def members(protocol):
    return {
        name
        for part in protocol.__mro__
        for name in vars(part)
        if not name.startswith("_") and part.__module__ == Device.__module__
    }


@pytest.mark.parametrize("backend", [CpuDevice, CudaDevice, SimulatedDevice])
def test_every_backend_has_every_method(backend):
    """Each backend has all methods of the protocol, with the same arguments."""
    for name in members(Device):
        if isinstance(getattr(Device, name), property):
            continue  # the next test has these
        ours = inspect.signature(getattr(backend, name)).parameters
        protocols = inspect.signature(getattr(Device, name)).parameters

        assert list(protocols) == list(ours), name


@pytest.mark.parametrize("device", [CpuDevice(), SimulatedDevice()])
def test_every_backend_has_every_attribute(device):
    """Each backend has all plain attributes of the protocol."""
    names = [name for name in members(Device) if isinstance(getattr(Device, name), property)]

    assert names
    assert all(hasattr(device, name) for name in names)


def test_a_device_is_an_instrument():
    """What can be measured is a part of what a device can do."""
    assert members(Instruments) < members(Device)
    assert {"now_ms", "watch_waits", "peak_memory_bytes"} <= members(Instruments)
    assert "copy" not in members(Instruments)


@pytest.mark.parametrize("make", [CpuDevice, lambda: poisoned("cpu")])
def test_a_device_without_memory_of_its_own_says_so(make):
    """Total and free memory are unknown, and nothing of the driver can be read."""
    device = make()

    assert device.total_memory_bytes() is None
    assert device.free_memory_bytes() is None
    assert device.random_state() is None
    assert device.trace_kernels(lambda: pytest.fail("was run")) is None
    with pytest.raises(DeviceError, match="NVML"):
        device.open_utilisation_meter()
