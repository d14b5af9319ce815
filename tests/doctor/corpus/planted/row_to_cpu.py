"""A row of values, copied to the host."""

from _planted import Planted

planted = Planted()
for _ in planted.steps():  # step
    row, loss = planted.train_step()
    if planted.waits:
        values = row.cpu()  # waits: cpu
    planted.host_work()
planted.say()
