"""Why a step is not captured: a value with a kind, and the rules that lead to one.

What is said of eager runs and of captures is here. Rules on batches and modes are in
`gapless.graphs.objections`, the limits on graphs in `gapless.graphs.graph_limits`, and the words for a
capture that failed in `gapless.graphs.proof.capture_failure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


if TYPE_CHECKING:
    from gapless.graphs.reads.failed_look import FailedLook
    from gapless.graphs.reads.host_run import HostWrite
    from gapless.graphs.reads.odd_reads import OddRead


# What may let a refused call be captured after all: another call like it, calls that change less for a
# while, graphs that are dropped, or another rank. Code that is written otherwise is another step.
Mending: TypeAlias = Literal[
    "nothing", "the code", "another call", "a rest", "room", "another rank"
]


# What mends each kind of refusal, unless a single one says otherwise; and what the kind means.
KINDS: Final[dict[str, Mending]] = {
    "cpu": "nothing",  # a CPU has nothing to launch
    "unknown_batch": "another call",  # the batch is of a kind that cannot be taken apart
    "watched_by_mode": "another call",  # the call stands inside a mode of torch that watches
    "inside_autocast": "another call",  # the call stands inside autocast
    "inside_cached": "another call",  # the call stands where parametrized weights are cached
    "batch_on_host": "another call",  # a tensor of the batch is not on the device
    "batch_requires_grad": "another call",  # a tensor of the batch requires gradients
    "host_read": "the code",  # the step reads a value of the device
    "unlike_calls": "a rest",  # no two of the first calls are of one kind
    "too_many_changes": "a rest",  # what graphs bake in changes too often
    "graph_limit": "room",  # there are as many graphs as may be
    "memory_budget": "room",  # the next graph would need more memory than it may
    "capture_failed": "the code",  # the step does something that cannot be captured
    "host_write": "the code",  # the step does something on the host that a replay would skip
    "forward_mode": "the code",  # the step differentiates in forward mode
    "unreadable": "the code",  # what the step uses raises an error when it is read
    "keeps_unknown": "the code",  # the step keeps something from call to call that a graph cannot
    "replaced_tensor": "the code",  # the step uses a tensor that is another one in each call
    "changes_batch": "the code",  # the step changes its batch in a way that cannot be repeated
    "backward_outside": "the code",  # the step returns a tensor that still needs its backward pass
    "update": "the code",  # an optimizer can be called neither in a graph nor between two
    "proved_wrong": "the code",  # a graph computes something else than the step
    "second_forward": "another call",  # a second forward pass comes before the backward pass
    "create_graph": "another call",  # gradients are differentiated
    "retain_graph": "another call",  # a module has a second backward pass of one forward pass
    "gradient_outside": "the code",  # a module's gradients go where it is no node of its own
    "hook": "the code",  # a hook would not be called by a replay
    "checkpoint": "the code",  # a part of a module runs again in the backward pass
    "compiled": "the code",  # a module runs compiled code
    "weights": "the code",  # a module has weights that no graph can take
    "does_not_pay": "another call",  # replays take longer than calls as written
    "framework": "the code",  # a framework's loop does what its integration does not capture
    "off": "nothing",  # GAPLESS_CAPTURE=off
    "result": "the code",  # the step returns something that a replay cannot return
    "ranks": "another rank",  # another rank cannot capture the step
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a step, or a further kind of batch, is not captured.

    Attributes:
        kind: one of `KINDS`.
        text: for people, in one line: the line or the thing, and what to write instead.
        is_final: False if the reason may be gone when graphs have been dropped or the step has
            been measured again; it is then tried anew. None: as the table says.
        site: file:line of what forbids the capture, if it is a line.
        name: of the thing that forbids it, such as "self.count", if it has one.
        is_of_call: whether it is of some calls alone; others are captured all the same. None: as the
            table says.
    """

    kind: str
    text: str
    is_final: bool | None = None
    site: str | None = None
    name: str | None = None
    is_of_call: bool | None = None

    def __post_init__(self) -> None:
        mended_by = KINDS[self.kind]
        if self.is_final is None:
            object.__setattr__(self, "is_final", mended_by not in ("a rest", "room"))
        if self.is_of_call is None:
            object.__setattr__(self, "is_of_call", mended_by == "another call")

    def __str__(self) -> str:
        return self.text

    @property
    def is_for_the_user(self) -> bool:
        """Whether it asks for something: a comparison of times may end otherwise in the next run."""
        return self.kind != "does_not_pay"

    @property
    def reason(self) -> tuple[str, ...]:
        """What two refusals share if they say the same thing, such as with other numbers."""
        if self.site is None and self.name is None:
            return (self.kind, self.text)
        return (self.kind, self.site or "", self.name or "")


class Refused(Exception):  # noqa: N818
    """A capture shows that there can be no graph."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


def host_read(site: str, *, advice: str = "", is_final: bool = True) -> Refusal:
    """Refuse a step that reads a value of the device."""
    text = f"{site} makes the host wait for the device" + (f"; {advice}" if advice else "")
    return Refusal("host_read", text, is_final, site=site)


def skipped_read(site: str) -> Refusal:
    """Refuse a step that reads a value of the device as written, and not while it is captured."""
    return Refusal(
        "host_read",
        f"{site} makes the host wait for the device, but not while a graph is captured; what is read "
        "may decide what the step does, and a graph does not read",
        site=site,
    )


def unlike_values(site: str) -> Refusal:
    """Refuse a kind of calls that differ in a value of their batches."""
    return Refusal(
        "host_read",
        f"{site} reads another value of nearly every batch, and each needs a graph of its own; "
        "keep the value on the device",
        site=site,
    )


def new_code() -> Refusal:
    """Refuse a step that runs code which was not there in the call before, in call after call."""
    return Refusal(
        "capture_failed",
        "the step makes new code in each call, such as by `exec`, `eval`, `namedtuple` or `torch.compile`, and "
        "what that reads cannot be compared; make it once, outside of the step",
    )


def odd_read(read: OddRead) -> Refusal:
    """Refuse a step that reads Python in a way that is not followed."""
    return Refusal(
        "capture_failed",
        f"{read.site or 'the step'} uses {read.name}, and what that reads is not compared before replays; "
        f"{read.advice}",
        site=read.site or None,
        name=read.name,
    )


def unreadable(look: FailedLook) -> Refusal:
    """Refuse a step that could not be looked at, as an object that it uses raised an error."""
    by = f" in {look.raised_by} ({look.site})" if look.raised_by else ""
    return Refusal(
        "unreadable",
        f"reading what {look.step} uses raised {look.error}{by}, and a graph needs it compared before each "
        "replay; take what the step needs out of that object, outside of the step",
        site=look.site or None,
        name=look.raised_by or None,
    )


def proved_wrong(text: str) -> Refusal:
    """Refuse a step of which a graph computes something else."""
    return Refusal(
        "proved_wrong", f"a graph of the step computes something else than the step: {text}"
    )


def does_not_pay(loss: str, *, is_final: bool) -> Refusal:
    """Refuse a kind of calls whose replays take longer than the calls as written."""
    return Refusal(
        "does_not_pay",
        f"replays do not pay: from call to call the loop takes {loss}, so calls of this kind run as "
        "written",
        is_final,
        name="replays that do not pay",
    )


def value_of_one_rank(site: str) -> Refusal:
    """Refuse a step that several ranks take, and that reads a value of each rank's own batch."""
    return Refusal(
        "host_read",
        f"{site} reads a value of the batch, which may be another on each rank, so that the ranks would "
        "not replay the same; keep the value on the device",
        site=site,
    )


# --- what an eager run did ---


def host_write(write: HostWrite) -> Refusal:
    """Refuse a step that does something on the host which a replay would skip."""
    where = f"{write.site}: " if write.site else ""
    text = f"{where}{write.name} {_change_of(write)}; {_advice(write)}{or_the_model_alone(write.name)}"
    return Refusal("host_write", text, site=write.site, name=write.name)


def _advice(write: HostWrite) -> str:
    if write.name.endswith(".n_averaged"):
        return "call AveragedModel.update_parameters after the step"
    return write.advice


def or_the_model_alone(name: str) -> str:
    """Return what else to write where a number of an optimizer's own keeps a whole step from being captured."""
    if not any(part in name for part in (".param_groups[", ".state[")):
        return ""
    return "; or leave the optimizer as it is, and capture the model: `gapless.capture(model)`"


def host_draw(site: str) -> Refusal:
    """Refuse a step that draws random numbers of torch on the host."""
    return Refusal(
        "host_write",
        f"{site} draws random numbers on the host, which a replay would not draw again; draw them "
        "on the device, or in `on_host`",
        site=site,
        name="random numbers of torch",
    )


def forward_mode(site: str) -> Refusal:
    """Refuse a step that differentiates in forward mode."""
    return Refusal(
        "forward_mode",
        f"{site or 'the step'} differentiates in forward mode, and graphs of that have computed something else; "
        "use `torch.func.jacrev` or `torch.autograd.grad`",
        site=site or None,
    )


def asks_of_its_call(site: str) -> Refusal:
    """Refuse a step, or a module, whose code asks for what is otherwise in a replay."""
    return Refusal(
        "replaced_tensor",
        f"{site} asks for a tensor's address, version or place in autograd's graph, which are "
        "others in a replay",
        site=site,
    )


def _change_of(write: HostWrite) -> str:
    if not (write.before or write.after):
        return "is work of the host, which a replay would skip"
    values = f" from {write.before} to {write.after}," if write.before != write.after else ""
    return f"changes on the host,{values} which a replay would skip"


_OLD_NORMS = {"weight_norm": WeightNorm.__call__, "spectral_norm": SpectralNorm.__call__}

# Code of torch that no graph can repeat, and what to use instead.
OF_TORCH = {
    function.__code__: Refusal(
        "replaced_tensor",
        f"torch.nn.utils.{name} makes a weight that is another one in each call; use "
        f"torch.nn.utils.parametrizations.{name}",
        name=name,
    )
    for name, function in _OLD_NORMS.items()
}
OF_TORCH[BasePruningMethod.__call__.__code__] = Refusal(
    "replaced_tensor",
    "a hook of torch.nn.utils.prune masks a weight, which is another one in each call; call "
    "torch.nn.utils.prune.remove, or write the mask as a torch.nn.utils.parametrize",
    name="prune",
)

# Where one thread's nodes may still overtake the other's: see `gapless.graphs.reads.gradient_order`.
UNSETTLED_ORDER = Refusal(
    "create_graph",
    "gradients that are differentiated (create_graph=True) are summed in an order that may change from call to "
    "call, and a graph would keep one, so the step runs as written; capture what else there is, such as "
    "`gapless.capture(optimizer)`",
    name="create_graph",
)

# What this rank could capture and another could not: all do or none does.
ON_ANOTHER_RANK = Refusal(
    "ranks",
    "another rank cannot capture the step, and all ranks capture it or none does; its own report "
    "says why",
)
