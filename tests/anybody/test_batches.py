"""Batches of all kinds arrive on the device, in order, and are captured."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gapless
from anybody.batches import HIDDEN, KINDS, batch_of, case as CASES
from anybody.harness import judge, marked, params
from gapless.testing import SimulatedDevice


NUM = 5


@pytest.mark.quick_cases(16)
@pytest.mark.parametrize("case", params(CASES))
def test_batches(case):
    """The same bits as written, captured or told the way that works."""
    assert judge(case) == []


def prefetched(kind, device, **options):
    """Return a loader's batches, those that arrive, and all that was warned of."""
    own = [batch_of(kind, number) for number in range(NUM)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        arrived = list(gapless.prefetch(own, device, **options))
    return own, arrived, [str(one.message) for one in warned]


def places_of(kind, device):
    """Return where tensors must be: where the batch's own `to` brings them, if there is one."""
    batch = batch_of(kind, 0)
    if not hasattr(batch, "to"):
        return {device.torch_device}
    return {one.device for one in kind.tensors(batch.to(device.torch_device))}


def named(kinds, test):
    return [pytest.param(one, id=one.name, marks=marked(f"{test}-{one}")) for one in kinds]


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("kind", named(KINDS, "prefetch"))
def test_every_tensor_arrives(kind, depth):
    """On the device, in the loader's order, bit for bit; what is no tensor is the very same."""
    expected = [kind.tensors(batch_of(kind, number)) for number in range(NUM)]
    with SimulatedDevice(scheduler="random", seed=3) as device:
        own, arrived, said = prefetched(kind, device, depth=depth)
        found = [kind.tensors(batch) for batch in arrived]

        assert said == []
        assert {one.device for row in found for one in row} == places_of(kind, device)
        assert [
            [torch.equal(one.cpu(), two) for one, two in zip(*pair, strict=True)]
            for pair in zip(found, expected, strict=True)
        ] == [[True] * len(row) for row in expected]
        assert [type(batch) for batch in arrived] == [type(batch) for batch in own]
        for before, after in zip(own, arrived, strict=True):
            pairs = zip(kind.others(before), kind.others(after), strict=True)
            assert all(one is two for one, two in pairs)
        if not kind.in_one:
            left = {str(one.device) for batch in own for one in kind.tensors(batch)}
            assert left == {"cpu"}, "the loader's own batch was changed"
    assert device.report.races == []


@pytest.mark.parametrize("kind", named(KINDS, "no_leak"))
def test_nothing_is_kept(kind):
    """A batch and its tensors are gone when the loop has let them go."""
    with SimulatedDevice(scheduler="asap") as device:
        _, arrived, _ = prefetched(kind, device)
        held = [weakref.ref(one) for batch in arrived for one in kind.tensors(batch)]
        arrived.clear()
        _ = None
        gc.collect()

        assert [one for one in held if one() is not None] == []


@pytest.mark.parametrize("kind", named(HIDDEN, "hidden"))
def test_no_tensor_stays_on_the_host_in_silence(kind):
    """It arrives on the device, or a warning or an error names what it is in."""
    name = type(batch_of(kind, 0)).__name__
    with SimulatedDevice(scheduler="asap") as device:
        try:
            _, arrived, said = prefetched(kind, device)
        except gapless.BatchError as error:
            arrived, said = [], [str(error)]
        places = {one.device for batch in arrived for one in kind.tensors(batch)}

        if places != {device.torch_device}:
            assert any(name in line for line in said), said


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
