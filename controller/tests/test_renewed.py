"""Certificates that are renewed while the controller runs: of its API, and its client certificate
for etcd.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from certificates import OPENSSL, Authority
from ports import free_port
from test_api import served

from rivulet_controller import daemon
from rivulet_controller.client import ApiError, Client
from rivulet_controller.etcd import EtcdClient
from rivulet_controller.listen_config import Etcd, Tls
from rivulet_controller.store import StoreError

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")


@contextmanager
def gateway(authority: Authority) -> Iterator[tuple[str, list[str]]]:
    """A server that answers like etcd clients of the authority; yields its URL, and the names of
    its clients.
    """
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert isinstance(self.connection, ssl.SSLSocket)
            shown = self.connection.getpeercert() or {}
            seen.append(dict(pair for part in shown["subject"] for pair in part)["commonName"])  # type: ignore[union-attr,misc]
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = json.dumps({"kvs": []}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("etcd", "IP:127.0.0.1"))
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


def test_renewed_etcd_certificate_is_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority").make()
    pair = authority.sign("first")
    with gateway(authority) as (url, seen):
        tls = Tls(certificate=pair[0], key=pair[1], authority=authority.certificate)
        client = EtcdClient(Etcd(endpoints=(url,), tls=tls))
        client.request("kv/range", {})
        authority.renew("second", pair)
        client.request("kv/range", {})
        # A partial or missing file changes nothing.
        kept = pair[1].read_bytes()
        for broken in (b"no key", authority.sign("third")[1].read_bytes()):
            pair[1].write_bytes(broken)
            client.request("kv/range", {})
        pair[1].unlink()
        client.request("kv/range", {})
        pair[1].touch(mode=0o600)
        pair[1].write_bytes(kept)
        client.request("kv/range", {})
        assert seen == ["first", *["second"] * 5]
        # A certificate of another authority is not trusted because it is new.
        authority.certificate.write_bytes(Authority(tmp_path, "other").make().certificate.read_bytes())
        with pytest.raises(StoreError, match="certificate verify failed"):
            client.request("kv/range", {})
        client.close()


async def test_renewed_api_certificate_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "CERTIFICATE_POLL_S", 0.05)
    old, new = Authority(tmp_path, "old").make(), Authority(tmp_path, "new").make()
    pair = old.sign("controller", "IP:127.0.0.1")
    port = free_port()
    files = f"api_tls: {{certificate: {pair[0]}, key: {pair[1]}}}"
    async with served(tmp_path, "alice:read:sesame\n", f"127.0.0.1:{port}", files) as (_, address):

        async def trusted(authority: Authority) -> bool:
            # A new connection each time.
            client = Client(address, "sesame", authority=str(authority.certificate))
            try:
                return bool(await asyncio.to_thread(client.get, "/api/leader"))
            except ApiError:
                return False

        assert await trusted(old) and not await trusted(new)
        # First the certificate alone, which the key does not fit.
        certificate, key = new.sign("controller", "IP:127.0.0.1")
        certificate.replace(pair[0])
        await asyncio.sleep(0.5)
        assert await trusted(old), "what is in use stays"
        key.replace(pair[1])
        for _ in range(200):
            if await trusted(new):
                break
            await asyncio.sleep(0.05)
        assert await trusted(new) and not await trusted(old)
