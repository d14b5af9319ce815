"""The variant in which numbers that a script reads come late."""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from functools import partial
from pathlib import Path
from types import CellType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from gapless.trials.forcing_line import forcing_line
from gapless.trials.held_output import HeldOutput
from gapless.trials.late_number import LateFloat, forced, is_late
from gapless.trials.late_tensor import LateTensor
from gapless.trials.number_names import NumberNames
from gapless.trials.reads import Reads
from gapless.trials.takers import teach_takers
from gapless.unnoticed import Patches, unseen


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from gapless.device.base import Device
    from gapless.records.finding import Finding
    from gapless.trials.late_number import LateNumber


_T = TypeVar("_T")

# Findings of reads whose value may be late: of one number, and copies to the host.
_CODES = frozenset(["GAP001", "GAP003"])

# Tensors of which no class of the script knows more than torch.
_KINDS = (torch.Tensor, torch.nn.Parameter)

_TORCH = str(Path(torch.__file__).parent)
_OF_TENSORS = str(Path(torch._tensor.__file__))
_OURS = str(Path(__file__).parent)

# Modules that the compiler leaves alone. Those of `takers` it goes through, to torch's own.
_NOT_COMPILED = (
    *("forcing_line", "held_output", "late_number", "late_reads", "late_tensor"),
    *("number_names", "reads", "text_uses"),
)

# The flag of a class that was made while the program ran.
_IS_OF_PYTHON = 1 << 9

# Lines that are named in a sentence.
_MOST_LINES = 5


class LateReads:
    """Lets `.item()`, `float()`, `.cpu()` and `.tolist()` of one number return it late.

    What is printed and logged of late numbers is held back until they are there, and written in the
    order and with the bytes of the script as written. Everything else that is done with one forces
    it, and is counted with its line.

    Args:
        device: where the script trains.
    """

    name = "late reads"
    change = "Numbers that are only printed or added up are read late, without a wait."
    is_settled = True
    num_steps_to_recover = 0

    def __init__(self, device: Device) -> None:
        self._device = device
        self._reads = Reads(device)
        self._output = HeldOutput(self._reads, is_inner=_is_inner)
        self._patches = Patches()
        # Late numbers outlive a window.
        self._takers: Patches | None = None
        self._names = NumberNames({"float": self._float, "int": self._int})
        self._is_in = False
        self._problem = ""
        # Reads that could not be late, by what reads and file:line.
        self._as_written: Counter[tuple[str, str]] = Counter()

    @property
    def refusal(self) -> str:
        """Why reads cannot be late here; empty where they can."""
        if not self._device.is_accelerator:
            return "there is no accelerator, so reads do not wait"
        if self._problem:
            return self._problem
        return "" if self._is_in else HeldOutput.refusal()

    @property
    def details(self) -> tuple[str, ...]:
        """How many reads were late, and what forced them."""
        num_read = self._reads.num_late + self._as_written.total()
        if not num_read:
            return () if self.refusal else ("No read of one number was seen.",)
        num_late = self._reads.num_late - self._reads.forced.total()
        counted = f"{num_late:,} of {num_read:,} reads could be late."
        return (counted, *_lines_of(self._reads.forced + self._as_written))

    def is_for(self, findings: Sequence[Finding]) -> bool:
        """Return whether there are reads."""
        return any(finding.code in _CODES for finding in findings)

    def start(self, step_ended: Callable[[Any], None]) -> None:
        """Let reads be late from now on.

        Sync: Does not block the host on the device.
        """
        _keep_from_compiler()
        self._reads.make_ready()
        self._output.start()
        if self._takers is None:
            self._takers = teach_takers()
        self._put_in()
        self._is_in = True

    def stop(self) -> None:
        """Read as written from now on, and write what is held back.

        Sync: Blocks the host until all late numbers are there.
        """
        if not self._is_in:
            return
        self._is_in = False
        self._names.take_out()
        self._patches.take_out()
        self._output.stop()
        self._reads.finish()

    def close(self) -> None:
        """Put Python's own numbers in the place of late ones in lists, dictionaries and objects.

        Where some cannot be replaced, functions of libraries go on to take them.
        """
        self.stop()
        if self._takers is not None:
            # Those that nobody can replace are still handed to libraries.
            if not _put_plain_numbers():
                self._takers.take_out()
            self._takers = None

    # --- reads ---

    def _put_in(self) -> None:
        makers: dict[str, Callable[..., Any]] = {
            "item": self._read_by,
            "tolist": self._read_by,
            "cpu": self._copied_by,
            "__float__": partial(self._converted_by, name="float"),
            "__int__": partial(self._converted_by, name="int"),
            "__bool__": self._branched_by,
        }
        for name, make in makers.items():
            self._patches.put_method(torch.Tensor, name, make, is_for=_is_plain_or_late)

    def _read_by(self, read: Callable[..., Any]) -> Callable[..., Any]:
        is_list = read.__name__ == "tolist"

        def read_late(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with unseen:
                if args or kwargs:
                    return read(tensor, *args, **kwargs)
                if type(tensor) is LateTensor:
                    number = None if tensor.dim() else tensor.number
                    return read(tensor) if number is None else number
                if not self._may_be_late(tensor) or (is_list and tensor.dim() > 1):
                    self._count_condition(tensor, "reads a condition from")
                    return read(tensor)
                late = self._queued(tensor, self._reads.read)
                if late is None:
                    return read(tensor)
                return [late] if is_list and tensor.dim() else late

        return read_late

    def _copied_by(self, copy: Callable[..., Any]) -> Callable[..., Any]:
        def copy_late(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with unseen:
                if args or kwargs or tensor.requires_grad or not self._may_be_late(tensor):
                    return copy(tensor, *args, **kwargs)
                queued = self._queued(tensor, self._reads.copy)
                if queued is None:
                    return copy(tensor)
                late, place = queued
                return LateTensor.of(place, late)

        return copy_late

    def _converted_by(self, convert: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Count a conversion by C, and let the next one in that module be ours if it can be."""

        def convert_now(tensor: torch.Tensor) -> Any:
            with unseen:
                if self._may_be_late(tensor):
                    self._as_written[f"calls {name}() on", forcing_line()] += 1
                    self._names.put_where_called(_user_frame(), name)
                return convert(tensor)

        return convert_now

    def _branched_by(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def branch_now(tensor: torch.Tensor) -> Any:
            with unseen:
                if self._may_be_late(tensor):
                    self._as_written["branches on", forcing_line()] += 1
                else:
                    self._count_condition(tensor, "branches on")
                return read(tensor)

        return branch_now

    def _count_condition(self, tensor: torch.Tensor, use: str) -> None:
        """Count a read of a bool, of which nearly always something depends at once."""
        is_one = tensor.dtype is torch.bool and tensor.numel() == 1
        if is_one and not self._device.needs_copy(tensor) and _is_of_user(sys._getframe(2)):
            self._as_written[use, forcing_line()] += 1

    def _queued(self, tensor: torch.Tensor, queue: Callable[[torch.Tensor], _T]) -> _T | None:
        """Queue the copy of a tensor; None if that fails, as every later one will."""
        if self._problem:
            return None
        try:
            return queue(tensor)
        except Exception as error:
            self._problem = f"a number could not be copied late: {type(error).__name__}: {error}"
            return None

    def _may_be_late(self, tensor: torch.Tensor) -> bool:
        if type(tensor) not in _KINDS:
            return False
        if torch.compiler.is_compiling() or is_functorch_wrapped_tensor(tensor):
            return False
        if not self._reads.can_be_late(tensor):
            return False
        # What torch itself reads it uses at once.
        return _is_of_user(sys._getframe(2))

    # --- in the place of `float` and `int` ---

    def _float(self, *args: Any, **kwargs: Any) -> Any:
        number = None if kwargs or len(args) != 1 else self._number(args[0])
        if number is None:
            return float(*args, **kwargs)
        if number.kind is float:
            return number
        return self._reads.computed(LateFloat, float, (number,))

    def _int(self, *args: Any, **kwargs: Any) -> Any:
        # A float may be none that has an int: it is read as written.
        is_one = not kwargs and len(args) == 1 and _is_int(args[0])
        number = self._number(args[0]) if is_one else None
        return int(*args, **kwargs) if number is None else number

    def _number(self, value: Any) -> LateNumber | None:
        """Return the late number that is to be converted, None if it is something else."""
        if type(value) is LateTensor:
            value = value.number
        if is_late(value):
            late: LateNumber = value
            return late if late.number is None else None
        if not isinstance(value, torch.Tensor) or not self._may_be_late(value):
            return None
        return self._queued(value, self._reads.read)


def _is_plain_or_late(tensor: torch.Tensor) -> bool:
    # What torch.jit traces has the names and lines of the functions that it goes through.
    return type(tensor) in (*_KINDS, LateTensor) and torch._C._get_tracing_state() is None


def _is_int(value: Any) -> bool:
    if is_late(value):
        return value.kind is int
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point


def _is_of_user(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return path == _OF_TENSORS or not path.startswith(_TORCH)


def _keep_from_compiler() -> None:
    """Keep torch's compiler from looking into what stands in the place of reads."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        for name in _NOT_COMPILED:
            rules.add(f"gapless.trials.{name}")


def _is_inner(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return path.startswith(_OURS) or path == _OF_TENSORS


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_inner(frame):
        frame = frame.f_back
    return frame


def _lines_of(uses: Counter[tuple[str, str]]) -> list[str]:
    """Return a sentence for each of the lines that forced most reads."""
    lines = [
        f"{site} {use} a value, which forces it ({_times(count)})."
        for (use, site), count in uses.most_common(_MOST_LINES)
    ]
    rest = len(uses) - _MOST_LINES
    return [*lines, f"{rest} more lines force reads."] if rest > 0 else lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


# --- afterwards ---


def _put_plain_numbers() -> int:
    """Put Python's own numbers and torch's own tensors in the place of late ones, all over the process.

    Not where nobody can: in tuples, sets and the local names of functions that run. Return how many
    are left there.
    """
    _replace_late_ones()
    return len(_late_ones())


def _late_ones() -> list[Any]:
    return [each for each in gc.get_objects() if is_late(each) or type(each) is LateTensor]


def _replace_late_ones() -> None:
    """Force all late numbers, and put plain ones in their place where that can be done.

    Sync: Blocks the host until they are there.
    """
    late = _late_ones()
    plain = {id(each): _plain(each) for each in late}
    for holder in gc.get_referrers(*late):
        if holder is late:
            continue
        _put_plain_into(holder, plain)


def _put_plain_into(holder: Any, plain: dict[int, Any]) -> None:
    """Put other values in the place of those with these `id`s, if the holder lets anybody do so."""
    if isinstance(holder, list | deque):
        for number, each in enumerate(holder):
            if id(each) in plain:
                holder[number] = plain[id(each)]
    elif isinstance(holder, CellType):
        holder.cell_contents = plain[id(holder.cell_contents)]
    for name in _slots_of(holder):
        if id(each := getattr(holder, name, None)) in plain:
            setattr(holder, name, plain[id(each)])
    names = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
    if isinstance(names, dict):
        for name, each in list(names.items()):
            if id(each) in plain:
                names[name] = plain[id(each)]


def _slots_of(holder: Any) -> list[str]:
    """Return the names of slots that classes of the script gave an object."""
    kinds = () if is_late(holder) else type(holder).__mro__
    return [
        name
        for kind in kinds
        if kind.__flags__ & _IS_OF_PYTHON
        for name, value in vars(kind).items()
        if isinstance(value, MemberDescriptorType)
    ]


def _plain(each: Any) -> Any:
    if is_late(each):
        return forced(each, "ends")
    each.late.forced("ends")
    return each.plain
