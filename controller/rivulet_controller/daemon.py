"""`rivulet-controller FILE`: the process with its signals, listeners and the configuration file
(controller.py does the rest).
"""

from __future__ import annotations

import argparse
import asyncio
import grp
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn

from . import agents as agent_service
from .api import make_app
from .audit import Audit
from .config import Config, ConfigError
from .controller import RETRY_S, Controller
from .etcd import EtcdClient, EtcdStore, Leadership
from .http_connection import CONNECTIONS_MAX, HttpConnection
from .listen_config import Etcd, is_local
from .names import NamesError
from .private_file import require_private
from .rack_file import load_with_text, read_text
from .ready import notify_ready
from .rights import AcceptedBy, Listener, Tokens
from .state import OutOfNumbers
from .store import SqliteStore, StoreError
from .supervise import Loop
from .tls import RenewedCertificate, server_credentials, stamp
from .worker import Busy, Overdue

log = logging.getLogger("rivulet.daemon")

CLAIM_S = 0.3
"""Interval at which a waiting controller tries to become leader."""

CERTIFICATE_POLL_S = 2.0
"""Interval at which the API's certificate is checked for a change."""

FILE_POLL_S = 0.25
"""Interval at which the configuration file is checked for a change."""


EXPECTED = (ConfigError, NamesError, StoreError, OutOfNumbers, ValueError, OSError)
"""Errors that keep the controller from starting for a reason of the operator's; any other shows its
traceback."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="rivulet-controller", description="The control plane of a Rivulet rack.")
    found.add_argument("file", type=Path, help="the rack's configuration (YAML)")
    levels = ["debug", "info", "warning", "error"]
    found.add_argument("--log", default="info", choices=levels, help="lowest level of the log, on standard error")
    return found


def main() -> None:
    """Entry point. Exit codes: 0 ended by a signal, 1 cannot start, 2 wrong usage."""
    arguments = parser().parse_args()
    logging.basicConfig(
        level=arguments.log.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    # With every --log level: at debug, finsy logs each message with its keys, and httpx's transport
    # logs requests to etcd. Our own log lines suffice.
    for name in ("finsy", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.CRITICAL if name == "finsy" else logging.WARNING)
    try:
        config, text = load_with_text(arguments.file)
        asyncio.run(_run(config, text, arguments.file))
    except Exception as error:
        if not _expected(error):
            raise
        print(f"rivulet-controller: {_cause(error)}", file=sys.stderr)
        sys.exit(1)


def _cause(error: BaseException) -> BaseException:
    """The first error within exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _expected(error: BaseException) -> bool:
    """Whether an error's text suffices for the operator, without a traceback."""
    return isinstance(_cause(error), EXPECTED)


async def _run(config: Config, text: str, path: Path) -> None:
    stop = asyncio.Event()
    reload = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    if config.etcd is None:
        work = _alone(config, text, path, reload)
    else:
        work = _in_turn(config, text, path, reload, config.etcd)
    working = asyncio.create_task(work, name="work")
    ended = asyncio.create_task(stop.wait(), name="signal")
    await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        # The work only ends by an error, which has to end the process.
        working.result()
    log.info("ending: the switches keep their entries")
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def _alone(config: Config, text: str, path: Path, reload: asyncio.Event) -> None:
    """A single controller with its own state file, until cancelled."""
    store = SqliteStore(config.state)
    controller = Controller(config, store, text)
    try:
        async with _background(serve_api(controller, config)), _background(notify_ready(controller)):
            await _lead(controller, path, reload)
    finally:
        store.close()


async def _in_turn(config: Config, text: str, path: Path, reload: asyncio.Event, etcd: Etcd) -> None:
    """One of several controllers: leads while it holds the lease, otherwise waits; until cancelled."""
    client = EtcdClient(etcd)
    leadership = Leadership(client, etcd, f"{socket.gethostname()} {os.getpid()}, API at {config.listen.api}")
    store = EtcdStore(client, etcd, leadership)
    controller = Controller(config, store, text, leadership.guard)
    controller.leading = False
    try:
        async with _background(serve_api(controller, config)), _background(notify_ready(controller)):
            while True:
                await _claim(leadership, controller)
                log.info("leading since revision %d", leadership.revision)
                controller.leading = True
                keeping = asyncio.create_task(asyncio.to_thread(leadership.keep), name="lease")
                leading = asyncio.create_task(_lead(controller, path, reload), name="lead")
                try:
                    await asyncio.wait({keeping, leading}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    controller.leading = False
                    leading.cancel()
                    # Releases the lease in any case, so that another controller can lead at once.
                    (failed,) = await asyncio.gather(leading, return_exceptions=True)
                    await asyncio.to_thread(leadership.release)
                    await keeping
                if isinstance(failed, Exception):
                    log.error("leading failed: %s; retrying", _cause(failed), exc_info=not _expected(failed))
                    await asyncio.sleep(RETRY_S)
                log.warning("no longer leading: closed the sessions with the switches")
    finally:
        client.close()


async def _claim(leadership: Leadership, controller: Controller) -> None:
    """Waits until this controller leads, and records the leader's name meanwhile."""
    logged = ""
    while True:
        try:
            if await asyncio.to_thread(leadership.claim):
                return
            controller.leader = await asyncio.to_thread(leadership.leader)
            status = f"waiting: {controller.leader or 'no controller'} leads"
        except StoreError as error:
            status = str(error)
        if status != logged:
            log.info("%s", status)
            logged = status
        await asyncio.sleep(CLAIM_S)


async def _lead(controller: Controller, path: Path, reload: asyncio.Event) -> None:
    """Runs a controller with its listener for agents, until cancelled or one of them fails."""
    await controller.start()
    server = await listen_for_agents(controller, controller.config)
    try:
        async with _background(_follow_file(controller, path, reload)):
            await controller.run()
    finally:
        await controller.stop()
        controller.agents.close()
        await server.stop(0.2)


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs work beside the block; an error of the work cancels the block and is raised."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        try:
            yield
        finally:
            task.cancel()


async def listen_for_agents(controller: Controller, config: Config) -> agent_service.AgentListener:
    """Listens for agents at the configured address. Raises ValueError, OSError."""
    address, group = config.listen.agents, config.listen.agents_group
    # Resolves the group first, so that nothing is open yet if it does not exist.
    number = None if group is None else _group(group)
    if address.startswith("unix:"):
        free_socket(Path(address.removeprefix("unix:")))
    listener = await agent_service.serve(
        controller.agents,
        address,
        server_credentials(config.listen.agents_tls),
        lambda: controller.local.listen.agents_users,
        number,
    )
    log.info("agents: listening on %s", address)
    return listener


def _group(name: str) -> int:
    """A group's id. Raises ValueError."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"listen.agents_group: there is no group {name!r} on this machine") from None


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: the daemon has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


async def serve_api(controller: Controller, config: Config) -> None:
    """Serves the API and the page at each address, until cancelled. Raises OSError or ValueError if
    it cannot.
    """
    tokens = Tokens(config.listen.api_token_file)
    # Reports a mistake in the token file at start, not at the first request.
    tokens.read()
    app = make_app(controller, tokens, Audit(config.state.with_name(config.state.name + ".audit")))
    tls = config.listen.api_tls
    if tls is not None:
        require_private(tls.key)
    listen_addresses = [(config.listen.api, tls)] + ([(config.listen.control, None)] if config.listen.control else [])
    listeners = [_listener(address) for address, _ in listen_addresses]
    servers = [
        _Server(uvicorn.Config(
            AcceptedBy(app, Listener.UNIX if address.startswith("unix:") else Listener.TCP),
            # A proxy's headers could put any address into the audit log.
            proxy_headers=False,
            log_level="warning", access_log=False, ws="websockets-sansio", timeout_graceful_shutdown=1,
            http=HttpConnection, h11_max_incomplete_event_size=64 << 10, ws_max_size=1 << 16,
            limit_concurrency=CONNECTIONS_MAX,
            ssl_certfile=tls.certificate if tls else None, ssl_keyfile=tls.key if tls else None,
        ))
        for address, tls in listen_addresses
    ]  # fmt: skip
    for server in servers:
        server.config.load()
    serving = [
        asyncio.create_task(server.serve(sockets=[listener]))
        for server, listener in zip(servers, listeners, strict=True)
    ]
    renewing = []
    for server, (_, tls) in zip(servers, listen_addresses, strict=True):
        if tls is not None and server.config.ssl is not None:
            renewing.append(RenewedCertificate(tls, server.config.ssl))

    async def renew() -> None:
        for certificate in renewing:
            certificate.follow()

    certificates = Loop("the API's certificate", renew, CERTIFICATE_POLL_S)
    certificates.start()
    log.info("api: listening on %s", " and ".join(address for address, _ in listen_addresses))
    try:
        ended, _ = await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
        # A server only ends by an error, which has to end the process.
        for server_task in ended:
            server_task.result()
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving, certificates.stop(), return_exceptions=True)
        for listener in listeners:
            listener.close()


def _listener(address: str) -> socket.socket:
    """A bound socket; a Unix socket is accessible to its owner only."""
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
        bound = ipaddress.ip_address(listener.getsockname()[0])
        if is_local(address) and not bound.is_loopback:
            listener.close()
            raise ValueError(f"{address} resolves to {bound}, which is not a loopback address")
    listener.listen(128)
    listener.setblocking(False)
    return listener


def free_socket(path: Path) -> None:
    """Creates the folder of a Unix socket, and removes a socket that a former process left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        path.unlink()


async def _follow_file(controller: Controller, path: Path, reload: asyncio.Event) -> None:
    """Reloads on SIGHUP and when the file changes. An invalid file changes nothing."""
    seen = stamp(path)
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(FILE_POLL_S):
                await reload.wait()
        now = stamp(path)
        if not reload.is_set() and (now == seen or now is None):
            continue
        reload.clear()
        seen = now
        try:
            text = await asyncio.to_thread(read_text, path)
            config = await controller.validator.change(text, str(path))
            await controller.change(config, "the file", text)
        except Overdue as error:
            controller.refuse_config("the file", f"{path}: checking it {error}")
        except Busy as error:
            # Makes the next check read the same text again.
            seen = None
            controller.refuse_config("the file", str(error))
        except (ConfigError, OutOfNumbers, NamesError) as error:
            controller.refuse_config("the file", str(error))


if __name__ == "__main__":
    main()
