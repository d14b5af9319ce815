"""One read of the loss at the end of each step."""

from _planted import Planted

planted = Planted()
for _ in planted.steps():  # step
    row, loss = planted.train_step()
    if planted.waits:
        value = loss.item()  # waits: item
    planted.host_work()
planted.say()
