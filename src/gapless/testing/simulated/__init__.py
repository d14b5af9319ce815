"""A simulated accelerator for any machine: late streams, a race checker, a virtual clock.

simulated_device    the device that users enter: every method of the Device protocol
simulation          the engine: launches, waits, captures; calls everything below
dispatch            turns each torch operation into queued work, with what a GPU takes on the host
operator_call       one torch operation: what it reads, writes and returns
places              where a tensor is, and how users move it: `to`, `cuda`, `cpu`, `device=`
patches             what no mode of torch sees
host_reads          methods of tensors that read on the host, such as `tolist`
queues              streams as queues of tasks, and the three schedulers
allocator           device and page-locked memory, reused as torch's allocator reuses it
races               vector clocks that find unordered accesses
history             the last accesses to each byte
virtual_clock       how long work takes, as data
"""

from __future__ import annotations

from pathlib import Path

from gapless.device.user_line import hide_folder


# Reports must name lines of the code under test, not of the simulator.
hide_folder(Path(__file__).parent)
