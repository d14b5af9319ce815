"""A read in a hook of the weight, in autograd's thread; the host works right after it, in the hook."""

from _planted import Planted

planted = Planted()


def hook(grad):
    if planted.waits:
        grad.item()  # waits: item, in autograd
    planted.host_work()


planted.weight.register_hook(hook)
for _ in planted.steps():  # step
    planted.train_step()
planted.say()
