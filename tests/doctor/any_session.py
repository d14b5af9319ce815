"""Any session that a doctor could make, and many that none would: for property tests."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from gapless.records.comparison import Spread
from gapless.records.finding import Certainty, Finding, Session, Site, StepTimes, Trial
from gapless.records.timeline import Gap, Lane, Span, SpanKind, Timeline


# Also what a file system or a terminal makes of names: halves of characters, control characters.
texts = st.text(max_size=12) | st.sampled_from(
    ["\udcff.py", "模型.py", "a\x1b[31m", "a\nb", '"', "\\"]
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
times = st.floats(0.0, 1e6)
maybe_times = st.none() | times
spreads = st.lists(times, min_size=1, max_size=4).map(Spread.of)
sites = st.builds(Site, path=texts, line=st.integers(1, 10**6), function=texts, source=texts)
findings = st.builds(
    Finding,
    code=st.sampled_from(["GAP001", "GAP005", "GAP016", "GAP021"]),
    site=st.none() | sites,
    thread=st.sampled_from(["main", "autograd"]) | texts,
    call=texts,
    per_step=times,
    waited_ms=maybe_times,
    exposed_ms=maybe_times,
    gain_ms=maybe_times,
    share=st.none() | st.floats(0.0, 1.0),
    certainty=st.sampled_from(get_args(Certainty)),
    cause=texts,
    mend=texts,
    forward=st.none() | sites,
    rank=st.none() | st.integers(0, 7),
)
steps = st.builds(
    StepTimes,
    num_steps=st.integers(1, 1000),
    wall_ms=spreads,
    data_ms=maybe_times,
    wait_ms=maybe_times,
    launch_ms=maybe_times,
    busy_ms=maybe_times,
    compute_ms=maybe_times,
    idle_ms=maybe_times,
    num_launches=maybe_times,
)
trials = st.builds(
    Trial,
    name=texts,
    change=texts,
    steps_per_second=st.none() | spreads,
    baseline=st.none() | spreads,
    refusal=texts,
    details=st.lists(texts, max_size=2).map(tuple),
)


@st.composite
def spans(draw):
    start, end = sorted((draw(times), draw(times)))
    kind = draw(st.sampled_from(get_args(SpanKind)))
    finding = draw(st.none() | st.integers(0, 5))
    return Span(name=draw(texts), kind=kind, start_us=start, end_us=end, finding=finding)


@st.composite
def gaps(draw):
    start, end = sorted((draw(times), draw(times)))
    finding = draw(st.none() | st.integers(0, 5))
    return Gap(start_us=start, end_us=end, cause=draw(texts), finding=finding)


lanes = st.builds(
    Lane,
    name=texts,
    is_device=st.booleans(),
    spans=st.lists(spans(), max_size=4).map(
        lambda found: tuple(sorted(found, key=lambda span: span.start_us))
    ),
)
timelines = st.builds(
    Timeline,
    title=texts,
    lanes=st.lists(lanes, max_size=3).map(tuple),
    gaps=st.lists(gaps(), max_size=3).map(tuple),
    step_starts_us=st.lists(times, max_size=3).map(tuple),
    end_us=times,
)
sessions = st.builds(
    Session,
    command=st.lists(texts, max_size=3).map(tuple),
    device=texts,
    versions=st.dictionaries(texts, texts, max_size=3),
    step=texts,
    steps=st.none() | steps,
    findings=st.lists(findings, max_size=4).map(tuple),
    verdict=texts,
    notes=st.lists(texts, max_size=3).map(tuple),
    trials=st.lists(trials, max_size=2).map(tuple),
    timeline=st.none() | timelines,
    num_ranks=st.integers(1, 8),
)
