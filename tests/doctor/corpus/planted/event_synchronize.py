"""A wait for an event of this step."""

import torch

from _planted import Planted

planted = Planted()
for _ in planted.steps():  # step
    planted.train_step()
    if planted.waits and planted.on_gpu:
        done = torch.cuda.Event()
        done.record()
        done.synchronize()  # waits: event, unseen
    planted.host_work()
planted.say()
