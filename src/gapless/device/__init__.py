"""The only room that touches an accelerator's API.

Everybody else asks the protocol in `base.py`. `cuda.py` and `cpu.py` implement it, and `find.py`
chooses between them. `waits.py` counts, forbids and allows host waits in any code.
"""
