"""Loopback ports for programs that cannot choose one themselves: free now, and outside of the
kernel's ephemeral range.
"""

from __future__ import annotations

import os
import socket

FIRST, LAST = 20000, 32000
"""Below the ports that Linux gives to outgoing connections (net.ipv4.ip_local_port_range)."""


def free_port(count: int = 1) -> int:
    """The first of `count` consecutive unused ports. Each process starts its search at another
    port.
    """
    begin = os.getpid() * 16 % (LAST - FIRST)
    for step in range(0, LAST - FIRST, count):
        port = FIRST + (begin + step) % (LAST - FIRST)
        if all(_is_free(port + more) for more in range(count)):
            return port
    raise AssertionError(f"no free port from {FIRST} to {LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # SO_REUSEADDR as servers set it: connections in TIME_WAIT must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
