"""A file system of a few hundred kilobytes, which only the processes that enter it see."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


# Run in a process before gapless: it enters the name spaces of the one that holds the disk.
ENTER = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name in ("user", "mnt"):
    number = os.open("/proc/{pid}/ns/" + name, os.O_RDONLY)
    if libc.setns(number, 0):
        raise OSError(ctypes.get_errno(), "setns " + name)
    os.close(number)
"""


class SmallDisk:
    """A tmpfs in a name space of its own: nothing of it is left when its holder ends.

    Args:
        mounted: an existing folder that becomes the disk, for those who enter.
        kilobytes: of room.
        inodes: how many files and folders fit.
    """

    def __init__(self, mounted, *, kilobytes, inodes=0):
        self.path = mounted
        limits = f"size={kilobytes}k" + (f",nr_inodes={inodes}" if inodes else "")
        command = f"mount -t tmpfs -o {limits} tmpfs '{mounted}' && echo ready && exec cat"
        try:
            self._holder = subprocess.Popen(
                ["unshare", "-Urm", "sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except FileNotFoundError:
            pytest.skip("no unshare here to mount a small disk with")
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            pytest.skip("this machine allows no mounts, so no disk can be small")
        # What a process has to run to see the disk.
        self.enter = ENTER.format(pid=self._holder.pid)
        # The disk, as processes that did not enter see it.
        self.seen = Path(f"/proc/{self._holder.pid}/root{mounted}")
        self._filler = self.seen / "filler"

    def fill(self, *, leave=0):
        """Write until there is no more room than so many bytes."""
        with self._filler.open("ab") as file:
            chunk = 1 << 16
            while chunk:
                try:
                    os.write(file.fileno(), bytes(chunk))
                except OSError:
                    chunk //= 2
            if leave:
                os.ftruncate(file.fileno(), max(0, file.seek(0, os.SEEK_END) - leave))

    def free(self):
        """Give the room back."""
        self._filler.unlink()

    def make_read_only(self):
        """Let nobody open a file of the disk to write any more.

        A second mount over the first: the first is in use and cannot be changed.
        """
        enter = ["nsenter", "-t", str(self._holder.pid), "-U", "-m", "--preserve-credentials"]
        for options in (["--bind"], ["-o", "remount,bind,ro"]):
            subprocess.run([*enter, "mount", *options, self.path, self.path], check=True)

    def close(self):
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait()
