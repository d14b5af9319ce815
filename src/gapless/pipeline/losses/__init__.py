"""Losses and other values of steps, which come to the host late, in bulk.

`deferred_loss.py` is what users call: values go through the ring of `loss_ring.py`, whose memory is
`loss_rows.py`, into `loss_history.py`, which knows the means; then `loss_callbacks.py` tells the user.
`loss_agreement.py` is what several ranks add.
"""
