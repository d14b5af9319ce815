"""DeepXDE: a heat equation on an interval, Adam."""

import os

os.environ["DDE_BACKEND"] = "pytorch"
from benchmarks.recipes.absent import stand_in_for

stand_in_for("scipy", "sklearn", "skopt", "matplotlib", "mpl_toolkits", "pandas")
import torch

import gapless
from benchmarks.recipes.clock import clock

if clock.device.type == "cuda":
    torch.set_default_device("cuda")
import deepxde as dde
import numpy as np
from deepxde.gradients.gradients_reverse import Hessians
from deepxde.gradients.jacobian import Jacobians


dde.config.set_random_seed(1)


def equation(x, u):
    du_t = dde.grad.jacobian(u, x, i=0, j=1)
    du_xx = dde.grad.hessian(u, x, i=0, j=0)
    return du_t - 0.4 * du_xx


place = dde.geometry.GeometryXTime(dde.geometry.Interval(0, 1), dde.geometry.TimeDomain(0, 1))
edge = dde.icbc.DirichletBC(place, lambda x: 0, lambda _, on_boundary: on_boundary)
first = dde.icbc.IC(place, lambda x: np.sin(np.pi * x[:, 0:1]), lambda _, on_initial: on_initial)
data = dde.data.TimePDE(
    place,
    equation,
    [edge, first],
    num_domain=400,
    num_boundary=40,
    num_initial=40,
    train_distribution="uniform",
)
net = dde.nn.FNN([2] + [32] * 3 + [1], "tanh", "Glorot normal")
model = dde.Model(data, net)
model.compile("adam", lr=1e-3)
optimizer = model.opt
# Each step makes tables of derivatives anew; emptied where they are, they are the same tables.
Jacobians.clear = lambda self: self.Js.clear()  # gapless
Hessians.clear = lambda self: self.Hs.clear()  # gapless
step = gapless.capture(model.train_step, device=clock.device)  # gapless


def train_step(x, y, _):  # gapless
    step(torch.as_tensor(x).to(clock.device), y, None)  # gapless
    # Of the default device, with torch 2.11: Adam would wait for each of them.
    for state in optimizer.state.values():  # gapless
        state["step"] = state["step"].cpu()  # gapless


model.train_step = train_step  # gapless
clock.length = 20 if clock.tiny else 60
clock.start()


class Count(dde.callbacks.Callback):
    def on_batch_end(self):
        clock.count()


model.train(iterations=10**9, display_every=10**9, callbacks=[Count()], verbose=0)
