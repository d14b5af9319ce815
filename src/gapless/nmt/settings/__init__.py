"""What a run is asked to do: its settings, their file, and what they mean where they are left open.

`setting_groups.py` has every setting, `config.py` puts them together, and `defaults.py` chooses what suits a
corpus and a device.
"""
