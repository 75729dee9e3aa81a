"""Notifies systemd that the controller is ready (`Type=notify`, sd_notify(3))."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

from .controller import Controller

log = logging.getLogger("rivulet.ready")

STARTING_S = 20.0
"""Longest delay of the notification: a switch may be unreachable for longer than systemd waits for
a start."""


async def notify_ready(controller: Controller) -> None:
    """Notifies systemd once every switch has its entries, another controller leads, or the time is
    over.
    """
    end = time.monotonic() + STARTING_S
    while controller.leading and not controller.fleet.converged() and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    if path := os.environ.get("NOTIFY_SOCKET"):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
                # A name that begins with @ is an abstract socket.
                notifier.sendto(b"READY=1", "\0" + path[1:] if path.startswith("@") else path)
        except OSError as error:
            log.warning("cannot notify systemd that the controller is ready: %s", error)
