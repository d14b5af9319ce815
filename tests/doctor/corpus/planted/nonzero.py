"""Places of positive values."""

from _planted import Planted

planted = Planted()
for _ in planted.steps():  # step
    row, loss = planted.train_step()
    if planted.waits:
        places = row.nonzero()  # waits: shape
    planted.host_work()
planted.say()
