"""Streams, staging, prefetch, readback, waits and the loop that joins them.

Data flows one way: loader -> staging ring (pinned) -> transfer stream -> device ring -> step ->
readback ring -> history.
"""
