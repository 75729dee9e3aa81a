"""The REST and WebSocket API, the page and the metrics: what `rivuletctl`, browsers and Prometheus
talk to.

The Unix socket's owner may do everything. Over TCP a token says who asks and what they may
(rights.py); without a token file, on loopback only, everybody may look and nobody may change. Every
change is on record in the audit log before it is made. Changes need a header that no foreign web
page can send.
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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import view
from .audit import Audit, AuditError
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
"""Changes carry it: a browser sends it across origins only after asking, and we never say yes."""

CONFIG_MAX = 4 << 20
"""Longest configuration, bytes."""

BODY_MAX = 64 << 10
"""Longest body of any other request: it is read before anybody knows who asks."""

BODY_S = 30.0
"""Time for a body, from its first byte to its last."""

BODIES_MAX = 8
"""Configurations that are read for a plan at the same time."""

LIVE_MAX = 50
"""Clients that get a snapshot each second."""

LIVE_S = 1.0
"""How often the page hears."""

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:;"
    " frame-ancestors 'none'"
)
"""The page is one file and fetches nothing from elsewhere; nobody may frame its buttons."""

KILL_PATIENCE_S = 10.0


class Weight(BaseModel):
    """Body of a change of weight; null goes back to the configuration's."""

    weight: int | None = Field(ge=0, le=256)


class Rotation(BaseModel):
    """Body of a rotation."""

    kinds: list[Literal["seal", "nonce", "cookie", "tor"]] = Field(default=["seal", "nonce"], max_length=4)


class Bounded:
    """Cuts off a request whose body is longer than what asks for it may send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ("/api/plan", "/api/apply"):
            # Those read their own body, once they know who asks.
            await self._app(scope, receive, send)
            return
        left, end, whole = BODY_MAX, asyncio.get_running_loop().time() + BODY_S, False

        async def bounded() -> Message:
            nonlocal left, whole
            if whole:
                # What comes behind the body is the end of the connection, whenever that is.
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body took longer than {BODY_S:g} s") from None
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"a body has at most {BODY_MAX} bytes")
            whole = not message.get("more_body", False)
            return message

        await self._app(scope, bounded, send)


class Live:
    """The newest snapshot as text: made once a second, however many look."""

    def __init__(self, controller: Controller, audit: Audit) -> None:
        self._controller = controller
        self._audit = audit
        self._made = float("-inf")
        self._text = ""

    def text(self) -> str:
        """JSON, at most so old as the pause between two."""
        if time.monotonic() - self._made > 0.9 * LIVE_S:
            self._text = json.dumps(view.snapshot(self._controller, self._audit.recent))
            self._made = time.monotonic()
        return self._text


class Limited:
    """Places for so many at a time."""

    def __init__(self, most: int) -> None:
        self._free = most

    @contextmanager
    def place(self) -> Iterator[bool]:
        """Takes a place for a while; false if there is none."""
        if self._free <= 0:
            yield False
            return
        self._free -= 1
        try:
            yield True
        finally:
            self._free += 1


class Shared:
    """A text that many may ask for. Making it takes a tenth of the event loop's time at most,
    however many ask.
    """

    def __init__(self, make: Callable[[], str | bytes]) -> None:
        self._make = make
        self._text: str | bytes = ""
        self._good_until = float("-inf")

    def text(self) -> str | bytes:
        """The text, at most nine times as old as making it took."""
        began = time.monotonic()
        if began >= self._good_until:
            self._text = self._make()
            now = time.monotonic()
            self._good_until = now + 9 * (now - began)
        return self._text

    def forget(self) -> None:
        """The next one who asks gets a new text."""
        self._good_until = float("-inf")


def caller(request: Request) -> Caller:
    """Who asks. Raises 400 for a TCP connection without a peer, 401 for a token that is none or is
    missing.
    """
    tokens: Tokens = request.app.state.tokens
    claimed = request.headers.get(CLIENT_HEADER, "")[:64] or "somebody"
    if listener_of(request.scope) is Listener.UNIX:
        return Caller(f"{claimed}@local", Role.APPLY)
    if request.client is None:
        # The client has reset the connection: the audit log could not name its address.
        raise HTTPException(400, "this connection has no peer any more")
    peer = request.client.host
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if not token and not tokens.wanted:
        # Any user of this machine may be at the other end.
        return Caller(f"{claimed}@{peer}", Role.READ)
    known = tokens.caller(token.strip()) if scheme.lower() == "bearer" else None
    if known is None:
        raise HTTPException(401, "a token is needed: `Authorization: Bearer TOKEN`")
    return Caller(f"{known.name}@{peer}", known.role)


def _allowed(request: Request, who: Caller, role: Role) -> str:
    """The caller's name, if the role is enough and no foreign page can have sent it. Raises 403,
    409.
    """
    if not request.headers.get(CLIENT_HEADER):
        raise HTTPException(403, f"this wants the header {CLIENT_HEADER} with the client's name")
    if who.role < role:
        raise HTTPException(
            403,
            f"{who.name} may {who.role.name.lower()}; this wants a token with the role {role.name.lower()}"
            " (listen.api_token_file), or the Unix socket of listen.control",
        )
    controller: Controller = request.app.state.controller
    if not controller.leading:
        raise HTTPException(
            409, f"this controller does not lead: ask the one that does ({controller.leader or 'none'})"
        )
    return who.name


Reader = Annotated[Caller, Depends(caller)]


def operator(request: Request, who: Reader) -> str:
    """Who changes how replicas and keys are used."""
    return _allowed(request, who, Role.OPERATE)


def configurer(request: Request, who: Reader) -> str:
    """Who replaces the configuration."""
    return _allowed(request, who, Role.APPLY)


Operator = Annotated[str, Depends(operator)]
Configurer = Annotated[str, Depends(configurer)]


def make_app(controller: Controller, tokens: Tokens, audit: Audit) -> FastAPI:
    """The application."""
    app = FastAPI(title="Rivulet controller", version="1", docs_url=None, redoc_url=None)
    app.state.controller, app.state.tokens = controller, tokens
    app.add_middleware(Bounded)
    live_text = Live(controller, audit)
    metrics_text = Shared(Metrics(controller).text)
    status_text = Shared(lambda: json.dumps(view.snapshot(controller, audit.recent)))
    replicas_text = Shared(lambda: json.dumps(view.replicas(controller)))
    services_text = Shared(lambda: json.dumps(view.services(controller)))
    health_text = Shared(
        lambda: "\n".join(
            [f"{s['name']}: {s['problem']}" for s in view.switches(controller) if s["problem"]] + controller.problems()
        )
    )
    shared = (metrics_text, status_text, replicas_text, services_text, health_text)
    bodies, live_sockets = Limited(BODIES_MAX), Limited(LIVE_MAX)

    def names_us(scope: Scope, host: str | None) -> bool:
        return listener_of(scope) is Listener.UNIX or tokens.wanted or (host is not None and _is_loopback(host))

    @app.middleware("http")
    async def own_pages_only(request: Request, call_next: Any) -> Response:
        # Against DNS rebinding: without a token, only names of this machine are answered. And
        # whatever another site's page sends through a browser is refused before it costs anything.
        if not names_us(request.scope, request.headers.get("host")):
            return PlainTextResponse("this name is not ours", status_code=421)
        if _foreign(request.headers.get("origin"), request.headers.get("host", "")):
            return PlainTextResponse("not from another site's page", status_code=403)
        answer: Response = await call_next(request)
        if request.method != "GET" and request.url.path != "/api/plan" and answer.status_code < 400:
            # Who made a change sees it in what is asked for next.
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
        """200 when every switch is connected and as described, 503 with the reasons otherwise."""
        problems = health_text.text()
        return PlainTextResponse(problems or "ok", status_code=503 if problems else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus(_: Reader) -> PlainTextResponse:
        return PlainTextResponse(metrics_text.text(), media_type="text/plain; version=0.0.4")

    @app.get("/api/rights")
    async def rights(who: Reader) -> dict[str, str]:
        """Who asks, and the role they have."""
        return {"name": who.name, "role": who.role.name.lower()}

    @app.get("/api/leader")
    async def leader(_: Reader) -> dict[str, Any]:
        """Whether this controller leads, and who does otherwise."""
        return {"leading": controller.leading, "leader": "" if controller.leading else controller.leader}

    @app.get("/api/status", response_model=dict[str, Any])
    async def status(_: Reader) -> Response:
        """Everything at a glance."""
        return Response(status_text.text(), media_type="application/json")

    @app.get("/api/state")
    async def state(_: Reader) -> dict[str, Any]:
        """What is remembered, for a comparison with what is on disk: a digest, and how many values
        are not durable.
        """
        return {"digest": controller.state.digest(), "unsaved": controller.state.unsaved()}

    @app.get("/api/replicas", response_model=list[dict[str, Any]])
    async def replicas(_: Reader) -> Response:
        return Response(replicas_text.text(), media_type="application/json")

    @app.get("/api/replicas/{name}")
    async def one_replica(name: str, _: Reader) -> dict[str, Any]:
        """One replica, with the states it was in."""
        try:
            return view.replica(controller, name)
        except KeyError as error:
            raise HTTPException(404, error.args[0]) from None

    @app.get("/api/services", response_model=list[dict[str, Any]])
    async def services(_: Reader) -> Response:
        return Response(services_text.text(), media_type="application/json")

    @app.get("/api/switches/{name}/entries")
    async def entries(name: str, _: Reader) -> list[str]:
        """What a switch has, one readable line each, sorted; keys are not shown."""
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
        """The way of a packet to an address and port through the switch's tables.

        Of a plain segment `client`, `client_port` and `ack` (absolute, not relative to the ISN) say
        what becomes of it at a stateless service, with `tsecr` where it has timestamps.
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
        """New flows go elsewhere; what runs goes on."""
        return await decide(who, "drain", name, draining=True)

    @app.post("/api/replicas/{name}/undrain")
    async def undrain(name: str, who: Operator) -> dict[str, str]:
        return await decide(who, "undrain", name, draining=False)

    @app.post("/api/replicas/{name}/weight")
    async def weight(name: str, body: Weight, who: Operator) -> dict[str, str]:
        return await decide(who, "weight", name, weight=-1 if body.weight is None else body.weight)

    @app.post("/api/replicas/{name}/kill")
    async def kill(name: str, who: Operator) -> dict[str, str]:
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
    async def rotate(name: str, body: Rotation, who: Operator) -> dict[str, str]:
        """New keys now; the old ones stay accepted for as long as anything needs them."""
        if not any(service.name == name for service in controller.config.services):
            raise HTTPException(404, f"there is no service {name!r}")
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
                        raise HTTPException(413, f"a configuration has at most {CONFIG_MAX} bytes")
        except TimeoutError:
            raise HTTPException(408, f"the configuration took longer than {BODY_S:g} s") from None
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise HTTPException(422, f"not UTF-8: {error}") from None

    @contextmanager
    def refusals() -> Iterator[None]:
        """What is wrong with a configuration, as answers."""
        try:
            yield
        except ConfigError as error:
            raise HTTPException(422, error.problems) from None
        except Overdue as error:
            raise HTTPException(422, [f"config: judging it {error}"]) from None
        except Busy as error:
            raise HTTPException(503, str(error)) from None
        except (SwitchError, OutOfNumbers, NamesError) as error:
            raise HTTPException(409, [str(error)]) from None

    @app.get("/api/config", response_class=PlainTextResponse)
    async def config_in_force(_: Reader) -> str:
        """The configuration in force (YAML), as it was last given by the file or by `apply`."""
        return controller.text

    @app.post("/api/plan", response_model=dict[str, list[str]])
    async def plan(request: Request, who: Reader) -> Response:
        """What a configuration (YAML, the body) would change on each switch; nothing is written."""
        _allowed(request, who, Role.READ)
        with refusals(), bodies.place() as has_place:
            # Before the body is read: what is refused costs no memory.
            controller.validator.plans.refuse_if_busy()
            if not has_place:
                raise Busy(f"{BODIES_MAX} configurations are being read already: try again later")
            text = await posted(request)
        with refusals():
            return Response(await controller.validator.plan(text, controller.local), media_type="application/json")

    @app.post("/api/apply")
    async def apply(request: Request, who: Configurer) -> dict[str, str]:
        """Brings a configuration (YAML, the body) into force, durably: until the file on the
        controller's machine changes. All of it or, on a refusal, nothing.
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
        """A snapshot each second. Over TCP with tokens, the first message from the client is its
        token.
        """
        host = socket.headers.get("host")
        if _foreign(socket.headers.get("origin"), host or "") or not names_us(socket.scope, host):
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
                    await socket.close(1013, f"{LIVE_MAX} clients are served already")
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
    """Whether a browser says that another site's page asks."""
    return origin is not None and origin.split("//")[-1] != host
