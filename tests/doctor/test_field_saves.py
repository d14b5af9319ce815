"""Every way of torch and Python to write down a tensor reads its memory: found while it is being filled."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch

import gapless
from doctor.not_yet import params
from gapless import testing


def save_in_a_list(host, path):
    torch.save([{"a": (host,)}], path / "file")


def save_the_old_way(host, path):
    torch.save(host, path / "file", _use_new_zipfile_serialization=False)


def pickle_to_a_file(host, path):
    with (path / "file").open("wb") as file:
        pickle.dump({"a": host}, file, protocol=2)


def pickle_out_of_band(host, path):
    pickle.dumps(host, protocol=5, buffer_callback=lambda buffer: None)


def safetensors_bytes(host, path):
    pytest.importorskip("safetensors.torch").save({"a": host})


def safetensors_file(host, path):
    pytest.importorskip("safetensors.torch").save_file({"a": host}, path / "file")


def safetensors_of_rows(host, path):
    pytest.importorskip("safetensors.torch").save({"a": host[1:3]})


def dlpack_of_numpy(host, path):
    np.from_dlpack(host).sum()


def dlpack_of_torch(host, path):
    torch.from_dlpack(host).sum().item()


def numpy_file(host, path):
    np.save(path / "file", host)


def view(host, path):
    torch.save(host[1:].t(), io.BytesIO())


def parameter(host, path):
    torch.save(torch.nn.Parameter(host), io.BytesIO())


WRITES = {
    f"saves: {one.__name__.replace('_', ' ')}": one
    for one in (
        save_in_a_list,
        save_the_old_way,
        pickle_to_a_file,
        pickle_out_of_band,
        safetensors_bytes,
        safetensors_file,
        safetensors_of_rows,
        dlpack_of_numpy,
        dlpack_of_torch,
        numpy_file,
        view,
        parameter,
    )
}


def copied(device):
    x = torch.full((24, 24), 2.0, device=device.torch_device)
    return (x @ x).to("cpu", non_blocking=True)


@pytest.mark.parametrize("write", params(WRITES))
def test_what_is_still_being_copied_is_not_written(write, tmp_path):
    """A race under each scheduler, with the line that writes."""
    result = testing.simulate(lambda device: write(copied(device), tmp_path), seeds=2)

    assert len(result.failures) == 4, result
    assert __file__.rpartition("/")[2] in str(result.failures[0])


@pytest.mark.parametrize(
    "write", params({f"{name}, after a wait": one for name, one in WRITES.items()})
)
def test_what_has_been_copied_may_be_written(write, tmp_path):
    """Clean, once the host has seen the copy done."""

    def check(device):
        host = copied(device)
        torch.ones(1, device=device.torch_device).item()
        write(host, tmp_path)

    result = testing.simulate(check, seeds=2)

    assert not result.failures, result


WAITS = {
    f"waits: {name}": (count, work)
    for name, count, work in (
        ("save of two", 2, lambda x: torch.save({"a": x, "b": x + 1}, io.BytesIO())),
        ("pickle of a module", 1, lambda x: pickle.dumps(torch.nn.ParameterList([x]))),
        ("pickle of a part", 1, lambda x: pickle.dumps(x[0])),
        ("copy of the device", 0, copy.deepcopy),
        ("state of a module", 0, lambda x: torch.nn.ParameterList([x]).state_dict()),
        (
            "safetensors",
            1,
            lambda x: pytest.importorskip("safetensors.torch").save({"a": x}),
        ),
    )
}


@pytest.mark.parametrize("case", params(WAITS))
def test_writing_what_is_on_the_device_waits(case):
    """As often as a GPU would; each with its line."""
    least, work = case
    seen = []

    def check(device):
        x = torch.full((24, 24), 2.0, device=device.torch_device)
        with gapless.count_waits(device) as waits:
            work(x)
        seen.append(waits)

    result = testing.simulate(check, seeds=1)

    assert not result.failures, result
    assert all(waits.count >= least if least else not waits.count for waits in seen), seen
