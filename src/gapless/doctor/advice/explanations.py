"""What each code of a finding means: the text of `gapless explain` and of docs/findings.md.

The examples go on from the lines in `GIVEN`. A test runs them on the CPU: after the edit they compute
the same.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Code:
    """A kind of finding, explained.

    Attributes:
        title: in a few words.
        meaning: what the doctor has seen.
        why: the host waits there, or the device has nothing to do.
        mend: what to write instead.
        before: a loop that has the fault; empty where no short one shows it.
        after: the same loop mended with torch alone.
        with_gapless: the same loop mended with gapless' own means; empty where torch's are as good.
    """

    title: str
    meaning: str
    why: str
    mend: str
    before: str = ""
    after: str = ""
    with_gapless: str = ""

    def edits(self) -> list[str]:
        """Return its mends as diffs of whole examples: with torch alone, then with gapless."""
        return [_edit(self.before, after) for after in (self.after, self.with_gapless) if after]


def find_code(text: str) -> str | None:
    """Return the code that somebody means: in any case, without leading zeros or "GAP"."""
    found = re.fullmatch(r"\s*(?:gap)?[-_ ]?0*(\d+)\s*", text, re.IGNORECASE)
    code = f"GAP{int(found[1]):03}" if found else ""
    return code if code in CODES else None


def _edit(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=99, lineterm=""))
    return "\n".join(line.rstrip() for line in lines[3:])


# The lines that all examples go on from.
GIVEN = """\
import gc
import time

import torch
from torch.nn import functional as F

import gapless

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CODES: dict[str, Code] = {
    "GAP001": Code(
        title="One number is read from the device",
        meaning="`.item()`, `float(t)`, `int(t)`, `if t`, `t > 1` in a condition, an f-string, or a tensor "
        "used as a Python index or bound.",
        why="Python needs the number now. The device has to finish everything that was queued before, "
        "and the host queues nothing meanwhile.",
        mend="Keep the number on the device, and read sums every ten steps or more; or let "
        "`gapless.DeferredLoss` hand it out some steps later, without a wait. Where Python "
        "chooses by it what the device does, let the device choose: `torch.where`, or a factor of "
        "0 or 1. But do not hide a loss that is NaN: by `first_nonfinite` of `DeferredLoss` the "
        "run stops some steps late; a fused optimizer with `GradScaler` skips the batch.",
        before="""\
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    update(loss)
    print(loss.item())
""",
        after="""\
losses = []
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    update(loss)
    losses.append(loss.detach())
print(*torch.stack(losses).tolist(), sep="\\n")  # or every ten steps
""",
        with_gapless="""\
losses = gapless.DeferredLoss(device, every=1, on_values=lambda seen: print(seen.values["loss"]))
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    update(loss)
    losses.add(loss)
losses.drain()
""",
    ),
    "GAP002": Code(
        title="A tensor on the device is printed",
        meaning="`print(t)`, `str(t)`, `repr(t)`, or a logger that makes a text of a tensor.",
        why="Torch asks for several values, one after the other, to choose how to write them: one "
        "print waits up to eight times.",
        mend="Print less often, or bring a copy over first: `t.detach().cpu()` is one wait instead of "
        "eight. `gapless.DeferredLoss` hands numbers out late, without a wait.",
        before="""\
for step, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x), y)
    update(loss)
    print(step, loss.detach())
""",
        after="""\
losses = []
for step, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x), y)
    update(loss)
    losses.append(loss.detach())
for step, loss in enumerate(torch.stack(losses).cpu()):
    print(step, loss)
""",
    ),
    "GAP003": Code(
        title="A tensor is copied to the host",
        meaning="`.cpu()`, `.numpy()`, `.tolist()`, `.to('cpu')`, or a tensor of the device in `torch.save` "
        "or pickle.",
        why="The copy comes after everything that was queued before it, and Python gets the tensor "
        "when it is done.",
        mend="Keep results on the device and bring them over once, after the loop. If only a sum or a count "
        "is needed, compute it on the device. Save checkpoints less often.",
        before="""\
predictions = []
for x, y in batches:
    predictions += model(x).argmax(1).tolist()
print(predictions)
""",
        after="""\
predictions = []
for x, y in batches:
    predictions.append(model(x).argmax(1))
print(torch.cat(predictions).tolist())
""",
    ),
    "GAP004": Code(
        title="A copy to the device blocks",
        meaning="`.to(device)`, `.cuda()` or `copy_` of a tensor of the host, without `non_blocking=True`.",
        why="The host stands still until the copy is done, which comes after everything that was "
        "queued before it.",
        mend="Page-locked memory (`pin_memory=True` in the loader), from which the device copies by "
        "itself, and `non_blocking=True`. `gapless.prefetch` does both for any loader, and copies "
        "while the step before still computes.",
        before="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8)
for x, y in loader:
    x, y = x.to(device), y.to(device)
    update(F.cross_entropy(model(x), y))
""",
        after="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8, pin_memory=True)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    update(F.cross_entropy(model(x), y))
""",
        with_gapless="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8)
for x, y in gapless.prefetch(loader, device):
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP005": Code(
        title="A copy blocks although it says non_blocking",
        meaning="`.to(device, non_blocking=True)` of memory that is not page-locked, or that has gaps (a slice, "
        "a transposed tensor).",
        why="Only page-locked memory can be copied by the device alone. Of other memory the host "
        "makes a copy first, and `non_blocking` is ignored without a word. "
        "`torch.cuda.set_sync_debug_mode` does not show these waits.",
        mend="Pin in the loader: `pin_memory=True`. Copy memory as it lies; slice and transpose "
        "on the device. `gapless.prefetch` takes any memory, as for GAP004.",
        before="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    update(F.cross_entropy(model(x), y))
""",
        after="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8, pin_memory=True)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP006": Code(
        title="A tensor is made on the device from Python values",
        meaning="`torch.tensor(x, device='cuda')`, `torch.as_tensor`, or a list that is put into a tensor of the "
        "device, in the loop.",
        why="The values lie in ordinary memory of the host: to bring them over is a blocking copy, "
        "however small.",
        mend="Make it once, before the loop. For one number that changes, `torch.full((), value, "
        "device=device)` sends it along with the work.",
        before="""\
for x, y in batches:
    weight = torch.tensor([0.3, 0.7], device=device)
    update(F.cross_entropy(model(x), y, weight=weight))
""",
        after="""\
weight = torch.tensor([0.3, 0.7], device=device)
for x, y in batches:
    update(F.cross_entropy(model(x), y, weight=weight))
""",
    ),
    "GAP007": Code(
        title="The shape of a result depends on values",
        meaning="`x[mask]`, `masked_select`, `nonzero`, `torch.where(mask)`, `unique`, `bincount`, "
        "`repeat_interleave(counts)`, `one_hot(x)` and the like.",
        why="The host has to know how large the result is, and only the device knows how many values "
        "are picked.",
        mend="Use a form of fixed size: `torch.where(mask, x, 0.0)` and a sum divided by `mask.sum()`; "
        "`one_hot(x, num_classes=n)`; `repeat_interleave(counts, output_size=n)`; counts by `scatter_add_` into a "
        "tensor of known size; `torch.nonzero_static`. To assign one number, `x[mask] = 0.0`, does not wait.",
        before="""\
for x, y in batches:
    losses = F.cross_entropy(model(x), y, reduction="none")
    update(losses[y == 1].mean())
""",
        after="""\
for x, y in batches:
    losses = F.cross_entropy(model(x), y, reduction="none")
    mask = y == 1
    update(torch.where(mask, losses, 0.0).sum() / mask.sum())
""",
    ),
    "GAP008": Code(
        title="A tensor on the device is indexed by something on the host",
        meaning="`x[[0, 2, 4]]`, `x[index]` with an index of the host.",
        why="The index is copied to the device first, and that copy blocks.",
        mend="Make the index once, on the device. Slices, `x[0:4]`, and whole numbers, `x[3]`, need no copy.",
        before="""\
for x, y in batches:
    x = x + x[:, [0]]
    update(F.cross_entropy(model(x), y))
""",
        after="""\
first = torch.tensor([0], device=device)
for x, y in batches:
    x = x + x[:, first]
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP009": Code(
        title="Torch checks values on the device",
        meaning="`torch.equal`, `allclose`, solvers such as `torch.linalg.inv`, `cholesky` and `solve`, and "
        "distributions that validate their arguments.",
        why="To return a Python bool, or to raise an error, torch has to know the answer, which is on "
        "the device.",
        mend="Solvers have forms that leave the check to you: `inv_ex`, `cholesky_ex`, `solve_ex`. "
        "Distributions take `validate_args=False`. Instead of `torch.equal`, keep `(a != "
        "b).any()` and read it after the loop.",
        before="""\
for x, y in batches:
    policy = torch.distributions.Categorical(logits=model(x))
    update(-policy.log_prob(y).mean())
""",
        after="""\
for x, y in batches:
    policy = torch.distributions.Categorical(logits=model(x), validate_args=False)
    update(-policy.log_prob(y).mean())
""",
    ),
    "GAP010": Code(
        title="The optimizer, its scaler or clipping reads a value",
        meaning="`GradScaler.step` with an optimizer that is not fused, `clip_grad_norm_(error_if_nonfinite=True)`, "
        "Adafactor, ASGD, LBFGS, `ReduceLROnPlateau`, `BatchNorm(momentum=None)`.",
        why="They ask the device for a number to decide in Python what to do, such as whether to skip an update.",
        mend="A fused optimizer (`fused=True`) skips updates on the device. bfloat16 needs no scaler. "
        "Clip without `error_if_nonfinite`, and look at the norm every few steps. "
        "`capturable=True` keeps decisions on the device, where an optimizer has it. Call "
        "`ReduceLROnPlateau` once an epoch.",
        before="""\
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler(device.type)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        after="""\
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
scaler = torch.amp.GradScaler(device.type)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    "GAP011": Code(
        title="The host waits for a whole stream or device",
        meaning="`torch.cuda.synchronize()`, `torch.accelerator.synchronize()`, `Stream.synchronize()`.",
        why="The host goes on when all work is done, and the device then has none.",
        mend="To measure time, record events and read them once at the end. To order work of two "
        "streams, use `wait_stream` or `wait_event`. Before `.item()` or `.cpu()` it is not "
        "needed.",
        before="""\
seconds = 0.0
for x, y in batches:
    torch.cuda.synchronize()
    start = time.perf_counter()
    update(F.cross_entropy(model(x), y))
    torch.cuda.synchronize()
    seconds += time.perf_counter() - start
""",
        after="""\
times = []
for x, y in batches:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    update(F.cross_entropy(model(x), y))
    end.record()
    times.append((start, end))
torch.cuda.synchronize()
seconds = sum(start.elapsed_time(end) for start, end in times) / 1000
""",
    ),
    "GAP012": Code(
        title="The host waits for an event",
        meaning="`Event.synchronize()`.",
        why="The host stands still until the device has come to the event.",
        mend="Let the stream that needs the result wait: `stream.wait_event(event)`. If the host needs "
        "it, let it ask for the result of an earlier step.",
        before="""\
side = torch.cuda.Stream()
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    update(loss)
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    with torch.cuda.stream(side):
        smallest = model[0].weight.detach().min()
    torch.cuda.current_stream().wait_stream(side)
""",
        after="""\
side = torch.cuda.Stream()
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    update(loss)
    done = torch.cuda.Event()
    done.record()
    side.wait_event(done)
    with torch.cuda.stream(side):
        smallest = model[0].weight.detach().min()
    torch.cuda.current_stream().wait_stream(side)
""",
    ),
    "GAP013": Code(
        title="The host asks again and again whether the device is done",
        meaning="A loop around `Event.query()` or `Stream.query()`.",
        why="It is a wait in other words, and takes the processor and Python's lock from all other "
        "threads as well.",
        mend="Ask once a step, and go on if it is not done; `gapless.DeferredLoss` does so. If another "
        "stream needs the result, let that stream wait. If the host must wait, "
        "`event.synchronize()` does so without a spin.",
    ),
    "GAP014": Code(
        title="Memory of the device is allocated or given back in the loop",
        meaning="`torch.cuda.empty_cache()`, or steps in which torch has to ask the driver for memory.",
        why="To give memory back, the driver waits until the device is done, and the next step has to "
        "ask for it anew.",
        mend="Leave `empty_cache` out: torch gives memory back before it runs out. Run the largest "
        "batch first. Where sizes vary, set `PYTORCH_ALLOC_CONF=expandable_segments:True`.",
        before="""\
for x, y in batches:
    update(F.cross_entropy(model(x), y))
    torch.cuda.empty_cache()
""",
        after="""\
for x, y in batches:
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP015": Code(
        title="Memory of the host is page-locked in the loop",
        meaning="`.pin_memory()` or `pin_memory=True` of a new tensor, in the loop itself.",
        why="To page-lock memory takes longer than most copies, and to fill it is a copy on the host, "
        "on the thread that should queue work.",
        mend="Let the loader pin: it does so in a thread of its own. Or make one pinned buffer before "
        "the loop. `gapless.prefetch` uses page-locked memory again as soon as its copy is done.",
        before="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8)
for x, y in loader:
    x, y = x.pin_memory(), y.pin_memory()
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    update(F.cross_entropy(model(x), y))
""",
        after="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8, pin_memory=True)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP016": Code(
        title="The loader is late",
        meaning="The loop waits in `next()` of its loader: batches are made more slowly than they are used.",
        why="Without workers a batch is only begun when the loop asks for it, on the thread that "
        "should queue work.",
        mend="Give the loader workers, as many as there are cores to spare; do less for each sample, "
        "or do it on the device. `gapless.prefetch` with `depth` evens out a loader that is late "
        "now and then. Workers leave the order as it is; what a data set draws by itself comes "
        "from their seeds. `persistent_workers=True` saves their start in each epoch, but changes "
        "results: torch draws their seed once, so that from the second epoch on every number "
        "drawn after it is another, and the order of a shuffled epoch with it.",
        before="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    update(F.cross_entropy(model(x), y))
""",
        after="""\
loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, pin_memory=True)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP017": Code(
        title="The step is launch-bound",
        meaning="The device is idle in many short gaps, while the host queues work without waiting for "
        "anything.",
        why="A step of a thousand short kernels takes the host, which needs some microseconds for "
        "each, longer than the device. To remove waits does not help.",
        mend="Queue less: larger batches, a fused optimizer, `torch.compile`. A CUDA graph queues the whole step at once: "
        '`torch.compile(model, mode="reduce-overhead")` for the model, `gapless.capture` for model and optimizer as they '
        "are, or for the whole step.",
        before="""\
for x, y in batches:
    update(F.cross_entropy(model(x), y))
""",
        after="""\
model.compile(mode="reduce-overhead")
for x, y in batches:
    update(F.cross_entropy(model(x), y))
""",
        with_gapless="""\
gapless.capture(model, optimizer)
for x, y in batches:
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP018": Code(
        title="Batches come in ever new shapes",
        meaning="Shapes that were not seen before keep coming after the warm-up, or batches are padded to very "
        "different lengths.",
        why="For a new shape memory may be allocated, compiled code is compiled again, and a graph is "
        "captured again. Padding is work for nothing.",
        mend="Pad to few sizes, such as multiples of 8 or 64, and let the model leave the padding out. "
        "Sort by length. Run the largest shape first.",
        before="""\
embedding = torch.nn.EmbeddingBag(100, 8, mode="sum", padding_idx=0).to(device)
for step in range(20):
    rows = [torch.full((1 + (step + row) % 20,), 5) for row in range(4)]
    words = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    update(model(embedding(words.to(device))).square().mean())
""",
        after="""\
embedding = torch.nn.EmbeddingBag(100, 8, mode="sum", padding_idx=0).to(device)
for step in range(20):
    rows = [torch.full((1 + (step + row) % 20,), 5) for row in range(4)]
    words = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    words = F.pad(words, (0, -words.shape[1] % 8))
    update(model(embedding(words.to(device))).square().mean())
""",
    ),
    "GAP019": Code(
        title="Python's garbage collector runs in the loop",
        meaning="The collector stops Python now and then, to look for objects that refer to each other.",
        why="A full collection looks at every object of the process. That can take tens of "
        "milliseconds, in which nothing is queued.",
        mend="After the warm-up, tell it that what is there will stay: `gc.freeze()`. Or collect after "
        "each epoch alone.",
        before="""\
for x, y in batches:
    update(F.cross_entropy(model(x), y))
""",
        after="""\
gc.collect()
gc.freeze()
for x, y in batches:
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP020": Code(
        title="The host waits for other processes",
        meaning="`torch.distributed.barrier()`, collectives of Python objects, and collectives that the host waits for.",
        why="The host goes on when the slowest process has come here and the device is done. With "
        "NCCL, collectives of tensors are ordered on the device and need no wait of the host.",
        mend="Leave barriers out of the loop. Reduce tensors instead of objects, and read the result every few steps. "
        "Start collectives with `async_op=True` and wait where the result is used.",
        before="""\
for x, y in batches:
    update(F.cross_entropy(model(x), y))
    torch.distributed.barrier()
""",
        after="""\
for x, y in batches:
    update(F.cross_entropy(model(x), y))
""",
    ),
    "GAP021": Code(
        title="The host waited, and nobody knows where",
        meaning="The profiler saw a call that blocked the host, and no line of the script is known that led to it.",
        why="A library, or a thread of C++, made the call. The finding says which call, and on which "
        "thread.",
        mend="Run the script again with `gapless doctor --exact`, which sees waits inside of "
        "libraries. If it stays without a line, look at what runs on that thread.",
    ),
}
