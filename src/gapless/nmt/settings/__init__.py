"""What a run is asked to do: its settings, their file, and what they mean where they are left open.

`config.py` has every setting, and `defaults.py` chooses what suits a corpus and a device.
"""
