"""Moves batches to the device and numbers back.

Data flows one way: loader -> page-locked memory -> transfer stream -> device memory -> step ->
readback ring -> history. `prefetch.py`, `batch_mover.py` and `transfer.py` are the way to the device,
`losses` is the way back, `tree` takes batches apart, and `host_waits.py` is the one door through which
the host waits.
"""
