"""Moves batches to the device and numbers back.

Data flows one way: loader -> staging ring (pinned) -> transfer stream -> device ring -> step ->
readback ring -> history. `prefetch.py` and `staging.py` are the way to the device, `readback.py` is the
way back, and `host_waits.py` is the one door through which the host waits.
"""
