"""The agents' Unix socket: gets each peer's user from the kernel, and relays the connection to
gRPC.

gRPC does not report the user of a Unix socket's peer. So this module accepts the connections and
relays them to the gRPC server, which listens in a private folder. The relay binds its end to a
random name in that folder; gRPC reports the name as the peer's address, by which `ByUser` finds the
user.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import socket
import struct
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import grpc

from .admission import ByUser

log = logging.getLogger("rivulet.agent_socket")

USER_CONNECTIONS_MAX = 64
"""Connections of a user at a time, except for root and the controller's own user; an agent needs
one.

All users that may not register as any replica share this number: a user can have thousands of
subordinate user ids.
"""

NO_REPLICA = -1
"""Key that counts connections of users that may not register as any replica."""

CONNECTIONS_MAX = 2048
"""Connections of all users at a time."""

PREFIX = "rivulet-agents-"
"""Prefix of the private folders' names."""

DEAD_AFTER_S = 60.0
"""Age at which a private folder without a listener counts as left over from a controller that was
killed."""

CHUNK_BYTES = 64 << 10
"""Maximum number of bytes that a relay buffers in each direction."""

CREDENTIALS = struct.Struct("iII")
"""struct ucred of unix(7): process, user, group."""

NO_UID = 0xFFFF_FFFF
"""User id that the kernel reports if there is none."""


class AgentSocket:
    """The listener; call `start`, then `stop`."""

    def __init__(self, path: Path, server: grpc.aio.Server, admission: ByUser, group: int | None = None) -> None:
        """`server` must not have been started. Members of `group` may open the socket besides its
        owner.
        """
        self._path = path
        self._server = server
        self._admission = admission
        self._group = group
        _remove_folders_of_the_dead()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._inner = self._folder / "grpc.sock"
        self._relays: set[asyncio.Task[None]] = set()
        self._open: Counter[int] = Counter()
        self._accepting: asyncio.Server | None = None

    async def start(self) -> None:
        """Starts to listen. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._server.add_insecure_port(f"unix:{self._inner}")
            await self._server.start()
            # The umask keeps others from opening the socket even before chmod.
            before = os.umask(0o177)
            try:
                listener.bind(str(self._path))
            finally:
                os.umask(before)
            if self._group is not None:
                os.chown(self._path, -1, self._group)
                os.chmod(self._path, 0o660)
            self._accepting = await asyncio.start_unix_server(self._accept, sock=listener, limit=CHUNK_BYTES)
        except BaseException:
            listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    async def stop(self, grace: float | None) -> None:
        """Ends all connections; agents' streams get `grace` seconds."""
        if self._accepting is not None:
            self._accepting.close()
        await self._server.stop(grace)
        for relay in list(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):
            self._path.unlink()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        account = None
        try:
            uid = peer_uid(writer.get_extra_info("socket"))
            names = self._admission.replicas(uid)
            account = uid if names is None or names else NO_REPLICA
            self._open[account] += 1
            most = CONNECTIONS_MAX if names is None else USER_CONNECTIONS_MAX
            if self._open[account] > most or self._open.total() > CONNECTIONS_MAX:
                owner = "users that may not register have" if account == NO_REPLICA else f"uid {uid} has"
                log.warning("%s %d connections: closing another one of uid %d", owner, self._open[account] - 1, uid)
                return
            await self._relay(uid, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._relays.discard(task)
            if account is not None:
                self._open[account] -= 1
                self._open += Counter()

    async def _relay(self, uid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relays bytes both ways until either side ends."""
        name = secrets.token_hex(16)
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        inner.setblocking(False)
        own = self._folder / name
        self._admission.connected[name] = uid
        back = None
        try:
            inner.bind(str(own))
            await asyncio.get_running_loop().sock_connect(inner, str(self._inner))
            own.unlink()
            answers, back = await asyncio.open_unix_connection(sock=inner, limit=CHUNK_BYTES)
            ways = [asyncio.create_task(_pass_on(reader, back)), asyncio.create_task(_pass_on(answers, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            # Removed while the connection is open, so that no later connection can reuse the name.
            del self._admission.connected[name]
            inner.close() if back is None else back.close()


def _remove_folders_of_the_dead() -> None:
    """Removes private folders that killed controllers of this user left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            status = folder.lstat()
            # A recent folder may belong to a controller that does not listen yet.
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < DEAD_AFTER_S:
                continue
            try:
                probe.connect(str(folder / "grpc.sock"))
            except ConnectionRefusedError:
                shutil.rmtree(folder, ignore_errors=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relays one direction until its end."""
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


def peer_uid(connection: socket.socket) -> int:
    """User id of the process that connected (SO_PEERCRED). Raises OSError."""
    answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    uid: int = CREDENTIALS.unpack(answer)[1]
    if uid == NO_UID:
        raise OSError("the kernel does not know the peer's user")
    return uid
