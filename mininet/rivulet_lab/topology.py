"""The `topology.json` of p4lang/tutorials: hosts, switches and the links between them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .binaries import RackError
from .runtime_json import checked, load_json
from .values import parse

HOST_KEYS = ("ip", "mac", "commands")
SWITCH_KEYS = ("runtime_json", "program", "cpu_port", "priority_queues", "cli_input")
UNIT_MS = {"": 0.001, "us": 0.001, "usec": 0.001, "ms": 1.0, "msec": 1.0, "s": 1000.0, "sec": 1000.0}
"""Milliseconds in each unit of tc's times; a number without one is in microseconds."""


@dataclass(frozen=True, slots=True)
class TopologyHost:
    """A host, with its address as "10.0.1.1/24"."""

    name: str
    ip: str
    mac: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologySwitch:
    """A switch; `device_id` counts from 0 in the order of the names."""

    name: str
    device_id: int
    runtime: str
    program: str
    cpu_port: int | None
    priority_queues: int | None


@dataclass(frozen=True, slots=True)
class TopologyEnd:
    """One end of a link: a host, which has port 0 alone, or a port of a switch."""

    node: str
    port: int


@dataclass(frozen=True, slots=True)
class TopologyLink:
    """A link; `rate_mbit` None: without a limit."""

    one: TopologyEnd
    two: TopologyEnd
    latency_ms: float
    rate_mbit: float | None


@dataclass(frozen=True, slots=True)
class Topology:
    """A checked topology."""

    path: Path
    hosts: tuple[TopologyHost, ...]
    switches: tuple[TopologySwitch, ...]
    links: tuple[TopologyLink, ...]

    @staticmethod
    def of(path: Path) -> Topology:
        """Reads a file. RackError with the place that is wrong and what is allowed."""
        found = load_json(path)
        try:
            checked(found, ("hosts", "switches", "links"), ("hosts", "switches", "links"))
            hosts = tuple(_each(found, "hosts", _host))
            names = sorted(_object(found, "switches"), key=_natural)
            switches = tuple(_each(found, "switches", lambda n, s: _switch(n, names.index(n), s)))
            clash = {host.name for host in hosts} & set(names)
            if clash:
                raise RackError(f"{sorted(clash)[0]} is a host and a switch")
            ends = {host.name: False for host in hosts} | dict.fromkeys(names, True)
            items = found["links"]
            if not isinstance(items, list):
                raise RackError('"links" must be a list')
            links, taken = [], set[TopologyEnd]()
            for at, item in enumerate(items):
                try:
                    link = _link(item, ends)
                    for end in (link.one, link.two):
                        if end in taken:
                            raise RackError(f"{_name(end, ends)} already has a link")
                        taken.add(end)
                except RackError as problem:
                    raise RackError(f"links[{at}]: {problem}") from None
                links.append(link)
            for host in hosts:
                if TopologyEnd(host.name, 0) not in taken:
                    raise RackError(f"the host {host.name} has no link")
        except RackError as problem:
            raise RackError(f"{path}: {problem}") from None
        return Topology(path, hosts, tuple(sorted(switches, key=lambda s: s.device_id)), tuple(links))

    def find(self, name: str) -> Path:
        """A file that the topology names: in the current folder, as the tutorials run it, else beside or above it."""
        folder = self.path.resolve().parent
        places = [base / name for base in (Path.cwd(), folder, folder.parent)]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise RackError(
                f"{name} does not exist in {' or '.join(dict.fromkeys(str(place.parent) for place in places))}"
                + (": compile the program first" if "build" in name or name.endswith(".json") else "")
            )
        return found


def _natural(name: str) -> list[Any]:
    """Sorts s2 before s10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _object(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = found[key]
    if not isinstance(value, dict):
        raise RackError(f'"{key}" must be an object in braces')
    return value


def _each(found: Mapping[str, Any], key: str, build: Callable[[str, object], Any]) -> list[Any]:
    built = []
    for name, item in _object(found, key).items():
        try:
            # The name is part of interface names, which have at most 15 characters.
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,8}", name):
                raise RackError("a name has 1 to 9 letters and digits, and begins with a letter")
            built.append(build(name, item))
        except RackError as problem:
            raise RackError(f"{key}.{name}: {problem}") from None
    return built


def _host(name: str, found: object) -> TopologyHost:
    host = checked(found, HOST_KEYS, ("ip", "mac"))
    try:
        ipaddress.IPv4Interface(host["ip"])
    except ValueError:
        raise RackError(f'"ip" must be an IPv4 address with its prefix length, not {host["ip"]!r}') from None
    if not isinstance(host["mac"], str) or host["mac"].count(":") != 5:
        raise RackError(f'"mac" must be an Ethernet address, not {host["mac"]!r}')
    parse(host["mac"], 48)
    commands = host.get("commands", [])
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise RackError('"commands" must be a list of command lines')
    return TopologyHost(name, host["ip"], host["mac"], tuple(commands))


def _switch(name: str, device_id: int, found: object) -> TopologySwitch:
    switch = checked(found, SWITCH_KEYS)
    if "cli_input" in switch:
        raise RackError(
            '"cli_input" needs simple_switch_CLI over Thrift; run its commands with `rivulet-lab console < FILE`, or'
            ' write them as "runtime_json"'
        )
    values = {}
    for key in ("cpu_port", "priority_queues"):
        # The tutorials write these numbers as text.
        value = switch.get(key)
        values[key] = None if value is None else parse(value, 16)
    return TopologySwitch(
        name, device_id, str(switch.get("runtime_json", "")), str(switch.get("program", "")), **values
    )


def _end(text: object, ends: Mapping[str, bool]) -> TopologyEnd:
    node, separator, port = str(text).partition("-p")
    if node not in ends:
        raise RackError(f"{text!r} names no host or switch; there are {', '.join(ends)}")
    if not ends[node]:
        if separator:
            raise RackError(f"{text!r}: a host has no port number")
        return TopologyEnd(node, 0)
    if not port.isdigit() or not 0 < int(port) < 1 << 9:
        raise RackError(f"{text!r}: a switch's end of a link is written {node}-p1 (ports 1 to 511)")
    return TopologyEnd(node, int(port))


def _name(end: TopologyEnd, ends: Mapping[str, bool]) -> str:
    return f"{end.node}-p{end.port}" if ends[end.node] else end.node


def _link(found: object, ends: Mapping[str, bool]) -> TopologyLink:
    if not isinstance(found, list) or not 2 <= len(found) <= 4:
        raise RackError(
            'a link is a list of two ends and, if wanted, latency and bandwidth: ["h1", "s1-p1", "5ms", 10]'
        )
    one, two = _end(found[0], ends), _end(found[1], ends)
    if not ends[one.node] and not ends[two.node]:
        raise RackError("one end of a link must be a switch")
    if one.node == two.node:
        raise RackError("both ends are the same switch")
    rate = found[3] if len(found) > 3 else None
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0):
        raise RackError(f"the bandwidth must be a number of megabits a second above 0, not {rate!r}")
    return TopologyLink(one, two, _latency_ms(found[2] if len(found) > 2 else 0), rate)


def _latency_ms(value: object) -> float:
    """A latency: a number in milliseconds, or text with a unit as tc has it."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value))
    if isinstance(value, str) and match and match[2] in UNIT_MS:
        return float(match[1]) * UNIT_MS[match[2]]
    raise RackError(f'the latency must be a number of milliseconds, or text such as "5ms" or "200us", not {value!r}')
