"""A wait for the whole device."""

import torch

from _planted import Planted

planted = Planted()
for _ in planted.steps():  # step
    planted.train_step()
    if planted.waits and planted.on_gpu:
        torch.cuda.synchronize()  # waits: device, unseen
    planted.host_work()
planted.say()
