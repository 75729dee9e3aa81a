"""One server and one client: throughput, requests a second, and good clients under attack, beside kernel TCP.

Output: bench/results/host.json. Server and client have a core each; other work on the machine lowers the figures and
widens their intervals. Takes about eight minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from rivulet_lab import RackError

from . import host_attack
from .bars import Bar, judge
from .host_plot import plot
from .host_rig import (
    CLIENT_CORE,
    SERVER_CORE,
    SERVICE,
    TCP_PORT,
    HostRig,
    Server,
    Transport,
    busy_s,
    host_rig,
    shaped,
)
from .profile import shares, start
from .rig import finish, flags, plot_path
from .stats import interval, save

Json = dict[str, Any]

RATES = (100.0, 1000.0, None)
LENGTHS = {100.0: 2.0, 1000.0: 1.0, None: 0.7}
CONNECTIONS = (1, 100)
KINDS = ("rivulet", "rivulet, no delta", "tcp reno", "tcp cubic")
XDP = "rivulet, af_xdp"
"""The server by AF_XDP, the load by AF_PACKET. Unshaped only, because AF_XDP bypasses the shaper. Stopped for kernel
TCP, whose frames its program on the interface would slow down."""
BOTH = "rivulet, both af_xdp"
"""The load by AF_XDP too: with large objects the load's core is the bottleneck."""
XDP_KINDS = (XDP, BOTH, f"{BOTH}, token")
WANTED = {"rivulet": 0.95, "rivulet, no delta": 0.90}
OBJECTS = (1, 100, 1_000, 10_000)
REQUEST_KINDS = ("rivulet", "rivulet, token", "nginx", "nginx, fast open")
XDP_FLAGS = ("--io", "af_xdp")
PARTS = ("throughput", "requests", "attacks")
UNSHAPED_MBIT = 2_000.0
"""Rate from which the size of an unshaped transfer is computed."""


def rate_name(rate: float | None) -> str:
    """A rate in words."""
    if rate is None:
        return "unshaped"
    return f"{rate / 1000:g} Gb/s" if rate >= 1000 else f"{rate:g} Mb/s"


def server_of(rig: HostRig, kind: str) -> Server:
    """The server of a kind; an idle one does not disturb the other."""
    if kind.startswith("rivulet"):
        if kind in XDP_KINDS:
            return rig.start_rivulet(*XDP_FLAGS)
        return rig.start_rivulet(*(["--no-delta"] if "no delta" in kind else []))
    running = rig.servers.get("rivulet")
    if running is not None and running.flags[2:] == XDP_FLAGS:
        rig.stop("rivulet")
    if kind.startswith("tcp "):
        rig.congestion("cubic" if kind.endswith("cubic") else "reno")
    return rig.servers.get("nginx") or rig.start_nginx()


def has_xdp(rig: HostRig) -> bool:
    """Whether the server can use AF_XDP on this machine; prints the reason if not."""
    try:
        rig.start_rivulet(*XDP_FLAGS)
    except RackError as error:
        print(f"without AF_XDP: {error}", flush=True)
        return False
    finally:
        rig.stop("rivulet")
    return True


def transfer(rig: HostRig, kind: str, connections: int, total: int) -> Json:
    """Transfers `total` bytes over the connections, one request each."""
    server = rig.servers["rivulet" if kind.startswith("rivulet") else "nginx"]
    path = rig.put(total // connections)
    before, busy = server.cpu_s(), busy_s(SERVER_CORE)
    transport: Transport = "rivulet" if kind.startswith("rivulet") else "tcp"
    load = rig.start_load(transport, path, clients=connections, requests=1, seconds=60)
    control = None
    if transport == "tcp":
        time.sleep(0.3)
        control = used_control(rig)
    result = finish(load)
    if result["errors"]:
        raise RackError(f"{kind}: {result['errors']} transfers failed: {result['first_error']}")
    if control is not None and control != kind.split()[1]:
        raise RackError(f"{kind}: the kernel used {control}")
    gigabytes = result["bytes"] / 1e9
    return {
        "kind": kind,
        "connections": connections,
        "mbps": result["mbps"],
        "cpu_s_per_gb": (server.cpu_s() - before) / gigabytes,
        "core_s_per_gb": (busy_s(SERVER_CORE) - busy) / gigabytes,
    }


def used_control(rig: HostRig) -> str | None:
    """Congestion control of the kernel's connections at the server; None if all have ended."""
    words = rig.run("s", ["ss", "-tinH", "state", "established", f"sport = :{TCP_PORT}"]).split()
    return next((word for word in words if word in ("reno", "cubic", "bbr")), None)


def throughput(rig: HostRig, repetitions: int, seconds: float) -> list[Json]:
    """All kinds alternate, so that other work of the machine affects all alike."""
    rows: list[Json] = []
    unshaped = (*KINDS, XDP) if has_xdp(rig) else KINDS
    for rate in RATES:
        shaped(rig, "s", "s0", rate)
        shaped(rig, "c", "c0", rate)
        for connections in CONNECTIONS:
            # On slow links the start takes longer, which is not part of the figure.
            size = round((rate or UNSHAPED_MBIT) * 1e6 / 8 * seconds * LENGTHS[rate])
            rig.put(size // connections)
            for repetition in range(repetitions):
                for kind in unshaped if rate is None else KINDS:
                    server_of(rig, kind)
                    row = transfer(rig, kind, connections, size)
                    rows.append({"rate_mbit": rate, "repetition": repetition, **row})
                    print(
                        f"{rate_name(rate):>9} {connections:4} connections {kind:18} {row['mbps']:8.1f} Mb/s"
                        f"  {row['cpu_s_per_gb']:6.2f} s/GB (core {row['core_s_per_gb']:6.2f})",
                        flush=True,
                    )
    shaped(rig, "s", "s0", None)
    shaped(rig, "c", "c0", None)
    return rows


def throughput_summary(rows: list[Json]) -> list[Json]:
    """Means, intervals, and the ratio to Reno in the same repetition."""
    out: list[Json] = []
    for rate in RATES:
        for connections in CONNECTIONS:
            here = [r for r in rows if r["rate_mbit"] == rate and r["connections"] == connections]
            reno = {r["repetition"]: r["mbps"] for r in here if r["kind"] == "tcp reno"}
            for kind in (*KINDS, XDP):
                mine = [r for r in here if r["kind"] == kind]
                if not mine:
                    continue
                mean, half = interval([r["mbps"] for r in mine])
                ratio, ratio_half = interval([r["mbps"] / reno[r["repetition"]] for r in mine])
                cpu, cpu_half = interval([r["cpu_s_per_gb"] for r in mine])
                core, core_half = interval([r["core_s_per_gb"] for r in mine])
                wanted = WANTED.get(kind) if rate is not None else None
                out.append(
                    {
                        "rate_mbit": rate,
                        "connections": connections,
                        "kind": kind,
                        "mbps": mean,
                        "mbps_half_95": half,
                        "of_reno": ratio,
                        "of_reno_half_95": ratio_half,
                        "wanted": wanted,
                        "reached": None if wanted is None else ratio >= wanted,
                        "cpu_s_per_gb": cpu,
                        "cpu_s_per_gb_half_95": cpu_half,
                        "core_s_per_gb": core,
                        "core_s_per_gb_half_95": core_half,
                    }
                )
    return out


def where_time_goes(rig: HostRig, seconds: float) -> Json:
    """One unshaped connection of each kind, with both cores sampled."""
    out: Json = {}
    for kind in ("rivulet", "tcp reno"):
        server = server_of(rig, kind)
        path = rig.put(round(UNSHAPED_MBIT * 1e6 / 8 * seconds))
        transport: Transport = "rivulet" if kind == "rivulet" else "tcp"
        load = rig.start_load(transport, path, clients=1, requests=100, seconds=seconds + 0.5)
        time.sleep(0.3)
        running = [(core, start(core, seconds, rig.folder / f"{core}.perf")) for core in (SERVER_CORE, CLIENT_CORE)]
        processes = [*server.processes(), load.pid]
        both = [shares(popen, rig.folder / f"{core}.perf", processes) for core, popen in running]
        finish(load)
        out[kind] = {"server": both[0], "client": both[1]}
    return out


def requests(rig: HostRig, repetitions: int, seconds: float) -> list[Json]:
    """Small objects, a new connection each, 32 clients in one thread."""
    rows: list[Json] = []
    rig.congestion("reno")
    kinds = (*REQUEST_KINDS, *XDP_KINDS) if has_xdp(rig) else REQUEST_KINDS
    for size in OBJECTS:
        path = rig.put(size)
        for repetition in range(repetitions):
            for kind in kinds:
                server = server_of(rig, kind)
                before, busy = server.cpu_s(), busy_s(SERVER_CORE)
                words = ["--one-thread", *(["--token"] if kind.endswith("token") else [])]
                words += XDP_FLAGS if kind.startswith(BOTH) else ()
                transport: Transport = "rivulet" if kind.startswith("rivulet") else "tcp"
                if kind.endswith("fast open"):
                    transport = "tcp-fastopen"
                result = rig.load(transport, path, *words, clients=32, seconds=seconds)
                row = {
                    "bytes": size,
                    "kind": kind,
                    "repetition": repetition,
                    "per_second": result["requests_per_second"],
                    "cpu_us": (server.cpu_s() - before) / result["requests"] * 1e6,
                    "core_us": (busy_s(SERVER_CORE) - busy) / result["requests"] * 1e6,
                    "latency_us": result["latency_us"],
                }
                rows.append(row)
                print(
                    f"{size:6} bytes  {kind:27} {row['per_second']:9,.0f} requests/s  {row['cpu_us']:6.1f} us each",
                    flush=True,
                )
    return rows


def requests_summary(rows: list[Json]) -> list[Json]:
    """Means, intervals, and the ratio to nginx without Fast Open in the same repetition."""
    out: list[Json] = []
    for size in OBJECTS:
        here = [r for r in rows if r["bytes"] == size]
        nginx = {r["repetition"]: r["per_second"] for r in here if r["kind"] == "nginx"}
        for kind in (*REQUEST_KINDS, *XDP_KINDS):
            mine = [r for r in here if r["kind"] == kind]
            if not mine:
                continue
            mean, half = interval([r["per_second"] for r in mine])
            ratio, ratio_half = interval([r["per_second"] / nginx[r["repetition"]] for r in mine])
            cpu, cpu_half = interval([r["cpu_us"] for r in mine])
            core, core_half = interval([r["core_us"] for r in mine])
            ours = kind.startswith("rivulet")
            out.append(
                {
                    "bytes": size,
                    "kind": kind,
                    "per_second": mean,
                    "per_second_half_95": half,
                    "of_nginx": ratio,
                    "of_nginx_half_95": ratio_half,
                    "wanted": 2.0 if ours else None,
                    "reached": ratio >= 2.0 if ours else None,
                    "server_cpu_us": cpu,
                    "server_cpu_us_half_95": cpu_half,
                    "server_core_us": core,
                    "server_core_us_half_95": core_half,
                }
            )
    return out


def bars(result: Json) -> list[Bar]:
    """The bounds of the parts that were run."""
    found = []
    for row in result.get("throughput", {}).get("summary", []):
        if row["wanted"] is not None:
            what = f"{rate_name(row['rate_mbit'])}, {row['connections']} connections, {row['kind']}: of Reno"
            found.append(Bar(what, row["of_reno"], row["wanted"]))
    for row in result.get("requests", {}).get("summary", []):
        if row["wanted"] is not None:
            found.append(Bar(f"{row['bytes']:,} bytes, {row['kind']}: of nginx", row["of_nginx"], row["wanted"]))
    return found + host_attack.bars(result.get("attacks", {}).get("summary", []))


def nginx_version() -> str:
    """The version of nginx."""
    done = subprocess.run(["/usr/sbin/nginx", "-v"], capture_output=True, text=True, check=False)
    return done.stderr.strip().removeprefix("nginx version: ")


def main() -> int:
    """Runs the bench and writes bench/results/host.json and .png."""
    parser = flags(__doc__ or "")
    parser.set_defaults(seconds=1.1)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    result: Json = {
        "setting": f"one server ({SERVICE}), one client, a veth, offloads off, a core for each end",
        "nginx": nginx_version(),
    }
    began = time.monotonic()
    with host_rig("host") as rig:
        if "throughput" in options.parts:
            rows = throughput(rig, options.repetitions, options.seconds)
            result["throughput"] = {"summary": throughput_summary(rows), "runs": rows}
            result["profile"] = where_time_goes(rig, options.seconds)
        if "requests" in options.parts:
            rows = requests(rig, options.repetitions, options.seconds * 0.8)
            result["requests"] = {"summary": requests_summary(rows), "runs": rows}
    if "attacks" in options.parts:
        result["attacks"] = host_attack.attacks(options.repetitions, options.seconds)
    result["took_s"] = time.monotonic() - began
    if set(options.parts) == set(PARTS):
        plot(plot_path("host"), result)
        print(save("host", result))
    else:
        print("not all parts were run: the result is not stored")
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
