"""A wait for an event of the step before: hidden, whatever the host does, while it is the faster one."""

import torch

from _planted import Planted

planted = Planted()
before = None
for _ in planted.steps():  # step
    planted.train_step()
    if planted.waits and planted.on_gpu:
        if before is not None:
            before.synchronize()  # waits: event, unseen
        before = torch.cuda.Event()
        before.record()
    planted.host_work()
planted.say()
