"""A wait for the stream."""

import torch

from _planted import Planted

planted = Planted()
for _ in planted.steps():  # step
    planted.train_step()
    if planted.waits and planted.on_gpu:
        torch.cuda.current_stream().synchronize()  # waits: stream
    planted.host_work()
planted.say()
