"""Moves batches to the device and numbers back.

Data flows one way: loader -> page-locked memory -> transfer stream -> device memory -> step ->
readback ring -> history. `prefetch.py`, `batch_mover.py` and `transfer.py` move batches to the device,
`losses` reads losses back, `tree` flattens and rebuilds batches, and every host wait goes through
`host_waits.py`, which counts it.
"""
