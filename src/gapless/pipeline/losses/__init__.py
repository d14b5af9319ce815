"""Losses and other values of steps, which come to the host late, in bulk.

`deferred_loss.py` is what users call: it writes into `loss_ring.py` on the device, and what has arrived
is in `loss_history.py`. `loss_agreement.py` is what several ranks add.
"""
