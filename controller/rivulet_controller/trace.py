"""The path of a packet through a switch's tables, row by row, from the controller's mirror of the
tables.

Explains without touching the switch why a packet was dropped or where it went: the row that each
table would hit, and its meaning. The replica depends on the packet's hash, so the last steps list
the candidates with their shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .cookie import Segment, Words, classify
from .entry import Entry, Item, MatchValue
from .l2 import address_int
from .limits import IPAddress
from .names import Names

AT_REPLICAS = "made by the replicas (`checks: host`)"


@dataclass(frozen=True, slots=True)
class Step:
    """One table: the row that the packet hits (or none), and what happens."""

    table: str
    row: str
    meaning: str


def trace(
    items: Iterable[Item],
    names: Names,
    address: IPAddress,
    port: int,
    rivulet: bool = True,
    segment: Segment | None = None,
) -> list[Step]:
    """The steps of a TCP packet to an address and port. `rivulet`: it carries our TCP option and is
    not a SYN.

    `segment`: the fields of a plain segment; without it the result lists all outcomes for plain
    segments.
    """
    rows: dict[str, list[Entry]] = {}
    tor = None
    for item in items:
        if isinstance(item, Entry):
            rows.setdefault(item.table, []).append(item)
            if item.table == "tor" and item.default:
                tor = item
    steps: list[Step] = []

    def hit(table: str, meaning: str, **key: MatchValue) -> dict[str, int] | None:
        wanted = key.items()
        row = next((r for r in rows.get(table, []) if wanted <= dict(r.match).items()), None)
        if row is None:
            steps.append(Step(table, "", meaning))
            return None
        steps.append(Step(table, str(row), ""))
        return dict(row.params)

    def why(reason: str) -> str:
        # KeyError for a reason that the program does not define, which would be our mistake.
        names.value("drop_reason_t", reason)
        return f"no row: dropped as {reason}"

    if tor is None:
        return [Step("tor", "", "not set: the switch drops everything")]
    timed = dict(tor.params)["time_valid"]
    steps.append(Step("tor", str(tor), "" if timed else "clock not set yet: nothing is marked as checked"))
    value = address_int(address)
    row = next((r for r in rows.get("addresses", []) if dict(r.match)["address"] == value), None)
    if row is None:
        steps.append(Step("addresses", "", "not a service: routed like any packet"))
        return steps + _route(rows, value, names)
    steps.append(Step("addresses", str(row), ""))
    if row.action != "service_address":
        steps.append(Step("addresses", str(row), "for the switch itself"))
        return steps
    service = hit("services", why("NOT_SERVED"), address=value, port=port)
    if service is None:
        return steps
    number = service["service"]
    config = hit("service_config", why("SERVICE_UNCONFIGURED"), service=number)
    if config is None:
        return steps
    if not rivulet and config["plain"] == names.value("plain_t", "NONE"):
        steps.append(Step("service_config", "", "plain TCP: dropped as PLAIN_TCP_REFUSED"))
        return steps
    spray = rivulet
    if not rivulet and config["plain"] == names.value("plain_t", "STATELESS"):
        at_tor = names.checks == "tor"
        keys = hit("cookie_keys", why("SERVICE_UNCONFIGURED"), service=number) if at_tor else {}
        if keys is None:
            return steps
        if not at_tor:
            segments = "segments of an answer under way to any live replica, all others to their flow's replica"
            steps.append(Step("cookies", "", f"{AT_REPLICAS}; {segments}"))
        elif segment is None:
            steps += _stateless(bool(timed))
        else:
            pairs: list[Words] = [(keys["current0"], keys["current1"]), (keys["other0"], keys["other1"])]
            verdict = classify(pairs, segment, port)
            steps.append(Step("cookies", "", verdict.meaning))
            if verdict.reason:
                names.value("drop_reason_t", verdict.reason)
                return steps
            spray = not verdict.by_flow
    if not rivulet and config["plain"] == names.value("plain_t", "TRODS"):
        names.value("drop_reason_t", "SOURCE_EXCLUDED")
        speakers = {"address": value, "port": port}.items()
        rows_of = [str(r) for r in rows.get("plain_sources", []) if speakers <= dict(r.match).items()]
        meaning = (
            f"source addresses of {len(rows_of)} replicas; packets of an excluded one are dropped as SOURCE_EXCLUDED"
        )
        steps.append(Step("plain_sources", "; ".join(sorted(rows_of)), meaning))
    if rivulet:
        if hit("service_checks", why("SERVICE_UNCONFIGURED"), service=number) is None:
            return steps
        if names.checks == "tor":
            epochs = [str(r) for r in rows.get("nonce_keys", []) if dict(r.match)["service"] == number]
            meaning = f"{len(epochs)} nonce epochs; any other is dropped as KEY_UNKNOWN"
            steps.append(Step("nonce_keys", "; ".join(sorted(epochs)), meaning))
        else:
            steps.append(Step("checks", "", AT_REPLICAS))
    pool = hit("pools", why("SERVICE_UNCONFIGURED"), pool=config["pool"])
    if pool is None:
        return steps
    by_client = config["affinity"] == names.value("affinity_t", "CLIENT")
    return steps + _choice(rows, config, spray, by_client and not rivulet)


def _stateless(timed: bool) -> list[Step]:
    """Outcomes of plain segments to a stateless service (docs/plain.md, "At the ToR")."""
    syn = "with options in a common order: answered by the ToR with a cookie; any other: to its flow's replica"
    if not timed:
        syn = "to its flow's replica, which answers: the ToR's clock is not set yet"
    found = {
        "a SYN": syn,
        "bare acknowledgement of the SYN-ACK": "not needed: dropped as HANDSHAKE",
        "acknowledgement that no cookie reaches, with timestamps": "dropped as COOKIE",
        "without timestamps, or a reset": "to its flow's replica, metered (METER_UNCOOKIED)",
        "segment of an answer under way": "to any live replica by the policy; with policy block to its flow's replica",
        "anything else": "begins an answer, or belongs to a kernel's socket: to its flow's replica",
        "more than the client's share": "dropped as METER_PLAIN",
    }
    return [Step("cookies", what, meaning) for what, meaning in found.items()]


def _choice(rows: dict[str, list[Entry]], config: dict[str, int], spray: bool, by_client: bool) -> list[Step]:
    """The slots' shares and each candidate's row; `by_client`: a client's address has one slot."""
    slot_set = config["spray_set"] if spray else config["flow_set"]
    slots = [r for r in rows.get("slots", []) if dict(r.match)["slot_set"] == slot_set]
    firsts = Counter(dict(r.params)["first"] for r in slots)
    shares = ", ".join(f"replica {index}: {count}/{len(slots)}" for index, count in sorted(firsts.items()))
    owner = "first choice, one for all flows of a client's address" if by_client and not spray else "first choice"
    steps = [Step("slots", f"set {slot_set}: {len(slots)} slots", f"{owner}: {shares}")]
    for index in sorted(firsts):
        place = {"pool": config["pool"], "replica": index}.items()
        row = next((r for r in rows.get("replicas", []) if place <= dict(r.match).items()), None)
        if row is None:
            steps.append(Step("replicas", "", f"replica {index}: no row"))
            continue
        hop = dict(row.params)["next_hop"]
        way = [str(r) for t in ("next_hops", "neighbours") for r in rows.get(t, []) if dict(r.match)["next_hop"] == hop]
        steps.append(Step("replicas", str(row), "; ".join(way) or "no next hop: dropped as NO_NEXT_HOP"))
    return steps


def _route(rows: dict[str, list[Entry]], value: int, names: Names) -> list[Step]:
    """The route with the longest matching prefix."""
    best: tuple[int, Entry] | None = None
    for row in rows.get("routes", []):
        match = dict(row.match).get("destination", (0, 0))
        if not isinstance(match, tuple):
            continue
        prefix, length = match
        shift = 128 - length
        if value >> shift == prefix >> shift and (best is None or length > best[0]):
            best = (length, row)
    if best is None:
        names.value("drop_reason_t", "NO_ROUTE")
        return [Step("routes", "", "no row: dropped as NO_ROUTE")]
    hop = dict(best[1].params)["next_hop"]
    way = [str(r) for t in ("next_hops", "neighbours") for r in rows.get(t, []) if dict(r.match)["next_hop"] == hop]
    return [Step("routes", str(best[1]), "; ".join(way) or "no next hop: dropped as NO_NEXT_HOP")]
