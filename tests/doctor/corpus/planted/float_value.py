"""The loss as a float."""

from _planted import Planted

planted = Planted()
for _ in planted.steps():  # step
    row, loss = planted.train_step()
    if planted.waits:
        value = float(loss)  # waits: float
    planted.host_work()
planted.say()
