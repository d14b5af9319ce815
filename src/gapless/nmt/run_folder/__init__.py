"""The folder of a run: checkpoints, logs and settings, written while it trains and read again.

`folder.py` says which folder it is, `checkpoints.py` which checkpoints it holds, and `checkpoint_writer.py` writes them.
"""
