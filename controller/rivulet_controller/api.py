"""The REST and WebSocket API, the status page and the metrics, for `rivuletctl`, browsers and
Prometheus.

The owner of the Unix socket may do everything. Over TCP a token gives the caller's name and role
(rights.py); without a token file the API listens on loopback only, where every user may read and
none may change. A change is recorded in the audit log before it is made, and needs a header that no
other site's page can send.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, Field
from starlette.types import Scope

from . import view
from .audit import Audit, AuditError
from .body_limit import BODY_S, BodyLimit
from .config import ConfigError
from .controller import Controller
from .cookie import Segment
from .keys import Kind
from .metrics import Metrics
from .mistakes import in_words
from .names import NamesError
from .rights import Caller, Listener, Role, Tokens, listener_of
from .state import OutOfNumbers
from .store import StoreError
from .switch import SwitchError
from .trace import trace
from .worker import Busy, Overdue

CLIENT_HEADER = "x-rivulet-client"
"""Required for changes. A browser sends it across origins only after a preflight request, which the
API refuses."""

CONFIG_MAX = 4 << 20
"""Longest configuration in bytes."""

BODIES_MAX = 8
"""Configurations that may be received for plans at a time."""

LIVE_MAX = 50
"""Clients of `/api/live` at a time."""

LIVE_S = 1.0
"""Interval of snapshots to clients of `/api/live`."""

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:;"
    " frame-ancestors 'none'"
)
"""The page is one file that loads nothing, and no other page may show it in a frame."""

KILL_PATIENCE_S = 10.0


class Weight(BaseModel):
    """Body of a change of weight; null restores the configuration's weight."""

    weight: int | None = Field(ge=0, le=256)


class Rotation(BaseModel):
    """Body of a key rotation."""

    kinds: list[Literal["seal", "nonce", "cookie", "tor", "ticket"]] = Field(default=["seal", "nonce"], max_length=5)


class Live:
    """The newest snapshot as JSON, made at most once a second for all clients."""

    def __init__(self, controller: Controller, audit: Audit) -> None:
        self._controller = controller
        self._audit = audit
        self._made = float("-inf")
        self._text = ""

    def text(self) -> str:
        """JSON, at most one interval old."""
        if time.monotonic() - self._made > 0.9 * LIVE_S:
            self._text = json.dumps(view.snapshot(self._controller, self._audit.recent))
            self._made = time.monotonic()
        return self._text


class Places:
    """A limit of concurrent uses."""

    def __init__(self, most: int) -> None:
        self._free = most

    @contextmanager
    def place(self) -> Iterator[bool]:
        """Takes a place for the block; yields False if none is free."""
        if self._free <= 0:
            yield False
            return
        self._free -= 1
        try:
            yield True
        finally:
            self._free += 1


class CachedText:
    """A response that many clients may request. Making it takes at most a tenth of the event loop's
    time, however many requests arrive.
    """

    def __init__(self, make: Callable[[], str | bytes]) -> None:
        self._make = make
        self._text: str | bytes = ""
        self._good_until = float("-inf")

    def text(self) -> str | bytes:
        """The text; its age is at most nine times the time that it took to make."""
        began = time.monotonic()
        if began >= self._good_until:
            self._text = self._make()
            now = time.monotonic()
            self._good_until = now + 9 * (now - began)
        return self._text

    def forget(self) -> None:
        """Discards the text, so that the next request makes a new one."""
        self._good_until = float("-inf")


def caller(request: Request) -> Caller:
    """The authenticated caller. Raises 400 for a TCP connection without a peer address, and 401 for
    a missing or unknown token.
    """
    tokens: Tokens = request.app.state.tokens
    claimed = request.headers.get(CLIENT_HEADER, "")[:64] or "unnamed"
    if listener_of(request.scope) is Listener.UNIX:
        return Caller(f"{claimed}@local", Role.APPLY)
    if request.client is None:
        # The client has reset the connection: the audit log could not name its address.
        raise HTTPException(400, "the connection's client has disconnected")
    peer = request.client.host
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if not token and not tokens.wanted:
        # Any user of this machine can open this connection.
        return Caller(f"{claimed}@{peer}", Role.READ)
    known = tokens.caller(token.strip()) if scheme.lower() == "bearer" else None
    if known is None:
        raise HTTPException(401, "a token is required: `Authorization: Bearer TOKEN`")
    return Caller(f"{known.name}@{peer}", known.role)


def _allowed(request: Request, who: Caller, role: Role) -> str:
    """The caller's name, if its role suffices and the request has the header of CLIENT_HEADER.
    Raises 403, 409.
    """
    if not request.headers.get(CLIENT_HEADER):
        raise HTTPException(403, f"this request needs the header {CLIENT_HEADER} with the client's name")
    if who.role < role:
        raise HTTPException(
            403,
            f"{who.name} has the role {who.role.name.lower()}; this needs a token with the role {role.name.lower()}"
            " (listen.api_token_file), or the Unix socket of listen.control",
        )
    controller: Controller = request.app.state.controller
    if not controller.leading:
        raise HTTPException(
            409, f"this controller does not lead: send it to the leader ({controller.leader or 'none'})"
        )
    return who.name


Reader = Annotated[Caller, Depends(caller)]


def operator(request: Request, who: Reader) -> str:
    """The name of a caller that may drain, weigh and kill replicas, and rotate keys."""
    return _allowed(request, who, Role.OPERATE)


def configurer(request: Request, who: Reader) -> str:
    """The name of a caller that may replace the configuration."""
    return _allowed(request, who, Role.APPLY)


Operator = Annotated[str, Depends(operator)]
Configurer = Annotated[str, Depends(configurer)]


def make_app(controller: Controller, tokens: Tokens, audit: Audit) -> FastAPI:
    """Builds the application."""
    app = FastAPI(title="Rivulet controller", version="1", docs_url=None, redoc_url=None)
    app.state.controller, app.state.tokens = controller, tokens
    app.add_middleware(BodyLimit)
    live_text = Live(controller, audit)
    metrics_text = CachedText(Metrics(controller).text)
    status_text = CachedText(lambda: json.dumps(view.snapshot(controller, audit.recent)))
    replicas_text = CachedText(lambda: json.dumps(view.replicas(controller)))
    services_text = CachedText(lambda: json.dumps(view.services(controller)))
    health_text = CachedText(
        lambda: "\n".join(
            [f"{s['name']}: {s['problem']}" for s in view.switches(controller) if s["problem"]] + controller.problems()
        )
    )
    shared = (metrics_text, status_text, replicas_text, services_text, health_text)
    bodies, live_sockets = Places(BODIES_MAX), Places(LIVE_MAX)

    def is_for_us(scope: Scope, host: str | None) -> bool:
        return listener_of(scope) is Listener.UNIX or tokens.wanted or (host is not None and _is_loopback(host))

    @app.middleware("http")
    async def own_pages_only(request: Request, call_next: Any) -> Response:
        # Against DNS rebinding: without tokens, the Host header must name this machine. Requests
        # from another site's page are refused before they cost anything.
        if not is_for_us(request.scope, request.headers.get("host")):
            return PlainTextResponse("the Host header does not name this controller", status_code=421)
        if _foreign(request.headers.get("origin"), request.headers.get("host", "")):
            return PlainTextResponse("refused: the request comes from another site's page", status_code=403)
        answer: Response = await call_next(request)
        if request.method != "GET" and request.url.path != "/api/plan" and answer.status_code < 400:
            # A caller that made a change must see it in its next request.
            for text in shared:
                text.forget()
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @app.exception_handler(AuditError)
    @app.exception_handler(StoreError)
    async def not_durable(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": f"{error}: nothing was changed"}, status_code=503)

    @app.exception_handler(RequestValidationError)
    async def not_valid(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": [in_words(item) for item in error.errors()]}, status_code=422)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        html = resources.files("rivulet_controller").joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(html, headers={"Content-Security-Policy": PAGE_POLICY})

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> PlainTextResponse:
        """200 if every switch is connected and holds its entries, otherwise 503 with the reasons."""
        problems = health_text.text()
        return PlainTextResponse(problems or "ok", status_code=503 if problems else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus(_: Reader) -> PlainTextResponse:
        return PlainTextResponse(metrics_text.text(), media_type="text/plain; version=0.0.4")

    @app.get("/api/rights")
    async def rights(who: Reader) -> dict[str, str]:
        """The caller's name and role."""
        return {"name": who.name, "role": who.role.name.lower()}

    @app.get("/api/leader")
    async def leader(_: Reader) -> dict[str, Any]:
        """Whether this controller leads, and the leader's name otherwise."""
        return {"leading": controller.leading, "leader": "" if controller.leading else controller.leader}

    @app.get("/api/status", response_model=dict[str, Any])
    async def status(_: Reader) -> Response:
        """A snapshot of the whole rack."""
        return Response(status_text.text(), media_type="application/json")

    @app.get("/api/state")
    async def state(_: Reader) -> dict[str, Any]:
        """A digest of the state in memory, to compare it with the store, and the number of values
        not yet saved.
        """
        return {"digest": controller.state.digest(), "unsaved": controller.state.unsaved()}

    @app.get("/api/replicas", response_model=list[dict[str, Any]])
    async def replicas(_: Reader) -> Response:
        return Response(replicas_text.text(), media_type="application/json")

    @app.get("/api/replicas/{name}")
    async def one_replica(name: str, _: Reader) -> dict[str, Any]:
        """One replica with its history of states."""
        try:
            return view.replica(controller, name)
        except KeyError as error:
            raise HTTPException(404, error.args[0]) from None

    @app.get("/api/services", response_model=list[dict[str, Any]])
    async def services(_: Reader) -> Response:
        return Response(services_text.text(), media_type="application/json")

    @app.get("/api/switches/{name}/entries")
    async def entries(name: str, _: Reader) -> list[str]:
        """A switch's entries, sorted, one readable line each; keys are not shown."""
        if name not in controller.fleet.switches:
            raise HTTPException(404, f"there is no switch {name!r}")
        items = controller.fleet.switches[name].link.items()
        return await asyncio.to_thread(lambda: sorted(map(str, items)))

    @app.get("/api/switches/{name}/trace")
    async def packet(
        name: str,
        address: str,
        port: int,
        _: Reader,
        rivulet: bool = True,
        client: str = "",
        client_port: Annotated[int, Query(ge=0, le=0xFFFF)] = 0,
        ack: Annotated[int | None, Query(ge=0, le=0xFFFF_FFFF)] = None,
        tsecr: Annotated[int | None, Query(ge=0, le=0xFFFF_FFFF)] = None,
        data: bool = False,
    ) -> list[dict[str, str]]:
        """The path of a packet to an address and port through the switch's tables.

        For a plain segment, `client`, `client_port`, `ack` (absolute, not relative to the ISN) and
        `tsecr` (with timestamps) show how a stateless service handles it.
        """
        if name not in controller.fleet.switches:
            raise HTTPException(404, f"there is no switch {name!r}")
        try:
            where = ipaddress.ip_address(address)
            segment = None
            if ack is not None and client:
                segment = Segment(ipaddress.ip_address(client), client_port, ack, tsecr, data)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        link = controller.fleet.switches[name].link
        steps = await asyncio.to_thread(trace, link.items(), link.names, where, port, rivulet, segment)
        return [{"table": s.table, "row": s.row, "meaning": s.meaning} for s in steps]

    async def decide(who: str, what: str, name: str, **decision: Any) -> dict[str, str]:
        if not any(place.name == name for place in controller.config.replicas):
            raise HTTPException(404, f"there is no replica {name!r}")
        audit.note(who, what, replica=name, **decision)
        await controller.decide(name, **decision)
        return {"done": f"{what} {name}"}

    @app.post("/api/replicas/{name}/drain")
    async def drain(name: str, who: Operator) -> dict[str, str]:
        """New flows go to other replicas; existing connections continue."""
        return await decide(who, "drain", name, draining=True)

    @app.post("/api/replicas/{name}/undrain")
    async def undrain(name: str, who: Operator) -> dict[str, str]:
        return await decide(who, "undrain", name, draining=False)

    @app.post("/api/replicas/{name}/weight")
    async def weight(name: str, body: Weight, who: Operator) -> dict[str, str]:
        return await decide(who, "weight", name, weight=-1 if body.weight is None else body.weight)

    @app.post("/api/replicas/{name}/kill")
    async def kill(name: str, who: Operator) -> dict[str, str]:
        """Runs the replica's kill command; only in a lab."""
        place = next((r for r in controller.config.replicas if r.name == name), None)
        if place is None:
            raise HTTPException(404, f"there is no replica {name!r}")
        if not controller.config.listen.lab or not place.kill_command:
            raise HTTPException(403, "only in a lab: set `listen.lab` and the replica's `kill_command`")
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
    async def rotate(name: str, body: Rotation, who: Operator) -> dict[str, str]:
        """Creates new keys; replicas accept the old ones as long as they are needed."""
        service = next((service for service in controller.config.services if service.name == name), None)
        if service is None:
            raise HTTPException(404, f"there is no service {name!r}")
        if "ticket" in body.kinds and service.tls is None:
            raise HTTPException(422, f"service {name!r} has no ticket keys: it has no `tls`")
        audit.note(who, "rotate", service=name, kinds=body.kinds)
        controller.rotate(name, frozenset(Kind(kind) for kind in body.kinds))
        return {"done": f"rotate {name}"}

    async def posted(request: Request) -> str:
        text = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    text += part
                    if len(text) > CONFIG_MAX:
                        raise HTTPException(413, f"a configuration may have at most {CONFIG_MAX} bytes")
        except TimeoutError:
            raise HTTPException(408, f"the configuration took longer than {BODY_S:g} s to arrive") from None
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise HTTPException(422, f"not UTF-8: {error}") from None

    @contextmanager
    def refusals() -> Iterator[None]:
        """Turns errors of a configuration into HTTP responses."""
        try:
            yield
        except ConfigError as error:
            raise HTTPException(422, error.problems) from None
        except Overdue as error:
            raise HTTPException(422, [f"config: checking it {error}"]) from None
        except Busy as error:
            raise HTTPException(503, str(error)) from None
        except (SwitchError, OutOfNumbers, NamesError) as error:
            raise HTTPException(409, [str(error)]) from None

    @app.get("/api/config", response_class=PlainTextResponse)
    async def config_in_force(_: Reader) -> str:
        """The text (YAML) of the configuration in force, from the file or from `apply`."""
        return controller.text

    @app.post("/api/plan", response_model=dict[str, list[str]])
    async def plan(request: Request, who: Reader) -> Response:
        """The writes that a configuration (YAML, in the body) would cause on each switch; writes
        nothing.
        """
        _allowed(request, who, Role.READ)
        with refusals(), bodies.place() as has_place:
            # Before the body is received, so that a refused request uses no memory.
            controller.validator.plans.refuse_if_busy()
            if not has_place:
                raise Busy(f"{BODIES_MAX} configurations are being received: try again later")
            text = await posted(request)
        with refusals():
            return Response(await controller.validator.plan(text, controller.local), media_type="application/json")

    @app.post("/api/apply")
    async def apply(request: Request, who: Configurer) -> dict[str, str]:
        """Puts a configuration (YAML, in the body) in force, durably until the controller's file
        changes. It takes effect as a whole or, if refused, not at all.
        """
        text = await posted(request)
        with refusals():
            config = await controller.validator.change(text, "config", controller.local)
        audit.note(who, "apply")
        if not await controller.change(config, who, text, applied=True):
            with suppress(AuditError):
                audit.note(who, "apply refused", problem=controller.config_problem)
            raise HTTPException(409, [controller.config_problem])
        return {"done": "apply"}

    @app.websocket("/api/live")
    async def live(socket: WebSocket) -> None:
        """Sends a snapshot each second. Over TCP with tokens, the client's first message is its
        token.
        """
        host = socket.headers.get("host")
        if _foreign(socket.headers.get("origin"), host or "") or not is_for_us(socket.scope, host):
            await socket.close(4403)
            return
        await socket.accept()
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            if listener_of(socket.scope) is not Listener.UNIX and tokens.wanted:
                async with asyncio.timeout(5.0):
                    token = await socket.receive_text()
                if tokens.caller(token) is None:
                    await socket.close(4401)
                    return
            with live_sockets.place() as has_place:
                if not has_place:
                    await socket.close(1013, f"{LIVE_MAX} clients are connected already")
                    return
                while True:
                    await socket.send_text(live_text.text())
                    await asyncio.sleep(LIVE_S)

    return app


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine's loopback."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _foreign(origin: str | None, host: str) -> bool:
    """Whether the Origin header names another site."""
    return origin is not None and origin.split("//")[-1] != host
