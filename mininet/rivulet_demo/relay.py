"""A relay between Unix sockets, for cutting an agent off from its controller.

    python -m rivulet_demo.relay LISTEN TARGET

Between machines a firewall does this; here the channel is a Unix socket, which no firewall sees. Killing the relay has
the effect of a cut cable.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

BLOCK = 1 << 16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(BLOCK):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


async def relay(listen: str, target: str) -> None:
    """Relays until it is cancelled."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    with suppress(FileNotFoundError):
        os.unlink(listen)
    server = await asyncio.start_unix_server(connected, listen)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1], sys.argv[2]))
