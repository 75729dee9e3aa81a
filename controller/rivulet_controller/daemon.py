"""`rivulet-controller FILE`: the process. Signals, the file's changes, the listeners; the work is controller.py's."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import uvicorn

from . import agents as agents_door
from .api import Audit, Tokens, make_app
from .config import Config, ConfigError, Tls, load
from .controller import Controller
from .names import NamesError
from .state import OutOfNumbers
from .store import SqliteStore, StoreError

log = logging.getLogger("rivulet.daemon")

FILE_POLL_S = 0.25
"""How often the configuration file is looked at for a change."""


def main() -> None:
    """Entry point. Exit codes: 0 ended by a signal, 1 cannot start, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="rivulet-controller", description="Rivulet's control plane.")
    parser.add_argument("file", type=Path, help="the description of the rack (YAML)")
    parser.add_argument("--log", default="info", choices=["debug", "info", "warning", "error"])
    arguments = parser.parse_args()
    logging.basicConfig(
        level=arguments.log.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    # finsy tells every connection attempt; our own lines say what matters.
    logging.getLogger("finsy").setLevel(logging.CRITICAL if arguments.log != "debug" else logging.DEBUG)
    try:
        config = load(arguments.file)
        asyncio.run(_run(config, arguments.file))
    except (ConfigError, NamesError, StoreError, OutOfNumbers, ValueError, OSError) as error:
        print(f"rivulet-controller: {error}", file=sys.stderr)
        sys.exit(1)


async def _run(config: Config, path: Path) -> None:
    stop = asyncio.Event()
    reload = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    store = SqliteStore(config.state)
    controller = Controller(config, store, path)
    server: grpc.aio.Server | None = None
    tasks: list[asyncio.Task[None]] = []
    try:
        await controller.start()
        server = await _listen(controller, config)
        tasks.append(asyncio.create_task(serve_api(controller, config), name="api"))
        tasks.append(asyncio.create_task(controller.run(), name="controller"))
        tasks.append(asyncio.create_task(_follow_file(controller, path, reload), name="file"))
        ended = asyncio.create_task(stop.wait(), name="signal")
        done, _ = await asyncio.wait({*tasks, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {ended}:
            # None of them ends by itself: what ended has failed, and the process must say so.
            task.result()
        log.info("ending: the switches keep what they have")
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, Exception):
                await task
        await controller.stop()
        if server is not None:
            await server.stop(0.2)
        store.close()


async def _listen(controller: Controller, config: Config) -> grpc.aio.Server:
    address = config.listen.agents
    if address.startswith("unix:"):
        free_socket(Path(address.removeprefix("unix:")))
    server = await agents_door.serve(controller.agents, address, _credentials(config.listen.agents_tls))
    if address.startswith("unix:"):
        # Whoever can open it gets keys.
        os.chmod(address.removeprefix("unix:"), 0o600)
    log.info("agents: listening on %s", address)
    return server


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: the daemon has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


async def serve_api(controller: Controller, config: Config) -> None:
    """The API and the page, until cancelled. Raises OSError if it cannot listen."""
    address = config.listen.api
    listener = _listener(address)
    tokens = Tokens(config.listen.api_token_file)
    app = make_app(controller, tokens, Audit(config.state.with_name(config.state.name + ".audit")))
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, ws="websockets-sansio", timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=64 << 10, ws_max_size=1 << 16, limit_concurrency=200,
    )  # fmt: skip
    server = _Server(settings)
    log.info("api: listening on %s", address)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
        listener.close()


def _listener(address: str) -> socket.socket:
    """A bound socket; a Unix one is its owner's only."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        free_socket(Path(path))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
    else:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
    listener.listen(128)
    listener.setblocking(False)
    return listener


def free_socket(path: Path) -> None:
    """Makes the folder of a Unix socket, and removes one left by a process that is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        path.unlink()


def _credentials(tls: Tls | None) -> grpc.ServerCredentials | None:
    if tls is None:
        return None
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        root_certificates=tls.authority.read_bytes(),
        require_client_auth=True,
    )


async def _follow_file(controller: Controller, path: Path, reload: asyncio.Event) -> None:
    """Reloads on SIGHUP and when the file changes. A file that cannot be used changes nothing."""
    seen = _stamp(path)
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(FILE_POLL_S):
                await reload.wait()
        now = _stamp(path)
        if not reload.is_set() and (now == seen or now is None):
            continue
        reload.clear()
        seen = now
        try:
            await controller.change(await asyncio.to_thread(load, path), "the file")
        except ConfigError as error:
            controller.refuse_config("the file", str(error))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)


if __name__ == "__main__":
    main()
