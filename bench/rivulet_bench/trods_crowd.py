"""Ten thousand idle connections and two hundred downloads while three of four replicas die at once.

Also counts the ToR's entries with few connections, with many, and after the deaths.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import finsy as fy
import grpc
from finsy.proto import p4r, p4r_grpc

from rivulet_demo.services import ARTIFACTS
from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4
from rivulet_lab import prompt

from .bars import Bar
from .host_rig import descriptors
from .stats import percentile
from .trods_clients import answer, pipes, tell
from .trods_rack import WWW, TrodsRack, put, spec, trods_rack

Json = dict[str, Any]

REPLICAS = 4
BOUND_MS = 150.0
RATE_MBIT, RTT_MS = 100.0, 10.0
IDLE = 10_000
ACTIVE = 200
FEW, MANY = 10, 2_000
SMALL, LARGE = 1_000, 100_000_000
WITHIN_MS = 1000.0
PATIENCE_S = 180.0


def entries(rack: TrodsRack) -> dict[str, int]:
    """Number of the ToR's entries by table, read over P4Runtime."""
    schema = fy.P4Schema(ARTIFACTS / "rivulet.p4info.txtpb")
    request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(table_entry=p4r.TableEntry(table_id=0))])
    options = [("grpc.default_authority", "localhost")]
    found: Counter[str] = Counter()
    with grpc.insecure_channel(f"unix:{rack.folder}/switch.sock", options=options) as session:
        for reply in p4r_grpc.P4RuntimeStub(session).Read(request, timeout=10.0):
            for entity in reply.entities:
                found[schema.tables[entity.table_entry.table_id].alias] += 1
    return dict(found)


def crowd(idle: int, active: int) -> Json:
    """Runs the whole measurement."""
    put(SMALL)
    put(LARGE)
    steps = sorted({min(step, idle) for step in (FEW, MANY, idle)})
    with trods_rack("crowd", spec(REPLICAS, BOUND_MS, RATE_MBIT, RTT_MS)) as rack:
        command = [*descriptors(), *prompt(), sys.executable, "-m", "rivulet_bench.trods_crowd_clients"]
        command += [f"{SERVICE_V4}:{SERVICE_PORT}", "--www", str(WWW), "--small", f"{SMALL}.bin"]
        command += ["--large", f"{LARGE}.bin", "--active", str(active), "--steps", *map(str, steps)]
        clients = rack.start("crowd", command, rack.spaces["c1"], **pipes())
        states: list[Json] = []
        for step in steps:
            said = answer(clients, PATIENCE_S)
            rack.until(rack.whole, "every replica takes plain TCP", 60.0)
            states.append({"connections": step, "when": "open", "entries": entries(rack)})
            print(f"{step:6} connections: {sum(states[-1]['entries'].values())} entries, {said}", flush=True)
            tell(clients)
        said = answer(clients, PATIENCE_S)
        ports = set(said["active"])
        victims = rack.replicas[:-1]
        held = {name: rack.ports(name) for name in rack.replicas}
        before = rack.exclusions()
        # One command, so that all links go down at the same time.
        rack.spaces["tor"].ip(*(f"link set p-{name} down" for name in victims))
        tell(clients)
        found = answer(clients, PATIENCE_S)
        rack.look(before, victims)
        states.append({"connections": idle + active, "when": "after the deaths", "entries": entries(rack)})
        tell(clients)
        asked = answer(clients, PATIENCE_S + idle / 100)
        status = rack.status()
        adopted = sum((r["trods"] or {}).get("adopted", 0) for r in status.values())
        unprotected = rack.unprotected()
        stats = rack.store_stats()
    lost = set().union(*(held[name] for name in victims)) & ports
    gaps = [gap["gap_ms"] for gap in found["gaps"] if gap["port"] in lost]
    result = {
        "replicas": REPLICAS,
        "bound_ms": BOUND_MS,
        "idle": idle,
        "active": active,
        "active_hit": len(gaps),
        "active_stall_ms": {f"p{p}": round(percentile(gaps, p), 1) for p in (50, 90, 99, 100)} if gaps else {},
        "active_broken": asked["active"]["broken"],
        "active_problems": asked["active"]["problems"],
        "active_not_on": sum(not gap["goes_on"] for gap in found["gaps"] if not gap["problem"]),
        "idle_hit": len(set().union(*(held[name] for name in victims)) - ports),
        "idle_broken_at_death": found["idle"]["broken"] - found["idle_before"],
        "idle_asked": asked["asked"],
        "idle_answered": asked["answered"],
        "idle_broken": asked["broken"],
        "idle_problems": asked["problems"],
        "idle_took_ms": asked["took_ms"],
        "wrong": asked["wrong"] + asked["active"]["wrong"],
        "adopted": adopted,
        "unprotected": unprotected,
        "store_bytes": stats.get("bytes", 0),
        "state": states,
    }
    print({key: value for key, value in result.items() if key != "state"}, flush=True)
    return result


def bars(result: Json) -> list[Bar]:
    """Downloads continue in time, idle connections with their next packet, and the ToR has no entry for any."""
    if "crowd" not in result:
        return []
    found = result["crowd"]
    what = f"3 of 4 replicas die under {found['active']} downloads and {found['idle']:,} idle connections"
    most = found["active_stall_ms"].get("p100", float("nan"))
    by_connections = [(s["connections"], sum(s["entries"].values())) for s in found["state"] if s["when"] == "open"]
    (few, least), (many, most_entries) = by_connections[0], by_connections[-1]
    return [
        Bar(f"{what}: longest stall of a download, ms", most, WITHIN_MS, at_most=True),
        Bar(f"{what}: downloads that broke", found["active_broken"] + found["active_not_on"], 0, at_most=True),
        Bar(
            f"{what}: idle connections without another answer", found["idle"] - found["idle_answered"], 0, at_most=True
        ),
        Bar(f"{what}: connections with wrong bytes", found["wrong"], 0, at_most=True),
        Bar(
            f"entries of the ToR more with {many:,} connections than with {few}", most_entries - least, 0, at_most=True
        ),
    ]
