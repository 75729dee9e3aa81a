"""etcd as store of several controllers, which elect a leader by a lease.

Uses etcd's JSON gateway (`/v3/…`, etcd 3.4 and later). Every save is conditional on the leader key
that this controller created, so that a controller without the lease writes nothing.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from .listen_config import Etcd
from .private_file import require_private
from .store import StoreError
from .switch import SwitchError
from .tls import stamp

log = logging.getLogger("rivulet.etcd")

OPERATIONS = 100
"""Operations of a transaction; etcd's default limit is 128."""

REQUEST_S = 2.0
"""Longest time of a request: shorter than the shortest sensible lease."""

MARGIN_S = 0.3
"""A lease counts as lost this long before its end, so that a batch under way ends within it."""


class EtcdClient:
    """Sends requests to the first endpoint that answers. Raises StoreError, or OSError if a
    certificate cannot be used.
    """

    def __init__(self, config: Etcd) -> None:
        self._endpoints = list(config.endpoints)
        self._tls = config.tls
        self._stamps = self._read_stamps()
        self._renewing = threading.Lock()
        self._http = self._opened()

    def _read_stamps(self) -> list[tuple[int, int, int] | None]:
        tls = self._tls
        return [stamp(path) for path in (tls.certificate, tls.key, tls.authority)] if tls is not None else []

    def _opened(self) -> httpx.Client:
        verify: ssl.SSLContext | bool = True
        if self._tls is not None:
            require_private(self._tls.key)
            verify = ssl.create_default_context(cafile=str(self._tls.authority))
            verify.load_cert_chain(str(self._tls.certificate), str(self._tls.key))
        return httpx.Client(timeout=REQUEST_S, trust_env=False, verify=verify)

    def _connections(self) -> httpx.Client:
        """The HTTP client; a new one after the certificate's files changed, so that a renewal needs
        no restart.
        """
        with self._renewing:
            stamps = self._read_stamps()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    # Requests under way keep the old client.
                    self._http = self._opened()
                    log.info("etcd: the renewed certificate is in use")
                except OSError as error:
                    log.error("etcd: keeping the certificate in use: %s", error)
            return self._http

    def request(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request. Later requests try the endpoint that answered first."""
        problems = []
        http = self._connections()
        for endpoint in list(self._endpoints):
            try:
                answer = http.post(f"{endpoint}/v3/{path}", json=body)
                if answer.status_code == 200:
                    if self._endpoints[0] != endpoint:
                        self._endpoints.remove(endpoint)
                        self._endpoints.insert(0, endpoint)
                    return dict(answer.json())
                problems.append(f"{endpoint}: {answer.text.strip()[:200]}")
            except (httpx.HTTPError, ValueError) as error:
                problems.append(f"{endpoint}: {error or type(error).__name__}")
        raise StoreError("etcd: " + "; ".join(problems))

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()


class Leadership:
    """A controller's candidacy for leader. Calls block; `keep` runs in a separate thread.

    >>> leadership = Leadership(client, config, "controller-1")
    >>> if leadership.claim(): ...
    """

    def __init__(self, client: EtcdClient, config: Etcd, name: str) -> None:
        self.key = f"{config.prefix}leader"
        self.revision = 0
        """etcd's revision at which this controller became leader; 0 while it is not."""
        self._client = client
        self._ttl = max(round(config.lease), 1)
        self._name = name
        self._lease = ""
        self._until = 0.0
        self._ending = threading.Event()

    def claim(self) -> bool:
        """Tries once to become leader. Raises StoreError if etcd does not answer."""
        began = time.monotonic()
        lease = self._client.request("lease/grant", {"TTL": str(self._ttl)})["ID"]
        answer = self._client.request(
            "kv/txn",
            {
                "compare": [{"key": _b64(self.key), "target": "CREATE", "create_revision": "0"}],
                "success": [{"request_put": {"key": _b64(self.key), "value": _b64(self._name), "lease": lease}}],
            },
        )
        if not answer.get("succeeded"):
            self._client.request("lease/revoke", {"ID": lease})
            return False
        self._lease = lease
        self._until = began + self._ttl
        self.revision = int(answer["header"]["revision"])
        self._ending.clear()
        return True

    def leader(self) -> str:
        """The leader's name; empty if there is none. Raises StoreError."""
        found = self._client.request("kv/range", {"key": _b64(self.key)}).get("kvs", [])
        return base64.b64decode(found[0]["value"]).decode() if found else ""

    def held(self) -> bool:
        """Whether this controller certainly still holds the lease."""
        return self.revision != 0 and time.monotonic() < self._until - MARGIN_S

    def guard(self) -> None:
        """Raises SwitchError when this controller must not write any more."""
        if not self.held():
            raise SwitchError("the lease is lost: another controller may lead now")

    def keep(self) -> None:
        """Renews the lease; returns when it is lost or `release` was called."""
        while not self._ending.wait(self._ttl / 4):
            began = time.monotonic()
            try:
                answer = self._client.request("lease/keepalive", {"ID": self._lease})
                if int(answer.get("result", {}).get("TTL", 0)) <= 0:
                    log.warning("etcd: the lease ran out")
                    break
                self._until = began + self._ttl
            except StoreError as error:
                log.warning("%s", error)
                if not self.held():
                    break
        self.revision = 0

    def release(self) -> None:
        """Revokes the lease, so that another controller can lead at once."""
        self._ending.set()
        lease, self._lease = self._lease, ""
        self.revision = 0
        if lease:
            with contextlib.suppress(StoreError):
                self._client.request("lease/revoke", {"ID": lease})


class EtcdStore:
    """The state in etcd; only the leader can write it."""

    def __init__(self, client: EtcdClient, config: Etcd, leadership: Leadership) -> None:
        self._client = client
        self._prefix = f"{config.prefix}state/"
        self._leadership = leadership

    def load(self) -> dict[str, bytes]:
        """All values under the prefix. Raises StoreError."""
        found: dict[str, bytes] = {}
        start = self._prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        while True:
            query = {
                "key": base64.b64encode(start).decode(),
                "range_end": base64.b64encode(end).decode(),
                "limit": "500",
            }
            answer = self._client.request("kv/range", query)
            rows = answer.get("kvs", [])
            for row in rows:
                key = base64.b64decode(row["key"])
                found[key.decode()[len(self._prefix) :]] = base64.b64decode(row.get("value", ""))
            if not answer.get("more") or not rows:
                return found
            start = base64.b64decode(rows[-1]["key"]) + b"\0"

    def save(self, changes: Mapping[str, bytes | None]) -> None:
        """Writes and removes, in transactions that fail unless this controller still leads. Raises
        StoreError.
        """
        operations: list[dict[str, Any]] = []
        for key, value in changes.items():
            name = _b64(self._prefix + key)
            if value is None:
                operations.append({"request_delete_range": {"key": name}})
            else:
                operations.append({"request_put": {"key": name, "value": base64.b64encode(value).decode()}})
        for start in range(0, len(operations), OPERATIONS):
            self._save(operations[start : start + OPERATIONS])

    def _save(self, operations: Sequence[dict[str, Any]]) -> None:
        revision = self._leadership.revision
        condition = {"key": _b64(self._leadership.key), "target": "CREATE", "create_revision": str(revision)}
        if not revision:
            raise StoreError("etcd: this controller does not lead")
        answer = self._client.request("kv/txn", {"compare": [condition], "success": list(operations)})
        if not answer.get("succeeded"):
            raise StoreError("etcd: another controller leads; nothing was written")

    def close(self) -> None:
        """Does nothing: the client is shared with the leadership."""


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


__all__ = ["EtcdClient", "EtcdStore", "Leadership"]
