"""Ports for programs that are started under a number that is told beforehand, or again and again under the same one."""

from __future__ import annotations

import random
import socket
from contextlib import closing, suppress
from typing import Final

# Below all that kernels give, for a moment or a connection, to whoever asks for any.
_PORTS: Final = range(10_000, 32_768)
_given: Final[list[socket.socket]] = []


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on and that no other process of tests is given meanwhile.

    Until this process ends it keeps the UDP port of the same number, which is how the others know.
    """
    while True:
        address = "127.0.0.1", random.SystemRandom().choice(_PORTS)
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with suppress(OSError):
            mark.bind(address)
            with closing(socket.create_server(address)):
                _given.append(mark)
                return address[1]
        mark.close()
