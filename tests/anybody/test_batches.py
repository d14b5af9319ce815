"""Batches of all kinds arrive on the device, in order, and are captured."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gapless
from anybody import arrivals
from anybody.batches import HIDDEN, KINDS, case as CASES
from anybody.harness import judge, marked, params
from gapless.testing import SimulatedDevice


@pytest.mark.quick_cases(16)
@pytest.mark.parametrize("case", params(CASES))
def test_batches(case):
    """The same bits as written, captured or told the way that works."""
    assert judge(case) == []


def named(kinds, test):
    return [pytest.param(one, id=one.name, marks=marked(f"{test}-{one}")) for one in kinds]


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("kind", named(KINDS, "prefetch"))
def test_every_tensor_arrives(kind, depth):
    """On the device, in the loader's order, bit for bit; what is no tensor is the very same."""
    with SimulatedDevice(scheduler="random", seed=3) as device:
        arrivals.every_tensor(kind, device, device.torch_device, depth=depth)
    assert device.report.races == []


@pytest.mark.parametrize("kind", named(KINDS, "no_leak"))
def test_nothing_is_kept(kind):
    """A batch and its tensors are gone when the loop has let them go."""
    with SimulatedDevice(scheduler="asap") as device:
        assert arrivals.kept(kind, device) == []


@pytest.mark.parametrize("kind", named(HIDDEN, "hidden"))
def test_no_tensor_stays_on_the_host_in_silence(kind):
    """It arrives on the device, or a warning or an error names what it is in."""
    with SimulatedDevice(scheduler="asap") as device:
        arrivals.none_in_silence(kind, device, device.torch_device)


# -------------------------------------------------------------------------- the loader's order


def shuffled():
    return DataLoader(TensorDataset(torch.arange(24.0)), batch_size=4, shuffle=True)


def rows(batches):
    return [batch[0].tolist() for batch in batches]


def order(play, wrap):
    """Return what `play` sees of a loader, from the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return play(wrap(shuffled()))


def thrown_away(loader):
    """Look whether a loader can be iterated over, as frameworks do with what is no DataLoader."""
    if not isinstance(loader, DataLoader):
        iter(loader)
    return [rows(loader), rows(loader)]


def alternating(loader):
    one, two = iter(loader), iter(loader)
    return [rows([next(one), next(two), next(two)]) for _ in range(3)]


def broken_off(loader):
    for _ in loader:
        break
    return [rows(loader), torch.rand(1).item()]


def zipped(loader):
    return [rows(pair) for pair in zip(loader, loader, strict=True)]


def kept_iterator(loader):
    batches = iter(loader)
    found = [next(batches) for _ in range(2)]
    return [rows(found), torch.rand(1).item(), rows(batches), rows(loader)]


ORDERS = [thrown_away, alternating, broken_off, zipped, kept_iterator]


@pytest.mark.parametrize(
    "play",
    [pytest.param(one, id=one.__name__, marks=marked(f"order-{one.__name__}")) for one in ORDERS],
)
def test_the_loaders_order_is_kept(play):
    """Whoever calls `iter`, and however often."""
    expected = order(play, lambda loader: loader)

    assert order(play, lambda loader: gapless.prefetch(loader, "cpu")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("lightning", marks=marked("order-lightning"))])
def test_the_order_under_a_framework(name, tmp_path):
    """Lightning's `fit` sees the order that it sees of the loader itself."""
    lightning = pytest.importorskip(name)

    class Sees(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight, self.seen = torch.nn.Parameter(torch.ones(())), []

        def training_step(self, batch, batch_idx):
            self.seen.append(batch[0].tolist())
            return (self.weight * batch[0]).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(loader):
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", barebones=True, default_root_dir=tmp_path
        )
        module = Sees()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, loader)
        return module.seen

    assert order(fit, lambda loader: gapless.prefetch(loader, "cpu")) == order(fit, lambda x: x)
