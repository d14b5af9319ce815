"""A session of a doctor as a GPU gives it, made up: two host threads, a loader's, two streams."""

from __future__ import annotations

import random
from dataclasses import replace

from gapless.records.comparison import Spread
from gapless.records.finding import Finding, Session, Site, StepTimes, Trial
from gapless.records.timeline import Gap, Lane, Span, Timeline


KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
    "flash_fwd_kernel<bfloat16, 64>",
    "vectorized_layer_norm_kernel",
    "elementwise_kernel<GeluCUDAKernel>",
    "multi_tensor_apply_kernel<FusedAdamW>",
    "vectorized_elementwise_kernel<4, AUnaryFunctor>",
)

# A line as somebody might write it to break a page.
HOSTILE = "print(f\"</script><script>alert(1)</script> {loss.item():.3f} '&amp;' <b>\")"

ITEM = Finding(
    code="GAP001",
    site=Site(path="train.py", line=57, function="train", source="total_loss += loss.item()"),
    call="Tensor.item",
    per_step=1.0,
    waited_ms=6.84,
    exposed_ms=1.92,
    share=0.118,
    cause="Reading the loss waits until the device has done the whole step.",
    mend="Keep the loss on the device and read it late.\n"
    "losses = gapless.DeferredLoss(device)\nlosses.add(loss)  # instead of loss.item()\n"
    "...\nprint(losses.mean())  # after the epoch",
)
COPY = Finding(
    code="GAP005",
    site=Site(
        path="train.py",
        line=49,
        function="train",
        source="batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}",
    ),
    call="Tensor.to",
    per_step=3.0,
    waited_ms=0.71,
    exposed_ms=0.64,
    share=0.039,
    cause="A copy from pageable memory blocks although it says non_blocking.",
    mend="Let the loader pin its batches.\nDataLoader(..., pin_memory=True)",
)
LOADER = Finding(
    code="GAP016",
    site=Site(path="train.py", line=47, function="train", source="for batch in loader:"),
    call="DataLoader.__next__",
    per_step=1.0,
    waited_ms=1.1,
    exposed_ms=0.93,
    share=0.057,
    cause="The loop waits for the loader, which makes batches in the training process.",
    mend="Let workers make them.\nDataLoader(..., num_workers=4, persistent_workers=True)",
)
CLIP = Finding(
    code="GAP010",
    site=Site(
        path="src/model/hooks.py", line=112, function="on_grad", source="if g.isnan().any():"
    ),
    thread="autograd",
    call="Tensor.__bool__",
    per_step=2.0,
    waited_ms=0.38,
    exposed_ms=0.21,
    share=0.013,
    cause="A hook asks in every backward pass whether a gradient is finite.",
    mend="Let the optimizer skip the step on the device, and read the flag late.",
    forward=Site(path="src/model/block.py", line=31, source="x = self.mlp(self.norm(x))"),
)
PRINT = Finding(
    code="GAP002",
    site=Site(path="train.py", line=61, function="train", source=HOSTILE),
    call="print",
    per_step=0.1,
    waited_ms=0.02,
    exposed_ms=0.0,
    share=0.0,
    cause="Printing a tensor reads it.",
    mend="Print what was read late.",
)
UNKNOWN = Finding(
    code="GAP021",
    site=None,
    call="cudaStreamSynchronize",
    per_step=0.2,
    waited_ms=0.04,
    cause="The host waited for the device in code that shows no line of Python.",
    mend="Run again with --exact.",
)
FINDINGS = (ITEM, LOADER, COPY, CLIP, PRINT, UNKNOWN)


class _Clock:
    """Host and device times of a made-up run, in microseconds."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.host = 0.0
        self.streams = {"compute": 0.0, "copy": 0.0}
        self.main, self.autograd, self.loader = [], [], []
        self.work = {"compute": [], "copy": []}
        self.steps = []

    def launch(self, name, us, *, stream="compute", kind="kernel", thread=None, after=0.0):
        """Queue work from a thread; it starts when its stream is free."""
        begin, cost = self.host, self.draw.uniform(2.5, 5.5)
        call = "cudaMemcpyAsync" if kind == "copy" else "cudaLaunchKernel"
        (self.main if thread is None else thread).append(
            Span(name=call, kind="launch", start_us=begin, end_us=begin + cost)
        )
        self.host += cost + self.draw.uniform(0.5, 2.0)
        start = max(self.streams[stream], begin + cost + 1.5, after)
        end = start + us * self.draw.uniform(0.85, 1.2)
        self.streams[stream] = end
        self.work[stream].append(Span(name=name, kind=kind, start_us=start, end_us=end))
        return end

    def wait(self, until, name, *, finding, thread=None, kind="wait"):
        begin = self.host
        self.host = max(begin + 4.0, until + 8.0)
        (self.main if thread is None else thread).append(
            Span(name=name, kind=kind, start_us=begin, end_us=self.host, finding=finding)
        )

    def think(self, name, us):
        begin = self.host
        self.host += us * self.draw.uniform(0.7, 1.5)
        self.main.append(Span(name=name, kind="host code", start_us=begin, end_us=self.host))


def _step(clock, number, kernels, *, mended):
    clock.steps.append(clock.host)
    loader = clock.host + clock.draw.uniform(300, 1700) * (0.1 if mended else 1.0)
    clock.wait(loader, "DataLoader.__next__", finding=0 if mended else 1, kind="data")
    clock.loader.append(
        Span(name="collate", kind="host code", start_us=loader - 280, end_us=loader)
    )
    copied = 0.0
    for _ in range(3):
        copied = clock.launch("Memcpy HtoD (Pageable)", 150, stream="copy", kind="copy")
        if not mended:
            clock.wait(copied, "Tensor.to", finding=2)
    for at in range(kernels // 3):
        clock.launch(KERNELS[at % 4], clock.draw.choice((9, 14, 31, 52)), after=copied)
    clock.think("loss function", 60)
    for at in range(kernels // 3):
        clock.launch(KERNELS[at % 4], clock.draw.choice((12, 24, 48, 77)), thread=clock.autograd)
        if not mended and at in (kernels // 8, kernels // 5):
            clock.wait(
                clock.streams["compute"], "Tensor.__bool__", finding=3, thread=clock.autograd
            )
    for at in range(kernels - 2 * (kernels // 3)):
        clock.launch(KERNELS[4 + at % 2], 6)
    if not mended:
        clock.wait(clock.streams["compute"], "Tensor.item", finding=0)
        clock.think("logging", 900)
        if number % 10 == 9:
            clock.wait(clock.streams["compute"], "print", finding=4)


def _gaps(clock, end_us):
    """Return idle time of all streams, charged to the first wait that ended in it."""
    waits = sorted(
        (span for span in clock.main + clock.autograd if span.finding is not None),
        key=lambda span: span.end_us,
    )
    reached, gaps, at = 0.0, [], 0
    for span in sorted(clock.work["compute"] + clock.work["copy"], key=lambda one: one.start_us):
        if span.start_us > reached + 0.5:
            while at < len(waits) and waits[at].end_us < reached:
                at += 1
            blamed = waits[at] if at < len(waits) and waits[at].end_us < span.start_us else None
            cause = "launch" if blamed is None else _CAUSES[blamed.kind]
            finding = None if blamed is None else blamed.finding
            gaps.append(Gap(start_us=reached, end_us=span.start_us, cause=cause, finding=finding))
        reached = max(reached, span.end_us)
    return tuple(gaps)


_CAUSES = {"wait": "host wait", "data": "data"}


def made_up_timeline(*, num_steps=10, kernels=300, mended=False, title="", seed=7):
    """Return a timeline of steps of so many kernels each."""
    clock = _Clock(seed)
    for number in range(num_steps):
        _step(clock, number, kernels, mended=mended)
    end_us = max(clock.host, *clock.streams.values())
    lanes = (
        Lane(name="main thread", is_device=False, spans=tuple(clock.main)),
        Lane(name="autograd thread", is_device=False, spans=tuple(clock.autograd)),
        Lane(name="loader thread", is_device=False, spans=tuple(clock.loader)),
        Lane(name="stream 7, compute", is_device=True, spans=tuple(clock.work["compute"])),
        Lane(name="stream 13, copies", is_device=True, spans=tuple(clock.work["copy"])),
    )
    return Timeline(
        title=title,
        lanes=lanes,
        gaps=_gaps(clock, end_us),
        step_starts_us=tuple(clock.steps),
        end_us=end_us,
    )


def made_up_session(*, num_steps=10, kernels=300, mended=False):
    """Return a session of a script with six findings; mended, of the same with one of them left."""
    timeline = made_up_timeline(num_steps=num_steps, kernels=kernels, mended=mended)
    whole = timeline.end_us / 1000.0 / num_steps
    idle = sum(gap.end_us - gap.start_us for gap in timeline.gaps) / 1000.0 / num_steps
    host = [span for lane in timeline.lanes[:2] for span in lane.spans]

    def mean_ms(kind):
        spans = [span for span in host if span.kind == kind]
        return sum(span.end_us - span.start_us for span in spans) / 1000.0 / num_steps

    session = Session(
        command=("train.py", "--epochs", "3", "--data", "wmt14"),
        device="NVIDIA H200",
        versions={"python": "3.11.9", "torch": "2.13.0", "gapless": "0.1.0", "driver": "580.65"},
        step="a call of AdamW.step",
        steps=StepTimes(
            num_steps=num_steps,
            wall_ms=Spread.of([whole * part for part in (0.97, 0.99, 1.0, 1.02, 1.06)]),
            data_ms=mean_ms("data"),
            wait_ms=mean_ms("wait"),
            launch_ms=mean_ms("launch"),
            busy_ms=whole - idle,
            compute_ms=whole - idle - 0.3,
            idle_ms=idle,
            num_launches=kernels + 3.0,
        ),
        findings=FINDINGS,
        verdict="The host holds the script back: it waits for the device in every step, and then the "
        "device waits for the host. Mending the first finding can win most of it.",
        notes=(
            "One blocking call in five steps had no line of Python.",
            "The clocks of the device were not locked.",
        ),
        trials=(
            Trial(
                name="recorded batches",
                change="The loader hands out batches that it has made before, without a wait.",
                steps_per_second=Spread.of([74.1, 74.9, 75.3, 75.0, 74.6]),
                baseline=Spread.of([61.0, 61.4, 60.7, 61.9, 61.2]),
            ),
            Trial(
                name="captured",
                change="Model and optimizer are captured in place.",
                steps_per_second=None,
                baseline=None,
                refusal="train.py:112 waits for the device in the forward pass.",
            ),
        ),
        timeline=timeline,
    )
    if not mended:
        return session
    left = replace(LOADER, waited_ms=0.09, exposed_ms=0.05, share=0.004)
    return replace(
        session,
        findings=(left,),
        verdict="The device is busy for most of each step: mending what is left will help little.",
        trials=(),
    )
