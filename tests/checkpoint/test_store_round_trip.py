"""A checkpoint gives back what was saved: every bit, of every kind of tensor."""

from __future__ import annotations

import json
import math
import struct
from array import array

import pytest
import safetensors.torch
import torch

from checkpoint.stores import (
    CheckpointError,
    CheckpointStore,
    bits,
    check_is,
    check_same,
    load_newest,
    name_of,
    save_steps,
)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
SHAPES = [(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (1, 1, 1, 1), (4, 1, 3)]


def trip(tmp_path, tensors, meta=None):
    """Save and load; return what came back."""
    CheckpointStore(tmp_path / "store").save(1, tensors, {} if meta is None else meta)
    loaded = load_newest(tmp_path / "store")
    assert (loaded.error, loaded.said) == (None, [])
    return loaded.checkpoint


def random_tensor(dtype, shape):
    """Return a tensor of random bits, but of truth values where it holds those."""
    draw = torch.Generator().manual_seed(len(shape))
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), generator=draw)
    return raw.to(torch.uint8).view(dtype).reshape(shape)


def test_every_type_in_every_shape(tmp_path):
    """Random bits of every type and shape come back: NaNs of any kind and empty ones too."""
    tensors = {
        f"{dtype} {shape}": random_tensor(dtype, shape) for dtype in DTYPES for shape in SHAPES
    }

    check_same(trip(tmp_path, tensors).tensors, tensors)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float8_e5m2])
def test_a_type_that_may_not_be_stored(tmp_path, dtype):
    """A type that files cannot hold is refused with the tensor's name, and nothing is written."""
    tensors = {"fine": torch.ones(2), "odd": torch.ones(3).to(dtype)}
    store = CheckpointStore(tmp_path / "store")
    refused = None
    try:
        store.save(1, tensors, {})
    except CheckpointError as error:
        refused = str(error)

    loaded = load_newest(tmp_path / "store").checkpoint
    if refused is None:
        check_same(loaded.tensors, tensors)
    else:
        assert "odd" in refused
        assert loaded is None


VIEWS = {
    "transposed": lambda base: base.T,
    "every other": lambda base: base[:, ::2],
    "a column": lambda base: base[:, 1],
    "expanded": lambda base: base[0, :1].expand(5),
    "permuted": lambda base: base.reshape(2, 3, 4).permute(2, 0, 1),
    "one of it": lambda base: base[2, 1],
    "a part without rows": lambda base: base[3:3],
    "channels last": lambda base: base.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "of a parameter": lambda base: torch.nn.Parameter(base.clone()),
    "with a gradient": lambda base: base.clone().requires_grad_() * 2,
    "a conjugate": lambda base: torch.complex(base, -base).conj(),
    "a negative": lambda base: torch._neg_view(base),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_come_back_as_what_they_show(tmp_path, name):
    """A tensor that is not contiguous comes back with its values and shape."""
    view = VIEWS[name](torch.randn(6, 4))

    found = trip(tmp_path, {"view": view}).tensors["view"]

    assert bits(found) == bits(view)
    assert not found.requires_grad


class Pair(torch.Tensor):
    """Two tensors that count as one: it has a shape, and no memory."""

    @staticmethod
    def __new__(cls, one, other):
        return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)

    def __init__(self, one, other):
        self.one, self.other = one, other

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        both = [[getattr(arg, side) for arg in args] for side in ("one", "other")]
        return cls(*(function(*part) for part in both))


@pytest.mark.parametrize(
    "tensor",
    [
        Pair(torch.ones(2), torch.zeros(2)),
        torch.nn.Parameter(Pair(torch.ones(2), torch.zeros(2))),
        torch.nn.LazyLinear(3).weight,
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.eye(2).to_sparse(),
    ],
    ids=["two in one", "a parameter of them", "lazy", "nested", "sparse"],
)
def test_a_tensor_without_memory_of_its_own(tmp_path, tensor):
    """Its memory is never read, which would end the process: the tensor is named and refused."""
    with pytest.raises(CheckpointError, match="tensor 'odd'"):
        CheckpointStore(tmp_path / "store").save(1, {"odd": tensor}, {})


def test_a_view_costs_no_more_than_what_it_shows(tmp_path):
    """A small view of a large tensor makes a small checkpoint."""
    store = CheckpointStore(tmp_path / "store")
    store.save(1, {"row": torch.zeros(1000, 1000)[3]}, {})

    [entry] = store.list()

    assert entry.size < 100_000


def test_tensors_that_share_memory(tmp_path):
    """Names of one tensor, and views that overlap, all come back with their values."""
    base = torch.arange(12.0)
    tensors = {
        "one": base,
        "same": base,
        "first": base[:8],
        "last": base[4:],
        "turned": base.view(3, 4).T,
    }

    check_same(trip(tmp_path, tensors).tensors, tensors)


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "encoder.layers.0.weight",
        "with/slash",
        "../outside",
        "Gewicht für 你好",
        "a b\tc",
        "x" * 3000,
        "__metadata__",
        "",
        "line\nbreak",
        "nul\0byte",
    ],
)
def test_names_of_tensors(tmp_path, name):
    """Any name comes back, or is refused with a word; no file is written for it elsewhere."""
    tensors = {name: torch.ones(2), "other": torch.zeros(1)}
    refused = None
    try:
        CheckpointStore(tmp_path / "store").save(1, tensors, {})
    except CheckpointError as error:
        refused = str(error)

    loaded = load_newest(tmp_path / "store")
    if refused is None:
        check_same(loaded.checkpoint.tensors, tensors)
    else:
        assert "\n" not in refused
        assert (loaded.checkpoint, loaded.error) == (None, None)
    assert {path.name for path in tmp_path.iterdir()} <= {"store", "cache"}


META = {
    "text": '你好 "quoted" \n new line \u2028 \x07 \x00 end',
    "numbers": [0, -1, 2**53 + 1, 2**200, 0.1, 1e-320, -0.0, 1.7976931348623157e308],
    "nested": [[[{"a": {"b": []}}]], {}, None, True, False],
    "": "empty key",
}


def test_meta_comes_back(tmp_path):
    """Text, large whole numbers and floats of the meta data come back exactly."""
    found = trip(tmp_path, {}, META).meta

    assert json.dumps(found, sort_keys=True) == json.dumps(META, sort_keys=True)


def test_an_empty_checkpoint(tmp_path):
    """A checkpoint without tensors and meta data is one."""
    loaded = trip(tmp_path, {})

    assert (loaded.step, loaded.tensors, loaded.meta) == (1, {}, {})


@pytest.mark.parametrize(
    "meta",
    [
        {"a": {1, 2}},
        {"a": torch.ones(1)},
        {"a": b"bytes"},
        {"a": object()},
        {1: "number as key", "1": "text as key"},
    ],
    ids=["set", "tensor", "bytes", "object", "two keys that become one"],
)
def test_meta_that_is_no_json(tmp_path, meta):
    """What JSON cannot hold is refused before anything is written, and the newest stays."""
    store = save_steps(tmp_path / "store", 1)

    with pytest.raises((CheckpointError, TypeError, ValueError)):
        store.save(2, {}, meta)

    check_is(load_newest(tmp_path / "store").checkpoint, 1)
    assert [path.name for path in (tmp_path / "store").iterdir()] == [name_of(1)]


def inside_itself():
    state = {}
    state["again"] = [state]
    return state


@pytest.mark.parametrize(
    ("meta", "said"),
    [(inside_itself(), "holds itself"), ({"count": 10**5000}, "a number that cannot be saved")],
    ids=["inside itself", "too many digits"],
)
def test_meta_that_json_could_not_read_again(tmp_path, meta, said):
    """Such meta data is refused in one line before anything is written."""
    store = save_steps(tmp_path / "store", 1)

    with pytest.raises(CheckpointError, match=said):
        store.save(2, {}, meta)

    check_is(load_newest(tmp_path / "store").checkpoint, 1)


OF_STORE = ("tensors.safetensors", "meta.json", "manifest.json")
ELSEWHERE = ("../outside", "in/a/folder", "/outside", "", ".", "..", "nul\0byte", "\ud800", 5)
FILES = {**dict.fromkeys((*OF_STORE, *ELSEWHERE), b""), "text": "no bytes"}


@pytest.mark.parametrize("name", FILES)
def test_a_further_file_that_cannot_be_one(tmp_path, name):
    """A further file takes the place of none and lies in no other folder: it is refused by name."""
    store = save_steps(tmp_path / "store", 1)

    with pytest.raises(CheckpointError, match="further file"):
        store.save(2, {}, {}, files={name: FILES[name]})

    check_is(load_newest(tmp_path / "store").checkpoint, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_more_files_than_a_manifest_can_name(tmp_path):
    """They are refused at the save, since no load would read such a manifest."""
    store = save_steps(tmp_path, 1)

    with pytest.raises(CheckpointError, match="too many"):
        store.save(2, {}, {}, files={f"{'long ' * 40}{number}": b"" for number in range(4000)})

    check_is(load_newest(tmp_path).checkpoint, 1)


def test_a_further_file_of_wide_numbers(tmp_path):
    """Whatever has bytes comes back as these bytes."""
    CheckpointStore(tmp_path).save(1, {}, {}, files={"numbers": array("i", [1, 2])})

    assert load_newest(tmp_path).checkpoint.files == {"numbers": array("i", [1, 2]).tobytes()}


@pytest.mark.parametrize("meta", [{"half a character": "\ud800"}, ["no dictionary"], "text", 3])
def test_meta_that_may_be_refused(tmp_path, meta):
    """Other meta data comes back as it was, or is refused and the newest stays."""
    store = save_steps(tmp_path / "store", 1)
    try:
        store.save(2, {}, meta)
    except (CheckpointError, TypeError, ValueError):
        check_is(load_newest(tmp_path / "store").checkpoint, 1)
    else:
        assert load_newest(tmp_path / "store").checkpoint.meta == meta


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_have(tmp_path, value):
    """A number that is not finite comes back or is refused."""
    try:
        found = trip(tmp_path, {}, {"score": value}).meta["score"]
    except (CheckpointError, ValueError):
        return
    assert struct.pack("d", found) == struct.pack("d", value)


@pytest.mark.parametrize(
    "tensors",
    [{"a": [1.0]}, {"a": 3}, {3: torch.ones(1)}, {"a": torch.ones(1, device="meta")}],
    ids=["list", "number", "a name that is no text", "no values"],
)
def test_what_is_no_tensor(tmp_path, tensors):
    """What is no tensor is refused, and the newest stays."""
    store = save_steps(tmp_path / "store", 1)

    with pytest.raises((CheckpointError, TypeError, ValueError)):
        store.save(2, tensors, {})

    check_is(load_newest(tmp_path / "store").checkpoint, 1)
    assert [path.name for path in (tmp_path / "store").iterdir()] == [name_of(1)]


def test_a_saved_checkpoint_is_a_folder_of_three_files(tmp_path):
    """The path that is returned holds the tensors as any safetensors reader takes them."""
    path = CheckpointStore(tmp_path / "store").save(200, {"a": torch.arange(3)}, {"b": 1})

    assert path == tmp_path / "store" / "step-000000200"
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json",
        "meta.json",
        "tensors.safetensors",
    ]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    found = safetensors.torch.load_file(path / "tensors.safetensors")
    check_same(found, {"a": torch.arange(3)})
    assert isinstance(json.loads((path / "manifest.json").read_text(encoding="utf-8")), dict)
    assert json.loads((path / "meta.json").read_text(encoding="utf-8")) == {"b": 1}


def test_a_save_leaves_its_tensors_alone(tmp_path):
    """What is saved is what was there: changing the tensor later changes no checkpoint."""
    weight = torch.ones(4)
    CheckpointStore(tmp_path / "store").save(1, {"weight": weight}, {})
    weight.fill_(7)

    assert load_newest(tmp_path / "store").checkpoint.tensors["weight"].tolist() == [1] * 4


def test_loaded_tensors_belong_to_the_caller(tmp_path):
    """Loaded tensors can be written to, and no checkpoint changes."""
    save_steps(tmp_path / "store", 1)
    for tensor in load_newest(tmp_path / "store").checkpoint.tensors.values():
        tensor.zero_()

    check_is(load_newest(tmp_path / "store").checkpoint, 1)


@pytest.mark.xdist_group("processes: store round trip")
def test_loaded_tensors_do_not_need_their_file(launcher, tmp_path):
    """A file that is cut off after the load, as a later save may do, does not reach the tensors.

    A tensor that is a map of its file would end the process here.
    """
    CheckpointStore(tmp_path / "store").save(1, {"weight": torch.ones(100_000)}, {})

    ended = launcher.run(
        *("read_torn", tmp_path / "store"), folder=tmp_path, module="checkpoint.store_process"
    )

    assert (ended.code, ended.out, ended.err) == (0, "100000.0\n", "")


def test_a_folder_may_be_text(tmp_path, monkeypatch):
    """A folder may be given as text, relative, and need not exist, nor what is above it."""
    monkeypatch.chdir(tmp_path)
    CheckpointStore("a/b/store").save(1, {"a": torch.ones(1)}, {})

    check_same(CheckpointStore("a/b/store").load_newest().tensors, {"a": torch.ones(1)})


def test_a_large_checkpoint(tmp_path):
    """Some megabytes come back as well as some bytes."""
    tensors = {"large": torch.randn(1_500_000), "small": torch.randn(3)}

    check_same(trip(tmp_path, tensors).tensors, tensors)
