"""Explains a plain segment to a stateless service from a switch's keys."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest
from sample_rack import NAMES, RACK, config, fragments

from rivulet_controller.cookie import Segment, classify, half_sip_hash
from rivulet_controller.keys import Kind, words
from rivulet_controller.numbers import Tor
from rivulet_controller.state import State
from rivulet_controller.trace import Step, trace

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "plain-vectors.json").read_text())
STATELESS = RACK + "    plain: stateless\n    policy: round_robin\n"
CLIENT = ipaddress.ip_address("192.0.2.1")
SERVICE = ipaddress.ip_address("10.9.0.1")
ANSWER = next(a["value"] for a in VECTORS["answers"] if a["start"] == 0 and not a.get("kernel"))
LARGE, KERNEL, OPENING = 1 << 22, 3 << 22, 5 << 18


def test_cookies_match_the_replicas() -> None:
    for row in VECTORS["cookies"]:
        key = words(bytes.fromhex(row["key"]))
        client = ipaddress.ip_address(row["client"])
        echo = ANSWER if row["stamped"] else None
        for more, received in ((1, 0), (1025, 1024)):
            segment = Segment(client, row["client_port"], (row["isn"] + more) % (1 << 32), echo, data=True)
            verdict = classify([key], segment, row["service_port"])
            assert not verdict.reason, row
            if row["stamped"]:
                assert f"has {received} bytes" in verdict.meaning, row
        other = words(bytes(8))
        segment = Segment(client, row["client_port"], (row["isn"] + 1) % (1 << 32), ANSWER)
        assert classify([other], segment, row["service_port"]).reason == "COOKIE", row


def isn(state: State, stamped: bool) -> int:
    """The ToR's SYN-ACK to a client with the first sequence number 0."""
    (key,) = state.rings["web"].of(Kind.COOKIE)
    found = half_sip_hash(words(key.secret), [0, 0, 0xFFFF, int(CLIENT), 4000 << 16 | 80])
    return found & ~7 | 6 if stamped else found & ~0x3FF


def way(state: State, segment: Segment | None, text: str = STATELESS) -> list[Step]:
    items = [item for part in fragments(config(text), state=state).values() for item in part]
    return trace(items, NAMES, SERVICE, 80, False, segment)


@pytest.mark.parametrize(
    ("more", "echo", "data", "words", "slots"),
    [
        (1, OPENING, False, "dropped as HANDSHAKE", ""),
        (1, None, False, "dropped as HANDSHAKE", ""),
        (1, OPENING, True, "begins an answer: to its flow's replica", "set 2"),
        (1, None, True, "to its flow's replica", "set 2"),
        (1 + 1448, ANSWER, False, "has 1448 bytes of answers, and another is under way: to any live replica", "set 3"),
        (1 + 1448, LARGE, True, "to any live replica", "set 3"),
        (1 + 1024, None, False, "to its flow's replica", "set 2"),
        (0, ANSWER, True, "dropped as COOKIE", ""),
        (1 << 20, ANSWER, True, "dropped as COOKIE", ""),
        (1 << 20, KERNEL, True, "a socket of a replica's kernel", "set 2"),
        (1 << 20, None, True, "without timestamps it may belong to a socket", "set 2"),
    ],
)
def test_stateless_segment_is_explained(more: int, echo: int | None, data: bool, words: str, slots: str) -> None:
    state = State()
    fragments(config(STATELESS), state=state)
    ack = ((isn(state, echo is not None) & ~7) + more) % (1 << 32)
    steps = way(state, Segment(CLIENT, 4000, ack, echo, data))
    outcome = next(step for step in steps if step.table == "cookies")
    assert words in outcome.meaning
    assert next((step.row.split(":")[0] for step in steps if step.table == "slots"), "") == slots
    keys = next(step for step in steps if step.table == "cookie_keys")
    assert "current0=…" in keys.row, "keys are not shown"


def test_trace_without_segment_lists_all_outcomes() -> None:
    outcome = {step.row: step.meaning for step in way(State(), None) if step.table == "cookies"}
    assert "answered by the ToR" in outcome["a SYN"]
    assert all(
        any(reason in meaning for meaning in outcome.values()) for reason in ("HANDSHAKE", "COOKIE", "METER_PLAIN")
    )
    items = [item for part in fragments(config(STATELESS), tor=Tor(0x0101)).values() for item in part]
    (syn,) = (step for step in trace(items, NAMES, SERVICE, 80, False) if step.row == "a SYN")
    assert "the ToR's clock is not set yet" in syn.meaning


@pytest.mark.parametrize(("plain", "words"), [("none", "dropped as PLAIN_TCP_REFUSED"), ("kernel", "")])
def test_other_modes_have_no_cookies(plain: str, words: str) -> None:
    steps = way(State(), Segment(CLIENT, 4000, 1), RACK + f"    plain: {plain}\n")
    assert not any(step.table in ("cookies", "cookie_keys") for step in steps)
    assert any(words in step.meaning for step in steps) and (words != "" or steps[-1].table == "replicas")
