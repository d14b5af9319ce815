"""Fixtures for all tests: GPU selection, clean process state, a tiny translation task."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from ample_room import AMPLE
from gapless.device.find import find_device
from gapless.device.numerics import numerics_restored, seed_everything, set_numerics
from gapless.graphs import account, audit
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.data.padded_layout import PaddedLayout
from gapless.nmt.data.sampler import MicrobatchSampler, make_loader
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.nmt.run.training_step import TranslationStep
from gapless.nmt.settings.config import make_config
from leaks import no_leaks, pytest_runtest_call  # noqa: F401  # pytest finds them here
from share_of_cases import pytest_collection_modifyitems  # noqa: F401  # likewise


if TYPE_CHECKING:
    from gapless.records.epoch_record import EpochRecord


# Runs keep tokenised text in the user's cache, and those of other sessions are not to be found.
_CACHE = tempfile.TemporaryDirectory(prefix="gapless-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

# What is made until all tests are collected stays.
gc.disable()

# How long an example takes says nothing on a machine that does other things as well. Each run has others.
settings.register_profile("gapless", deadline=None, max_examples=30)
settings.load_profile("gapless")


def pytest_collection_finish():
    _forget_garbage()
    gc.enable()


def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        _forget_garbage()


def _forget_garbage():
    """Let the collector look no more at what is there: modules and tests, which stay.

    Captures and tests of memory collect garbage; over hundreds of thousands of objects that takes
    longer than all else that they do.
    """
    gc.collect()
    gc.freeze()


# When it was last begun to wait for a hang.
_began = float("-inf")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Show where all threads stand once a test hangs.

    Pytest itself begins and ends a thread for each test, which takes longer than most of them where cores
    are busy; here one waits for many tests.
    """
    global _began
    timeout = float(item.config.getini("hang_timeout"))
    if time.monotonic() - _began > timeout / 10:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(timeout, file=stderr)
        _began = time.monotonic()
    return (yield)


def pytest_sessionfinish():
    faulthandler.cancel_dump_traceback_later()


def pytest_addoption(parser):
    parser.addini(
        "hang_timeout", "seconds after which a test shows where it stands", default="120"
    )
    parser.addoption(
        "--audit-every",
        type=int,
        default=10**9,
        help="replays from one audit of a captured graph to the next",
    )


def pytest_runtest_setup(item):
    needed = 2 if item.get_closest_marker("multi_gpu") else 1
    if not (item.get_closest_marker("gpu") or item.get_closest_marker("multi_gpu")):
        return
    found = torch.cuda.device_count()
    if found >= needed:
        return
    reason = f"needs {needed} GPU, torch {torch.__version__} finds {found}"
    if os.environ.get("GAPLESS_REQUIRE_GPU") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def seldom_audits(no_leaks, request, monkeypatch):  # noqa: F811  # likewise
    """Let tests count replays: graphs are audited seldom, unless a run asks for it (`--audit-every 1`)."""
    monkeypatch.setattr(audit, "DEFAULT_EVERY", request.config.getoption("--audit-every"))


@pytest.fixture(autouse=True)
def ample_room(no_leaks, monkeypatch):  # noqa: F811  # looks before, and last
    """Let tests count replays: calls are watched from the first one on, whatever that takes."""
    for name, value in AMPLE.items():
        monkeypatch.setattr(account, name, value)


@pytest.fixture
def numerics():
    """Let a test set precision and determinism of the process, and restore them."""
    with numerics_restored():
        yield


@pytest.fixture
def expected_waits():
    """Host waits of each plan over 100 batches, by reason: the promise of the plans."""
    return {
        "blocking": {"batch": 100, "loss_read": 100},
        "deferred-loss": {"batch": 100, "loss_read": 10},
        "events": {"batch": 100},
        "interval": {"interval": 10, "loss_read": 10},
        "events-interval": {"interval": 10},
        "four-stream": {"interval": 10},
        "full": {"interval": 10},
        "gapless": {"epoch_end": 1},
        # And one wait for each shape of batch that is captured, on a device that captures.
        "captured": {"epoch_end": 1},
        "auto": {"epoch_end": 1},
    }


@dataclass(frozen=True)
class TinyRun:
    result: EpochRecord
    weights: list[torch.Tensor]
    step: TranslationStep


@pytest.fixture
def tiny_pairs():
    """Six hundred random pairs of 3 to 12 tokens, the target being the source reversed."""
    draw = random.Random(5)
    src = [[draw.randrange(4, 40) for _ in range(draw.randint(3, 12))] for _ in range(600)]
    return TokenPairs(src, [ids[::-1] for ids in src])


@pytest.fixture
def train_tiny(tiny_pairs, numerics):
    """Train a tiny Transformer with dropout for one epoch of so many batches."""

    def train(*, plan, device="cpu", num_batches=100, workers=0, context=None, **settings):
        config = make_config({"batch_size": 2, "dropout": 0.3, "warmup": 20, **settings})
        found = find_device(device)
        set_numerics(found, config.precision, deterministic=True)
        seed_everything(1)
        layout = PaddedLayout(tiny_pairs.src_lengths, tiny_pairs.tgt_lengths, max_sentences=2)
        sampler = MicrobatchSampler(tiny_pairs, layout, accumulate=config.accumulate, seed=1)
        sampler.set_epoch(0, max_updates=num_batches // config.accumulate)
        loader = make_loader(tiny_pairs, sampler, workers=workers)
        sizes = ModelSizes(
            src_vocab=40,
            tgt_vocab=40,
            d_model=32,
            heads=4,
            ffn=64,
            encoder_layers=1,
            decoder_layers=1,
            dropout=0.3,
            share="all",
        )
        with TrainLoop(plan=plan, device=found) as loop:
            with loop.on_compute_stream():
                model = Transformer(sizes).to(found.torch_device)
                step = TranslationStep(model, config, device=found, total_updates=num_batches)
            if context is not None:
                # The first steps make workspaces; the promise is about the steady state.
                warm = MicrobatchSampler(tiny_pairs, layout, seed=2)
                warm.set_epoch(0, max_updates=8)
                loop.run_epoch(make_loader(tiny_pairs, warm, workers=0), step)
                with context(found):
                    result = loop.run_epoch(loader, step)
            else:
                result = loop.run_epoch(loader, step)
            weights = [weight.detach().cpu() for weight in model.parameters()]
        return TinyRun(result=result, weights=weights, step=step)

    return train


@pytest.fixture(scope="session")
def launcher_of_session():
    """Starts processes of gapless quickly; one for all tests of a process."""
    from faults.processes import shared_launcher

    yield shared_launcher()
    shared_launcher().close()


@pytest.fixture
def launcher(launcher_of_session):
    """Starts processes; what a test leaves running is killed."""
    yield launcher_of_session
    launcher_of_session.stop_all()


@pytest.fixture
def sync_debug_mode(monkeypatch):
    """The sync debug mode of a CUDA that is not there, as a list of one number."""
    now = [0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_get_sync_debug_mode", lambda: now[0], raising=False)
    monkeypatch.setattr(
        torch._C,
        "_cuda_set_sync_debug_mode",
        lambda level: now.__setitem__(0, level),
        raising=False,
    )
    yield now
    monkeypatch.undo()
