"""DNS over TCP, one connection per query: stateless TCP in front of nsd over UDP, beside the TCP of knot and nsd.

Each server has one core, including its back end.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from rivulet_lab import Process, RackError, binary

from .bars import Bar
from .host_rig import SERVER_CORE, SERVICE, HostRig, Server, busy_s
from .rig import finish

Json = dict[str, Any]

PORTS = {"stateless": 53, "knot": 5301, "nsd": 5302}
BACK_END = 5300
NAME = "www.example.test"
CLIENTS = 8
"""Parallel clients: knot's backlog is ten connections, and a full backlog would dominate the result."""
TIMES = 2.0
GROWTH = 100_000
"""Bytes by which Rivulet's server may grow after its first round: below it is rounding."""

ZONE = """\
$ORIGIN example.test.
@ 3600 IN SOA ns hostmaster 1 3600 900 604800 300
@ 3600 IN NS ns
ns 3600 IN A 10.9.0.1
www 3600 IN A 192.0.2.1
"""
KNOT = """\
server:
  listen: {address}@{port}
  rundir: {folder}
  udp-workers: 1
  tcp-workers: 1
  background-workers: 1
  tcp-max-clients: 5000
database:
  storage: {folder}
log:
  - target: stderr
    any: warning
zone:
  - domain: example.test
    file: {folder}/example.test.zone
    zonefile-sync: -1
    journal-content: none
"""
NSD = """\
server:
  ip-address: {address}@{port}
  server-count: 1
  tcp-count: 5000
  tcp-timeout: 10
  do-ip6: no
  username: ""
  chroot: ""
  zonesdir: {folder}
  database: ""
  pidfile: {folder}/{name}.pid
  xfrdfile: {folder}/{name}.xfrd
  zonelistfile: {folder}/{name}.zones
  ipv4-edns-size: 65535
  rrl-ratelimit: 0
  cookie-secret-file: {folder}/{name}.cookies
remote-control:
  control-enable: no
zone:
  name: example.test
  zonefile: example.test.zone
"""


def queries(rig: HostRig, repetitions: int, seconds: float) -> Json:
    """All kinds in every round, each alone on the core."""
    (rig.folder / "example.test.zone").write_text(ZONE)
    rows: list[Json] = []
    memory: list[int] = []
    back_end = _nsd(rig, "back-end", "127.0.0.1", BACK_END)
    ours = _stateless(rig)
    for repetition in range(repetitions):
        for kind, port in PORTS.items():
            beside = {"knot": _knot, "nsd": _own_nsd}.get(kind)
            process = beside(rig) if beside else None
            rows.append({"repetition": repetition, "kind": kind, **_measured(rig, port, seconds)})
            row = rows[-1]
            failed = f", {row['failed']} failed: {row['first_error']}" if row["failed"] else ""
            print(
                f"{kind:10}{row['per_second']:9,.0f} queries/s, core {row['core_us']:6.1f} us each{failed}", flush=True
            )
            if process is not None:
                process.end()
        memory.append(ours.anonymous_bytes())
    ours.process.end()
    back_end.end()
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in PORTS}
    medians = {kind: {v: median(r[v] for r in mine) for v in ("per_second", "core_us")} for kind, mine in kinds.items()}
    ratios = []
    for repetition in range(repetitions):
        here = {row["kind"]: row["per_second"] for row in rows if row["repetition"] == repetition}
        ratios.append(here["stateless"] / max(here["knot"], here["nsd"]))
    return {
        "summary": medians,
        "of_the_better": median(ratios),
        "growth_bytes": max(memory) - memory[0],
        "runs": rows,
    }


def _measured(rig: HostRig, port: int, seconds: float) -> Json:
    command = [binary("rivulet-load"), f"dns://{SERVICE}:{port}/{NAME}", "--transport", "plain", "--one-thread"]
    command += ["--clients", str(CLIENTS), "--seconds", f"{seconds:g}"]
    busy, began = busy_s(SERVER_CORE), time.monotonic()
    result = finish(rig.client(command))
    took, busy = time.monotonic() - began, busy_s(SERVER_CORE) - busy
    # Sometimes knot or nsd did not answer a SYN for 30 s, which would end the bench. Rivulet's server must answer all.
    if result["errors"] and port == PORTS["stateless"]:
        raise RackError(f"port {port}: {result['errors']} queries failed: {result['first_error']}")
    return {
        "failed": result["errors"],
        "first_error": result["first_error"],
        "queries": result["requests"],
        "per_second": result["requests_per_second"],
        "core_us": busy / result["requests"] * 1e6,
        "core_busy": busy / took,
        "latency_us": result["latency_us"],
    }


def _listens(rig: HostRig, process: Process, address: str, port: int) -> Process:
    def there() -> bool:
        return f"{address}:{port}" in rig.run("s", ["ss", "-Hltun"])

    rig.until(there, f"{process.name} listens", 15.0, process)
    return process


def _knot(rig: HostRig) -> Process:
    config = _folder(rig, "knot") / "knot.conf"
    (config.parent / "example.test.zone").write_text(ZONE)
    config.write_text(KNOT.format(address=SERVICE, port=PORTS["knot"], folder=config.parent))
    process = rig.begin("knot", ["/usr/sbin/knotd", "-c", str(config)], "s", SERVER_CORE)
    return _listens(rig, process, SERVICE, PORTS["knot"])


def _own_nsd(rig: HostRig) -> Process:
    return _nsd(rig, "nsd", SERVICE, PORTS["nsd"])


def _nsd(rig: HostRig, name: str, address: str, port: int) -> Process:
    config = rig.folder / f"{name}.conf"
    config.write_text(NSD.format(address=address, port=port, folder=rig.folder, name=name))
    process = rig.begin(name, ["/usr/sbin/nsd", "-d", "-c", str(config)], "s", SERVER_CORE)
    return _listens(rig, process, address, port)


def _stateless(rig: HostRig) -> Server:
    keys = rig.folder / "keys.toml"
    keys.unlink(missing_ok=True)
    rig.run("s", [binary("rivulet"), "keygen", str(keys)])
    command = [binary("rivulet"), "serve", "-i", "s0", "--listen", f"{SERVICE}:{PORTS['stateless']}"]
    command += ["--keys", str(keys), "--plain", "stateless", "--deterministic"]
    command += ["--back-end", f"dns://127.0.0.1:{BACK_END}"]
    process = rig.begin("stateless", command, "s", SERVER_CORE)
    rig.until(lambda: "serving" in process.text(), "stateless TCP serves", 15.0, process)
    return Server(process)


def _folder(rig: HostRig, name: str) -> Path:
    folder = rig.folder / name
    folder.mkdir(exist_ok=True)
    return folder


def bars(result: Json) -> list[Bar]:
    """Twice the queries a second of the better of the other servers, and no memory growth."""
    if "dns" not in result:
        return []
    found = result["dns"]
    return [
        Bar("DNS over TCP: queries/s a core, of the better of knot and nsd", found["of_the_better"], TIMES),
        Bar("DNS over TCP: bytes that our server grew by", found["growth_bytes"], GROWTH, at_most=True),
    ]
