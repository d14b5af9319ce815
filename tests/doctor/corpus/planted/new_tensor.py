"""A tensor made on the device from a Python number."""

import torch

from _planted import Planted

planted = Planted()
for step in planted.steps():  # step
    planted.train_step()
    if planted.waits:
        scale = torch.tensor([float(step)], device=planted.device)  # waits: new tensor
    planted.host_work()
planted.say()
