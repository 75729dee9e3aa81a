"""Client of the controller's API, for `rivuletctl` and scripts."""

from __future__ import annotations

import getpass
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx
import websockets

from .listen_config import is_local


class ApiError(Exception):
    """The controller cannot be reached or refused a request; the text is for the operator."""


def leading(addresses: str, token: str = "", timeout_s: float = 30.0, authority: str = "") -> Client:
    """A client of the leader among the controllers `ADDRESS,ADDRESS,…`, or of the first that
    answers if none leads.

    Raises ApiError if no controller answers.
    """
    clients = [
        Client(address.strip(), token, timeout_s, authority) for address in addresses.split(",") if address.strip()
    ]
    if len(clients) == 1:
        return clients[0]
    answered, problems = [], []
    for client in clients:
        try:
            if client.get("/api/leader")["leading"]:
                return client
            answered.append(client)
        except ApiError as error:
            problems.append(str(error))
    if not answered:
        raise ApiError("; ".join(problems) or "no address of a controller")
    return answered[0]


class Client:
    """Connects to `unix:PATH`, HOST:PORT or a URL; `token` authenticates it over TCP.

    >>> Client("unix:/run/rivulet/api.sock").get("/api/replicas")
    """

    def __init__(self, address: str, token: str = "", timeout_s: float = 30.0, authority: str = "") -> None:
        """`authority`: file with the certificate that signs the controller's; selects https.

        Raises ApiError, also if the token would cross a network in the clear.
        """
        self.address = address
        self._token = token
        headers = {"x-rivulet-client": f"rivuletctl {getpass.getuser()}"[:64]}
        if token:
            headers["authorization"] = f"Bearer {token}"
        transport = None
        base = address if "://" in address else f"{'https' if authority else 'http'}://{address}"
        try:
            self._tls = (
                ssl.create_default_context(cafile=authority or None) if base.lower().startswith("https:") else None
            )
        except OSError as error:
            raise ApiError(f"the authority's certificate {authority} cannot be read: {error}") from None
        if address.startswith("unix:"):
            transport = httpx.HTTPTransport(uds=address.removeprefix("unix:"))
            base = "http://rivulet"
        elif token and self._tls is None and not is_local(f"{httpx.URL(base).host}:0"):
            raise ApiError(
                f"{address}: the token would cross the network in the clear: give the certificate that signs the"
                " controller's (--authority, RIVULET_AUTHORITY), or use https://"
            )
        self._base = base
        self._http = httpx.Client(
            base_url=base, headers=headers, transport=transport, timeout=timeout_s, trust_env=False,
            verify=self._tls or True,
        )  # fmt: skip

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON of a response. Raises ApiError."""
        return self._request("GET", path, params=parameters)

    def text(self, path: str) -> str:
        """The text of a response, for metrics and configurations. Raises ApiError."""
        try:
            answer = self._http.get(path)
        except httpx.HTTPError as error:
            raise ApiError(f"no controller at {self.address}: {error}") from None
        if answer.status_code >= 400:
            raise ApiError(_reason(answer))
        return answer.text

    def post(self, path: str, body: Any = None, text: str | None = None) -> Any:
        """Posts JSON, or `text` unchanged. Raises ApiError."""
        if text is not None:
            return self._request("POST", path, content=text.encode())
        return self._request("POST", path, json=body)

    def _request(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            answer = self._http.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise ApiError(f"no controller at {self.address}: {error}") from None
        if answer.status_code >= 400:
            raise ApiError(_reason(answer))
        try:
            return answer.json()
        except json.JSONDecodeError:
            raise ApiError(f"{self.address} is not the controller's API") from None

    async def live(self) -> AsyncIterator[dict[str, Any]]:
        """Yields a snapshot each second until the controller ends. Raises ApiError."""
        url = self._base.replace("http", "ws", 1) + "/api/live"
        try:
            if self.address.startswith("unix:"):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.connect(self.address.removeprefix("unix:"))
                connection = websockets.connect(url, sock=sock, max_size=64 << 20)
            else:
                connection = websockets.connect(url, max_size=64 << 20, proxy=None, ssl=self._tls)
            async with connection as stream:
                if self._token:
                    await stream.send(self._token)
                async for message in stream:
                    yield json.loads(message)
        except (OSError, websockets.WebSocketException) as error:
            raise ApiError(f"no controller at {self.address}: {error}") from None


def _reason(answer: httpx.Response) -> str:
    """The reason in a refusal."""
    try:
        detail = answer.json().get("detail", answer.text)
    except (json.JSONDecodeError, AttributeError):
        detail = answer.text
    if isinstance(detail, list):
        return "\n".join(item if isinstance(item, str) else str(item.get("msg", item)) for item in detail)
    return str(detail) or f"HTTP {answer.status_code}"


CONTROL = "/run/rivulet/control.sock"
"""Path of the control socket (`listen.control`) in the packaged configuration."""


def default_address() -> str:
    """RIVULET_API (several addresses with commas), else the control socket if it exists, else the
    API's default.
    """
    return os.environ.get("RIVULET_API") or (f"unix:{CONTROL}" if os.path.exists(CONTROL) else "127.0.0.1:8080")
