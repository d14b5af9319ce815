"""Moves batches to the device and numbers back.

Data flows one way: loader -> staging ring (pinned) -> transfer stream -> device ring -> step ->
readback ring -> history.
"""
