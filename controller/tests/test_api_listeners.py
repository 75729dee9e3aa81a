"""Rights come from the listener that accepted a connection, over real sockets: a client's reset
grants nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import struct
from pathlib import Path

import httpx
import pytest
from certificates import OPENSSL, Authority
from harness import audit_records, served
from ports import free_port

from rivulet_controller import api as api_module
from rivulet_controller import body_limit
from rivulet_controller.client import ApiError, Client
from rivulet_controller.keys import Kind
from rivulet_controller.rights import LISTENER, Listener, listener_of

RESETS = 50
"""Connections reset for each kind of request."""

CHANGES = (
    ("POST", "/api/replicas/r1/drain", ""),
    ("POST", "/api/services/web/rotate", "{}"),
    ("POST", "/api/replicas/r2/weight", '{"weight": 9}'),
    ("POST", "/api/apply", "switches: []"),
)

TOKENS = "alice:apply:sesame\n"


def request(method: str, path: str, body: str = "", *headers: str) -> bytes:
    """An HTTP/1.1 request with all that a change needs, as bytes."""
    lines = (
        f"{method} {path} HTTP/1.1", "Host: localhost", "X-Rivulet-Client: a stranger",
        "Content-Type: application/json", f"Content-Length: {len(body)}", *headers,
    )  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body.encode()


UPGRADE = request(
    "GET", "/api/live", "", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)  # fmt: skip


def reset(sock: socket.socket, last: bytes) -> None:
    """Sends bytes and resets the connection before the server, which runs in this thread, sees
    either.
    """
    sock.sendall(last)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def sealed(sock: socket.socket, context: ssl.SSLContext, plain: bytes) -> bytes:
    """The client's last flight of a TLS handshake, followed by these bytes."""
    sock.setblocking(False)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            await asyncio.get_running_loop().sock_sendall(sock, outgoing.read())
            incoming.write(await asyncio.get_running_loop().sock_recv(sock, 1 << 16))
    client.write(plain)
    return outgoing.read()


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.skipif(not OPENSSL, reason="no openssl"))])
@pytest.mark.parametrize("tokens", [True, False])
async def test_reset_connection_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool, tokens: bool
) -> None:
    port, more, context = free_port(), "", None
    if tls:
        authority = Authority(tmp_path, "ours").make()
        certificate, key = authority.sign("controller", "IP:127.0.0.1")
        more = f"api_tls: {{certificate: {certificate}, key: {key}}}"
        context = ssl.create_default_context(cafile=str(authority.certificate))
    snapshots: list[int] = []

    def snapshot(_: object) -> str:
        snapshots.append(1)
        return "{}"

    monkeypatch.setattr(api_module.Live, "text", snapshot)
    async with served(tmp_path, TOKENS if tokens else "", f"127.0.0.1:{port}", more) as (controller, _):
        configured, weights = controller.config, controller.weights()
        epochs = [key.epoch for key in controller.state.rings["web"].of(Kind.SEAL)]
        upgrades = (UPGRADE,) if tokens else ()
        for wanted in (*(request(*change) for change in CHANGES), *upgrades):
            for _ in range(RESETS):
                sock = socket.create_connection(("127.0.0.1", port))
                reset(sock, await sealed(sock, context, wanted) if context else wanted)
                await asyncio.sleep(0)
        # Requests sent before this one are handled before its response.
        control = Client(f"unix:{tmp_path}/control.sock")
        for _ in range(RESETS):
            await asyncio.to_thread(control.get, "/api/leader")
        assert controller.draining() == frozenset(), "nothing drains"
        assert controller.weights() == weights and controller.config == configured
        assert [key.epoch for key in controller.state.rings["web"].of(Kind.SEAL)] == epochs, "no key was rotated"
        assert audit_records(tmp_path, "state.db.audit") == [] and snapshots == []
        # The same request over the Unix socket has the owner's rights.
        assert await asyncio.to_thread(control.post, "/api/replicas/r1/drain") == {"done": "drain r1"}


async def test_operators_reset_connection_changes_nothing(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, TOKENS, f"127.0.0.1:{port}") as (controller, _):
        wanted = request("POST", "/api/replicas/r1/drain", "", "Authorization: Bearer sesame")
        for _ in range(RESETS):
            reset(socket.create_connection(("127.0.0.1", port)), wanted)
            await asyncio.sleep(0)
        client = Client(f"127.0.0.1:{port}", "sesame")
        assert await asyncio.to_thread(client.post, "/api/replicas/r2/drain") == {"done": "drain r2"}
        assert controller.draining() == {"r2"}, "no record could name the address"
        assert {record["who"] for record in audit_records(tmp_path, "state.db.audit")} == {"alice@127.0.0.1"}


async def test_proxy_headers_do_not_reach_the_audit_log(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, TOKENS, f"127.0.0.1:{port}"), httpx.AsyncClient(trust_env=False) as client:
        headers = {"authorization": "Bearer sesame", "x-rivulet-client": "a test"}
        for name, value in (
            ("x-forwarded-for", "203.0.113.9"), ("forwarded", "for=203.0.113.9"), ("x-real-ip", "203.0.113.9"),
        ):  # fmt: skip
            answer = await client.post(
                f"http://127.0.0.1:{port}/api/replicas/r1/drain", headers={**headers, name: value}
            )
            assert answer.status_code == 200
        assert [r["who"] for r in audit_records(tmp_path, "state.db.audit")] == ["alice@127.0.0.1"] * 3


async def test_tcp_request_without_host_is_refused(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, "", f"127.0.0.1:{port}"):
        for headers, code in (("", b"421"), ("Host: rivulet\r\n", b"421"), ("Host: localhost\r\n", b"200")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /api/leader HTTP/1.0\r\n{headers}\r\n".encode())
            assert (await reader.readline()).split()[1] == code, headers
            writer.close()


def test_request_without_noted_listener_counts_as_tcp() -> None:
    assert listener_of({}) is Listener.TCP
    assert listener_of({LISTENER: "unix"}) is Listener.TCP, "what is no Listener notes none"
    assert listener_of({LISTENER: Listener.UNIX}) is Listener.UNIX


HALVES = (b"", b"GET /api/leader HTTP/1.1\r\nHost: local", request("POST", "/api/plan", "x" * 9)[:-8])


@pytest.mark.parametrize("sent", HALVES)
async def test_idle_connections_do_not_block_others(tmp_path: Path, sent: bytes) -> None:
    port = free_port()
    async with served(tmp_path, "", f"127.0.0.1:{port}"):
        held = []
        for _ in range(250):
            held.append(await asyncio.open_connection("127.0.0.1", port))
            held[-1][1].write(sent)
        client = Client(f"127.0.0.1:{port}")
        assert (await asyncio.to_thread(client.get, "/api/leader"))["leading"]
        assert not held[-1][0].at_eof(), "the newest are kept"
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("path", ["/api/plan", "/api/apply", "/api/services/web/rotate"])
async def test_slow_body_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    for module in (api_module, body_limit):
        monkeypatch.setattr(module, "BODY_S", 0.3)
    async with served(tmp_path) as (_, address):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        writer.write(request("POST", path, "{" * 9)[:-8])
        assert (await reader.readline()).split()[1] == b"408"
        writer.close()


async def test_busy_plans_are_refused_before_body_is_read(tmp_path: Path) -> None:
    async with served(tmp_path) as (controller, address):
        validator, path = controller.validator, address.removeprefix("unix:")
        await validator.plan(controller.text, controller.local)
        assert validator.plans.pid is not None
        os.kill(validator.plans.pid, signal.SIGSTOP)
        plans = [asyncio.create_task(validator.plan(controller.text, controller.local)) for _ in range(5)]
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_unix_connection(path)
        head = request("POST", "/api/plan", "x" * 4_000_000)[:-4_000_000]
        writer.write(head)
        assert (await reader.readline()).split()[1] == b"503"
        os.kill(validator.plans.pid, signal.SIGCONT)
        await asyncio.gather(*plans)
        # One more than may be received at a time.
        slow = [await asyncio.open_unix_connection(path) for _ in range(api_module.BODIES_MAX)]
        for _, other in slow:
            other.write(head + b"x")
        await asyncio.sleep(0.2)
        reader, last = await asyncio.open_unix_connection(path)
        last.write(head)
        assert (await reader.readline()).split()[1] == b"503"
        for _, other in [*slow, (reader, writer), (reader, last)]:
            other.close()


async def test_websocket_clients_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "LIVE_MAX", 2)
    async with served(tmp_path) as (_, address):
        live = [Client(address).live() for _ in range(3)]
        for one in live[:2]:
            assert "replicas" in await anext(one)
        with pytest.raises((ApiError, StopAsyncIteration)):
            await anext(live[2])
        for one in live:
            await one.aclose()
