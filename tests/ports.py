"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]


def free_port() -> int:
    """Find a free port of 127.0.0.1 below those that the system gives to connections.

    Tests beside this open such connections.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
