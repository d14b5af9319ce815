"""The training loop: takes the batches of an epoch through a step as a plan says.

`train_loop.py` is what users call, `epoch.py` takes one pass over the batches, `plan_waits.py` waits as
the plan says, `runners.py` and `auto.py` run the steps, and `engine.py` owns what they share.
"""
