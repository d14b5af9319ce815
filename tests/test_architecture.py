"""The rules of the house that no linter checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import gapless


SRC = Path(gapless.__file__).parent
FILES = sorted(SRC.rglob("*.py"))

READING = {"item", "tolist", "cpu", "numpy", "nonzero"}
WAITING = {"synchronize_event", "synchronize_stream", "synchronize"}

# Where values may come to the host, and why.
MAY_READ = {
    "graphs/reads/batch_reads.py",  # inside a wait declared as "batch_value"
    "graphs/updates/update_numbers.py",  # counts that torch keeps on the host
    "pipeline/losses/loss_numbers.py",  # numbers that are the host's own
    "pipeline/losses/loss_rows.py",  # rows whose copy an event says is done
    "nmt/run/rank_agreement.py",  # inside a wait declared as "checkpoint"
    "nmt/model/decode.py",  # numbers that are the host's own
    "nmt/model/search.py",  # copies that an event says are done
    "pipeline/tree/containers.py",  # sizes of a packed sequence, which are on the host
}


# Who may name what talks to other processes, beside `ranks`, and why.
MAY_NAME_DISTRIBUTED = {
    "doctor/lines/explicit_waits.py",  # watches the collectives of anybody's script
    "doctor/session/launcher.py",  # reads the options of torchrun
    "doctor/static/torch_names.py",  # its name, as text
}


def calls(path):
    """Return the names of all methods that a file calls, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.func.attr, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


def functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


@pytest.mark.parametrize(
    "module", ["", ".errors", ".plans", ".report.figures", ".records.epoch_record"]
)
def test_pure_modules_do_not_load_torch(module):
    """Importing a pure module leaves torch out of the process."""
    code = f"import sys, gapless{module}; sys.exit('torch' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], check=False, env={"PYTHONPATH": str(SRC.parent)}
    )

    assert done.returncode == 0


def test_every_public_name_can_be_loaded():
    """What `dir(gapless)` promises is there, and nothing else is."""
    assert all(getattr(gapless, name) is not None for name in dir(gapless))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gapless.nothing


def test_values_come_to_the_host_in_few_places():
    """Calls that copy from the device are where they are known, and nowhere else."""
    rooms = [
        path
        for path in FILES
        if path.relative_to(SRC).parts[0] in ("device", "pipeline", "graphs", "loop", "nmt")
    ]
    found = {
        f"{path.relative_to(SRC)}:{line} .{name}()"
        for path in rooms
        for name, line in calls(path)
        if name in READING and str(path.relative_to(SRC)) not in MAY_READ
    }

    assert set() == found


MAKING = re.compile(
    "torch[.](tensor|zeros|ones|empty|full|arange|as_tensor|scalar_tensor|asarray|eye|empty_strided|rand|randn|"
    "randint|randperm|linspace)"
)


def test_tensors_of_gapless_are_where_it_says():
    """In a user's process `torch.set_default_device` may have put them elsewhere."""
    rooms = [path for path in FILES if path.relative_to(SRC).parts[0] != "nmt"]
    found = {
        f"{path.relative_to(SRC)}:{node.lineno} {ast.unparse(node)}"
        for path in rooms
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and MAKING.fullmatch(ast.unparse(node.func))
        and "device" not in [keyword.arg for keyword in node.keywords]
    }

    assert set() == found


def test_only_the_door_waits():
    """Nobody but `pipeline/host_waits.py` asks a device to wait."""
    callers = {
        str(path.relative_to(SRC)).split("/")[0] + "/" + path.name
        for path in FILES
        for name, _ in calls(path)
        if name in WAITING and path.relative_to(SRC).parts[0] not in ("device", "testing")
    }

    assert {"pipeline/host_waits.py", "nmt/stream_manager.py"} == callers
    manager = (SRC / "nmt" / "stream_manager.py").read_text()
    assert "device.synchronize" not in manager


def test_one_room_talks_to_other_processes():
    """Outside of `ranks` few files name `torch.distributed`; of `ranks` none names the accelerator."""
    texts = {str(path.relative_to(SRC)): ast.parse(path.read_text()) for path in FILES}
    naming = {
        name
        for name, tree in texts.items()
        if not name.startswith("ranks/") and names_in(tree) & {"distributed", "torch.distributed"}
    }
    accelerated = {
        name
        for name, tree in texts.items()
        if name.startswith("ranks/") and names_in(tree) & {"cuda", "accelerator", "torch.cuda"}
    }

    assert naming <= MAY_NAME_DISTRIBUTED
    assert accelerated == set()


def names_in(tree):
    """Return the attributes of torch that a file uses, and the modules that it imports."""
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    }
    modules = {
        ".".join(module.split(".")[:2])
        for node in ast.walk(tree)
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    return attributes | modules


def test_engine_functions_say_whether_they_block():
    """Public methods of the loop, the rings, the losses and the streams have a `Sync:` line."""
    silent = [
        f"{name}:{method.name}"
        for name in (
            "loop/train_loop.py",
            "pipeline/losses/loss_ring.py",
            "pipeline/losses/loss_rows.py",
            "pipeline/prefetch.py",
            "pipeline/losses/deferred_loss.py",
            "pipeline/batch_mover.py",
            "pipeline/transfer.py",
        )
        for node in functions(SRC / name)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        and not method.name.startswith("_")
        and not method.decorator_list
        and "..." not in ast.unparse(method.body[-1])
        and len(method.body) > 1
        and "Sync:" not in (ast.get_docstring(method) or "")
    ]

    assert silent == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_what_is_public_is_documented(path):
    """Modules, and their public classes and functions, have a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    holders = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    public = [
        node
        for holder in holders
        if isinstance(holder, ast.Module) or not holder.name.startswith("_")
        for node in holder.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and "overload" not in [ast.unparse(one) for one in node.decorator_list]
    ]

    assert ast.get_docstring(tree)
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def test_the_devices_waits_are_marked_as_the_doors_own():
    """Every backend says of its waits that they block, and of the rest that they do not."""
    parts = ("Streams", "Memory", "Device")
    protocols = [node for node in functions(SRC / "device" / "base.py") if node.name in parts]
    texts = {
        method.name: ast.get_docstring(method) or ""
        for protocol in protocols
        for method in protocol.body
        if isinstance(method, ast.FunctionDef)
    }
    blocking = {name for name, text in texts.items() if "Sync: Blocks the host" in text}
    free = {name for name, text in texts.items() if "Sync: Does not block" in text}

    waits = {"synchronize_event", "synchronize_stream"}
    assert blocking == waits | {"capture"}
    assert {
        *("create_stream", "shared_stream", "record_event", "query_event"),
        *("wait_event", "wait_stream", "elapsed_ms", "copy"),
    } <= free
    for name in waits:
        assert "Only `gapless.pipeline.host_waits` may call this" in texts[name]


def test_dir_lists_the_public_names():
    """`dir`, `__all__` and what can be loaded agree."""
    assert sorted(gapless.__all__) == dir(gapless)
    assert {"DeferredLoss", "prefetch", "run_epoch", "PLANS"} <= set(dir(gapless))
    assert sorted(set(gapless.__all__)) == sorted(gapless.__all__)


def test_no_two_files_have_the_same_name():
    """A file is found by its name alone; only `__init__.py` stands in every room."""
    names = Counter(path.name for path in SRC.rglob("*.py") if path.name != "__init__.py")

    assert [name for name, count in names.items() if count > 1] == []
