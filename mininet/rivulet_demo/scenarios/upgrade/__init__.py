"""Upgrades the replicas one after the other, under a download by plain curl, an ssh session and a websocket.

Each replica is drained, which moves the download if the replica holds it; its agent is restarted as in an upgrade; then
the replica is readmitted (docs/moves.md). No client is reset and no data is lost: sessions send numbered lines and wait
for their echo. The replicas are nginx, sshd and a websocket echo, with `rivulet agent --plain-tcp`. RATE defaults to
25 Mb/s, and the file is large enough for all upgrades: 40 seconds' worth, or SIZE.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rivulet_controller.client import ApiError, Client
from rivulet_controller.drain_progress import progress
from rivulet_lab import Process

from ... import capture
from ...acts import pause, until
from ...report import TRODS, add_packets, pcap_path, show, summarise
from ...scenario import Parameters, Standing, console, standing_rack
from ...services import make_file
from ...spec import SERVICE_PORT
from .replicas import CHAT, SSH, SessionReplicas, talking

WORDS = __doc__ or ""

FILE = "file.bin"
SESSIONS = {"ssh": ("c2", SSH), "websocket": ("c3", CHAT)}
HOSTS = {TRODS: "c1"} | {name: host for name, (host, _) in SESSIONS.items()}
LIVENESS_MS = 200.0
"""The exclusion bound, which three replicas keep beside their clients on two processors (docs/trods.md)."""
RATE_MBIT, DOWNLOAD_S = 25.0, 40.0
QUIET_S = 0.5
"""Pause between two steps."""
PATIENCE_S = 60.0


@dataclass(slots=True)
class Story:
    """Runs the upgrades while the clients are served, and records their effects."""

    standing: Standing
    replicas: SessionReplicas
    api: Client
    upgraded: list[dict[str, Any]] = field(default_factory=list)

    def all(self) -> list[dict[str, Any]]:
        """The controller's view of each replica; empty while it does not answer."""
        try:
            return list(self.api.get("/api/status")["replicas"])
        except ApiError:
            return []

    def well(self) -> bool:
        """Whether every replica is live, ready and gets connections."""
        found = self.all()
        return bool(found) and all(r["state"] == "live" and r["ready"] and r["readmitted"] for r in found)

    def of(self, name: str) -> dict[str, Any]:
        """The controller's view of one replica."""
        return next(r for r in self.all() if r["name"] == name)

    def acts(self) -> Iterator[None]:
        """All upgrades one after the other; yields while it waits."""
        while self.standing.so_far(TRODS) == 0:
            yield
        for name in sorted(self.standing.replicas.alive()):
            yield from until(self.well)
            yield from pause(QUIET_S)
            before = self.of(name)
            self.standing.mark("drain", name)
            self.api.post(f"/api/replicas/{name}/drain")
            yield from until(lambda name=name: self._is_left(name))  # type: ignore[misc]
            so_far = progress(self.of(name))
            console.print(f"  {name} is drained: {so_far.words}")
            self.standing.mark("restart", name)
            self.replicas.stop(name)
            yield from pause(QUIET_S)
            self.replicas.start(name)
            yield from until(
                lambda name=name, was=before["incarnation"]: self.of(name)["incarnation"] not in (0, was)  # type: ignore[misc]
            )
            self.api.post(f"/api/replicas/{name}/undrain")
            yield from until(self.well)
            self.standing.mark("return", name)
            self.upgraded.append({"replica": name, "moved": so_far.moved, "stayed": so_far.staying})

    def _is_left(self, name: str) -> bool:
        """Whether all connections that can move have moved; agents report ten times a second."""
        found = self.of(name)
        return bool(found["draining"]) and time.monotonic() > self.standing.marks[-1][0] + 2 and progress(found).done


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if no connection broke and every session got all of its echoes."""
    if options.rate is None:
        values = replace(values, rate_mbit=min(values.rate_mbit, RATE_MBIT))
    least = DOWNLOAD_S * values.rate_mbit / 8
    values = replace(values, size_mb=least if options.size is None else max(values.size_mb, least))
    www = values.out / "www-upgrade"
    console.print(f"[bold cyan]›[/] a file of {values.size_mb:g} MB")
    sha256 = make_file(www, FILE, values.size)
    services = (("files", SERVICE_PORT, "trods"), ("chat", CHAT, "trods"), ("ssh", SSH, "kernel"))
    times: dict[str, Any] = {"liveness_ms": LIVENESS_MS, "heartbeat_ms": LIVENESS_MS / 10}
    rack = {"clients": len(HOSTS), "stores": 1, "services": services, **times}
    with standing_rack("upgrade", values, www=www, made_of=SessionReplicas, **rack) as standing:
        standing.sha256 = sha256
        replicas = standing.replicas
        assert isinstance(replicas, SessionReplicas)
        story = Story(standing, replicas, Client(f"unix:{standing.rack.folder / 'api.sock'}", timeout_s=10.0))
        standing.rack.until(story.well, "every replica gets connections", PATIENCE_S)
        captures = {client: pcap_path("upgrade", values, client) for client in HOSTS}
        running = [capture.start(standing.rack, HOSTS[client], path) for client, path in captures.items()]
        sessions = {name: _session(standing, replicas, name) for name in SESSIONS}
        start, wall = time.monotonic(), time.time()
        standing.client(TRODS, HOSTS[TRODS], "", FILE)
        acts = story.acts()
        standing.run(lambda _, __: next(acts, None), patience_s=60 + 6 * DOWNLOAD_S)
        report = summarise("upgrade", standing, start, (TRODS,))
        report["sessions"] = {name: _ended(process, wall) for name, process in sessions.items()}
        for process in running:
            capture.finish(process)
        report["upgrades"] = story.upgraded
        report["left_out"] = [
            {"at_s": round(at - start, 3), "replica": name}
            for at, name, excluded in standing.watch.history
            if excluded and at > start
        ]
    add_packets(report, standing, {TRODS: captures[TRODS]})
    for name, session in report["sessions"].items():
        session["pcap"] = captures[name].name
    return _show(report, values)


def _session(standing: Standing, replicas: SessionReplicas, name: str) -> Process:
    """Starts a session and waits for its first echo."""
    host, port = SESSIONS[name]
    key = [str(replicas.key())] if name == "ssh" else []
    command = talking(name, port, *key)
    process = standing.rack.start(name, command, standing.rack.spaces[host], stdout=subprocess.PIPE)
    assert process.popen.stdout is not None
    process.popen.stdout.readline()
    return process


def _ended(process: Process, wall: float) -> dict[str, Any]:
    process.popen.terminate()
    out, _ = process.popen.communicate(timeout=PATIENCE_S)
    told: dict[str, Any] = json.loads(out)
    told["silences"] = [{**one, "at": round(one["at"] - wall, 3)} for one in told["silences"]]
    return told


def _show(report: dict[str, Any], values: Parameters) -> int:
    """Prints the summary, and every promise of this demo that was not kept."""
    upgrades, sessions = report["upgrades"], report["sessions"]
    opening = (
        f"Each of {values.replicas} replicas was drained, had its agent restarted and was taken back, while plain curl"
        f" fetched {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time, beside"
        f" a session of ssh and a websocket. A replica without heartbeats is excluded after {LIVENESS_MS:g} ms."
    )
    words = [
        f"{one['replica']}: {_count(one['moved'])} moved, {_count(one['stayed'])} stayed with their servers."
        for one in upgrades
    ]
    words += [
        f"{name}: {session['answers']:,} lines were echoed over one connection, the longest wait was"
        f" {session['longest_ms']:.0f} ms; it {'was ended by its client' if session['whole'] else 'BROKE'}."
        for name, session in sessions.items()
    ]
    left_out = ", ".join(f"{one['replica']} at {one['at_s']:.1f} s" for one in report["left_out"])
    words.append(f"Excluded by the ToR meanwhile: {left_out or 'none'}.")
    missed = [f"{name}: {session['ended']}" for name, session in sessions.items() if not session["whole"]]
    missed += ["curl ended before all replicas were upgraded"] if len(upgrades) < values.replicas else []
    missed += ["the download did not move"] if not any(one["moved"] for one in upgrades) else []
    words += [f"NOT as expected: {what}." for what in missed]
    return show(report, values, "three upgrades in turn", opening, words) or int(bool(missed))


def _count(connections: int) -> str:
    return f"{connections} connection{'' if connections == 1 else 's'}"
