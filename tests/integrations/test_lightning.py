"""Fits of Lightning's Trainer with steps as graphs: the same metrics, checkpoints and bits."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gapless.errors import CaptureWarning
from gapless.testing import SimulatedDevice, count_waits


pytest.importorskip("lightning")

import lightning as L
from lightning.pytorch import callbacks, plugins
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import SingleDeviceStrategy

from gapless.integrations import lightning_step
from gapless.integrations.lightning import GaplessCallback
from gapless.integrations.lightning_step import reads_argument


# Warnings are Lightning's own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUM_BATCHES = 8


@pytest.fixture(autouse=True)
def _quiet():
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
        )
        self.factor = 1.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y) * self.factor
        self.log("train_loss", loss, prog_bar=True)
        self.log("weight", self.net[0].weight.mean(), on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Noted(DummyLogger):
    def __init__(self):
        super().__init__()
        self.metrics = []

    def log_metrics(self, metrics, step):
        self.metrics.append((step, dict(metrics)))


class Seen(L.Callback):
    """Keeps what callbacks see after each batch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        outputs = {name: float(value) for name, value in outputs.items()}
        self.seen.append((trainer.global_step, metrics, outputs, trainer.progress_bar_metrics))


def batches(sizes, seed=0):
    random = torch.Generator().manual_seed(seed)
    found = [
        (torch.randn(size, 6, generator=random), torch.randint(0, 3, (size,), generator=random))
        for size in sizes
    ]
    return torch.utils.data.DataLoader(found, batch_size=None)


def trainer_of(device, *given, plugin=None, **options):
    """Return a trainer on a device, or on the CPU, with these callbacks."""
    where = "cpu" if device is None else device.torch_device
    settings = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        **options,
    }
    strategy = SingleDeviceStrategy(device=where, precision_plugin=plugin)
    return L.Trainer(accelerator="cpu", strategy=strategy, callbacks=list(given), **settings)


def fit(
    kind, device, *, sizes=(4,) * NUM_BATCHES, make_callbacks=list, make_plugin=None, **options
):
    """Return all that a fit shows, and its callback."""
    torch.manual_seed(1)
    module, seen, noted = kind(), Seen(), Noted()
    on_cpu = device is None
    captured = GaplessCallback(device="cpu" if on_cpu else device, quiet=True)
    options = {"max_epochs": 3, "log_every_n_steps": 1, **options}
    with device or torch.enable_grad():
        trainer = trainer_of(
            device,
            *(seen, *make_callbacks(), *([] if on_cpu else [captured])),
            plugin=None if make_plugin is None else make_plugin(),
            logger=noted,
            **options,
        )
        trainer.fit(module, batches(sizes), batches([4, 4], seed=2))
        checkpoint = trainer._checkpoint_connector.dump_checkpoint()
        bits = [tensor.cpu().clone() for tensor in tensors_in(checkpoint)]
        shown = dict(trainer.progress_bar_metrics)
    return {
        "metrics": noted.metrics,
        "seen": seen.seen,
        "keys": keys_in(checkpoint),
        "bits": [(tensor.dtype, tensor.double().tolist()) for tensor in bits],
        "shown": {name: float(value) for name, value in shown.items()},
        "attributes": sorted(set(vars(module)) - {"_gapless_captor"}),
        "parts": [sorted(vars(part)) for part in module.net],
    }, captured


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


def keys_in(value):
    if isinstance(value, dict):
        return {name: keys_in(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [keys_in(part) for part in value]
    return None if isinstance(value, torch.Tensor) else repr(value)


def compare(kind=Net, *, scheduler="random", **options):
    """Return the report of a fit that showed what Lightning alone shows."""
    expected, _ = fit(kind, None, **options)
    device = SimulatedDevice(scheduler=scheduler)
    actual, captured = fit(kind, device, **options)
    for name, value in expected.items():
        assert value == actual[name], name
    assert not device.report.races
    return captured.report


class Adam(Net):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Factor(Net):
    def on_train_epoch_start(self):
        self.factor = 1.0 + self.current_epoch


class Scheduled(Net):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Hooks(Net):
    """Logs gradients between the parts of a step."""

    def on_after_backward(self):
        self.log("gradient", self.net[0].weight.grad.mean())

    def on_before_optimizer_step(self, optimizer):
        self.log_dict({"norm": self.net[0].weight.grad.norm(), "rate": optimizer.defaults["lr"]})

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


class LogsParameter(Net):
    """Logs a weight, which the update changes before the step is over."""

    def training_step(self, batch, batch_idx):
        self.log("bias", self.net[4].bias[0], on_step=True, on_epoch=True)
        return super().training_step(batch, 0)


class LogsMuch(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, 0)
        self.log("one", 1.0, on_epoch=True)
        self.log("most", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("sum", loss, False, reduce_fx=torch.sum, on_epoch=True, batch_size=len(batch[0]))
        return {"loss": loss, "twice": loss * 2}


class ReturnsNone(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, 0)
        return None if len(batch[0]) == 5 else loss


class OptimizerStep(Net):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.global_step)
        optimizer.step(closure=optimizer_closure)


class LogsBefore(L.Callback):
    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        pl_module.log("before", pl_module.net[0].weight.sum())


class GradientLogger(L.Callback):
    def on_after_backward(self, trainer, pl_module):
        pl_module.log("after", pl_module.net[0].weight.grad.sum())


class ReadsMetrics(L.Callback):
    """Reads what the step has logged before the step is over."""

    def __init__(self):
        self.read = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.read.append(float(trainer.callback_metrics["train_loss"]))
        pl_module.log("read", self.read[-1])


CAPTURED = {
    "plain": {},
    "adam": {"kind": Adam},
    "values_that_change": {"kind": Factor},
    "two_sizes": {"sizes": (4, 5, 4, 4, 5, 4, 5, 3)},
    "accumulation_with_a_rest": {"accumulate_grad_batches": 4},
    "accumulation_that_changes": {
        "make_callbacks": lambda: [callbacks.GradientAccumulationScheduler({0: 1, 2: 3})],
        "max_epochs": 5,
    },
    "clipping": {"gradient_clip_val": 0.05},
    "clipping_of_values": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "hooks_of_the_module": {"kind": Hooks},
    "hooks_of_a_callback": {"make_callbacks": lambda: [GradientLogger()]},
    "scheduler_of_steps": {
        "kind": Scheduled,
        "make_callbacks": lambda: [callbacks.LearningRateMonitor("step")],
    },
    "early_stopping": {
        "make_callbacks": lambda: [callbacks.EarlyStopping("val_loss", patience=1)],
        "max_epochs": 12,
    },
    "bfloat16": {"make_plugin": lambda: plugins.MixedPrecision("bf16-mixed", "cpu")},
    "a_weight_is_logged": {"kind": LogsParameter},
    "many_ways_to_log": {"kind": LogsMuch},
    "none_of_some_sizes": {"kind": ReturnsNone, "sizes": (4, 5, 4, 4, 5, 5, 4)},
}


@pytest.mark.parametrize("name", CAPTURED)
def test_steps_that_are_replays_show_what_lightning_alone_shows(name):
    """Metrics at their steps, outputs, callback metrics, checkpoint and progress are those of Lightning."""
    report = compare(**CAPTURED[name])

    assert report.num_replays > 0


def test_metrics_are_those_of_their_step_however_late_the_device_is():
    """A value that is logged is copied before the next replay overwrites it."""
    report = compare(Hooks, scheduler="lazy")

    assert report.num_replays > 0


class KeepsLosses(L.Callback):
    """Keeps what steps returned, reads all of it at the end, and changes some of it."""

    def __init__(self):
        self.outputs, self.of_module = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.outputs.append(outputs)
        last = getattr(pl_module, "last", None)
        if last is not None:
            self.of_module.append(last)
        if batch_idx % 3 == 2:
            # Lightning hands out a copy of the loss.
            outputs["loss"].add_(1.0)

    def read(self):
        outputs = [{name: float(one) for name, one in out.items()} for out in self.outputs]
        return outputs, [float(one) for one in self.of_module]


class KeepsItsLoss(Net):
    def training_step(self, batch, batch_idx):
        self.last = super().training_step(batch, 0)
        return self.last


class ReturnsWeight(Net):
    """Returns memory that the update writes to."""

    def training_step(self, batch, batch_idx):
        super().training_step(batch, 0)
        return self.net[4].bias[0]


KEEPING = [(Net, 1), (LogsMuch, 2), (KeepsItsLoss, 1), (OptimizerStep, 1), (ReturnsWeight, 1)]


@pytest.mark.parametrize(("kind", "accumulate"), KEEPING)
def test_a_loss_that_is_kept_over_later_steps_has_its_own_value(kind, accumulate):
    """Another replay writes over the memory of the graph, not over what was handed out."""
    read, devices = [], (None, SimulatedDevice(scheduler="lazy"))
    for device in devices:
        keeps = KeepsLosses()
        _, captured = fit(
            kind,
            device,
            make_callbacks=lambda one=keeps: [one],
            accumulate_grad_batches=accumulate,
        )
        with device or torch.enable_grad():
            read.append(keeps.read())

    assert read[0] == read[1]
    assert captured.report.num_replays > 0
    assert not devices[1].report.races


class ReadsIndex(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, 0)
        return loss * 2 if batch_idx % 3 == 0 else loss


class Counts(Net):
    def training_step(self, batch, batch_idx):
        self.number = getattr(self, "number", 0) + 1
        self.log("number", float(self.number))
        return super().training_step(batch, 0)


class CountsInHook(Net):
    number = 0

    def on_after_backward(self):
        self.number += 1
        self.log("number", float(self.number))


class Manual(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(batch, 0)
        self.manual_backward(loss)
        optimizer.step()
        return loss


class LogsHostTensor(Net):
    def training_step(self, batch, batch_idx):
        self.log("two", torch.tensor(2.0))
        return super().training_step(batch, 0)


class Lbfgs(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=2)


IN_PARTS = {
    "reads batch_idx": (ReadsIndex, {}),
    "self.number": (Counts, {}),
    "changes on the host": (CountsInHook, {}),
    "LBFGS.step()": (Lbfgs, {"max_epochs": 1}),
    "not on the device": (LogsHostTensor, {}),
    "reads the trainer's metrics": (Net, {"make_callbacks": lambda: [ReadsMetrics()]}),
    "overrides optimizer_step": (OptimizerStep, {}),
    "overrides on_before_zero_grad": (Net, {"make_callbacks": lambda: [LogsBefore()]}),
}

AS_WRITTEN = {
    "it optimizes manually": (Manual, {}),
    "detect_anomaly": (Net, {"detect_anomaly": True}),
    "it is profiled": (Net, {"profiler": "simple"}),
}


def told_of(kind, options):
    """Return the report of a fit, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = compare(kind, **options)
    return report, [str(one.message) for one in caught if issubclass(one.category, CaptureWarning)]


@pytest.mark.parametrize("reason", IN_PARTS)
def test_a_step_that_cannot_be_captured_as_a_whole_is_captured_in_parts(reason):
    """Its module is replayed in place, the bits are Lightning's, a warning and the report say why."""
    kind, options = IN_PARTS[reason]

    report, told = told_of(kind, options)

    assert report.num_replays > 0
    assert any(reason in text for text in told if "training_step" in text)
    assert reason in str(report)


@pytest.mark.parametrize("reason", AS_WRITTEN)
def test_what_cannot_be_captured_runs_as_written_and_is_named(reason):
    """Nothing is replayed, the bits are Lightning's, and one warning and the report say why."""
    kind, options = AS_WRITTEN[reason]

    report, told = told_of(kind, options)

    assert report.num_replays == 0
    assert [reason in text for text in told] == [True]
    assert reason in str(report)


class Wide(Net):
    """Has batches too large to be copied without a wait by themselves."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5000, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss


class CountedWaits(L.Callback):
    """Counts the waits of the second epoch."""

    def __init__(self, device):
        self.device = device

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            self.body = count_waits(self.device)
            self.waits = self.body.__enter__()

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            self.body.__exit__(None, None, None)


@pytest.mark.parametrize("is_captured", [False, True])
def test_steps_do_not_wait_for_the_progress_bar_or_for_batches(is_captured, capsys):
    """What is logged is read at logging steps and at the end of an epoch, and batches are staged."""
    device = SimulatedDevice(scheduler="asap")
    counted = CountedWaits(device)
    captured = [GaplessCallback(device=device, quiet=True)] if is_captured else []
    with device:
        data = [(torch.randn(4, 5000), torch.randint(0, 3, (4,))) for _ in range(40)]
        trainer = trainer_of(
            device,
            *(callbacks.TQDMProgressBar(), counted, *captured),
            logger=Noted(),
            log_every_n_steps=20,
            enable_progress_bar=True,
            max_epochs=2,
        )
        trainer.fit(Wide(), torch.utils.data.DataLoader(data, batch_size=None))
    capsys.readouterr()

    if is_captured:
        assert counted.waits.count <= 8
    else:
        assert counted.waits.count >= 120


def test_a_fit_resumes_from_a_checkpoint_as_lightning_alone_does(tmp_path):
    """A checkpoint has nothing of gapless in it, and either way of training goes on from either."""
    device = SimulatedDevice(scheduler="random")
    ends = {}
    for first in (None, device):
        path = tmp_path / f"{first is None}.ckpt"
        train(first, path=path, max_epochs=2)
        for second in (None, device):
            ends[first is None, second is None] = train(second, resume=path, max_epochs=4)

    assert all(end == ends[True, True] for end in ends.values())


def train(device, *, path=None, resume=None, max_epochs):
    """Return the weights after some epochs, from a checkpoint if one is given."""
    torch.manual_seed(3)
    module = Net()
    with device or torch.enable_grad():
        captured = [] if device is None else [GaplessCallback(device=device, quiet=True)]
        trainer = trainer_of(device, *captured, max_epochs=max_epochs)
        trainer.fit(module, batches([4] * NUM_BATCHES), ckpt_path=resume)
        if path is not None:
            trainer.save_checkpoint(path)
        found = [value.cpu().tolist() for value in module.state_dict().values()]
    if resume is not None:
        assert "log" not in vars(module)
    return found


def test_the_loop_has_its_own_step_again_after_a_fit_that_raises():
    """A trainer whose step has raised fits again, without and with the callback."""

    class Raises(Net):
        def training_step(self, batch, batch_idx):
            if self.current_epoch == 2:
                raise ValueError("enough")
            return super().training_step(batch, 0)

    device = SimulatedDevice(scheduler="random")
    with device:
        trainer = trainer_of(device, GaplessCallback(device=device, quiet=True))
        module = Raises()
        with pytest.raises(ValueError, match="enough"):
            trainer.fit(module, batches([4] * NUM_BATCHES))

    assert "batch_to_device" not in vars(trainer.strategy)
    assert "run" not in vars(trainer.fit_loop.epoch_loop.automatic_optimization)
    assert "log" not in vars(module)


def test_what_a_step_has_logged_before_it_raised_is_there():
    """A callback that saves what it knows when a fit raises finds the same metrics."""

    class Raises(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, 0)
            self.log("epoch", float(self.current_epoch))
            if self.current_epoch == 2:
                raise ValueError("enough")
            return loss

    class Saves(L.Callback):
        def on_exception(self, trainer, pl_module, exception):
            self.saved = {name: float(value) for name, value in trainer.callback_metrics.items()}

    saved = []
    for device in (None, SimulatedDevice(scheduler="random")):
        saves = Saves()
        with pytest.raises(ValueError, match="enough"):
            fit(Raises, device, make_callbacks=lambda saves=saves: [saves])
        saved.append(saves.saved)

    assert saved[0] == saved[1]
    assert saved[0]["epoch"] == 2.0


def test_a_cpu_is_left_alone(capsys):
    """There is nothing to launch: the fit is Lightning's, and one line says so."""
    callback = GaplessCallback()
    trainer_of(None, callback, max_epochs=1).fit(Net(), batches([4] * 3))

    assert "a CPU runs its work itself" in capsys.readouterr().err
    assert callback.report.num_replays == 0


def test_a_callback_for_another_device_leaves_the_fit_alone():
    """Batches go where the trainer trains, whatever the callback was given."""
    device = SimulatedDevice(scheduler="asap")
    trainer = trainer_of(None, GaplessCallback(device=device, quiet=True), max_epochs=1)
    with pytest.warns(CaptureWarning, match="trains on cpu, and the callback was given cpu:1"):
        trainer.fit(Net(), batches([4] * 3))

    assert trainer.global_step == 3


def test_it_is_said_once_what_is_done_and_what_is_not(capsys):
    """A second fit says nothing."""
    device = SimulatedDevice(scheduler="asap")
    callback = GaplessCallback(device=device)
    with device:
        for _ in range(2):
            trainer_of(device, callback, max_epochs=1).fit(Net(), batches([4] * 3))

    said = capsys.readouterr().err
    assert said.count("gapless: Lightning's Trainer") == 1
    assert "does: " in said
    assert "does not: " in said


@pytest.mark.parametrize(
    ("method", "reads"),
    [
        (Net().training_step, False),
        (ReadsIndex().training_step, True),
        (Manual().training_step, False),
        (torch.no_grad()(Net().training_step), True),
    ],
)
def test_whether_an_argument_is_read_is_seen_in_the_code(method, reads):
    """A wrapper, whose code says nothing of its function's, may read it."""
    assert reads_argument(method, 1) == reads


class ClipsItself(Net):
    def clip_gradients(self, optimizer, *args, **kwargs):
        super().clip_gradients(optimizer, *args, **kwargs)


class TakesLoader(Net):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter), 0)


class ClearsAtTimes(Net):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if batch_idx % 2 == 0:
            optimizer.zero_grad()


class OwnLog(Net):
    def __init__(self):
        super().__init__()
        self.log = print


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Net, None),
        (Lbfgs, "LBFGS.step() may call its closure more than once"),
        (OptimizerStep, "it overrides optimizer_step"),
        (ClipsItself, "it overrides clip_gradients"),
        (TakesLoader, "training_step takes dataloader_iter"),
        (ReadsIndex, "training_step reads batch_idx"),
        (ClearsAtTimes, "optimizer_zero_grad reads the epoch or batch_idx"),
        (OwnLog, "its log is an attribute of its own"),
    ],
)
def test_what_a_step_must_not_do_is_named(kind, said):
    """A graph would keep it, pass over it, or do it at another time."""
    module = kind()
    optimizer = module.configure_optimizers()
    found = lightning_step.objection_to_step(trainer_of(None), module, optimizer, L.pytorch)

    assert found is None if said is None else found.startswith(said)


def test_hooks_of_an_optimizer_are_named():
    """A replay would not call them."""
    module = Net()
    optimizer = module.configure_optimizers()
    optimizer.register_step_post_hook(lambda *_: None)

    found = lightning_step.objection_to_step(trainer_of(None), module, optimizer, L.pytorch)
    assert found == "SGD.step() has hooks, which a replay would skip"


class Precision(plugins.Precision):
    """Has the name of one of Lightning's."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: trainer_of(None), None),
        (lambda: L.Trainer(accelerator="cpu", strategy="ddp"), "its strategy is DDPStrategy"),
        (lambda: trainer_of(None, plugin=Precision()), "its plugin of precision is Precision"),
        (lambda: trainer_of(None, profiler="simple"), "it is profiled"),
    ],
)
def test_what_a_trainer_must_be_is_named(make, said):
    """What a step does is known of Lightning's own parts on one device."""
    found = lightning_step.objection_to_fit(make(), Net(), L.pytorch)

    assert found is None if said is None else found.startswith(said)
