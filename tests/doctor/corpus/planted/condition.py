"""A condition on the loss."""

from _planted import Planted

planted = Planted()
for _ in planted.steps():  # step
    row, loss = planted.train_step()
    if planted.waits and loss != loss:  # waits: bool
        print("not a number")
    planted.host_work()
planted.say()
