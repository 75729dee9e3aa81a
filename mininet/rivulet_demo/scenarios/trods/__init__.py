"""Kills nginx, the agent and the link of the replica that holds a plain download, one after the other.

The replicas are unmodified nginx with `rivulet agent --plain-tcp`; plain curl and headless Chromium run no Rivulet
code (docs/trods.md). Each harm hits the replica that holds curl's connection at that time, is repaired, and the next
harm follows when all replicas are live. A second curl fetches from another port of the same nginx, with kernel TCP
only; it begins at the replica that is harmed first. RATE defaults to 25 Mb/s, and the file is large enough for all
harms: SIZE, but at least 45 seconds' worth.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rivulet_controller.client import ApiError, Client
from rivulet_lab import RackError

from ... import capture
from ...acts import pause, until
from ...mosaic import make
from ...report import TCP, TRODS, add_packets, pcap_path, show, summarise
from ...scenario import MEGA, Parameters, Standing, console, standing_rack
from ...services import make_file
from ...spec import SERVICE_PORT, SERVICE_V4
from . import page
from .replicas import HARMS, NginxReplicas

WORDS = __doc__ or ""

FILE = "file.bin"
KERNEL_PORT = 81
SOCKETS = ("ss", "-Htn", "state", "established")
"""Command that lists a kernel's connections."""
BROWSER = "browser"
HOSTS = {TRODS: "c1", BROWSER: "c2", TCP: "c3"}

LIVENESS_MS = 200.0
"""The exclusion bound. Chromium, curl and three replicas share this machine's processors: with a shorter bound live
replicas would be excluded one after the other (docs/trods.md)."""

RATE_MBIT = 25.0
"""Default rate of the links: with two downloads, a browser and their captures a higher rate leaves no CPU time of two
processors for Chromium and the controller."""
SHORTEST_S = 45.0
"""Default duration of the download, and its minimum: three harms, each until all replicas are live."""
HARMED_S = 1.5
"""Duration of a harm."""
QUIET_S = 0.5
"""Pause between the return of all replicas and the next harm."""
PATIENCE_S = 60.0
"""Time limit of waits on a busy machine."""
LOOK_S = 0.1
"""Interval between two readings of the replicas' kernels."""
REPORT_S = 1.5
"""Agents report every half second, so after this time the controller's counts are final."""
TRIES = 30
"""Connections to try: each hits the wanted one of three replicas with probability one third."""


@dataclass(slots=True)
class Met:
    """A harm, and the connection that it hit."""

    what: str
    words: str
    replica: str
    adopted_by: str = ""
    """Empty: no replica adopted it."""
    healed: bool = False


@dataclass(slots=True)
class Story:
    """Runs the harms while the clients fetch, and records their effects."""

    standing: Standing
    replicas: NginxReplicas
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
        return modes["files"] == "trods" and all(r["state"] == "live" and r["ready"] and r["readmitted"] for r in found)

    def counts(self) -> dict[str, dict[str, Any]]:
        """The agents' counts of connections, by replica."""
        return {r["name"]: dict(r["trods"] or {}) for r in self.api.get("/api/status")["replicas"]}

    def acts(self) -> Iterator[None]:
        """All harms one after the other; yields while it waits."""
        port = yield from self._port_of(TRODS, SERVICE_PORT)
        yield from self._begin_beside(port)
        for harm in HARMS:
            yield from until(self.well)
            yield from pause(QUIET_S)
            victim = yield from self._holder(SERVICE_PORT, port)
            if harm.forgets:
                self.forgotten.append(self.counts()[victim])
            # Marked first: on a busy machine it takes some time until a killed process has ended.
            self.standing.mark(harm.what, victim)
            harm.do(self.replicas, victim)
            console.print(f"  {harm.words}: {victim}, which holds the connection")
            met = Met(harm.what, harm.words, victim)
            self.met.append(met)
            end = time.monotonic() + HARMED_S
            met.adopted_by = yield from self._holder(SERVICE_PORT, port, victim)
            console.print(f"  {met.adopted_by} adopts it")
            yield from pause(end - time.monotonic())
            harm.heal(self.replicas, victim)
            self.standing.mark("return", victim)
            yield from until(self.well)
            met.healed = True

    def _begin_beside(self, port: int) -> Iterator[None]:
        """Starts the kernel TCP client at the replica that holds the other connection, which is harmed first."""
        wanted = yield from self._holder(SERVICE_PORT, port)
        for _ in range(TRIES):
            self.standing.client(TCP, HOSTS[TCP], "", address=f"http://{SERVICE_V4}:{KERNEL_PORT}/{FILE}")
            beside = yield from self._port_of(TCP, KERNEL_PORT)
            if (yield from self._holder(KERNEL_PORT, beside)) == wanted:
                return
            self.standing.clients[TCP][0].end()
        raise RackError(
            f"{TRIES} connections of the kernel's TCP, but none reached {wanted}, which holds the other one"
        )

    def _port_of(self, client: str, service: int) -> Generator[None, None, int]:
        """The port of a client's connection, once it has one."""
        while True:
            lines = self.standing.rack.spaces[HOSTS[client]].run(*SOCKETS, f"dport = :{service}").splitlines()
            if lines:
                return int(lines[0].split()[2].rpartition(":")[2])
            yield from pause(LOOK_S)

    def _holder(self, service: int, port: int, but: str = "") -> Generator[None, None, str]:
        """The replica that holds a client's connection, other than `but`, once there is one."""
        before: dict[str, int] = {}
        while True:
            # A harmed replica may still have its socket, but the client acknowledges nothing more to it.
            now = self._acknowledged(service, port)
            moved = [name for name, count in now.items() if count > before.get(name, count)]
            if len(moved) == 1 and moved[0] != but:
                return moved[0]
            before = now
            yield from pause(LOOK_S)

    def _acknowledged(self, service: int, port: int) -> dict[str, int]:
        """Bytes that a client acknowledged on its connection, by the replicas with a socket for it."""
        rack, found = self.standing.rack, {}
        for host in rack.spec.of("replica"):
            said = rack.spaces[host.name].run(*SOCKETS, "-i", f"( sport = :{service} and dport = :{port} )")
            if said.strip():
                found[host.name] = int((re.search(r"bytes_acked:(\d+)", said) or (0, 0))[1])
        return found


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if the one connection survived every harm and Chromium's rounds were complete."""
    if options.rate is None:
        values = replace(values, rate_mbit=min(values.rate_mbit, RATE_MBIT))
    megabytes = values.rate_mbit / 8
    asked_mb = 0.0 if options.size is None else values.size_mb
    values = replace(values, size_mb=max(asked_mb, SHORTEST_S * megabytes))
    seconds = values.size * 8 / (values.rate_mbit * MEGA)
    www = values.out / "www-trods"
    make(www)
    page.make(www)
    console.print(f"[bold cyan]›[/] a file of {values.size_mb:g} MB, and a page of small objects")
    sha256 = make_file(www, FILE, values.size)
    picture = values.out / "trods-browser.png"
    services = (("files", SERVICE_PORT, "trods"), ("files-kernel", KERNEL_PORT, "kernel"))
    times: dict[str, Any] = {"liveness_ms": LIVENESS_MS, "heartbeat_ms": LIVENESS_MS / 10}
    rack = {"clients": len(HOSTS), "stores": 1, "services": services, **times}
    with standing_rack("trods", values, www=www, made_of=NginxReplicas, **rack) as standing:
        standing.sha256 = sha256
        standing.units[BROWSER] = ("rounds", 1)
        replicas = standing.replicas
        assert isinstance(replicas, NginxReplicas)
        story = Story(standing, replicas, Client(f"unix:{standing.rack.folder / 'api.sock'}", timeout_s=10.0))
        standing.rack.until(story.well, "every replica gets connections, and they are protected", PATIENCE_S)
        captures = {client: pcap_path("trods", values, client) for client in HOSTS}
        running = [capture.start(standing.rack, HOSTS[client], path) for client, path in captures.items()]
        start = time.monotonic()
        site = f"http://{SERVICE_V4}:{SERVICE_PORT}"
        browse = (site, f"{seconds:g}", "--again", f"{site}/{page.NAME}", "--picture", str(picture))
        standing.program(BROWSER, HOSTS[BROWSER], "browse", *browse)
        # A connection without a request has no record yet; only recorded ones survive a harm (docs/trods.md).
        standing.rack.until(lambda: standing.so_far(BROWSER) > 0, "Chromium loads the page", PATIENCE_S)
        standing.client(TRODS, HOSTS[TRODS], "", FILE)
        acts = story.acts()
        standing.run(lambda _, __: next(acts, None), patience_s=60 + 6 * seconds)
        for process in running:
            capture.finish(process)
        report = summarise("trods", standing, start, (TRODS, TCP))
        time.sleep(REPORT_S)
        _tell(report, story, start, captures)
    add_packets(report, standing, {client: captures[client] for client in (TRODS, TCP)})
    return _show(report, values, picture)


def _tell(report: dict[str, Any], story: Story, start: float, captures: dict[str, Path]) -> None:
    """Adds this scenario's data to the report while the rack still runs."""
    standing = story.standing
    felt = report["clients"][TRODS]["kills"]
    report["harms"] = [{**asdict(met), **kill} for met, kill in zip(story.met, felt, strict=False)]
    report["loads"] = [{**load, "at": round(load["at"] - start, 3)} for load in standing.left(BROWSER)]
    counts = story.counts()
    report["agents"] = counts
    report["agents_killed"] = story.forgotten
    every = [*counts.values(), *story.forgotten]
    report["connections"] = {
        **{what: sum(one.get(what, 0) for one in every) for what in ("protected", "adopted", "refused")},
        "unprotected": dict(sum((Counter(one.get("unprotected", {})) for one in every), Counter())),
    }
    report["opened"] = {
        client: len(capture.plain_connections(path, standing.rack.spec.host(HOSTS[client]).ip))
        for client, path in captures.items()
        if client != TCP
    }
    report["left_out_while_well"] = [
        {"at_s": round(at - start, 3), "replica": name}
        for at, name, excluded in standing.watch.history
        if excluded and at > start and not _harmed(standing, name, at)
    ]


def _harmed(standing: Standing, name: str, at: float) -> bool:
    """Whether a replica was harmed at this time."""
    last = [what for when, what, who in standing.marks if who == name and when <= at]
    return bool(last) and last[-1] != "return"


def _show(report: dict[str, Any], values: Parameters, picture: Path) -> int:
    """Prints the summary, and every promise of this demo that was not kept."""
    loads, sums, opened, harms = (report[part] for part in ("loads", "connections", "opened", "harms"))
    whole, well = sum(load["whole"] for load in loads), report["left_out_while_well"]
    longest = max((load["seconds"] for load in loads), default=0.0)
    opening = (
        f"{values.replicas} replicas with nginx: plain curl fetched {values.size / 1e6:g} MB at {values.rate_mbit:g}"
        f" Mb/s, {values.rtt_ms:g} ms round-trip time, through the {values.switch} switch, and the replica that held"
        f" its connection was harmed, {len(harms)} times in a row."
        f" A replica without heartbeats is excluded after {LIVENESS_MS:g} ms."
    )
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(sums["unprotected"].items()))
    left_out = ", ".join(f"{one['replica']} at {one['at_s']:.1f} s" for one in well)
    words = [
        f"{harm['words']} ({harm['replica']}): {harm['adopted_by'] or 'no replica'} adopted the connection; the"
        f" longest stall was {harm['stall_ms']:.0f} ms; {_left_out(harm)}."
        for harm in harms
    ] + [
        f"On the wire plain curl opened {_connections(opened[TRODS])} to the service.",
        f"Chromium: {whole} of {len(loads)} rounds of the page were complete, over"
        f" {_connections(opened[BROWSER])}; the longest round took {longest:.1f} s.",
        f"Agents: {sums['protected']:,} connections protected, {sums['adopted']:,} adopted, {sums['refused']:,}"
        f" refused; unprotected: {reasons or 'none'}.",
        f"Excluded without a harm: {left_out or 'none'}.",
    ]
    missed = [
        f"{harm.words}: it did not hit the holder of the connection, or no replica adopted it"
        for harm in HARMS
        if not any(met["what"] == harm.what and met["adopted_by"] for met in harms)
    ]
    missed += ["curl opened more than one connection"] if opened[TRODS] != 1 else []
    missed += ["the browser's page was incomplete"] if not 0 < whole == len(loads) else []
    missed += ["connections were refused"] if sums["refused"] else []
    words += [f"NOT as expected: {what}." for what in missed]
    title = "one plain connection; the replica that holds it is harmed three times"
    return show(report, values, title, opening, words, picture) or int(bool(missed))


def _connections(count: int) -> str:
    return f"{count:,} connection{'' if count == 1 else 's'}"


def _left_out(harm: dict[str, Any]) -> str:
    after = harm["exclusion_ms"]
    return "the ToR did not exclude it" if after is None else f"the ToR excluded it after {after:.0f} ms"
