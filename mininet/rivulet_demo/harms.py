"""Harms the replica that holds plain curl's connection, again and again, and shows that the connection survives.

Each harm hits the replica that holds the connection at that time, is repaired, and the next harm follows when all
replicas are live. Headless Chromium loads a page meanwhile, and a second curl downloads from another port of the same
servers, without protection; it begins at the replica that is harmed first.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rivulet_controller.client import ApiError, Client
from rivulet_lab import RackError

from . import capture, rounds
from .acts import pause, until
from .mosaic import make
from .report import add_packets, pcap_path, summarise
from .scenario import MEGA, Parameters, Standing, console, standing_rack
from .services import Replicas, make_file

FILE = "file.bin"
SERVICE = "files"
"""Name of the protected service."""
SOCKETS = ("ss", "-Htn", "state", "established")
"""Command that lists a kernel's connections."""
BROWSER = "browser"

LIVENESS_MS = 200.0
"""The exclusion bound. Chromium, curl and three replicas share this machine's processors: with a shorter bound live
replicas would be excluded one after the other (docs/trods.md)."""
RACK: dict[str, Any] = {"clients": 3, "stores": 1, "liveness_ms": LIVENESS_MS, "heartbeat_ms": LIVENESS_MS / 10}
"""Settings of the rack."""

HARMED_S = 1.5
"""Duration of a harm."""
QUIET_S = 0.5
"""Pause between the return of all replicas and the next harm."""
PATIENCE_S = 60.0
"""Time limit of waits on a busy machine."""
WATCH_S = 0.02
"""Interval between two readings of the switch, a tenth of the exclusion bound: each costs CPU time."""
LOOK_S = 0.1
"""Interval between two readings of the replicas' kernels."""
REPORT_S = 1.5
"""Agents report every half second, so after this time the controller's counts are final."""
TRIES = 30
"""Connections to try: each hits the wanted one of three replicas with probability one third."""


@dataclass(frozen=True, slots=True)
class Harm:
    """A harm to the replica that holds the connection, and its repair. Both take the replicas and a name."""

    what: str
    """The harmed part."""
    words: str
    do: Callable[[Any, str], object]
    heal: Callable[[Any, str], object]
    forgets: bool = False
    """Whether the counts of its agent are lost with it."""
    moves: bool = True
    """Whether another replica must adopt the connection; otherwise the same one may resume it."""


@dataclass(frozen=True, slots=True)
class Site:
    """A service, and the curl that downloads from it."""

    client: str
    host: str
    url: str
    """Scheme, address and port."""
    via: str = ""
    """Command that runs curl."""
    once: bool = False
    """Whether curl is not started again after a failure."""

    @property
    def port(self) -> int:
        """The service's port."""
        return urlsplit(self.url).port or {"http": 80, "https": 443}[urlsplit(self.url).scheme]

    def begin(self, standing: Standing) -> None:
        """Starts its curl."""
        standing.client(self.client, self.host, self.via, address=f"{self.url}/{FILE}", once=self.once)


@dataclass(frozen=True, slots=True)
class Scene:
    """Who downloads, and what happens to the replicas."""

    name: str
    """The scenario's."""
    held: Site
    """Its connection is the one that the harms hit."""
    beside: Site
    """The same file without protection."""
    harms: Sequence[Harm]
    made_of: type[Replicas]
    settings: dict[str, Any]
    """Further settings of the rack."""
    browser: Sequence[str] | None = ()
    """Further flags of Chromium; None: there is no browser."""
    browser_host: str = "c2"
    snap_bytes: int = capture.SNAP_BYTES
    """Captured bytes of a packet; 0: all."""

    @property
    def hosts(self) -> dict[str, str]:
        """The host of each client."""
        browser = {} if self.browser is None else {BROWSER: self.browser_host}
        return {self.held.client: self.held.host, **browser, self.beside.client: self.beside.host}


@dataclass(slots=True)
class Met:
    """A harm, and the connection that it hit."""

    what: str
    words: str
    replica: str
    resumed_by: str = ""
    """Empty: no replica resumed it."""
    healed: bool = False


@dataclass(slots=True)
class Story:
    """Runs the harms while the clients download, and records their effects."""

    scene: Scene
    standing: Standing
    api: Client
    met: list[Met] = field(default_factory=list)
    forgotten: list[dict[str, Any]] = field(default_factory=list)
    """Last counts of killed agents, whose successors count from zero."""

    def well(self) -> bool:
        """Whether new connections are protected, and every replica is live and gets some."""
        try:
            found = self.api.get("/api/status")["replicas"]
            modes = {service["name"]: service["plain"] for service in self.api.get("/api/services")}
        except ApiError:
            return False
        live = (r["state"] == "live" and r["ready"] and r["readmitted"] and not r["draining"] for r in found)
        return modes[SERVICE] == "trods" and all(live)

    def counts(self) -> dict[str, dict[str, Any]]:
        """The agents' counts of connections, by replica."""
        return {r["name"]: dict(r["trods"] or {}) for r in self.api.get("/api/status")["replicas"]}

    def acts(self) -> Iterator[None]:
        """All harms one after the other; yields while it waits."""
        held, replicas = self.scene.held, self.standing.replicas
        port = yield from self._port_of(held)
        yield from self._begin_beside(port)
        for harm in self.scene.harms:
            yield from until(self.well)
            yield from pause(QUIET_S)
            victim = yield from self._holder(held, port)
            if harm.forgets:
                yield from self._keep_counts(victim)
            # Marked first: on a busy machine it takes some time until a killed process has ended.
            self.standing.mark(harm.what, victim)
            harm.do(replicas, victim)
            console.print(f"  {harm.words}: {victim}, which holds the connection")
            met = Met(harm.what, harm.words, victim)
            self.met.append(met)
            end = time.monotonic() + HARMED_S
            if harm.moves:
                met.resumed_by = yield from self._holder(held, port, victim)
                console.print(f"  {met.resumed_by} adopts it")
            yield from pause(end - time.monotonic())
            harm.heal(replicas, victim)
            self.standing.mark("return", victim)
            if not harm.moves:
                met.resumed_by = yield from self._holder(held, port)
                console.print(f"  {met.resumed_by} resumes it")
            yield from until(self.well)
            met.healed = True

    def _keep_counts(self, name: str) -> Iterator[None]:
        """Keeps an agent's counts; repeated while the controller of a busy machine does not answer."""
        while True:
            try:
                self.forgotten.append(self.counts()[name])
                return
            except ApiError:
                yield from pause(LOOK_S)

    def _begin_beside(self, port: int) -> Iterator[None]:
        """Starts the unprotected download at the replica that holds the other connection, which is harmed first."""
        beside = self.scene.beside
        wanted = yield from self._holder(self.scene.held, port)
        tried: set[int] = set()
        for _ in range(TRIES):
            beside.begin(self.standing)
            # On a busy machine the connection of the curl before may not have ended yet.
            its_port = yield from self._port_of(beside, tried)
            if (yield from self._holder(beside, its_port)) == wanted:
                return
            tried.add(its_port)
            self.standing.clients[beside.client][0].end()
        raise RackError(
            f"{TRIES} connections to {beside.url}, but none reached {wanted}, which holds the other download"
        )

    def _port_of(self, site: Site, but: Collection[int] = ()) -> Generator[None, None, int]:
        """The port of a client's connection that is not one of `but`, once it has one."""
        while True:
            lines = self.standing.rack.spaces[site.host].run(*SOCKETS, f"dport = :{site.port}").splitlines()
            ports = (int(line.split()[2].rpartition(":")[2]) for line in lines)
            if found := [port for port in ports if port not in but]:
                return found[0]
            yield from pause(LOOK_S)

    def _holder(self, site: Site, port: int, but: str = "") -> Generator[None, None, str]:
        """The replica that holds a client's connection, other than `but`, once there is one."""
        before: dict[str, int] = {}
        while True:
            # A harmed replica may still have its socket, but the client acknowledges nothing more to it.
            now = self._acknowledged(site, port)
            moved = [name for name, count in now.items() if count > before.get(name, count)]
            if len(moved) == 1 and moved[0] != but:
                return moved[0]
            before = now
            yield from pause(LOOK_S)

    def _acknowledged(self, site: Site, port: int) -> dict[str, int]:
        """Bytes that a client acknowledged on its connection, by the replicas with a socket for it."""
        rack, found = self.standing.rack, {}
        for host in rack.spec.of("replica"):
            said = rack.spaces[host.name].run(*SOCKETS, "-i", f"( sport = :{site.port} and dport = :{port} )")
            if said.strip():
                found[host.name] = int((re.search(r"bytes_acked:(\d+)", said) or (0, 0))[1])
        return found


def fit(values: Parameters, rate: float | None, size: float | None, most_mbit: float, least_s: float) -> Parameters:
    """The parameters with at most this rate, unless one is given, and a file for at least `least_s` seconds."""
    if rate is None:
        values = replace(values, rate_mbit=min(values.rate_mbit, most_mbit))
    asked_mb = 0.0 if size is None else values.size_mb
    return replace(values, size_mb=max(asked_mb, least_s * values.rate_mbit / 8))


def furnish(www: Path, values: Parameters) -> str:
    """Makes the page and the file that the replicas serve; returns the file's SHA-256."""
    make(www)
    rounds.make(www)
    console.print(f"[bold cyan]›[/] a file of {values.size_mb:g} MB, and a page of small objects")
    return make_file(www, FILE, values.size)


def play(scene: Scene, values: Parameters, www: Path, sha256: str, picture: Path) -> dict[str, Any]:
    """Runs the scene; returns the report. `www` has the file and the page; `picture` gets Chromium's screenshot."""
    seconds = values.size * 8 / (values.rate_mbit * MEGA)
    rack = RACK | scene.settings
    with standing_rack(scene.name, values, www=www, made_of=scene.made_of, **rack) as standing:
        standing.sha256 = sha256
        standing.watch.interval_s = WATCH_S
        standing.units[BROWSER] = ("rounds", 1)
        story = Story(scene, standing, Client(f"unix:{standing.rack.folder / 'api.sock'}", timeout_s=10.0))
        standing.rack.until(story.well, "every replica gets connections, and they are protected", PATIENCE_S)
        captures = {client: pcap_path(scene.name, values, client) for client in scene.hosts}
        running = [
            capture.start(standing.rack, host, captures[client], scene.snap_bytes)
            for client, host in scene.hosts.items()
        ]
        if scene.browser is not None:
            _browse(scene, standing, seconds, picture)
        start = time.monotonic()
        scene.held.begin(standing)
        acts = story.acts()
        standing.run(lambda _, __: next(acts, None), patience_s=60 + 6 * seconds)
        for process in running:
            capture.finish(process)
        downloads = (scene.held.client, scene.beside.client)
        report = summarise(scene.name, standing, start, downloads)
        time.sleep(REPORT_S)
        _add_story(report, story, start, captures)
    add_packets(report, standing, {client: captures[client] for client in downloads})
    return report


def _browse(scene: Scene, standing: Standing, seconds: float, picture: Path) -> None:
    """Starts Chromium, and waits until its connections have carried a request."""
    url = scene.held.url
    arguments = [url, f"{seconds:g}", "--again", f"{url}/{rounds.NAME}", "--picture", str(picture)]
    arguments += [f"--flag={flag}" for flag in scene.browser or ()]
    standing.program(BROWSER, scene.browser_host, "browse", *arguments)
    # A connection without a request has no record yet; only recorded ones survive a harm (docs/trods.md).
    standing.rack.until(lambda: standing.so_far(BROWSER) > 0, "Chromium loads the page", PATIENCE_S)


def _add_story(report: dict[str, Any], story: Story, start: float, captures: dict[str, Path]) -> None:
    """Adds the harms and the agents' counts to the report while the rack still runs."""
    standing, scene = story.standing, story.scene
    felt = {kill["at_s"]: kill for kill in report["clients"][scene.held.client]["kills"]}
    begun = [mark["at_s"] for mark in report["marks"] if mark["what"] != "return"]
    missing = {"at_s": None, "stall_ms": None, "exclusion_ms": None}
    report["harms"] = [{**asdict(met), **felt.get(at, missing)} for met, at in zip(story.met, begun, strict=True)]
    loads = [] if scene.browser is None else standing.left(BROWSER)
    report["loads"] = [{**load, "at": round(load["at"] - start, 3)} for load in loads]
    counts = story.counts()
    report["agents"] = counts
    report["agents_killed"] = story.forgotten
    every = [*counts.values(), *story.forgotten]
    report["connections"] = {
        **{what: sum(one.get(what, 0) for one in every) for what in ("protected", "adopted", "refused")},
        "unprotected": dict(sum((Counter(one.get("unprotected", {})) for one in every), Counter())),
    }
    report["opened"] = {
        client: len(capture.plain_connections(path, standing.rack.spec.host(scene.hosts[client]).ip))
        for client, path in captures.items()
        if client != scene.beside.client
    }
    report["left_out_while_well"] = [
        {"at_s": round(at - start, 3), "replica": name}
        for at, name, excluded in standing.watch.history
        if excluded and at > start and not _is_harmed(standing, name, at)
    ]


def _is_harmed(standing: Standing, name: str, at: float) -> bool:
    """Whether a replica was harmed at this time."""
    last = [what for when, what, who in standing.marks if who == name and when <= at]
    return bool(last) and last[-1] != "return"


def opening(values: Parameters, servers: str, harms: int) -> str:
    """The first sentence of the summary."""
    return (
        f"{values.replicas} replicas with {servers}: plain curl fetched {values.size / 1e6:g} MB at"
        f" {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time, through the {values.switch} switch, and the"
        f" replica that held its connection was harmed, {harms} times in a row."
        f" A replica without heartbeats is excluded after {LIVENESS_MS:g} ms."
    )


def summary(scene: Scene, report: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The summary's sentences, and what was not as expected."""
    loads, sums, opened, harms = (report[part] for part in ("loads", "connections", "opened", "harms"))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(sums["unprotected"].items()))
    left_out = ", ".join(f"{one['replica']} at {one['at_s']:.1f} s" for one in report["left_out_while_well"])
    words = [
        f"{harm['words']} ({harm['replica']}): {_resumed(harm)}; {_stalled(harm)}; {_left_out(harm)}." for harm in harms
    ]
    words.append(f"On the wire plain curl opened {_connections(opened[scene.held.client])} to the service.")
    if scene.browser is not None:
        words.append(_loaded(loads, opened[BROWSER]))
    words += [
        f"Agents: {sums['protected']:,} connections protected, {sums['adopted']:,} adopted, {sums['refused']:,}"
        f" refused; unprotected: {reasons or 'none'}.",
        f"Excluded without a harm: {left_out or 'none'}.",
    ]
    missed = [
        f"{harm.words}: it did not hit the holder of the connection, or no replica resumed it"
        for harm in scene.harms
        if not any(met["what"] == harm.what and met["resumed_by"] for met in harms)
    ]
    missed += ["curl opened more than one connection"] if opened[scene.held.client] != 1 else []
    if scene.browser is not None and not (loads and all(load["whole"] for load in loads)):
        missed.append("the browser's page was incomplete")
    missed += ["connections were refused"] if sums["refused"] else []
    return words, missed


def _resumed(harm: dict[str, Any]) -> str:
    if not harm["resumed_by"]:
        return "no replica resumed the connection"
    return f"{harm['resumed_by']} {'kept' if harm['resumed_by'] == harm['replica'] else 'adopted'} the connection"


def _stalled(harm: dict[str, Any]) -> str:
    stall = harm["stall_ms"]
    return "the download had ended" if stall is None else f"the longest stall was {stall:.0f} ms"


def _left_out(harm: dict[str, Any]) -> str:
    after = harm["exclusion_ms"]
    return "the ToR did not exclude it" if after is None else f"the ToR excluded it after {after:.0f} ms"


def _loaded(loads: Sequence[dict[str, Any]], opened: int) -> str:
    whole = sum(load["whole"] for load in loads)
    longest = max((load["seconds"] for load in loads), default=0.0)
    return (
        f"Chromium: {whole} of {len(loads)} rounds of the page were complete, over {_connections(opened)}; the longest"
        f" round took {longest:.1f} s."
    )


def _connections(count: int) -> str:
    return f"{count:,} connection{'' if count == 1 else 's'}"
