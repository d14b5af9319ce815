"""Host waits on a GPU, as torch reports them: counted, forbidden and allowed."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gapless


pytestmark = pytest.mark.gpu


@pytest.fixture
def x():
    return torch.ones(4, device="cuda")


WAITS = {
    "item": (lambda x, pinned, pageable: x[0].item(), 1),
    "tolist": (lambda x, pinned, pageable: x.tolist(), 1),
    "cpu": (lambda x, pinned, pageable: x.cpu(), 1),
    "truth": (lambda x, pinned, pageable: bool(x[0] > 0), 1),
    "blocking copy": (lambda x, pinned, pageable: x.copy_(pageable), 1),
    "device": (lambda x, pinned, pageable: torch.cuda.synchronize(), 1),
    "stream": (lambda x, pinned, pageable: torch.cuda.current_stream().synchronize(), 1),
    "event": (lambda x, pinned, pageable: torch.cuda.current_stream().record_event(), 0),
    "pageable, asked not to": (
        lambda x, pinned, pageable: x.copy_(pageable, non_blocking=True),
        1,
    ),
    "pageable to": (lambda x, pinned, pageable: pageable.to("cuda", non_blocking=True), 1),
    "small pageable to": (
        lambda x, pinned, pageable: pageable[:1024].to("cuda", non_blocking=True),
        0,
    ),
    "pinned to": (lambda x, pinned, pageable: pinned.to("cuda", non_blocking=True), 0),
    "converted": (
        lambda x, pinned, pageable: pinned.to("cuda", torch.float64, non_blocking=True),
        0,
    ),
    "nothing": (lambda x, pinned, pageable: pageable[:0].copy_(x[:0], non_blocking=True), 0),
    "strided": (
        lambda x, pinned, pageable: x.view(256, -1).copy_(
            pinned.view(-1, 256).t(), non_blocking=True
        ),
        1,
    ),
    "kernels": (lambda x, pinned, pageable: (x * 2).sum(), 0),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_of_any_code_are_counted(name):
    """Each way of waiting counts once, with its line; calls that do not wait are not counted."""
    call, expected = WAITS[name]
    count = 1 << 15  # larger than what the driver takes at once
    x = torch.zeros(count, device="cuda")
    pinned, pageable = torch.zeros(count, pin_memory=True), torch.zeros(count)
    call(x, pinned, pageable)

    with gapless.count_waits("cuda") as waits:
        call(x, pinned, pageable)

    assert waits.count == expected, str(waits)
    assert all(site.startswith("test_waits_on_gpu.py:") for _, site in waits.by_site)


def test_a_forbidden_wait_is_named():
    """The error names the call that waits and its line."""
    x = torch.ones(4, device="cuda")

    named = pytest.raises(
        gapless.ForbiddenWaitError, match=r"test_waits_on_gpu\.py:\d+: stream synchronize"
    )
    with named, gapless.forbid_waits("cuda"):
        x.sum().item()


def test_allowed_waits_are_counted_under_their_reason(x):
    """A declared read counts, and is listed by its reason."""
    with gapless.count_waits("cuda") as waits:
        x[0].item()
        with gapless.allow_waits("metrics"):
            x[1].item()

    assert (waits.count, waits.by_reason) == (2, {"metrics": 1})


def test_allowed_waits_are_not_forbidden(x):
    """The ban holds again behind the body of `allow_waits`."""
    with gapless.forbid_waits("cuda"), gapless.allow_waits("metrics"):
        x.sum().item()
    with pytest.raises(gapless.ForbiddenWaitError, match="1 host wait\n"):  # noqa: SIM117
        with gapless.forbid_waits("cuda"):
            with gapless.allow_waits("metrics"):
                x[0].item()
            x[1].item()


def test_allowed_waits_pass_torchs_sync_debug_mode(x):
    """Mode "error" is off in the body of `allow_waits` and on again behind it."""
    device = gapless.find_device("cuda")
    with device.forbid_waits():
        with gapless.allow_waits("metrics"):
            x[0].item()
        with pytest.raises(RuntimeError, match="synchronizing"):
            x[0].item()

    assert torch.cuda.get_sync_debug_mode() == 0


def test_allowed_reads_are_seen_by_who_has_to_know_of_them(x):
    """A declared read cannot be captured either, so `watch_reads` reports it."""
    seen = []
    with gapless.find_device("cuda").watch_reads(seen.append), gapless.allow_waits("metrics"):
        x[0].item()

    assert [site.partition(":")[0] for site in seen] == ["test_waits_on_gpu.py"]
    assert torch.cuda.get_sync_debug_mode() == 0


def test_no_wait_is_allowed_inside_a_capture(x):
    """Torch refuses the read before CUDA sees it, so the next capture works."""
    device = gapless.find_device("cuda")

    def work(_):
        x.add_(1)
        with gapless.allow_waits("metrics"):
            x[0].item()

    x.add_(1).mul_(2)  # loads the kernels
    with device.use_stream(device.create_stream()):
        with pytest.raises(RuntimeError, match="synchronizing"):
            device.capture(work)
        graph = device.capture(lambda _: x.mul_(2))
        before = x.clone()
        graph.replay()

        assert torch.equal(x, before * 2)


def test_exceptions_are_themselves_again_when_waits_are_counted_no_more(x):
    """While they are, one that frees memory on its way is hidden: checkpointing ends its second pass so."""
    with gapless.count_waits() as waits:
        x.tolist()
    layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)] * 3).to("cuda")
    for _ in range(50):
        out = checkpoint(layers, x.requires_grad_(), use_reentrant=False)
        out.sum().backward()

    assert waits.count == 1
