"""What may become of a run that was killed, as data; and how a resume of it has to end."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpoint.damage import flip, remove, truncate
from faults.runs import checkpoints


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Copy:
    """A copy of a run that was killed after update 60 of 90, and of its data."""

    run: Path
    data: Path

    @property
    def states(self) -> list[Path]:
        """Full states, newest last."""
        return [self.run / "checkpoints" / name for name in checkpoints(self.run)]

    @property
    def metrics(self) -> Path:
        return self.run / "metrics.jsonl"


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A case.

    Attributes:
        name: for a person.
        change: what becomes of the copy.
        more: arguments of the resume.
        before: code that runs in its process before gapless.
        says: parts of its line of error, or of what it says besides; `{newest}` is the newest state.
        is_refused: whether it ends in a line of error.
        ends_equal: whether it ends like a run that nobody killed.
        keeps_record: whether the history is equal as well: what was lost is said, and not made up.
        is_quick: whether `make test` runs it.
    """

    name: str
    change: Callable[[Copy], object] = lambda copy: None
    more: tuple[object, ...] = ()
    before: str = ""
    says: tuple[str, ...] = ()
    is_refused: bool = False
    ends_equal: bool = True
    keeps_record: bool = True
    is_quick: bool = False


def damage_states(count: int) -> Callable[[Copy], object]:
    def do(copy: Copy) -> None:
        for state in copy.states[-count:]:
            flip(state / "tensors.safetensors", -1, 0)

    return do


def cut_all_states(copy: Copy) -> None:
    for state in copy.states:
        truncate(state / "meta.json", 3)


def add_to_record(more: bytes) -> Callable[[Copy], object]:
    return lambda copy: copy.metrics.write_bytes(copy.metrics.read_bytes() + more)


def change_a_loss(copy: Copy) -> None:
    rows = [json.loads(line) for line in copy.metrics.read_text().splitlines()]
    rows[3]["loss"] = 0.5
    copy.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pipe_for_record(copy: Copy) -> None:
    copy.metrics.unlink()
    os.mkfifo(copy.metrics)


def halve(name: str) -> Callable[[Copy], object]:
    return lambda copy: truncate(copy.run / name, (copy.run / name).stat().st_size // 2)


def change_a_word(split: str) -> Callable[[Copy], object]:
    """Change one word to another that the vocabulary has; lengths stay."""

    def do(copy: Copy) -> None:
        path = copy.data / f"{split}.zh"
        text = path.read_text()
        assert "RED" in text
        path.write_text(text.replace("RED", "BIG", 1))

    return do


def add_a_line(split: str) -> Callable[[Copy], object]:
    def do(copy: Copy) -> None:
        for side in ("en", "zh"):
            path = copy.data / f"{split}.{side}"
            path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")

    return do


def write_text_anew(copy: Copy) -> None:
    for path in copy.data.iterdir():
        path.write_bytes(path.read_bytes())


def name_this_process(copy: Copy) -> None:
    (copy.run / "lock").write_text(f"process {os.getpid()} on host {socket.gethostname()}\n")


OF_RECORD = {"says": ("metrics.jsonl",), "keeps_record": False}
ALLOWED = ("--allow-changed-data",)

RESUMES = [
    Resume(name="nothing changes", is_quick=True),
    Resume(name="loader workers", more=("--workers", 2)),
    Resume(name="the plan blocking", more=("--plan", "blocking")),
    Resume(name="the plan captured", more=("--plan", "captured")),
    Resume(name="text of another date", change=write_text_anew),
    Resume(name="a lock that names somebody", change=name_this_process),
    Resume(
        name="another number of threads",
        before="import torch; torch.get_num_threads = lambda: 2",
        says=("threads 1 is 2 now: bits may differ",),
    ),
    Resume(
        name="another torch",
        before="import torch; torch.__version__ = torch.torch_version.TorchVersion('2.99.0')",
        says=("is 2.99.0 now: bits may differ",),
    ),
    Resume(
        name="the newest state is damaged",
        change=damage_states(1),
        says=("{newest}",),
        is_quick=True,
    ),
    Resume(name="two states are damaged", change=damage_states(2), says=("{newest}",)),
    Resume(name="all states are damaged", change=cut_all_states, says=("whole",), is_refused=True),
    Resume(
        name="lines after the state",
        change=add_to_record(b'{"kind": "train", "step": 99999, "loss": 0.0}\n'),
    ),
    Resume(name="half a line after the state", change=add_to_record(b'{"kind": "trai')),
    Resume(name="rubbish after the state", change=add_to_record(b"\xff\xfe\0\n[]\n3\n")),
    Resume(name="a changed loss", change=change_a_loss, **OF_RECORD),
    Resume(name="half a record", change=halve("metrics.jsonl"), **OF_RECORD),
    Resume(name="no record", change=lambda copy: copy.metrics.unlink(), **OF_RECORD),
    Resume(
        name="a pipe for a record",
        change=pipe_for_record,
        says=("metrics.jsonl", "is a pipe"),
        is_refused=True,
    ),
    Resume(name="half the settings", change=halve("config.yaml"), says=("config.yaml",)),
    Resume(
        name="no settings",
        change=lambda copy: (copy.run / "config.yaml").unlink(),
        says=("config.yaml is missing",),
    ),
    Resume(name="half the words", change=halve("vocab.src.words.txt"), says=("vocab.src",)),
    Resume(
        name="other validation text",
        change=change_a_word("val"),
        says=("valid", "--allow-changed-data"),
        is_refused=True,
        is_quick=True,
    ),
    Resume(
        name="other validation text, allowed",
        change=change_a_word("val"),
        more=ALLOWED,
        ends_equal=False,
    ),
    Resume(
        name="more test text",
        change=add_a_line("test"),
        says=("test", "--allow-changed-data"),
        is_refused=True,
    ),
    Resume(
        name="more text",
        change=add_a_line("train"),
        says=("train", "--allow-changed-data"),
        is_refused=True,
    ),
    Resume(
        name="lost text",
        change=lambda copy: (copy.data / "val.zh").unlink(),
        says=("val",),
        is_refused=True,
    ),
]

# What may become of an epoch that a mean is made of.
MISHAPS = {
    "flipped": lambda folder: flip(next(folder.glob("*.safetensors")), -1, 0),
    "deleted": remove,
    "without its manifest": lambda folder: (folder / "manifest.json").unlink(),
    "of another epoch": lambda folder: shutil.copy(
        folder.parent / "epoch-0001" / "manifest.json", folder / "manifest.json"
    ),
}
