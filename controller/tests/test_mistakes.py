"""Mistakes in a configuration: each has its path, line, value and the allowed values, in our own
terms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from sample_rack import RACK

from rivulet_controller.api import make_app
from rivulet_controller.audit import Audit
from rivulet_controller.config import ConfigError
from rivulet_controller.controller import Controller
from rivulet_controller.rack_file import parse
from rivulet_controller.rights import AcceptedBy, Listener, Tokens
from rivulet_controller.store import SqliteStore

FULL = (
    RACK
    + """\
keys: {seal_rotation: 1h, nonce_rotation: 20min, horizon: 4s}
mute: {after: 5s, requests: 100, exclude: false}
listen: {agents: "unix:/run/a", agents_group: daemon, agents_users: {daemon: [r1]}, api: "127.0.0.1:1", lab: true,
  control: "unix:/run/c", api_token_file: /t, api_tls: {certificate: /c, key: /k}}
etcd: {endpoints: ["https://10.0.0.5:2379"], prefix: /r/, lease: 3s, tls: {certificate: /c, key: /k, authority: /a}}
"""
)

WRONG = (
    "[]",
    "{}",
    "[[1]]",
    "{a: 1}",
    "x y",
    "'\\0'",
    "-1",
    "1.5",
    "1e400",
    ".nan",
    "true",
    "null",
    "9" * 40,
    "2026-01-01",
)
"""Values that few fields accept."""

INNER = re.compile(
    r"lax-or-strict|function-|is-instance|Input should|validat|pydantic|instance of|json-or-python|\[key\]"
    r"|dictionary|Value error|Assertion|tuple|\bstr\b|\bint\b|string"
)
"""Terms of pydantic and of Python's types."""


def places(values: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of each value."""
    inside = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inside:
        yield (*path, key)
        yield from places(value, (*path, key))


def dumped(values: Any) -> str:
    """YAML with each value on one line, so that any can be replaced."""
    if isinstance(values, dict):
        return "{" + ", ".join(f"{key}: {dumped(value)}" for key, value in values.items()) + "}"
    if isinstance(values, list):
        return "[" + ", ".join(dumped(value) for value in values) + "]"
    if isinstance(values, Raw):
        return str(values)
    return f'"{values}"' if isinstance(values, str) else str(values).lower()


class Raw(str):
    """A value that is dumped as literal YAML."""


def with_value(values: Any, path: tuple[str | int, ...], value: Raw) -> Any:
    """A copy with another value at a path."""
    if not path:
        return value
    if isinstance(values, dict):
        return {k: with_value(v, path[1:], value) if k == path[0] else v for k, v in values.items()}
    return [with_value(v, path[1:], value) if k == path[0] else v for k, v in enumerate(values)]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "rack.yaml")
    return caught.value.problems


def test_messages_contain_no_internal_terms() -> None:
    values = YAML(typ="safe").load(FULL)
    parse(dumped(values))
    refused = 0
    for path in places(values):
        for wrong in WRONG:
            text = dumped(with_value(values, path, Raw(wrong)))
            try:
                parse(text, "rack.yaml")
            except ConfigError as error:
                refused += 1
                for problem in error.problems:
                    assert not INNER.search(problem.partition(": ")[2]), (path, wrong, problem)
                    assert re.match(r"rack\.yaml:1: ", problem), (path, wrong, problem)
                    assert len(problem) < 400, (path, wrong, problem)
    assert refused > 1000


def test_mistake_has_path_line_value_and_allowed_values() -> None:
    text = FULL.replace("slots: 16", "slots: many").replace("liveness: 20ms", "livenes: 20ms")
    text = text.replace("prefix: 0.0.0.0/0", "prefix: 10.7.0.1/16").replace("endpoints: [", "endpoints: [ftp://x, ")
    lines = {words: number for number, line in enumerate(text.splitlines(), 1) for words in line.split()}
    assert problems(text) == [
        f"rack.yaml:{lines['10.7.0.1/16,']}: switches.0.routes.0.prefix: '10.7.0.1/16': must be a prefix without host"
        " bits such as 10.0.0.0/24 or fd00::/64",
        f"rack.yaml:{lines['slots:']}: services.0.slots: 'many': must be a whole number",
        f"rack.yaml:{lines['livenes:']}: services.0.livenes: unknown field: did you mean `liveness`?",
        f"rack.yaml:{lines['etcd:']}: etcd.endpoints.0: 'ftp://x' is not a URL such as https://10.0.0.5:2379, without a"
        " path",
    ]


def test_mistakes_are_in_the_order_of_their_lines() -> None:
    text = "\n".join(f"field{number}: 1" for number in range(1, 30)) + "\n" + RACK
    found = [int(problem.split(":")[1]) for problem in problems(text)]
    assert found == sorted(found) and len(found) == 29


def test_unknown_field_lists_allowed_fields() -> None:
    (found,) = problems(RACK + "mute: {quiet: 1}\n")
    assert found.endswith("mute.quiet: unknown field: allowed here: after, requests, exclude")


async def test_api_errors_use_our_messages(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    app = make_app(Controller(parse(RACK), store), Tokens(None), Audit(None))
    transport = httpx.ASGITransport(AcceptedBy(app, Listener.UNIX))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        me = {"x-rivulet-client": "a test"}
        for body, words in (
            ({"weight": 257}, ["weight: 257: must be at most 256"]),
            ({"weight": "x"}, ["weight: 'x': must be a whole number"]),
            ({}, ["weight: missing"]),
        ):
            answer = await client.post("/api/replicas/r1/weight", json=body, headers=me)
            assert (answer.status_code, answer.json()["detail"]) == (422, words)
        answer = await client.post("/api/services/web/rotate", json={"kinds": ["x"]}, headers=me)
        assert answer.json()["detail"] == ["kinds.0: 'x': must be 'seal', 'nonce', 'cookie', 'tor' or 'ticket'"]
        answer = await client.post(
            "/api/services/web/rotate", content=b"{", headers={**me, "content-type": "application/json"}
        )
        assert answer.json()["detail"] == ["the body is not JSON"]
        answer = await client.get("/api/switches/tor1/trace", params={"address": "10.0.0.1", "port": "x"})
        assert answer.json()["detail"] == ["port: 'x': must be a whole number"]
    store.close()
