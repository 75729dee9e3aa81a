"""The REST and WebSocket API, the page and the metrics: what `rivuletctl`, browsers and Prometheus talk to.

On a Unix socket or loopback anybody who reaches it may use it; with a token file a request needs a token. Every change
is written to the audit log with who and what. Changes need a header that no foreign web page can send.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from pydantic import BaseModel, Field

from . import view
from .config import ConfigError, parse
from .controller import Controller
from .keys import Kind
from .metrics import Metrics
from .state import OutOfNumbers
from .switch import SwitchError
from .trace import trace

log = logging.getLogger("rivulet.audit")

CLIENT_HEADER = "x-rivulet-client"
"""Changes carry it: a browser sends it across origins only after asking, and we never say yes."""

CONFIG_MAX = 4 << 20
"""Longest configuration, bytes."""

LIVE_S = 1.0
"""How often the page hears."""

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:;"
    " frame-ancestors 'none'"
)
"""The page is one file and fetches nothing from elsewhere; nobody may frame its buttons."""

KILL_PATIENCE_S = 10.0


class Tokens:
    """The tokens of a file, one `NAME:TOKEN` a line."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def wanted(self) -> bool:
        """Whether requests need one."""
        return self._path is not None

    def who(self, token: str) -> str | None:
        """Whose token this is. The file is read each time, so that a token can be withdrawn."""
        if self._path is None:
            return None
        found = None
        for line in self._path.read_text(encoding="utf-8").splitlines():
            name, _, secret = line.strip().partition(":")
            if secret and hmac.compare_digest(secret.encode(), token.encode()):
                found = name
        return found


class Audit:
    """The log of changes: a line of JSON each, in a file of the controller's user."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def note(self, who: str, what: str, **details: Any) -> None:
        """Writes one line. A file that cannot be written is said and does not stop the change's undoing."""
        line = json.dumps({"time": round(time.time(), 3), "who": who, "what": what, **details})
        log.info("%s", line)
        if self._path is None:
            return
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            log.error("audit log %s: %s", self._path, error)


class Weight(BaseModel):
    """Body of a change of weight; null goes back to the configuration's."""

    weight: int | None = Field(ge=0, le=256)


class Rotation(BaseModel):
    """Body of a rotation."""

    kinds: list[Literal["seal", "nonce"]] = ["seal", "nonce"]


def reader(request: Request) -> str:
    """Who asks. Raises 401 without a token where one is needed."""
    tokens: Tokens = request.app.state.tokens
    claimed = request.headers.get(CLIENT_HEADER, "")[:64]
    peer = request.client.host if request.client else "local"
    if not tokens.wanted:
        return f"{claimed or 'somebody'}@{peer}"
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    name = tokens.who(token.strip()) if scheme.lower() == "bearer" else None
    if name is None:
        raise HTTPException(401, "a token is needed: `Authorization: Bearer TOKEN`")
    return f"{name}@{peer}"


Reader = Annotated[str, Depends(reader)]


def writer(request: Request, who: Reader) -> str:
    """Who changes something. Raises 403 for what a foreign page could have sent, 409 for a controller in waiting."""
    if not request.headers.get(CLIENT_HEADER):
        raise HTTPException(403, f"changes carry the header {CLIENT_HEADER} with the client's name")
    controller: Controller = request.app.state.controller
    if not controller.leading:
        raise HTTPException(
            409, f"this controller does not lead: ask the one that does ({controller.leader or 'none'})"
        )
    return who


Writer = Annotated[str, Depends(writer)]


def make_app(controller: Controller, tokens: Tokens, audit: Audit) -> FastAPI:
    """The application."""
    app = FastAPI(title="Rivulet controller", version="1", docs_url=None, redoc_url=None)
    app.state.controller, app.state.tokens = controller, tokens
    metrics = Metrics(controller)

    @app.middleware("http")
    async def own_host_only(request: Request, call_next: Any) -> Response:
        # Against DNS rebinding: without a token, only names of this machine are answered.
        if not tokens.wanted and not _own_host(request.headers.get("host", "")):
            return PlainTextResponse("this name is not ours", status_code=421)
        answer: Response = await call_next(request)
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        html = resources.files("rivulet_controller").joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(html, headers={"Content-Security-Policy": PAGE_POLICY})

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> PlainTextResponse:
        """200 when every switch is connected and as described, 503 with the reasons otherwise."""
        problems = [f"{s['name']}: {s['problem']}" for s in view.switches(controller) if s["problem"]]
        problems += controller.problems()
        return PlainTextResponse("\n".join(problems) or "ok", status_code=503 if problems else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus(_: Reader) -> PlainTextResponse:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/api/leader")
    async def leader(_: Reader) -> dict[str, Any]:
        """Whether this controller leads, and who does otherwise."""
        return {"leading": controller.leading, "leader": "" if controller.leading else controller.leader}

    @app.get("/api/status")
    async def status(_: Reader) -> dict[str, Any]:
        """Everything at a glance."""
        return view.snapshot(controller)

    @app.get("/api/replicas")
    async def replicas(_: Reader) -> list[dict[str, Any]]:
        return view.replicas(controller)

    @app.get("/api/services")
    async def services(_: Reader) -> list[dict[str, Any]]:
        return view.services(controller)

    @app.get("/api/switches/{name}/entries")
    async def entries(name: str, _: Reader) -> list[str]:
        """What a switch has, one readable line each, sorted; keys are not shown."""
        if name not in controller.fleet.switches:
            raise HTTPException(404, f"there is no switch {name!r}")
        return sorted(str(item) for item in controller.fleet.switches[name].link.items())

    @app.get("/api/switches/{name}/trace")
    async def packet(name: str, address: str, port: int, _: Reader, rivulet: bool = True) -> list[dict[str, str]]:
        """The way of a packet to an address and port through the switch's tables."""
        if name not in controller.fleet.switches:
            raise HTTPException(404, f"there is no switch {name!r}")
        try:
            where = ipaddress.ip_address(address)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        link = controller.fleet.switches[name].link
        steps = trace(link.items(), link.names, where, port, rivulet)
        return [{"table": s.table, "row": s.row, "meaning": s.meaning} for s in steps]

    async def decide(who: str, what: str, name: str, **decision: Any) -> dict[str, str]:
        try:
            await controller.decide(name, **decision)
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from None
        audit.note(who, what, replica=name, **decision)
        return {"done": f"{what} {name}"}

    @app.post("/api/replicas/{name}/drain")
    async def drain(name: str, who: Writer) -> dict[str, str]:
        """New flows go elsewhere; what runs goes on."""
        return await decide(who, "drain", name, draining=True)

    @app.post("/api/replicas/{name}/undrain")
    async def undrain(name: str, who: Writer) -> dict[str, str]:
        return await decide(who, "undrain", name, draining=False)

    @app.post("/api/replicas/{name}/weight")
    async def weight(name: str, body: Weight, who: Writer) -> dict[str, str]:
        return await decide(who, "weight", name, weight=-1 if body.weight is None else body.weight)

    @app.post("/api/replicas/{name}/kill")
    async def kill(name: str, who: Writer) -> dict[str, str]:
        """Runs the replica's kill command; in the lab only."""
        place = next((r for r in controller.config.replicas if r.name == name), None)
        if place is None:
            raise HTTPException(404, f"there is no replica {name!r}")
        if not controller.config.listen.lab or not place.kill_command:
            raise HTTPException(403, "only in the lab: `listen.lab` and the replica's `kill_command`")
        audit.note(who, "kill", replica=name)
        process = await asyncio.create_subprocess_exec(
            *place.kill_command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(KILL_PATIENCE_S):
                _, stderr = await process.communicate()
        except TimeoutError:
            process.kill()
            raise HTTPException(500, "the kill command did not end") from None
        if process.returncode:
            raise HTTPException(500, f"the kill command failed: {stderr.decode(errors='replace')[:500]}")
        return {"done": f"kill {name}"}

    @app.post("/api/services/{name}/rotate")
    async def rotate(name: str, body: Rotation, who: Writer) -> dict[str, str]:
        """New keys now; the old ones stay accepted for as long as anything needs them."""
        try:
            controller.rotate(name, frozenset(Kind(kind) for kind in body.kinds))
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from None
        audit.note(who, "rotate", service=name, kinds=body.kinds)
        return {"done": f"rotate {name}"}

    async def posted(request: Request) -> str:
        text = b""
        async for part in request.stream():
            text += part
            if len(text) > CONFIG_MAX:
                raise HTTPException(413, f"a configuration has at most {CONFIG_MAX} bytes")
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise HTTPException(422, f"not UTF-8: {error}") from None

    @app.post("/api/plan")
    async def plan(request: Request, _: Reader) -> dict[str, list[str]]:
        """What a configuration (YAML, the body) would change on each switch; nothing is written."""
        try:
            return controller.plan(parse(await posted(request), "config"))
        except ConfigError as error:
            raise HTTPException(422, error.problems) from None
        except (SwitchError, OutOfNumbers) as error:
            raise HTTPException(409, [str(error)]) from None

    @app.post("/api/apply")
    async def apply(request: Request, who: Writer) -> dict[str, str]:
        """Brings a configuration (YAML, the body) into force and writes it to the controller's file."""
        text = await posted(request)
        try:
            config = parse(text, "config")
        except ConfigError as error:
            raise HTTPException(422, error.problems) from None
        if not await controller.change(config, who, text):
            audit.note(who, "apply refused", problem=controller.config_problem)
            raise HTTPException(409, [controller.config_problem])
        if controller.path is not None:
            await asyncio.to_thread(_replace, controller.path, text)
        audit.note(who, "apply")
        return {"done": "apply"}

    @app.websocket("/api/live")
    async def live(socket: WebSocket) -> None:
        """A snapshot each second. With tokens, the first message from the client is its token."""
        origin = socket.headers.get("origin")
        host = socket.headers.get("host", "")
        foreign = origin is not None and origin.split("//")[-1] != host
        if foreign or (not tokens.wanted and not _own_host(host)):
            await socket.close(4403)
            return
        await socket.accept()
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            if tokens.wanted:
                async with asyncio.timeout(5.0):
                    token = await socket.receive_text()
                if tokens.who(token) is None:
                    await socket.close(4401)
                    return
            async for text in _snapshots(controller):
                await socket.send_text(text)

    return app


async def _snapshots(controller: Controller) -> AsyncIterator[str]:
    while True:
        yield json.dumps(view.snapshot(controller))
        await asyncio.sleep(LIVE_S)


def _own_host(host: str) -> bool:
    """Whether a Host header names this machine's loopback (or nothing, as over a Unix socket)."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]")
    if name in ("", "localhost", "rivulet"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _replace(path: Path, text: str) -> None:
    """Writes a file so that it is either the old one or the new one, whatever happens."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
