"""Tells systemd that the controller does its work (`Type=notify`, sd_notify(3))."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

from .controller import Controller

log = logging.getLogger("rivulet.ready")

STARTING_S = 20.0
"""systemd waits so long at most: a switch may be away for longer than a start may take."""


async def tell_ready(controller: Controller) -> None:
    """Once every switch is as described, another controller leads, or the time is over."""
    end = time.monotonic() + STARTING_S
    while controller.leading and not controller.fleet.converged() and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    if path := os.environ.get("NOTIFY_SOCKET"):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
                # A name that begins with @ is no file.
                told.sendto(b"READY=1", "\0" + path[1:] if path.startswith("@") else path)
        except OSError as error:
            log.warning("systemd cannot be told that the controller is ready: %s", error)
