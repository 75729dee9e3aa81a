"""New content for stateless TCP in a real rack: replica by replica, and no client gets bytes of two
contents.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from netrack import NetRack, needs_rack
from test_stateless_rack import SHORT, describe, twice, until_mode

pytestmark = needs_rack

FETCHES = 12


@pytest.fixture
def stateless(rack: NetRack) -> Iterator[NetRack]:
    """A rack with a ToR that answers SYNs."""
    describe(rack, "stateless", SHORT)
    until_mode(rack, "stateless")
    rack.until(lambda: rack.as_described() and rack.all_live(), "and the ToR")
    yield rack
    rack.directories.clear()
    for name in rack.replicas:
        rack.end(name)


def content(rack: NetRack) -> tuple[int, list[str]]:
    """The version in force, and the replicas with another."""
    found = rack.client.get("/api/services")[0]["content"]
    return found["version"], found["others"]


def fetched(rack: NetRack) -> set[str]:
    """Bodies that clients receive."""
    return {rack.spaces["c1"].run(*rack.curl("small")) for _ in range(FETCHES)}


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_new_content_in_force_once_majority_has_it(stateless: NetRack) -> None:
    rack = stateless
    new = rack.folder / "new"
    new.mkdir()
    shutil.copy(rack.file, new / "big")
    (new / "small").write_text("newer")
    old, others = content(rack)
    assert old and not others and fetched(rack) == {"small"}
    client, ask = twice(rack)

    def renew(name: str) -> None:
        rack.end(name)
        rack.directories[name] = new
        rack.start_replica(name)

    renew("r1")
    rack.until(lambda: content(rack) == (old, ["r1"]), "r1 has other content")
    rack.until(lambda: not rack.replica("r1")["ready"] and rack.as_described(), "and is not ready")
    assert "content" in rack.replica("r1")["reason"]
    assert "OTHER_CONTENT" in {event["kind"] for event in rack.status()["events"] if event["replica"] == "r1"}
    assert fetched(rack) == {"small"}
    # Drained, so that the controller does not wait for the report of a replica with the old
    # content.
    rack.client.post("/api/replicas/r2/drain")
    renew("r2")
    rack.client.post("/api/replicas/r2/undrain")
    rack.until(lambda: content(rack)[0] != old and content(rack)[1] == ["r3"], "the new content is in force")
    rack.until(lambda: rack.replica("r1")["ready"] and rack.replica("r2")["ready"], "both answer")
    rack.until(rack.as_described, "and the ToR knows")
    assert fetched(rack) == {"newer"}
    # A connection to the old content ends instead of continuing with the new one.
    before = rack.spaces["c1"].tcp("EstabResets")
    ask()
    assert client.popen.wait(60) != 0 and rack.spaces["c1"].tcp("EstabResets") == before + 1
    renew("r3")
    rack.until(lambda: content(rack)[1] == [] and rack.all_live(), "all have it")
    assert fetched(rack) == {"newer"}
