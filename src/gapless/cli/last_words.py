"""A process beside the script's, which prints what it was given last if the script's process dies."""

from __future__ import annotations

import os
import signal
import socket
import struct
from contextlib import suppress

from gapless.python_private import exit_now


_LENGTH = struct.Struct("!Q")
_SURVIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if os.name == "posix" else ()


class LastWords:
    """Text that is printed to standard error if this process ends without Python's own end.

    So no signal and no `os._exit` or `os.execv` loses it. Where processes cannot be forked there is none.
    The other process is no child of this one, and takes no signal that ends its group.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def begin(self) -> None:
        """Start the process, while this one is small."""
        if not hasattr(os, "fork"):
            return
        own, other = socket.socketpair()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                own.close()
                _wait_and_print(other)
            exit_now(0)
        os.waitpid(child, 0)
        other.close()
        os.register_at_fork(after_in_child=own.close)
        self._socket = own

    def set(self, text: str) -> None:
        """Say what is to be printed; nothing if it is empty."""
        if self._socket is None:
            return
        data = text.encode("utf-8", "replace")
        try:
            self._socket.sendall(
                _LENGTH.pack(len(data)) + data, getattr(socket, "MSG_NOSIGNAL", 0)
            )
        except OSError:  # the script has closed all files that it does not know
            self._socket = None


def _wait_and_print(other: socket.socket) -> None:
    os.setsid()
    for number in _SURVIVED:
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    data = b""
    text = b""
    with suppress(OSError):
        while part := other.recv(1 << 16):
            data += part
            while len(data) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(data)
                end = _LENGTH.size + length
                if len(data) < end:
                    break
                text, data = data[_LENGTH.size : end], data[end:]
    with suppress(OSError):
        while text:
            text = text[os.write(2, text) :]
