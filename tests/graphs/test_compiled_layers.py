"""`compile=True`: layers are compiled and captured, with the bits of the same layers compiled and not captured."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.nn import functional as F

import gapless
from gapless.device.cpu import CpuDevice
from gapless.errors import CaptureWarning, UserError
from gapless.graphs import account, compiled_layers
from gapless.graphs.account import ALLOWANCE_S, LEAST_AHEAD, NUM_PLAIN, account_of
from gapless.graphs.compiled_layers import LayerCompiler, layers_of
from gapless.graphs.modules import module_trial
from gapless.graphs.proof import trial
from gapless.graphs.reads import beside_compiled
from gapless.testing import SimulatedDevice


# Torch's compiler looks at whatever may warn; as errors those stop it.
pytestmark = pytest.mark.filterwarnings(
    "default", "error::gapless.errors.CaptureWarning", "ignore::DeprecationWarning"
)


# Other tests let everything have room.
AS_USERS_HAVE_IT = {
    "ALLOWANCE_S": ALLOWANCE_S, "LEAST_AHEAD": LEAST_AHEAD, "NUM_PLAIN": NUM_PLAIN
}  # fmt: skip


class Block(nn.Module):
    """It has a buffer that it writes, and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        return self.norm(x + F.dropout(self.mlp(x), 0.1, self.training))


class Deep(nn.Module):
    """A layer repeats in it."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x):
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return x


class Flat(nn.Module):
    """Nothing repeats in it; its parts are called by another method as well."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(4, 8)
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x):
        return self.tail(F.relu(self.into(x)))


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """Return which graphs were compiled; the simulated device runs none of Inductor's kernels."""
    compiled = []

    def compile_it(graph, inputs):
        compiled.append(graph)
        return aot_eager(graph, inputs), ""

    monkeypatch.setattr(compiled_layers, "compile_by_inductor", compile_it)
    torch.compiler.reset()
    yield compiled
    torch.compiler.reset()


@pytest.fixture
def device():
    with SimulatedDevice() as device:
        yield device


def train(device, make, *, form="written", num=14, sizes=(6,), by_hand=None, **options):
    """Train a model; return its losses and weights, and the report of its capture."""
    torch.manual_seed(0)
    model = make().to(device.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if by_hand is not None:
        by_hand(model)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if form == "in place":
        gapless.capture(model, device=device, **options)
    elif form == "step":
        step = gapless.capture(step, device=device, **options)
    losses = [
        step(torch.linspace(-1, 1, 4 * size).reshape(size, 4).to(device.torch_device)).clone()
        for size in sizes * num
    ]
    values = [one.detach().cpu() for one in (*losses, *model.state_dict().values())]
    report = {"in place": lambda: gapless.capture_report(model), "step": lambda: step.report}
    return values, report.get(form, lambda: None)()


def assert_equal(one, other):
    assert len(one) == len(other)
    assert all(map(torch.equal, one, other))


def blocks_by_hand(model):
    for block in model.blocks:
        block.compile(backend=aot_eager, dynamic=False)


def whole_by_hand(model):
    model.compile(backend=aot_eager, dynamic=False)


MODELS = {"layers": (Deep, blocks_by_hand), "whole": (Flat, whole_by_hand)}


@pytest.mark.parametrize("form", ["in place", "step"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_bits_are_those_of_the_same_layers_compiled_and_not_captured(
    kind, form, device, compiler
):
    """All layers of a class share one piece of code, and audits find the compiled code in replays."""
    make, by_hand = MODELS[kind]
    expected, _ = train(device, make, by_hand=by_hand)
    assert not compiler

    found, report = train(device, make, form=form, compile=True, audit_every=2)

    assert_equal(expected, found)
    assert (report.num_graphs, report.proved, report.num_compiled) == (1, 1, 1)
    assert report.num_replays > 3
    assert (
        report.audits.num == report.audits.num_equal + 1 > 1
    )  # the last verdict is not asked for
    assert len(compiler) == 1
    assert "compiled 1 piece of layers" in str(report)


@pytest.mark.parametrize("form", ["in place", "step"])
def test_without_captures_the_same_layers_are_compiled(form, device, compiler, monkeypatch):
    """`GAPLESS_CAPTURE=off` is what a capture is compared with."""
    captured, _ = train(device, Deep, form=form, compile=True)
    monkeypatch.setenv("GAPLESS_CAPTURE", "off")
    torch.compiler.reset()

    found, report = train(device, Deep, form=form, compile=True)

    assert_equal(captured, found)
    assert (report.num_graphs, report.num_compiled) == (0, 1)


@pytest.mark.parametrize("form", ["in place", "step"])
def test_a_cpu_runs_compiled_layers(form, compiler):
    """The flag asks for them, wherever they run."""
    expected, _ = train(CpuDevice(), Deep, by_hand=blocks_by_hand)

    found, report = train(CpuDevice(), Deep, form=form, compile=True)

    assert_equal(expected, found)
    assert (report.num_graphs, report.num_compiled) == (0, 1)


@pytest.mark.parametrize("form", ["in place", "step"])
def test_what_cannot_be_compiled_runs_eagerly_and_is_captured(form, device, monkeypatch):
    """One line says why, once for all layers."""
    plain, _ = train(device, Deep)

    def fail(graph, inputs):
        return None, "Cannot find a working triton installation."

    monkeypatch.setattr(compiled_layers, "compile_by_inductor", fail)
    with pytest.warns(
        CaptureWarning, match=r"is not compiled: Cannot find a working triton"
    ) as told:
        found, report = train(device, Deep, form=form, compile=True)

    assert_equal(plain, found)
    assert len([one for one in told if one.category is CaptureWarning]) == 1
    assert (report.num_graphs, report.num_compiled) == (1, 0)
    assert report.not_compiled == [
        "a layer is not compiled: Cannot find a working triton installation."
    ]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("form", ["in place", "step"])
def test_what_the_compiler_itself_fails_at_runs_eagerly(kind, form, device, monkeypatch):
    """An error of TorchDynamo is none of the loop's; an error of the loop's stays one."""
    make = MODELS[kind][0]
    plain, _ = train(device, make)

    def fail(_):
        raise AttributeError("'Block' has no source\nnor anything else")

    monkeypatch.setattr(InstructionTranslator, "run", fail)
    with pytest.warns(CaptureWarning, match=r"a layer is not compiled: .*'Block' has no source$"):
        found, report = train(device, make, form=form, compile=True)

    assert_equal(plain, found)
    assert (report.num_graphs, report.num_compiled) == (1, 0)


class Raising(torch.autograd.Function):
    """Compiled code whose backward pass raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError(STRIDES)


STRIDES = "expected size 4==4, stride 16==1 at dim=1"


def raises_ahead(code, args):
    code(*args)
    raise AssertionError(STRIDES)


def raises_behind(code, args):
    return [Raising.apply(one) if one.requires_grad else one for one in code(*args)]


@pytest.mark.parametrize("run", [raises_ahead, raises_behind])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("form", ["in place", "step"])
def test_compiled_code_that_raises_runs_uncompiled(form, kind, run, device, monkeypatch):
    """It is tried on copies: no buffer is written twice, no number is drawn, and no backward pass of the loop raises."""
    make = MODELS[kind][0]
    plain, _ = train(device, make)

    def compile_it(graph, inputs):
        code = aot_eager(graph, inputs)
        return lambda *args: run(code, args), ""

    monkeypatch.setattr(compiled_layers, "compile_by_inductor", compile_it)
    with pytest.warns(CaptureWarning, match="a layer is not compiled: expected size 4") as told:
        found, report = train(device, make, form=form, compile=True)

    assert_equal(plain, found)
    assert len([one for one in told if one.category is CaptureWarning]) == 1
    assert (report.num_graphs, report.num_compiled) == (1, 0)
    assert report.not_compiled == [f"a layer is not compiled: {STRIDES}"]


class Counter(nn.Module):
    """It has a state that only operators show, if it is called as C++ does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor):
        self.count.add_(1.0)
        return x * self.count


def test_a_state_that_operators_beside_compiled_code_write_is_put_back(device):
    """As that of the dropout of an LSTM, which the compiler leaves out."""
    model, counter = Deep().to(device.torch_device), torch.jit.script(Counter())
    count = counter.to(device.torch_device)._c._get_method("forward")

    @gapless.capture(device=device, compile=True)
    def step(x):
        return count(model(x)).abs().sum()

    with torch.no_grad():
        x = torch.ones(6, 4).to(device.torch_device)
        model.eval()
        found = [step(x).item() for _ in range(12)]

    assert step.report.num_replays > 3
    assert found == pytest.approx([found[0] * number for number in range(1, 13)])


class Kernel:
    """It stands for a kernel of torch's compiler."""

    def __init__(self, *, adds):
        self.inductor_meta = {"atomic_add_found": adds}

    def run(self, *args, stream):
        del args, stream


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("form", ["in place", "step"])
def test_compiled_kernels_that_add_atomically_are_known(form, adds, device, monkeypatch):
    """No operator's name tells that they do not repeat their bits; others are still held to theirs."""
    kernel, told, launch = Kernel(adds=adds), [], Kernel.run
    monkeypatch.setattr(beside_compiled, "kernel_launcher", lambda: Kernel)

    def compile_it(graph, inputs):
        code = aot_eager(graph, inputs)

        def run(*args):
            kernel.run(stream=0)
            return code(*args)

        return run, ""

    def noting(room):
        prove = room.prove

        def noted(*args, **options):
            told.append(options["nondeterministic"])
            return prove(*args, **options)

        monkeypatch.setattr(room, "prove", noted)

    noting(trial)
    noting(module_trial)
    monkeypatch.setattr(compiled_layers, "compile_by_inductor", compile_it)

    _, report = train(device, Deep, form=form, compile=True)

    assert report.num_replays > 3
    assert told == [["a compiled kernel's atomic_add"] if adds else []]
    assert Kernel.run is launch


@pytest.mark.parametrize(("setting", "num"), [(True, 2), ("dynamic", 1)])
def test_each_shape_is_compiled_or_all_at_once(setting, num, device, compiler):
    """What torch does by itself, the one and then the other, would change the bits of the first shape."""
    _, report = train(device, Deep, form="step", compile=setting, sizes=(6, 5))

    assert (report.num_graphs, report.num_compiled) == (2, num)
    assert report.num_replays > 6


@pytest.mark.parametrize("form", ["in place", "step"])
def test_compiling_is_no_debt_of_the_account(form, device, compiler, ample_room, monkeypatch):
    """Half a minute for each shape, and graphs come as early as if it took no time."""
    for name, value in AS_USERS_HAVE_IT.items():
        monkeypatch.setattr(account, name, value)
    now_ms, ever_more = SimulatedDevice.now_ms, compiled_layers.compile_by_inductor

    def slowly(graph, inputs):
        compiler.append(graph)
        return ever_more(graph, inputs)

    monkeypatch.setattr(compiled_layers, "compile_by_inductor", slowly)
    monkeypatch.setattr(
        SimulatedDevice, "now_ms", lambda device: now_ms(device) + 15_000.0 * len(compiler)
    )
    _, report = train(device, Deep, form=form, compile=True, sizes=(6, 5), num=20)

    assert account_of(device).debt_s < 1.0
    assert (report.num_graphs, report.num_compiled) == (2, 2)
    assert report.spent.num_waiting == 0


def test_a_release_leaves_the_layers_as_they_were(device, compiler):
    """Those that somebody else has compiled stay compiled."""
    model = Deep().to(device.torch_device)
    model.blocks[0].compile(backend="eager")
    others = model.blocks[0]._compiled_call_impl

    gapless.capture(model, device=device, compile=True)
    assert model.blocks[0]._compiled_call_impl is others
    assert model.blocks[1]._compiled_call_impl is not None
    gapless.release(model)

    assert model.blocks[0]._compiled_call_impl is others
    assert model.blocks[1]._compiled_call_impl is None


def test_layers_that_a_loop_has_compiled_itself_are_captured_in_place(device):
    """What they touch is seen by an eager run of them, which is undone."""
    expected, _ = train(device, Deep, by_hand=blocks_by_hand)

    found, report = train(device, Deep, form="in place", by_hand=blocks_by_hand)

    assert_equal(expected, found)
    assert (report.num_graphs, report.proved, report.num_compiled) == (1, 1, 0)


class Recurrent(nn.Module):
    """A layer at which torch's compiler stops: what follows runs as written."""

    def __init__(self):
        super().__init__()
        self.into, self.rnn = nn.Linear(4, 8), nn.LSTM(8, 8)

    def forward(self, x):
        return self.rnn(F.gelu(self.into(x)))[0].tanh()


@pytest.mark.parametrize("form", ["in place", "step"])
def test_nothing_of_a_watch_is_compiled(form, device, monkeypatch):
    """Where the compiler stops, it looks at all that is called, such as what notes each tensor that is saved."""
    _, report = train(device, Recurrent, form=form, compile=True)
    monkeypatch.setenv("GAPLESS_CAPTURE", "off")
    torch.compiler.reset()

    _, of_off = train(device, Recurrent, form=form, compile=True)

    assert report.num_graphs == 1
    assert report.num_compiled == of_off.num_compiled


def test_a_step_in_which_torch_compiles_in_each_call_is_refused(device):
    """To watch it again and again would make every call slower, and capture nothing."""

    def step(x):
        torch.compiler.reset()
        return torch.compile(torch.sin, backend="eager")(x)

    step = gapless.capture(step, device=device)
    x = torch.ones(4).to(device.torch_device)
    with pytest.warns(CaptureWarning, match="makes new code in each call"):
        assert len([step(x) for _ in range(14)]) == step.report.num_eager


def compiled_deep():
    """Return a module of torch's that stands for a compiled one."""
    return torch.compile(Deep(), backend=aot_eager, dynamic=False)


def test_a_model_that_a_loop_has_compiled_is_captured_in_place(device):
    """`capture(torch.compile(model))`."""
    expected, _ = train(device, compiled_deep)

    found, report = train(device, compiled_deep, form="in place", audit_every=2)

    assert_equal(expected, found)
    assert (report.num_graphs, report.proved) == (1, 1)
    assert not report.audits.differences


def test_parts_of_a_module_that_is_compiled_as_a_whole(compiler):
    """Other methods of it call them."""
    model = gapless.capture(Flat(), device="cpu", compile=True)

    model.tail(torch.ones(2, 8))

    assert len(compiler) == 1


def test_a_step_compiles_what_its_first_call_calls(device, compiler):
    """Losses and other modules without weights are left alone, and nothing is replaced behind the call."""
    call = nn.Module.__call__
    model, loss_of = Flat().to(device.torch_device), nn.MSELoss()
    step = gapless.capture(lambda x: loss_of(model(x), x.sum(1)), device=device, compile=True)
    x = torch.ones(2, 8).to(device.torch_device)

    with pytest.raises(RuntimeError):
        step(x)
    assert nn.Module.__call__ is call
    assert not hasattr(loss_of, "_orig_mod")
    assert loss_of._compiled_call_impl is None
    assert model._compiled_call_impl is not None


def test_an_unknown_setting():
    """One line."""
    with pytest.raises(UserError, match=r"`compile` is 'max', expected True, False or 'dynamic'"):
        gapless.capture(Flat(), device="cpu", compile="max")


class Residual(nn.Sequential):
    """A class of one's own in a list."""


def residual():
    return Residual(nn.Linear(4, 4), nn.ReLU())


CASES = {
    "a list of layers": (Deep, ["blocks.0", "blocks.1"]),
    "nothing repeats": (Flat, [""]),
    "one layer": (lambda: nn.Linear(4, 4), [""]),
    "stages as in a residual network": (
        lambda: nn.ModuleDict(
            {
                "stem": nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
                "stage": nn.Sequential(residual(), residual()),
                "head": nn.Linear(4, 4),
            }
        ),
        ["stem", "stage.0", "stage.1"],
    ),
    "lists within lists": (
        lambda: nn.ModuleList([nn.Sequential(residual(), residual()) for _ in range(2)]),
        ["0.0", "0.1", "1.0", "1.1"],
    ),
    "a list of single matrices": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        [""],
    ),
    "containers that are never called": (
        lambda: nn.ModuleDict({"actor": residual(), "critic": residual()}),
        ["actor", "critic"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_which_layers_are_compiled(case):
    """The innermost that repeat, and what lies beside them and has parts."""
    make, expected = CASES[case]
    module = make()
    names = {id(part): name for name, part in module.named_modules()}

    assert [names[id(layer)] for layer in layers_of(module)] == expected


def test_no_compiler_without_the_setting():
    """Nothing is compiled that nobody asked for."""
    assert LayerCompiler.of(setting=False, device=None, report=None) is None


class Scaled(nn.Module):
    """It reads a number of its own."""

    def __init__(self):
        super().__init__()
        self.into, self.factor = nn.Linear(4, 8), 1.0

    def forward(self, x):
        return self.into(x) * self.factor


class ManyScaled(nn.Module):
    """A list of such."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(Scaled(), nn.Linear(8, 4)) for _ in range(2)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("make", [Scaled, ManyScaled])
@pytest.mark.parametrize("form", ["in place", "step"])
def test_what_compiled_code_reads_is_guarded(make, form, device):
    """Torch's own guards are not asked before a replay: a number, and the mode."""
    torch.manual_seed(0)
    model = make().to(device.torch_device)
    scaled = model if make is Scaled else model.blocks[1][0]
    x = torch.ones(3, 4).to(device.torch_device)

    def forward(x):
        return model(x).sum()

    if form == "in place":
        gapless.capture(model, device=device, compile=True)
    call = forward if form == "in place" else gapless.capture(forward, device=device, compile=True)
    with torch.no_grad():
        first = [call(x).clone() for _ in range(8)]
        scaled.factor = 2.0
        second = [call(x).clone() for _ in range(8)]
    gapless.release(model)
    scaled.factor = 2.0

    assert torch.equal(second[0], second[-1])
    assert not torch.equal(first[-1], second[0])


def test_layers_of_classes_of_torch_are_compiled(compiler):
    """`nn.Module.compile()` compiles nothing of them."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    step = gapless.capture(lambda x: model(x).sum(), device="cpu", compile=True)

    # As behind an embedding: all layers are given what needs gradients.
    step(torch.ones(2, 3, 8, requires_grad=True))

    assert len(compiler) == step.report.num_compiled == 1


# --- gradients that are differentiated, and graphs that are retained ---


def slopes(model, x):
    """Return what a network of physics is trained for: that its slope is its value."""
    x = x.detach().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return (slope.sum(1, keepdim=True) - out).square().mean()


@pytest.mark.parametrize("form", ["in place", "step"])
def test_layers_whose_gradients_are_differentiated_run_uncompiled(device, compiler, form):
    """Torch's compiled code would raise in the loop; one line says it."""

    def train_it(form):
        torch.manual_seed(0)
        model = Flat().to(device.torch_device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            slopes(model, x).backward()
            optimizer.step()

        if form == "in place":
            gapless.capture(model, device=device, compile=True)
        elif form == "step":
            step = gapless.capture(step, device=device, compile=True)
        for _ in range(8):
            step(torch.linspace(-1, 1, 24).reshape(6, 4).to(device.torch_device))
        weights = [one.tolist() for one in model.parameters()]
        report = {"in place": lambda: gapless.capture_report(model), "step": lambda: step.report}
        return weights, report.get(form, lambda: None)()

    expected, _ = train_it("written")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", CaptureWarning)
        weights, report = train_it(form)

    assert weights == expected
    assert ["create_graph" in str(one.message) for one in told] == [True] * len(told) != []
    assert compiler == []
    assert [one.count("not differentiated twice") for one in report.not_compiled] == [1]
    assert report.num_replays > 0 or form == "in place"


def test_layers_whose_graph_is_retained_run_uncompiled(device, compiler):
    """Compiled code gives what it has saved away in its backward pass, and would raise in the loop."""
    model = Flat().to(device.torch_device)
    gapless.capture(model, device=device, compile=True)
    with pytest.warns(
        CaptureWarning, match=r"test_compiled_layers.py:\d+ may run .* retain_graph"
    ):
        out = model(torch.linspace(-1, 1, 24).reshape(6, 4).to(device.torch_device))

    out.mean().backward(retain_graph=True)
    first = [one.grad.clone() for one in model.parameters()]
    out.mean().backward()

    assert compiler == []
    assert [one.grad.tolist() for one in model.parameters()] == [
        (2 * one).tolist() for one in first
    ]


def test_code_is_that_of_a_first_backward_pass_that_retains_nothing(device, compiler, monkeypatch):
    """As `torch.compile` makes it in most loops, and may have it in its cache on the disk: else bits are others."""
    retained, compile_it = [], compiled_layers.compile_by_inductor

    class Notes(torch.autograd.Function):
        """Notes of which kind the backward pass is that it is in."""

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            retained.append(torch._C._autograd._get_current_graph_task_keep_graph())
            return gradient

    def noting(graph, inputs):
        found, reason = compile_it(graph, inputs)
        return lambda *args: [*map(Notes.apply, found(*args))], reason

    monkeypatch.setattr(compiled_layers, "compile_by_inductor", noting)
    model = Flat().to(device.torch_device)
    gapless.capture(model, device=device, compile=True)
    model(torch.linspace(-1, 1, 24).reshape(6, 4).to(device.torch_device))

    assert retained == [False]
